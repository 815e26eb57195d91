"""The log files that contain a range of indexes, store times or positions, and where to start in
the first of them.

Files are named by position. For an index or a time the files are searched by bisection: the first
entry of a file has its lowest index and time, and both only increase along the log. A file whose
first entry cannot be read is included rather than left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ledgermq.audit.reading.decode import ENTRY_MAGIC, HEADER_BYTES, I64, PREFIX, Flags
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.lookup import header_at
from ledgermq.audit.reading.walk import LogFile

INDEX_MAX = MS_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers from `low` to `high`, both included; None: unbounded."""

    low: int | None = None
    high: int | None = None

    def within(self, other: Span) -> Span:
        """The intersection of both."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Span(max(lows, default=None), min(highs, default=None))

    def __bool__(self) -> bool:
        """Whether it excludes anything."""
        return self.low is not None or self.high is not None

    def meets(self, low: int, high: int) -> bool:
        """Whether it contains a number of low … high."""
        return (self.low is None or self.low <= high) and (self.high is None or self.high >= low)

    def holds(self, values: I64) -> Flags:
        """A mask of the values that it contains."""
        flags: Flags = np.ones(len(values), np.bool_)
        if self.low is not None:
            flags &= values >= self.low
        if self.high is not None:
            flags &= values <= self.high
        return flags


ALL = Span()


@dataclass(frozen=True, slots=True)
class First:
    """The first entry of a log file, as far as its fields can be trusted without a checksum."""

    index: int
    ms: int


def first_of(task: LogFile) -> First | None:
    """None if there is no entry, or one with a wrong position."""
    try:
        with open_file(task.path) as file:
            data = file.pread(PREFIX.itemsize, 0)
    except OSError:
        return None
    if len(data) < PREFIX.itemsize:
        return None
    row = np.frombuffer(data, PREFIX)[0]
    if (
        row["magic"] != ENTRY_MAGIC
        or row["pos"] != task.base
        or row["size"] != row["body_size"] + HEADER_BYTES
    ):
        return None
    return First(int(row["index"]), int(row["store_ms"]))


def needed(
    tasks: Sequence[LogFile], index: Span = ALL, ms: Span = ALL, place: Span = ALL
) -> list[tuple[LogFile, int]]:
    """The files that may hold entries of these indexes, store times and positions, in order, each
    with the byte to start from."""
    files = [task for task in tasks if place.meets(task.base, task.base + task.data_file_bytes - 1)]
    known: dict[int, First | None] = {}

    def first_in(number: int) -> First | None:
        if number not in known:
            known[number] = first_of(files[number])
        return known[number]

    low, high = 0, len(files)
    # Entries of one millisecond may be in two files.
    if index.low is not None:
        low = max(low, _last(first_in, len(files), First(index.low, MS_MAX), False))
    if ms.low is not None:
        low = max(low, _last(first_in, len(files), First(INDEX_MAX, ms.low - 1), False))
    if index.high is not None:
        high = min(high, 1 + _last(first_in, len(files), First(index.high, MS_MAX), True))
    if ms.high is not None:
        high = min(high, 1 + _last(first_in, len(files), First(INDEX_MAX, ms.high), True))
    return [
        (task, _begin(task, index.low) if number == low else 0)
        for number, task in enumerate(files)
        if low <= number < high
    ]


def _last(first_in: Callable[[int], First | None], count: int, bound: First, unknown: bool) -> int:
    """The last file that does not begin behind the bound; 0 if all do. First entries ascend, so
    what holds for one file holds for all before it. For a file that cannot be read, without a
    readable one behind it, `unknown` is assumed."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        first, at = first_in(middle), middle
        while first is None and at + 1 < high:
            at += 1
            first = first_in(at)
        reached = first is not None and first.index <= bound.index and first.ms <= bound.ms
        if reached or ((first is None or at > middle) and unknown):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)


def _begin(task: LogFile, index: int | None) -> int:
    """The offset of the entry with this index, by the index files; 0 if they do not lead there."""
    header = header_at(task, index) if index else None
    inside = header is not None and task.base <= header[0] < task.base + task.data_file_bytes
    return header[0] - task.base if header is not None and inside else 0
