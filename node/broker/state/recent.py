"""The ranges a broker group applied last, for readers that follow the end of the log.

The owner of the group adds a range when it is applied; any thread may look. Nothing is copied: the bytes are those the group applied, a
view of the mapped file that this process wrote or, of long ranges (`storage/hot_tail.py`), the memory they were appended from; the columns
are those the dispatcher worked out. Bounded in ranges, entries and bytes: a reader that falls behind goes on from the files. Kept only
while somebody follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from ledgermq.proto.layout import Columns
from ledgermq.proto.types import Range

RANGES_MAX = 4096
ENTRIES_MAX = 1 << 17
BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class Applied:
    """One applied range and its columns."""

    entries: Range
    columns: Columns


class Recent:
    """A window on the applied entries; it begins with `begin_index` and moves with the end of the log."""

    def __init__(self, begin_index: int) -> None:
        self._begin_index = begin_index
        """Where the window was opened."""
        self._ranges: deque[Applied] = deque()
        self._entries = 0
        self._bytes = 0

    def add(self, entries: Range, columns: Columns) -> None:
        """A range that follows the one added last. The newest one stays, however large."""
        self._ranges.append(Applied(entries, columns))
        self._entries += len(entries)
        self._bytes += len(entries.data)
        while len(self._ranges) > 1 and (self._entries > ENTRIES_MAX or self._bytes > BYTES_MAX or len(self._ranges) > RANGES_MAX):
            gone = self._ranges.popleft().entries
            self._entries -= len(gone)
            self._bytes -= len(gone.data)

    def since(self, index: int) -> list[Applied] | None:
        """The ranges from the one that holds entry `index` on; none when nothing so new is applied. None when the window does not reach
        back so far. Any thread: a copy of the deque is one step for the other threads of this interpreter."""
        ranges = list(self._ranges)
        if not ranges:
            return [] if index >= self._begin_index else None
        if index < ranges[0].entries.first_index:
            return None
        if index > ranges[-1].entries.last_index:
            return []
        return ranges[bisect_right(ranges, index, key=lambda applied: applied.entries.first_index) - 1 :]
