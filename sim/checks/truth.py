"""The single log of a run: every entry that any replica ever applied, byte for byte, and the state
derived from it.

The first replica that applies an entry defines it; every other one, in every process, must apply
the same bytes at the same place (I2, I3). Derived state is computed again by a machine that no
fault affects (I8), and the columns of client messages are kept, so that what clients saw can be
compared with them (I5, I6).

Cost: taking a range is one comparison of bytes. Everything else is done on request, in pieces of
many entries.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.retention.retained import Retained
from ledgermq.proto.entries.key_columns import key_columns
from ledgermq.proto.entries.layout import BODY_AT, record_columns
from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.proto.names import CONTROL_TOPICS, WAITING_TOPICS
from ledgermq.proto.proofs.log_tree import check_consistency, consistency_path, leaf_hash, tree_root
from ledgermq.proto.records.control import SealRecord
from ledgermq.proto.types import I64, Range
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.sim.machine.settings import NEXT_LEVEL
from ledgermq.storage.files.file_digest import FileDigest
from ledgermq.storage.log.placing import make_blank
from ledgermq.storage.queues.queue_buffer import BufferedQueues

_CHAIN_AT = 36
VALUE_BYTES = 8
"""A body starts with a number that is unique in the run."""
_PIECE_BYTES = 256 << 10
QueueKey = tuple[str, int]


class Truth:
    """See the module docstring. Indexes count from 0, the membership entry."""

    def __init__(self, log_id: str, file_bytes: int) -> None:
        self.chains: list[int] = []
        """Index → chain CRC; the same for the tables below."""
        self.terms: list[int] = []
        self._log_id = log_id
        self._file_bytes = file_bytes
        self._pieces: list[Range] = []
        self._firsts: list[int] = []
        self._queues_kept = BufferedQueues(ForgetfulDisk(), "/truth", 20 << 16)
        self._queues_kept.start({}, 0)
        self._machine = Machine(self._queues_kept, _no_records)
        self._machine.level_max = NEXT_LEVEL
        self._leaves: list[bytes] = []
        """The leaves of the largest log tree that a replica had."""
        self._sealed: set[int] = set()
        """The files whose seals were compared."""
        self._voters_least = 0
        """The fewest voters that the group ever had; 0 before they are known."""
        self._told: list[Range] = []
        self._known: dict[int, str] = {}
        """Applied index → digest of the state there, if it was requested."""
        self._queues: dict[QueueKey, list[I64]] = {}
        self._next: dict[QueueKey, int] = {}
        self._columns_at = 0
        """How many pieces are sorted into `_queues`."""

    def __len__(self) -> int:
        return len(self.chains)

    # Bytes

    def applied(self, node: str, entries: Range) -> None:
        """A replica applied this range."""
        index = entries.first_index
        if index < len(self.chains):
            self._compare(node, cut(entries, len(self.chains) - 1))
        if entries.last_index < len(self.chains):
            return
        if index > len(self.chains):
            raise Violation(
                "I3", f"{node} applies entry {index}, and no node applied {len(self.chains)} before"
            )
        self._extend(entries if index == len(self.chains) else tail_of(entries, len(self.chains)))

    def grown(self, node: str, retained: Retained) -> None:
        """The log tree of a replica, after it applied entries: the same leaves as on every other
        one, and each size continues the former. The root of a file is computed again from the
        entries that were committed."""
        assert retained.tree is not None
        leaves, known = retained.tree.hashes, self._leaves
        common = min(len(leaves), len(known))
        if leaves[:common] != known[:common]:
            raise Violation(
                "tree", f"{node} has another log tree of {common} files than was seen before"
            )
        if len(leaves) == common:
            return
        path = consistency_path(leaves, common)
        check_consistency(common, tree_root(known), len(leaves), tree_root(leaves), path)
        for seal in retained.seals.values():
            number = retained.tree.number_of(seal, retained.seals.values())
            if (
                number is not None
                and number >= common
                and seal.root != self._root(seal.first_index, seal.last_index)
            ):
                raise Violation(
                    "tree",
                    f"{node} has a root for the file at {seal.base} that is not that of the"
                    " committed entries",
                )
        self._leaves = list(leaves)

    def voted(self, count: int) -> None:
        """So many voters are in force on a replica."""
        if count:
            self._voters_least = min(self._voters_least or count, count)

    def sealed(self, node: str, seals: Iterable[SealRecord]) -> None:
        """The seals that a replica applied: each is of the committed bytes, and a majority reported
        it."""
        for seal in [seal for seal in seals if seal.base not in self._sealed]:
            self._sealed.add(seal.base)
            if 2 * len(seal.replicas) <= self._voters_least:
                raise Violation(
                    "seal",
                    f"{node} has a seal of the file at {seal.base} that only"
                    f" {', '.join(seal.replicas)} reported",
                )
            data = b"".join(piece.data for piece in self.pieces(seal.first_index, seal.last_index))
            digest = FileDigest()
            digest.add(data + make_blank(self._file_bytes - len(data)))
            if digest.hexdigest() != seal.sha256:
                raise Violation(
                    "seal",
                    f"{node} has a seal of the file at {seal.base} that is not of the committed"
                    " entries",
                )

    def _root(self, first_index: int, last_index: int) -> str:
        """The root over committed entries, by the definition."""
        pieces = self.pieces(first_index, last_index)
        entries = [
            piece.data[start : start + size]
            for piece in pieces
            for start, size in zip(piece.starts, piece.sizes, strict=True)
        ]
        skipped = first_index - pieces[0].first_index
        return tree_root(
            [
                leaf_hash(entry)
                for entry in entries[skipped : skipped + last_index - first_index + 1]
            ]
        ).hex()

    def _extend(self, entries: Range) -> None:
        data = bytes(entries.data)
        kept = Range(
            entries.first_index,
            entries.last_index,
            entries.term,
            entries.pos,
            data=memoryview(data),
            starts=entries.starts,
            sizes=entries.sizes,
            prev_chain=entries.prev_chain,
            last_chain=entries.last_chain,
        )
        self.chains += chains_of(kept)
        self.terms += [entries.term] * len(kept)
        self._pieces.append(kept)
        self._firsts.append(entries.first_index)

    def _compare(self, node: str, entries: Range) -> None:
        """Compare byte for byte, piece by piece."""
        index, data = entries.first_index, entries.data
        for at in range(bisect_right(self._firsts, index) - 1, len(self._pieces)):
            piece = self._pieces[at]
            if piece.first_index > entries.last_index:
                return
            low, high = max(piece.pos, entries.pos), min(piece.end_pos, entries.end_pos)
            theirs = data[low - entries.pos : high - entries.pos] if high > low else b""
            if (
                high <= low
                or theirs != piece.data[low - piece.pos : high - piece.pos]
                or entries.term != piece.term
            ):
                raise Violation(
                    "I2",
                    f"{node} applies other entries {entries.first_index} to {entries.last_index}"
                    " than were committed before",
                )

    def pieces(self, first_index: int, last_index: int) -> list[Range]:
        """The ranges that hold these entries; the outer ones may hold more."""
        low = bisect_right(self._firsts, first_index) - 1
        return self._pieces[max(low, 0) : bisect_right(self._firsts, last_index)]

    def keys(self) -> dict[int, list[int]]:
        """The positions of the messages with a key of this hash, newest first."""
        found: dict[int, list[int]] = {}
        at = 0
        while at < len(self._pieces):
            entries, count = merged(self._pieces, at, self._file_bytes)
            at += count
            columns = key_columns(entries)
            for key, pos in zip(
                columns.hashes.tolist(), columns.physical_offsets.tolist(), strict=True
            ):
                found.setdefault(key, []).append(pos)
        return {key: list(dict.fromkeys(reversed(places))) for key, places in found.items()}

    def pieces_from(self, pos: int) -> Iterator[Range]:
        """The ranges from this position of the log on."""
        for at in range(bisect_left(self._pieces, pos, key=_pos), len(self._pieces)):
            yield self._pieces[at]

    # Messages

    def _sort_columns(self) -> None:
        while self._columns_at < len(self._pieces):
            entries, count = merged(self._pieces, self._columns_at, self._file_bytes)
            self._columns_at += count
            columns = record_columns(entries)
            for place, topic in enumerate(columns.topics):
                rows = np.flatnonzero(columns.topic_of == place)
                if topic in CONTROL_TOPICS:
                    continue
                values = _fields(entries, entries.starts[rows] + BODY_AT, VALUE_BYTES).view(">i8")[
                    :, 0
                ]
                queues = columns.queues[rows]
                for queue in np.unique(queues).tolist():
                    mine = queues == queue
                    self._add(
                        topic,
                        queue,
                        columns.queue_offsets[rows][mine],
                        values[mine].astype(np.int64),
                    )

    def _add(self, topic: str, queue: int, offsets: I64, values: I64) -> None:
        """I6: offsets are dense, also after a topic was deleted."""
        first = self._next.get((topic, queue), 0)
        if int(offsets[0]) != first or not bool((np.diff(offsets) == 1).all()):
            raise Violation(
                "I6",
                f"queue {queue} of {topic} goes on with offsets {offsets[:3].tolist()}…, expected"
                f" {first}",
            )
        self._next[topic, queue] = first + len(offsets)
        self._queues.setdefault((topic, queue), []).append(values)

    def queues(self) -> dict[QueueKey, I64]:
        """Every queue's values by offset, for everything committed so far that clients can read."""
        self._sort_columns()
        for key, parts in self._queues.items():
            if len(parts) > 1:
                self._queues[key] = [np.concatenate(parts)]
        return {
            key: parts[0] for key, parts in self._queues.items() if key[0] not in WAITING_TOPICS
        }

    # Derived state

    def state(self, node: str, index: int, exported: dict[str, Any]) -> None:
        """I8: a replica's state at this applied index follows from the log up to there."""
        digest = _digest(exported)
        if index > self._machine.applied_index:
            self._advance(index)
        if index == self._machine.applied_index:
            self._known.setdefault(index, _digest(self._machine.export(self._log_id)))
        known = self._known.get(index)
        if known is not None and known != digest:
            where = self._difference(exported)
            raise Violation(
                "I8",
                f"the state of {node} at entry {index} does not follow from the log up to"
                f" there{where}",
            )

    def _difference(self, exported: dict[str, Any]) -> str:
        own = self._machine.export(self._log_id)
        if own["applied_index"] != exported["applied_index"]:
            return ""
        names = [name for name in own if own[name] != exported.get(name)]
        return f" (it differs in {', '.join(names)})"

    def _advance(self, index: int) -> None:
        """Apply committed entries up to this one, in ranges as long as possible."""
        while self._machine.applied_index < index:
            first = self._machine.applied_index + 1
            at = bisect_right(self._firsts, first) - 1
            entries, _ = merged(self._pieces, at, self._file_bytes)
            if entries.first_index < first:
                entries = tail_of(entries, first)
            self._machine.apply(cut(entries, index))

    def compare_queues(self, node: str, machine: Machine, queues: BufferedQueues) -> None:
        """I8: if a replica is at the same entry as the second machine, its consume queues hold the
        same units."""
        if machine.applied_index != self._machine.applied_index:
            return
        for topic, ends in self._queues_kept.next_offsets().items():
            for queue, end in ends.items():
                low = self._queues_kept.min_offset(topic, queue)
                own, known = (
                    queues.read(topic, queue, low, end - low),
                    self._queues_kept.read(topic, queue, low, end - low),
                )
                same = own.first == known.first and all(
                    np.array_equal(getattr(own, name), getattr(known, name))
                    for name in ("physical_offsets", "sizes", "tags_codes")
                )
                if not same:
                    raise Violation(
                        "I8",
                        f"the consume queue {topic}/{queue} of {node} does not follow from its log",
                    )

    @property
    def machine(self) -> Machine:
        """The derived state at the entry for which `state` was called last."""
        return self._machine


