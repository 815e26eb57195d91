"""Reading an entry log that is not trusted: walking entries, comparing headers with index units,
searching for nonzero bytes.

These are the observations on which recovery decides. Nothing here writes, decides, or trusts a
stored length beyond the end of its file. All reads are positional (`pread`), never through a map:
bytes that the disk cannot read must be an `OSError`, not a signal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import crc32c
import numpy as np

from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.layout import (
    BLANK_MAGIC,
    CHAINED_BYTES,
    CRC_WORDS_AT,
    ENTRY_MAGIC,
    ENTRY_MIN_BYTES,
    HEADER,
    HEADER_BYTES,
    windows,
)
from ledgermq.proto.types import I32, I64, Range
from ledgermq.storage.files.mapped_files import MappedFiles
from ledgermq.storage.log.index_files import UNIT_MAGIC, IndexFiles, Units
from ledgermq.storage.log.placing import BLANK, BLANK_BYTES, is_placed

ENTRY_HEAD = struct.Struct(">iiqqqiIIi")
"""magic, size, index, term, pos, channel, chainCrc, bodyCrc, bodySize (format §2)."""

CHUNK_BYTES = 4 << 20
UNITS_AT_ONCE = 1 << 17
_ZEROS = bytes(CHUNK_BYTES)
_BLANK_START = BLANK.pack(BLANK_MAGIC, 0)[:4]
_HEADER_ITEM = np.dtype(f"V{HEADER_BYTES}")

Run = tuple[int, int]
"""First index and term of a run of entries of one term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place between two entries: the position and index of the next entry, and the term and chain
    CRC of the previous one."""

    pos: int
    index: int
    term: int
    chain: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Some entries, as stored in one file; `blank_at` is the position of the blank in front of the
    first of them."""

    blank_at: int | None
    pos: int
    first_index: int
    data: bytes
    starts: I64
    sizes: I32
    terms: I64


