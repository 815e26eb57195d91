"""The positions of entries (format §2): one behind the other, never across two files, with a blank
in the rest of a file.

A file always keeps room for a blank behind its last entry, so an entry that would leave less room
goes into the next file. A leader may end a file early, so any entry may begin the next file. Plain
arithmetic over sizes and positions, used by all code that writes, receives or recovers entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from ledgermq.proto.entries.layout import BLANK_MAGIC, BLANK_MIN_BYTES
from ledgermq.proto.types import I32, I64, Range

BLANK_BYTES = BLANK_MIN_BYTES
BLANK = struct.Struct(">ii")
STALE_BYTES = 16 << 20
"""A medium may hold older bytes at most this far behind the end of a log that reads as zeros there:
it is more than a leader ever has in flight, so more than a truncation ever cuts. Further behind it
holds the zeros with which the file was made."""
_PIECE_BYTES = 1 << 20


def place(sizes: I32, pos: int, file_bytes: int) -> tuple[I64, list[int], int]:
    """For entries of these sizes behind `pos`: the position of each, the bounds of the pieces (one
    per file), and the end position."""
    ends: I64 = np.cumsum(sizes, dtype=np.int64)
    begins = ends - sizes
    positions = np.empty(len(ends), np.int64)
    cuts = [0]
    low = 0
    while low < len(ends):
        base = pos - pos % file_bytes
        skipped = int(begins[low])
        high = int(
            np.searchsorted(ends, skipped + base + file_bytes - pos - BLANK_BYTES, side="right")
        )
        if high == low:
            assert pos != base, (
                f"an entry of {int(sizes[low])} bytes is larger than a log file of {file_bytes}"
                " allows"
            )
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
    """Whether a range may lie behind `pos`: directly behind it, or at the begin of the next file,
    and all of it in one file."""
    if entries.pos != pos and (not pos % file_bytes or entries.pos != next_file(pos, file_bytes)):
        return False
    return fits(entries.pos, len(entries.data), file_bytes)


def next_file(pos: int, file_bytes: int) -> int:
    """Where the file behind that of `pos` begins."""
    return pos - pos % file_bytes + file_bytes


def make_blank(length: int) -> bytes:
    """The begin of a blank of this length, for a place behind the end of a log. Its filler is
    written as far as the medium may hold older bytes after a failed sync; everything there reads as
    zeros already, so a long blank need not be written whole."""
    return BLANK.pack(BLANK_MAGIC, length).ljust(min(length, STALE_BYTES), b"\0")


def whole_blank(pos: int, length: int) -> Iterator[tuple[int, bytes]]:
    """A blank at `pos`, for a place with any bytes: the pieces of which it consists, each with its
    position. It may be nearly as long as a file, so it is never in memory whole."""
    head = BLANK.pack(BLANK_MAGIC, length)
    for at in range(0, length, _PIECE_BYTES):
        yield pos + at, (b"" if at else head).ljust(min(_PIECE_BYTES, length - at), b"\0")
