"""The ranges that a broker group applied last, for readers that follow the end of the log.

The owner of the group adds each applied range; any thread may read. Nothing is copied: the bytes
are those that the group applied, which are a view of the mapped file that this process wrote or,
for long ranges (`storage/log/hot_tail.py`), the memory from which they were appended; the columns
are those that the dispatcher computed. Ranges, entries and bytes are bounded: a reader that falls
behind continues from the files. The window exists only while there are such readers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from ledgermq.proto.entries.layout import Columns
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
    """A window on the applied entries; it begins with `begin_index` and moves with the end of the
    log."""

    def __init__(self, begin_index: int) -> None:
        self._begin_index = begin_index
        """The index at which the window was opened."""
        self._ranges: deque[Applied] = deque()
        self._entries = 0
        self._bytes = 0

    def add(self, entries: Range, columns: Columns) -> None:
        """Add a range that follows the last one. The newest range stays, however large it is."""
        self._ranges.append(Applied(entries, columns))
        self._entries += len(entries)
        self._bytes += len(entries.data)
        while len(self._ranges) > 1 and (
            self._entries > ENTRIES_MAX or self._bytes > BYTES_MAX or len(self._ranges) > RANGES_MAX
        ):
            gone = self._ranges.popleft().entries
            self._entries -= len(gone)
            self._bytes -= len(gone.data)

    def since(self, index: int) -> list[Applied] | None:
        """The ranges from the one with entry `index` on; empty if the entry is not yet applied;
        None if it is older than the window. Any thread may call this: copying the deque is atomic
        for the other threads of this interpreter."""
        ranges = list(self._ranges)
        if not ranges:
            return [] if index >= self._begin_index else None
        if index < ranges[0].entries.first_index:
            return None
        if index > ranges[-1].entries.last_index:
            return []
        return ranges[
            bisect_right(ranges, index, key=lambda applied: applied.entries.first_index) - 1 :
        ]
