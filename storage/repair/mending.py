"""The files of a log under repair (format §2, §5): finding intact entries, and writing replacements
in place.

`node/replica/shipping/repair.py` decides which bytes are written, and what proves them. The log is
not open during a repair. Missing files and files of a wrong length are first restored to full
length, with zeros where the content is unknown, so that all damage looks the same. Bytes that the
disk cannot read (EIO) count as zeros. Nothing above the synced mark is changed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass

import crc32c
import numpy as np

from ledgermq.proto.entries.layout import ENTRY_MAGIC, ENTRY_MIN_BYTES, HEADER_BYTES
from ledgermq.proto.types import Identity, Range, SyncedMark
from ledgermq.storage.files.errors import needing_room
from ledgermq.storage.files.mapped_files import MappedFiles, file_name, parse_name
from ledgermq.storage.files.ports import PAGE_BYTES, Disk, DiskFile
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.log.index_files import UNIT_BYTES, IndexFiles
from ledgermq.storage.log.log_scan import ENTRY_HEAD, Point, Walker, is_place, next_chain
from ledgermq.storage.log.placing import BLANK_BYTES, whole_blank

COPY_BYTES = 1 << 20
UNITS_TRIED = 4096
"""The positions of this many index units behind a damaged entry are tried for the next intact
entry; then the starts of the next files."""
MARKER = "repair"
"""In the log's directory from before the first write until everything is durable: an open must not
trust bytes in the page cache only."""
MARK = b"repair\n"
"""The marker's content while bytes are written in place."""
UNDER_REPAIR = "repair.alloc"
"""The temporary name of a recreated file: unfinished files are removed at every start."""


@dataclass(frozen=True, slots=True)
class Good:
    """An entry that is valid by itself: header, body and body CRC agree. Whether it continues the
    log is another question."""

    index: int
    pos: int
    chain: int
    header: bytes

    def continues(self, point: Point) -> bool:
        """Whether it continues `point`: by index, chain, and a position directly behind it or at
        the start of the next file."""
        return (
            self.index == point.index
            and self.pos >= point.pos
            and next_chain(self.header, point.chain) == self.chain
        )


class _Tolerant:
    """A file whose unreadable pages read as zeros."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file

    def pread(self, offset: int, length: int) -> bytes:
        try:
            return self._file.pread(offset, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        parts = []
        while length > 0:
            piece = min(length, PAGE_BYTES - offset % PAGE_BYTES)
            try:
                parts.append(self._file.pread(offset, piece))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                parts.append(bytes(piece))
            offset, length = offset + piece, length - piece
        return b"".join(parts)


class _TolerantFiles(MappedFiles):
    """The log's files, as a `Walker` reads them."""

    def at(self, offset: int) -> DiskFile:
        return _Tolerant(super().at(offset))  # type: ignore[return-value]

    def for_writing(self, offset: int) -> DiskFile:
        return super().at(offset)