class Walker:
    """Walks from entry to entry as long as they are valid. After `pieces` is exhausted, `point` is
    where it stopped, `blank_at` a valid blank there that no valid entry follows, `problem` what is
    wrong with the bytes at `point` (empty: only zeros, or the end)."""

    def __init__(self, files: MappedFiles, point: Point, *, verify: bool) -> None:
        self.point = point
        self.blank_at: int | None = None
        self.problem = ""
        self._files = files
        self._verify = verify

    def pieces(self, stop: int) -> Iterator[Piece]:
        """The entries from `point` on that end at or before the position `stop`."""
        wanted = CHUNK_BYTES
        while self.point.pos < stop:
            start = (
                self.blank_at + self._rest(self.blank_at)
                if self.blank_at is not None
                else self.point.pos
            )
            if not self._files.has(start):
                return
            room = self._rest(start)
            data = self._files.at(start).pread(start % self._files.file_bytes, min(wanted, room))
            piece, needs = self._parse(start, data, room, stop)
            if piece is not None:
                self.blank_at = None
                wanted = CHUNK_BYTES
                yield piece
            elif needs:
                wanted = needs
            elif self.blank_at is None and self._take_blank(start, room):
                wanted = CHUNK_BYTES
            else:
                return

    def _rest(self, pos: int) -> int:
        return self._files.file_bytes - pos % self._files.file_bytes

    def _parse(self, start: int, data: bytes, room: int, stop: int) -> tuple[Piece | None, int]:
        """The valid entries at the start of `data`. If there is none: the number of bytes needed to
        check the first, or 0 if it is invalid."""
        point = self.point
        index, term = point.index, point.term
        starts: list[int] = []
        sizes: list[int] = []
        terms: list[int] = []
        at = needs = chain = 0
        self.problem = ""
        while start + at < stop:
            if at + HEADER_BYTES > len(data):
                # The next entry is read with the next piece, or the file ends here, with a blank or
                # zeros.
                self.problem = _name_problem(data[at:])
                break
            magic, size, its_index, its_term, pos, _, its_chain, _, body_size = (
                ENTRY_HEAD.unpack_from(data, at)
            )
            whole = size == body_size + HEADER_BYTES and size >= ENTRY_MIN_BYTES
            if magic != ENTRY_MAGIC or its_index != index or pos != start + at or not whole:
                self.problem = _name_problem(data[at : at + HEADER_BYTES])
                break
            if its_term < term or at + size + BLANK_BYTES > room:
                self.problem = f"entry {index} has a term or a size that is impossible here"
                break
            if at + size > len(data):
                needs = size
                break
            starts.append(at)
            sizes.append(size)
            terms.append(its_term)
            at += size
            index += 1
            term, chain = its_term, its_chain
        columns = np.array(starts, np.int64), np.array(sizes, np.int32), np.array(terms, np.int64)
        if self._verify and starts:
            good, at, chain = self._verified(start, memoryview(data), *columns)
            columns = columns[0][:good], columns[1][:good], columns[2][:good]
            needs = 0
            index = point.index + good
        if index == point.index:
            return None, needs
        self.point = Point(pos=start + at, index=index, term=int(columns[2][-1]), chain=chain)
        piece = Piece(
            blank_at=self.blank_at,
            pos=start,
            first_index=point.index,
            data=data[:at],
            starts=columns[0],
            sizes=columns[1],
            terms=columns[2],
        )
        return piece, 0

    def _verified(
        self, start: int, data: memoryview, starts: I64, sizes: I32, terms: I64
    ) -> tuple[int, int, int]:
        """The number of entries with matching CRCs and a valid record, their end position, and the
        chain CRC there."""
        chain = self.point.chain
        bounds = [0, *(np.flatnonzero(np.diff(terms)) + 1).tolist(), len(terms)]
        for low, high in pairwise(bounds):
            begin, end = int(starts[low]), int(starts[high - 1]) + int(sizes[high - 1])
            first = self.point.index + low
            try:
                chain = verify_range(
                    data[begin:end], first, int(terms[low]), start + begin, chain
                ).last_chain
            except BadEntry as bad:
                self.problem = str(bad)
                good = bad.index - self.point.index
                end = int(starts[good])
                if good > low:
                    chain = verify_range(
                        data[begin:end], first, int(terms[low]), start + begin, chain
                    ).last_chain
                return good, end, chain
        return len(terms), int(starts[-1]) + int(sizes[-1]), chain

    def _take_blank(self, start: int, room: int) -> bool:
        raw = self._files.at(start).pread(start % self._files.file_bytes, BLANK_BYTES)
        if (
            BLANK.unpack(raw) != (BLANK_MAGIC, room)
            or first_nonzero(self._files, start + BLANK_BYTES, start + room) is not None
        ):
            return False
        self.blank_at = start
        self.problem = ""
        return True


def _name_problem(start: bytes) -> str:
    """What is wrong with bytes that begin no entry: a header, or what a file has left. Empty if all
    of them are zero."""
    if start[:4] == _BLANK_START:
        return "blank with a wrong length or with bytes behind it"
    return "bytes that are not an entry" if any(start) else ""


def next_chain(header: bytes, chain: int) -> int:
    """The chain CRC of the entry with this header (and the body CRC in it), which follows an entry
    with the chain CRC `chain`."""
    return int(
        crc32c.crc32c(header[:CHAINED_BYTES] + header[CRC_WORDS_AT + 4 : CRC_WORDS_AT + 8], chain)
    )


def is_place(point: Point, entries: Range, file_bytes: int) -> bool:
    """Whether a range may continue `point`: its position follows format §2, and its term is not
    lower."""
    return entries.term >= point.term and is_placed(entries, point.pos, file_bytes)


