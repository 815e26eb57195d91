"""The log's own record of its files: where it begins, the digests of sealed files, and which files
were trimmed and why.

A pure function of the applied records, the same on every replica (invariant I8). Bounded: seals are
kept for files that are still part of the log, trims for the last `TRIMS_KEPT`; a rolling digest
covers all trims of the log's history. The log tree, which a group has from feature level 2 on,
keeps 32 bytes of every file for ever. The host of the replica deletes the files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from ledgermq.node.broker.part import Effects, StatePart, Takers
from ledgermq.node.broker.parts.retention.file_tree import FileTree
from ledgermq.proto.records.control import SealRecord, TrimRecord

TRIMS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A trim record with the index and the store time of its entry."""

    index: int
    store_ms: int
    record: TrimRecord


class Retained(StatePart):
    """Begin, seals and trims at the applied index. A log that was never trimmed begins with entry 0
    at position 0."""

    KEY = "retained"

    def __init__(self) -> None:
        self.begin_index = 0
        self.begin_pos = 0
        self.begin_term = -1
        self.begin_chain: int | None = None
        """Term and chain CRC of the entry before the begin; −1 and None (the log's seed) while the
        log is untrimmed."""
        self.seals: dict[int, SealRecord] = {}
        """Base of a file that is still part of the log → its seal. Replaced, never mutated."""
        self.trims: tuple[Trimmed, ...] = ()
        """The last trims, oldest first."""
        self.trim_digest = ""
        """Hexadecimal SHA-256 over the previous digest (hexadecimal, at first empty) and the body
        of the trim record."""
        self.tree: FileTree | None = None
        """The log tree; None below its feature level."""

    @property
    def trim_index(self) -> int:
        """Index of the last trim record; −1 if there was none."""
        return self.trims[-1].index if self.trims else -1

    @property
    def stored(self) -> bool:
        """Whether what lies before the begin may still be readable in the object store, so that
        consumer groups have positions there."""
        return bool(self.trims) and self.trims[-1].record.stored

    def sealing(self, record: SealRecord) -> bool:
        """Whether the record would add a seal. The first seal of a file stands. With a tree, a seal
        without a root changes nothing."""
        return (
            record.base >= self.begin_pos
            and record.base not in self.seals
            and (self.tree is None or bool(record.root))
        )

    def trimming(self, record: TrimRecord) -> bool:
        """Whether the record would move the begin."""
        return record.begin_index > self.begin_index

    def begin_tree(self) -> None:
        """Begin the log tree, because the group reached its feature level: behind the last file
        that is sealed without a root."""
        last = max(self.seals.values(), key=lambda seal: seal.last_index, default=None)
        self.tree = (
            FileTree(self.begin_index, self.begin_pos)
            if last is None
            else FileTree(last.last_index + 1, last.end_pos)
        )

    def take_seal(self, index: int, record: SealRecord, effects: Effects) -> None:
        self.apply_seal(record)

    def apply_seal(self, record: SealRecord) -> None:
        if self.sealing(record):
            self.seals = {**self.seals, record.base: record}
            if self.tree is not None:
                self.tree.grow(self.seals.values())

    def apply_trim(self, index: int, store_ms: int, record: TrimRecord) -> None:
        """Apply a trim record. One that moves nothing, because two leaders decided the same, has no
        effect."""
        if not self.trimming(record):
            return
        self.begin_index, self.begin_pos = record.begin_index, record.begin_pos
        self.begin_term, self.begin_chain = record.begin_term, record.begin_chain
        self.seals = {base: seal for base, seal in self.seals.items() if base >= record.begin_pos}
        if self.tree is not None:
            self.tree.skip(record)
            self.tree.grow(self.seals.values())
        self.trims = (*self.trims, Trimmed(index, store_ms, record))[-TRIMS_KEPT:]
        self.trim_digest = hashlib.sha256(self.trim_digest.encode() + record.encode()).hexdigest()

    def trim_of(self, base: int) -> Trimmed | None:
        """The kept trim that removed this file; None if there is none."""
        return next(
            (trim for trim in self.trims if any(base == gone for gone, _ in trim.record.files)),
            None,
        )

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11)."""
        return {
            "begin_index": self.begin_index,
            "begin_pos": self.begin_pos,
            "begin_term": self.begin_term,
            "begin_chain": self.begin_chain,
            "seals": [seal.fields() for _, seal in sorted(self.seals.items())],
            "trims": [[trim.index, trim.store_ms, trim.record.fields()] for trim in self.trims],
            "trim_digest": self.trim_digest,
            **({} if self.tree is None else {"tree": self.tree.export()}),
        }

    def restore(self, exported: dict[str, Any]) -> None:
        """Replace the state by what `export` returned."""
        self.begin_index, self.begin_pos = exported["begin_index"], exported["begin_pos"]
        self.begin_term, self.begin_chain = exported["begin_term"], exported["begin_chain"]
        self.seals = {fields["base"]: SealRecord.read(fields) for fields in exported["seals"]}
        self.trims = tuple(
            [
                Trimmed(index, store_ms, TrimRecord.read(fields))
                for index, store_ms, fields in exported["trims"]
            ]
        )
        self.trim_digest = exported["trim_digest"]
        self.tree = FileTree.restored(exported["tree"]) if "tree" in exported else None

    RECORDS: ClassVar[Takers] = {SealRecord: take_seal}
