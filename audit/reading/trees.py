"""The root of the tree over the entries of a log file (docs/format.md §11), by the definition of
RFC 6962 and with the audit's own code."""

from __future__ import annotations

import hashlib

from ledgermq.audit.reading.decode import ENTRY_BYTES_MIN, ENTRY_MAGIC
from ledgermq.audit.reading.native import Kernel

_MAGIC = ENTRY_MAGIC.to_bytes(4, "big")


class EntriesTree:
    """The tree over the entries of a log file that passes through in pieces, up to the first place
    where no entry lies."""

    def __init__(self, kernel: Kernel | None) -> None:
        self._kernel = kernel
        self._towers: list[tuple[int, bytes]] = []
        """(height, root) of perfect trees, the highest first."""
        self._held = b""
        self._end = 0
        self._stuck = False

    def add(self, piece: bytes) -> None:
        """Add the bytes behind those of the last call."""
        if self._stuck:
            return
        data = self._held + piece
        if self._kernel is not None:
            self._towers, at, self._stuck = self._kernel.grow_tree(self._towers, data)
        else:
            at = self._grow(data)
        self._held, self._end = data[at:], self._end + at

    def _grow(self, data: bytes) -> int:
        """Add the entries that lie whole in `data`. Returns the place behind them."""
        at = 0
        while at + 8 <= len(data):
            size = int.from_bytes(data[at + 4 : at + 8], "big")
            if data[at : at + 4] != _MAGIC or not ENTRY_BYTES_MIN <= size < 1 << 27:
                self._stuck = True
                break
            if at + size > len(data):
                break
            self._add_leaf(hashlib.sha256(b"\x00" + data[at : at + size]).digest())
            at += size
        return at

    def root(self, end: int) -> str:
        """In hexadecimal; empty unless exactly the first `end` bytes are entries."""
        if self._end != end or not self._towers:
            return ""
        root = self._towers[-1][1]
        for _, left in reversed(self._towers[:-1]):
            root = hashlib.sha256(b"\x01" + left + root).digest()
        return root.hex()

    def _add_leaf(self, root: bytes) -> None:
        height = 0
        while self._towers and self._towers[-1][0] == height:
            root = hashlib.sha256(b"\x01" + self._towers.pop()[1] + root).digest()
            height += 1
        self._towers.append((height, root))
