"""The tree over the entries of one log file, grown while the file is read: RFC 6962's tree hash
(`log_tree.py`, docs/format.md §11).

A leaf is an entry as stored, header and record; blanks are no leaves. Of a tree that grows only its
*peaks* are kept: the roots of its perfect subtrees, the largest first, one for each bit that is set
in the number of leaves. So a file of any size needs some 2 KB.
"""

from __future__ import annotations

from hashlib import sha256

from ledgermq.proto import kernels
from ledgermq.proto.entries.layout import ENTRY_MAGIC, ENTRY_MIN_BYTES
from ledgermq.proto.proofs.log_tree import HASH_BYTES, node_hash

_MAGIC = ENTRY_MAGIC.to_bytes(4, "big")
_HEAD_BYTES = 8
_ENTRY_BYTES_MOST = 64 << 20
"""No entry is so large; a larger size is damage, and must not make a reader collect bytes."""


def grow(count: int, peaks: bytes, data: bytes | memoryview) -> tuple[int, int, bytes]:
    """Add the entries that lie whole in `data`, from its first byte on, to a tree of `count`
    leaves. Returns how many bytes they are, and the new count and peaks. Raises ValueError if
    something else than an entry begins where one is expected."""
    if kernels.NATIVE and (found := kernels.entries.grow_tree(count, peaks, data)) is not None:
        return found
    return _grow(count, peaks, data)


def _grow(count: int, peaks: bytes, data: bytes | memoryview) -> tuple[int, int, bytes]:
    """The twin of the kernel."""
    hashes = [peaks[at : at + HASH_BYTES] for at in range(0, len(peaks), HASH_BYTES)]
    if len(peaks) != HASH_BYTES * count.bit_count():
        raise ValueError(
            f"a tree of {count} leaves has {count.bit_count()} peaks, not {len(peaks)} bytes"
        )
    at, end = 0, len(data)
    while at + _HEAD_BYTES <= end:
        size = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
        if data[at : at + 4] != _MAGIC or not ENTRY_MIN_BYTES <= size <= _ENTRY_BYTES_MOST:
            raise ValueError(f"no entry begins at byte {at}")
        if at + size > end:
            break
        found = sha256(b"\x00" + data[at : at + size]).digest()
        while len(hashes) > (count & (count + 1)).bit_count():
            found = node_hash(hashes.pop(), found)
        hashes.append(found)
        at, count = at + size, count + 1
    return at, count, b"".join(hashes)


class EntriesTree:
    """The tree of a file that is read in chunks, up to the end of its last entry."""

    def __init__(self) -> None:
        self.count = 0
        """The number of leaves."""
        self._peaks = b""
        self._rest = b""
        """The beginning of an entry whose end was not read yet."""

    def add(self, chunk: bytes) -> None:
        """Continue with the next bytes of the file. Raises ValueError if they are no entries."""
        data = self._rest + chunk if self._rest else chunk
        taken, self.count, self._peaks = grow(self.count, self._peaks, data)
        self._rest = data[taken:]

    @property
    def peaks(self) -> list[bytes]:
        """The peaks, the largest subtree first."""
        return [self._peaks[at : at + HASH_BYTES] for at in range(0, len(self._peaks), HASH_BYTES)]

    def root(self) -> bytes:
        """The root. Raises ValueError if there is no entry, or if the last one is cut short."""
        if self._rest or not self._peaks:
            raise ValueError(
                f"the last entry is cut short, behind {self.count} whole ones"
                if self._rest
                else "there is no entry"
            )
        *larger, root = self.peaks
        for peak in reversed(larger):
            root = node_hash(peak, root)
        return root