def chains_of(entries: Range) -> list[int]:
    """The stored chain CRC of every entry of a range."""
    words = _fields(entries, entries.starts + _CHAIN_AT, 4).view(">u4")[:, 0]
    return [int(word) for word in words.tolist()]


def _fields(entries: Range, places: I64, width: int) -> NDArray[np.uint8]:
    """`width` bytes at each of these places of a range, row by row."""
    return np.ascontiguousarray(
        np.frombuffer(entries.data, np.uint8)[places[:, None] + np.arange(width)]
    )


def merged(pieces: list[Range], at: int, file_bytes: int) -> tuple[Range, int]:
    """Join the pieces from `at` on that form one range of one term in one file; returns the range
    and the number of pieces."""
    first, count, size = pieces[at], 1, len(pieces[at].data)
    end = first.pos - first.pos % file_bytes + file_bytes
    while at + count < len(pieces) and size < _PIECE_BYTES:
        piece = pieces[at + count]
        if piece.term != first.term or piece.pos != first.pos + size or piece.pos >= end:
            break
        size += len(piece.data)
        count += 1
    if count == 1:
        return first, 1
    parts = pieces[at : at + count]
    starts = np.concatenate([part.starts + (part.pos - first.pos) for part in parts])
    sizes = np.concatenate([part.sizes for part in parts])
    data = memoryview(b"".join([part.data for part in parts]))
    last = parts[-1]
    return (
        Range(
            first.first_index,
            last.last_index,
            first.term,
            first.pos,
            data,
            starts=starts,
            sizes=sizes,
            prev_chain=first.prev_chain,
            last_chain=last.last_chain,
        ),
        count,
    )


def _digest(exported: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(exported, sort_keys=True).encode()).hexdigest()


def _pos(piece: Range) -> int:
    return piece.pos


def _no_records(offset: int, size: int) -> bytes:
    raise AssertionError("the truth reads no records")