def first_nonzero(files: MappedFiles, start: int, stop: int) -> int | None:
    """Find the first byte at a position in [start, stop) that is not zero, and return its position;
    None if all of them are zero."""
    while start < stop and files.has(start):
        data = files.at(start).pread(start % files.file_bytes, min(CHUNK_BYTES, stop - start))
        if not data:
            return None
        if data != (_ZEROS if len(data) == CHUNK_BYTES else bytes(len(data))):
            return start + int(np.flatnonzero(np.frombuffer(data, np.uint8))[0])
        start += len(data)
    return None


def add_runs(runs: list[Run], first_index: int, terms: I64) -> None:
    """Append the term runs of a column of terms that starts at `first_index`."""
    if not len(terms):
        return
    changes = np.flatnonzero(np.diff(terms)) + 1
    for at in (0, *changes.tolist()):
        term = int(terms[at])
        if not runs or runs[-1][1] != term:
            runs.append((first_index + at, term))


class Disagreement(Exception):
    """Index units do not describe the log: either of them is wrong."""


def check_units(
    files: MappedFiles,
    index: IndexFiles,
    point: Point,
    last_index: int,
    end_pos: int,
    runs: list[Run],
    *,
    headers: bool,
) -> None:
    """Compare the units of the entries from `point` to `last_index`, all in one file, with each
    other and, with `headers`, with the headers in the log; otherwise only those at both ends of
    every run of terms. Adds their term runs. Raises Disagreement."""
    pos, first, term = point.pos, point.index, point.term
    while first <= last_index:
        units = index.get(first, min(UNITS_AT_ONCE, last_index - first + 1))
        if not len(units):
            raise Disagreement(f"there is no unit for entry {first}")
        positions: I64 = units["pos"].astype(np.int64)
        ends = positions + units["size"]
        terms: I64 = units["term"].astype(np.int64)
        right = (
            bool((units["magic"] == UNIT_MAGIC).all())
            and bool((units["index"] == np.arange(first, first + len(units))).all())
            and positions[0] == pos
            and bool((positions[1:] == ends[:-1]).all())
            and terms[0] >= term
            and bool((np.diff(terms) >= 0).all())
            and bool((units["size"] >= ENTRY_MIN_BYTES).all())
            and int(ends[-1]) <= end_pos
        )
        if not right:
            raise Disagreement(
                f"the units of entries {first} to {first + len(units) - 1} are not continuous"
            )
        if headers:
            _check_headers(files, units, positions)
        else:
            # A wrong term, and a wrong size of the last entry, contradict no other unit.
            changes = np.flatnonzero(np.diff(terms))
            for at in sorted({0, *changes.tolist(), *(changes + 1).tolist(), len(units) - 1}):
                _check_headers(files, units[at : at + 1], positions[at : at + 1])
        add_runs(runs, first, terms)
        first += len(units)
        pos, term = int(ends[-1]), int(terms[-1])
    if pos != end_pos:
        raise Disagreement(f"the units end at {pos}, the entries at {end_pos}")


def _check_headers(files: MappedFiles, units: Units, positions: I64) -> None:
    at = 0
    while at < len(units):
        after = int(np.searchsorted(positions, positions[at] + CHUNK_BYTES))
        start = int(positions[at])
        data = files.at(start).pread(
            start % files.file_bytes, int(positions[after - 1]) - start + HEADER_BYTES
        )
        if len(data) != int(positions[after - 1]) - start + HEADER_BYTES:
            raise Disagreement(
                f"the log ends inside the entries {int(units['index'][at])} to"
                f" {int(units['index'][after - 1])}"
            )
        head = windows(data, _HEADER_ITEM)[positions[at:after] - start].view(HEADER)
        some = units[at:after]
        same = (
            (head["magic"] == ENTRY_MAGIC) & (head["size"] == some["size"]) & (head["index"] == some["index"])
            & (head["term"] == some["term"]) & (head["pos"] == some["pos"]) & (head["body_size"] == some["size"] - HEADER_BYTES)
        )  # fmt: skip
        if not bool(same.all()):
            raise Disagreement(
                f"the header of entry {int(some['index'][int(np.argmin(same))])} and its unit"
                " differ"
            )
        at = after
