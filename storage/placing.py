"""The positions of entries (format §2): one behind the other, never across two files, with a blank in the rest of a file.

A file always keeps room for a blank behind its last entry, so an entry that would leave less room goes into the next file. Plain arithmetic
over sizes and positions, used by all code that writes, receives or recovers entries.
"""

from __future__ import annotations

import struct

import numpy as np

from ledgermq.proto.layout import BLANK_MAGIC, BLANK_MIN_BYTES
from ledgermq.proto.types import I32, I64, Range

BLANK_BYTES = BLANK_MIN_BYTES
BLANK = struct.Struct(">ii")


def place(sizes: I32, pos: int, file_bytes: int) -> tuple[I64, list[int], int]:
    """For entries of these sizes behind `pos`: the position of each, the bounds of the pieces (one per file), and the end position."""
    ends: I64 = np.cumsum(sizes, dtype=np.int64)
    begins = ends - sizes
    positions = np.empty(len(ends), np.int64)
    cuts = [0]
    low = 0
    while low < len(ends):
        base = pos - pos % file_bytes
        skipped = int(begins[low])
        high = int(np.searchsorted(ends, skipped + base + file_bytes - pos - BLANK_BYTES, side="right"))
        if high == low:
            assert pos != base, f"an entry of {int(sizes[low])} bytes is larger than a log file of {file_bytes} allows"
            pos = base + file_bytes
            continue
        positions[low:high] = begins[low:high] + (pos - skipped)
        pos += int(ends[high - 1]) - skipped
        cuts.append(high)
        low = high
    return positions, cuts, pos


def fits(pos: int, length: int, file_bytes: int) -> bool:
    """Whether so many bytes of entries behind `pos` stay in its file."""
    return pos + length + BLANK_BYTES <= pos - pos % file_bytes + file_bytes


def is_placed(entries: Range, pos: int, file_bytes: int) -> bool:
    """Whether a range lies where `place` puts it behind `pos`, all of it in one file."""
    base = pos - pos % file_bytes
    if entries.pos == pos and pos + len(entries.data) + BLANK_BYTES <= base + file_bytes:
        return True
    crosses = bool(pos % file_bytes) and pos + int(entries.sizes[0]) + BLANK_BYTES > base + file_bytes
    if entries.pos != (base + file_bytes if crosses else pos):
        return False
    return entries.end_pos + BLANK_BYTES <= entries.pos - entries.pos % file_bytes + file_bytes


def make_blank(length: int) -> bytes:
    """A whole blank. Its filler is written although it reads as zeros already: after a failed sync the medium may hold older bytes."""
    return BLANK.pack(BLANK_MAGIC, length).ljust(length, b"\0")