class Mending:
    """The files of one log, from its begin to its synced mark. Call `mend_files` first."""

    def __init__(
        self, disk: Disk, directory: str, identity: Identity, begin: Begin, mark: SyncedMark
    ) -> None:
        self.start = Point(pos=begin.pos, index=begin.index, term=begin.term, chain=begin.chain)
        self.mark = mark
        self.written_bytes = 0
        self.again = disk.exists(f"{directory}/{MARKER}")
        """An earlier repair was interrupted: valid bytes may be in the page cache only, so all of
        them are written again (docs/architecture.md, Durability)."""
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._files = _TolerantFiles(
            disk, f"{directory}/data", identity.data_file_bytes, allocate=True
        )
        self._index = IndexFiles(
            _TolerantFiles(disk, f"{directory}/index", identity.index_file_bytes, allocate=False)
        )
        self._dirty: dict[DiskFile, None] = {}
        self._marked = self.again
        self._noted = self.again and disk.read_file(f"{directory}/{MARKER}") == MARK
        """Whether the marker says that bytes are written in place. Otherwise it may be the fence of
        an exchange of files, below which everything is durable."""

    def mend_files(self) -> list[str]:
        """Ensure that every file of the log up to the mark exists and has its full length. Returns
        the paths of recreated files. Raises OSError, and Damaged for a file that does not belong to
        the store."""
        directory, size = f"{self._directory}/data", self._identity.data_file_bytes
        lengths = {}
        for name in self._disk.listdir(directory):
            base = parse_name(name)
            if base is not None and base % size == 0:
                lengths[base] = self._disk.file_size(f"{directory}/{name}")
        first = self.start.pos
        needed = set(range(first, self.mark.end_pos, size))
        for base, length in lengths.items():
            if base < first and length != size:
                # Files of an interrupted trim are removed anyway.
                self._disk.unlink(f"{directory}/{file_name(base)}")
        made = [
            base
            for base in sorted(needed | lengths.keys())
            if base >= first and lengths.get(base) != size
        ]
        for base in made:
            self._make(f"{directory}/{file_name(base)}", lengths.get(base, 0))
        self._files.origin = first
        # It also syncs the directory, so the names of the files that were made or removed are
        # durable.
        self._files.load()
        self._index.files.origin = self._index.files.base_of(self.start.index * UNIT_BYTES)
        self._index.files.repair()
        return [f"{directory}/{file_name(base)}" for base in made]

    def _make(self, path: str, present_bytes: int) -> None:
        """Create a file of the right length and copy the content of the existing file of
        `present_bytes` bytes into it, if there is one. The new file takes the name only after its
        content is durable."""
        unfinished = f"{self._directory}/data/{UNDER_REPAIR}"
        if self._disk.exists(unfinished):
            self._disk.unlink(unfinished)
        size = self._identity.data_file_bytes
        with needing_room(unfinished):
            file = self._disk.create(unfinished, size, allocate=True)
        try:
            if present_bytes:
                old = self._disk.open(path)
                try:
                    tolerant, offset = _Tolerant(old), 0
                    while piece := tolerant.pread(offset, min(COPY_BYTES, size - offset)):
                        file.pwrite(offset, piece)
                        offset += len(piece)
                finally:
                    old.close()
            file.sync()
        finally:
            file.close()
        self._disk.rename(unfinished, path)

    def walk(self, point: Point) -> Iterator[Point]:
        """Walk from `point` over entries that continue each other, computing all CRCs, as far as
        they are valid and begin before the mark's end; yields the point behind each piece (up to 4
        MiB)."""
        walker = Walker(self._files, point, verify=True)
        for piece in walker.pieces(self.mark.end_pos):
            if self.again:
                if piece.blank_at is not None:
                    self._write_blank(piece.blank_at, piece.pos)
                self._write(piece.pos, piece.data)
            self._files.close_idle(lambda file: file in self._dirty)
            yield walker.point

    def next_good(self, point: Point) -> Good | None:
        """The nearest entry behind `point` that is valid by itself, found by the index units or at
        the start of a later file; None if there is none before the mark."""
        units = self._index.get(point.index, min(UNITS_TRIED, self.mark.index - point.index + 1))
        for at, pos in enumerate(units["pos"].tolist()):
            entry = (
                self._good(point.index + at, pos) if point.pos <= pos < self.mark.end_pos else None
            )
            # The very next entry is the damaged one, unless only the blank before it is damaged.
            if entry is not None and (at > 0 or entry.continues(point)):
                return entry
        base = self._files.base_of(point.pos) + self._files.file_bytes
        while base < self.mark.end_pos:
            entry = self._good(None, base)
            if (
                entry is not None
                and entry.index <= self.mark.index
                and (entry.index > point.index or entry.continues(point))
            ):
                return entry
            base += self._files.file_bytes
        return None

    def _good(self, index: int | None, pos: int) -> Good | None:
        """The entry of this index (or any) at `pos`, if it is valid by itself."""
        room = self._files.file_bytes - pos % self._files.file_bytes
        header = self._files.read(pos, min(HEADER_BYTES, room)) if self._files.has(pos) else b""
        if len(header) < HEADER_BYTES:
            return None
        magic, size, its_index, _, its_pos, _, chain, body_crc, body_size = ENTRY_HEAD.unpack(
            header
        )
        if (
            magic != ENTRY_MAGIC
            or its_pos != pos
            or size != body_size + HEADER_BYTES
            or not ENTRY_MIN_BYTES <= size <= room
        ):
            return None
        if (index is not None and its_index != index) or crc32c.crc32c(
            self._files.read(pos + HEADER_BYTES, body_size)
        ) != body_crc:
            return None
        return Good(its_index, pos, chain, header)

    def close_gap(self, point: Point, good: Good) -> bool:
        """Write the blank between `point` and the first entry of the next file, if only the blank
        is missing."""
        length = self._files.file_bytes - point.pos % self._files.file_bytes
        if (
            not good.continues(point)
            or good.pos != point.pos + length
            or length < BLANK_BYTES
            or not point.pos % self._files.file_bytes
        ):
            return False
        self._write_blank(point.pos, good.pos)
        return True

    def put(self, point: Point, entries: Range) -> Point:
        """Write verified entries that continue `point` at their position. Returns the point behind
        them."""
        if entries.pos != point.pos:
            self._write_blank(point.pos, entries.pos)
        self._write(entries.pos, entries.data)
        return Point(
            pos=entries.end_pos,
            index=entries.last_index + 1,
            term=entries.term,
            chain=entries.last_chain,
        )

    def fits(self, point: Point, entries: Range, *, further: bool) -> bool:
        """Whether entries that continue `point` may be written at their stated position; `further`:
        also behind the mark, where a file is created for them. Raises NoSpace, OSError."""
        if not is_place(point, entries, self._files.file_bytes):
            return False
        if further:
            self._reach(entries.end_pos)
        return self._files.has(entries.pos)

    def name(self, pos: int) -> str:
        """File and byte of a position, for messages."""
        return (
            f"{self._directory}/data/{file_name(self._files.base_of(pos))}, byte"
            f" {pos % self._files.file_bytes}"
        )

    def base_of(self, pos: int) -> int:
        return self._files.base_of(pos)

    def used_end(self) -> int:
        """The position behind the last byte of the files that is not zero: everything this replica
        ever acknowledged lies before it."""
        pos = self._files.end
        while pos > self._files.begin:
            start = max(self._files.base_of(pos - 1), pos - COPY_BYTES)
            used = np.flatnonzero(
                np.frombuffer(
                    self._files.at(start).pread(start % self._files.file_bytes, pos - start),
                    np.uint8,
                )
            )
            if len(used):
                return start + int(used[-1]) + 1
            pos = start
        return self._files.begin

    def _reach(self, end_pos: int) -> None:
        """Ensure files up to a position behind the mark. Only for entries that were received, not
        for what a peer merely claims to have. Bytes behind a gap there do not count. Raises
        NoSpace, OSError."""
        gap = self._files.gap_after()
        for file in () if gap is None else self._files.drop_from(gap):
            file.close()
        while self._files.end < end_pos:
            self._files.extend()

    def drop_unreadable_units(self) -> list[str]:
        """Remove index files that the disk cannot read; the next open rebuilds them from the log.
        Returns their paths."""
        directory, removed = f"{self._directory}/index", []
        for name in self._disk.listdir(directory):
            path = f"{directory}/{name}"
            file = self._disk.open(path)
            try:
                for offset in range(0, file.size, COPY_BYTES):
                    file.pread(offset, COPY_BYTES)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                removed.append(path)
            finally:
                file.close()
        for path in removed:
            self._disk.unlink(path)
        if removed:
            self._disk.sync_dir(directory)
        return removed

    def sync(self) -> None:
        """Make everything written durable, then remove the marker. The first failure is final (I9):
        the marker stays."""
        for file in self._dirty:
            file.sync()
        self._dirty.clear()
        for files in (self._files, self._index.files):
            if files.names_changed:
                self._disk.sync_dir(files.directory)
                files.names_changed = False
        if self._marked:
            self._disk.unlink(f"{self._directory}/{MARKER}")
            self._disk.sync_dir(self._directory)
            self._marked = self._noted = False

    def _note(self) -> None:
        if not self._noted:
            self._disk.replace_file(f"{self._directory}/{MARKER}", MARK)
            self._marked = self._noted = True

    def close(self) -> None:
        self._files.close()
        self._index.files.close()

    def _write_blank(self, start: int, stop: int) -> None:
        for pos, data in whole_blank(start, stop - start):
            self._write(pos, data)

    def _write(self, pos: int, data: bytes | memoryview) -> None:
        file = self._files.for_writing(pos)
        inside = pos % self._files.file_bytes
        if self.again or _Tolerant(file).pread(inside, len(data)) != data:
            self._note()
            self._dirty[file] = None
            file.pwrite(inside, data)
            self.written_bytes += len(data)
