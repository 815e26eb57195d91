"""The root of the tree over the entries of a log file (docs/format.md §11), by the definition of RFC 6962 and with the audit's own code."""

from __future__ import annotations

import hashlib

from ledgermq.audit.reading.decode import ENTRY_BYTES_MIN, ENTRY_MAGIC
from ledgermq.audit.reading.files import open_file

WINDOW = 4 << 20
_MAGIC = ENTRY_MAGIC.to_bytes(4, "big")


def entries_root(path: str, end: int) -> str:
    """The root over the entries in the first `end` bytes of a file, in hexadecimal; empty if these bytes are not exactly entries. Raises
    OSError."""
    towers: list[tuple[int, bytes]] = []
    """(height, root) of perfect trees, the highest first."""
    with open_file(path) as file:
        held, begin = b"", 0
        while begin < end:
            data = held + file.pread(min(WINDOW, end - begin - len(held)), begin + len(held))
            at = _take(data, towers)
            if at is None or (at == 0 and len(data) in (len(held), end - begin)):
                return ""
            held, begin = data[at:], begin + at
    return _folded(towers).hex() if towers else ""


def _take(data: bytes, towers: list[tuple[int, bytes]]) -> int | None:
    """Add the entries that lie whole in `data`; how many bytes they are. None if something else lies there."""
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        if data[at : at + 4] != _MAGIC or not ENTRY_BYTES_MIN <= size < 1 << 27:
            return None
        if at + size > len(data):
            break
        height, root = 0, hashlib.sha256(b"\x00" + data[at : at + size]).digest()
        while towers and towers[-1][0] == height:
            root = hashlib.sha256(b"\x01" + towers.pop()[1] + root).digest()
            height += 1
        towers.append((height, root))
        at += size
    return at


def _folded(towers: list[tuple[int, bytes]]) -> bytes:
    root = towers[-1][1]
    for _, left in reversed(towers[:-1]):
        root = hashlib.sha256(b"\x01" + left + root).digest()
    return root
