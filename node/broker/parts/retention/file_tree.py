"""The log tree of a broker group: a Merkle tree whose leaves are the sealed log files, in order
(docs/decisions/2026-11-27-log-tree.md).

A pure function of the applied seals and trims, as all state. The tree only ever grows: a leaf is
added when the file behind the last leaf is sealed with a root, and stays when the file is trimmed.
Seals may come in any order; one that comes early waits among the seals. A file that a full disk
removed before it was sealed gets a leaf with the root NO_ROOT, under which nothing can be proven.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from ledgermq.proto.proofs.log_tree import HASH_BYTES, FileLeaf
from ledgermq.proto.records.control import SealRecord, TrimRecord

NO_ROOT = bytes(HASH_BYTES)
"""In the leaf of entries that were trimmed before their file was sealed."""


class FileTree:
    """The hashes of the leaves, and where the tree begins and continues."""

    def __init__(self, first_index: int, pos: int) -> None:
        """A tree without leaves that begins with entry `first_index`, at `pos` or behind a blank
        there."""
        self.first_index = first_index
        self.base: int | None = None
        """Where the first leaf's file begins; None before the first leaf."""
        self.next_index = first_index
        """The first entry of the file that the next leaf stands for."""
        self.end_pos = pos
        """The position behind the last entry of the last leaf."""
        self.hashes: list[bytes] = []
        """The hash of every leaf; only ever appended to."""

    def grow(self, seals: Iterable[SealRecord]) -> None:
        """Add the files among `seals` that follow the last leaf without a gap."""
        by_first = {seal.first_index: seal for seal in seals}
        while (seal := by_first.get(self.next_index)) is not None and seal.root:
            self._add(leaf_of(seal))

    def skip(self, trim: TrimRecord) -> None:
        """Add one leaf for what a trim removed before it had a leaf."""
        if trim.begin_index > self.next_index:
            base = min(
                (base for base, _ in trim.files if base >= self.end_pos), default=self.end_pos
            )
            self._add(
                FileLeaf(
                    base,
                    self.next_index,
                    trim.begin_index - self.next_index,
                    trim.begin_pos,
                    NO_ROOT,
                )
            )

    def number_of(self, seal: SealRecord, seals: Iterable[SealRecord]) -> int | None:
        """The number of the leaf of a sealed file that is still part of the log; None if it has no
        leaf."""
        if not self.first_index <= seal.first_index < self.next_index:
            return None
        return len(self.hashes) - sum(
            seal.first_index <= other.first_index < self.next_index for other in seals
        )

    def _add(self, leaf: FileLeaf) -> None:
        if self.base is None:
            self.base = leaf.base
        self.hashes.append(leaf.hash())
        self.next_index, self.end_pos = leaf.first + leaf.entries, leaf.end

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11)."""
        leaves = base64.b64encode(b"".join(self.hashes)).decode()
        return {
            "first": self.first_index,
            "base": self.base,
            "next": self.next_index,
            "end": self.end_pos,
            "leaves": leaves,
        }

    @classmethod
    def restored(cls, exported: dict[str, Any]) -> FileTree:
        """The inverse of `export`."""
        tree = cls(exported["first"], exported["end"])
        tree.base, tree.next_index = exported["base"], exported["next"]
        leaves = base64.b64decode(exported["leaves"], validate=True)
        tree.hashes = [leaves[at : at + HASH_BYTES] for at in range(0, len(leaves), HASH_BYTES)]
        return tree


def leaf_of(seal: SealRecord) -> FileLeaf:
    """The leaf of a file that is sealed with a root."""
    entries = seal.last_index - seal.first_index + 1
    return FileLeaf(seal.base, seal.first_index, entries, seal.end_pos, bytes.fromhex(seal.root))
