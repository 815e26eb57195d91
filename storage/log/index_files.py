"""The index files of an entry log (format §5): 32 bytes per entry, at index × 32.

Derived from the log, and rebuilt from it where they differ; this file decides nothing. Written with
`pwrite`. The files are sparse, except that the blocks in front of the end are allocated ahead of
need: a full disk is noticed before any byte of a batch is written, and control records still find
room (the reserve).
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.entries.layout import FEW_ENTRIES, INDEX_UNIT
from ledgermq.proto.types import I32, I64, Range
from ledgermq.storage.files.errors import NoSpace, is_no_space
from ledgermq.storage.files.mapped_files import MappedFiles
from ledgermq.storage.files.ports import DiskFile

UNIT_BYTES = 32
UNIT_MAGIC = 1
Units = NDArray[np.void]

REAL_UNITS = 8192
"""Blocks are allocated in steps of this many units (at most one file's); the same number is the
reserve for control records."""
READ_BYTES = 1 << 20
_ZEROS = bytes(READ_BYTES)


_UNIT = struct.Struct(">iqiqq")


def unit_bytes(first_index: int, term: int, pos: int, edges: list[int]) -> bytes:
    """The units of adjacent entries of one term, as stored; the first entry is at `pos`."""
    pack, index, at = _UNIT.pack, first_index, edges[0]
    units = []
    for end in edges[1:]:
        units.append(pack(UNIT_MAGIC, pos + at, end - at, index, term))
        at = end
        index += 1
    return b"".join(units)


def make_units(first_index: int, term: int | I64, pos: I64, sizes: I32) -> Units:
    """The units of consecutive entries; `term`: that of all of them, or of each."""
    units = np.empty(len(pos), INDEX_UNIT)
    units["magic"] = UNIT_MAGIC
    units["pos"] = pos
    units["size"] = sizes
    units["index"] = np.arange(first_index, first_index + len(pos))
    units["term"] = term
    return units


class IndexFiles:
    """Units by index. `dirty` collects the files written since the owner last cleared it."""

    def __init__(self, files: MappedFiles) -> None:
        assert files.file_bytes % UNIT_BYTES == 0
        self.files = files
        self.dirty: dict[DiskFile, None] = {}
        self._step = min(REAL_UNITS, files.file_bytes // UNIT_BYTES)
        self._real_end = 0
        """Units below this index have blocks, as far as this process knows."""

    def reserve(self, end: int, *, control: bool) -> None:
        """Ensure that units below `end` can be written, and that the reserve lies behind them
        unless `control`. Raises NoSpace."""
        wanted = end if control else end + self._step
        while self._real_end < wanted:
            self._make_real(self._real_end, wanted)

    def start(self, end: int) -> None:
        """The log ends before index `end`: behind it, only `reserve` allocates blocks."""
        self._real_end = end

    def put(self, first_index: int, units: Units) -> None:
        """Write the units of entries first_index …; they must be reserved or lie in an existing
        file."""
        self._write(first_index * UNIT_BYTES, units.tobytes())

    def put_range(self, entries: Range) -> None:
        """Write the units of a range, as `put` does."""
        first, term, pos = entries.first_index, entries.term, entries.pos
        if entries.last_index - first < FEW_ENTRIES:
            self._write(first * UNIT_BYTES, unit_bytes(first, term, pos, entries.edges))
        else:
            self.put(first, make_units(first, term, entries.starts + pos, entries.sizes))

    def get(self, first_index: int, count: int) -> Units:
        """Up to `count` units, as stored; fewer at the end of the files."""
        data = self.files.read(first_index * UNIT_BYTES, count * UNIT_BYTES)
        return np.frombuffer(data, INDEX_UNIT, len(data) // UNIT_BYTES)

    def erase(self, first_index: int, end: int) -> None:
        """Zero the units first_index … end−1 that are not zero already."""
        offset, stop = first_index * UNIT_BYTES, end * UNIT_BYTES
        while offset < stop and self.files.has(offset):
            data = self.files.read(offset, min(stop - offset, READ_BYTES))
            zeros = _ZEROS[: len(data)]
            if data != zeros:
                self._write(offset, zeros)
            offset += len(data)

    def rewrite(self, first_index: int, units: Units) -> None:
        """Write units where files may be missing (a rebuild); creates missing files."""
        while len(units) and self.files.end < (first_index + len(units)) * UNIT_BYTES:
            self.files.extend()
        self.put(first_index, units)

    def sync(self) -> None:
        for file in self.dirty:
            file.sync()
        self.dirty.clear()

    def _make_real(self, start: int, wanted: int) -> None:
        offset = start * UNIT_BYTES
        while not self.files.has(offset):
            self.files.extend()
        file_end = self.files.base_of(offset) + self.files.file_bytes
        stop = min(file_end, max(wanted, start + self._step) * UNIT_BYTES)
        try:
            self._write(offset, bytes(stop - offset))
        except OSError as error:
            if is_no_space(error):
                raise NoSpace(
                    f"no space for index units in {self.files.directory}: free disk space; writing"
                    " resumes by itself"
                ) from error
            raise
        self._real_end = stop // UNIT_BYTES

    def _write(self, offset: int, data: bytes) -> None:
        inside = offset % self.files.file_bytes
        if inside + len(data) <= self.files.file_bytes:
            file = self.files.at(offset)
            file.pwrite(inside, data)
            self.dirty[file] = None
            return
        view = memoryview(data)
        while view:
            inside = offset % self.files.file_bytes
            length = min(len(view), self.files.file_bytes - inside)
            file = self.files.at(offset)
            file.pwrite(inside, view[:length])
            self.dirty[file] = None
            offset += length
            view = view[length:]
