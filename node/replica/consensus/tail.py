"""The newest entries of the log as they were appended: who applies or pushes them need not read them back.

Long ranges only. Short ones are better read from the log, many at once. What is kept was written here, so it needs no check; it is dropped
once it is committed and a turn old, when the log is cut, and when there is too much of it. No file and no clock. Never a byte that is not
in the log.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ledgermq.node.broker.ranges import cut, tail_of
from ledgermq.proto.types import Range

LEAST_BYTES = 64 << 10
MOST_BYTES = 8 << 20


class Tail:
    """Ranges in log order; together at most `MOST_BYTES`, or one."""

    def __init__(self) -> None:
        self._ranges: deque[Range] = deque()
        self._bytes = 0
        self._committed = -1

    def appended(self, entries: Range) -> None:
        """Written to the log's end just now. Nobody may write to its bytes any more."""
        if len(entries.data) < LEAST_BYTES:
            return
        self._ranges.append(entries)
        self._bytes += len(entries.data)
        while self._bytes > MOST_BYTES and len(self._ranges) > 1:
            self._drop_first()

    def was_cut(self) -> None:
        """Entries were removed from the log's end."""
        self._ranges.clear()
        self._bytes = 0

    def committed(self, index: int) -> None:
        """What was committed when this was called before has been applied since, or is read from the log."""
        while self._ranges and self._ranges[0].last_index <= self._committed:
            self._drop_first()
        self._committed = index

    def read(self, first_index: int, max_bytes: int) -> Range | None:
        """As `EntryLog.read`, within one of these ranges; None if the entry is in none."""
        for entries in self._ranges:
            if entries.first_index <= first_index <= entries.last_index:
                return _first(tail_of(entries, first_index), max_bytes)
        return None

    def _drop_first(self) -> None:
        self._bytes -= len(self._ranges.popleft().data)


def _first(entries: Range, max_bytes: int) -> Range:
    """At least one entry, then up to `max_bytes`."""
    if len(entries.data) <= max_bytes:
        return entries
    count = int(np.searchsorted(entries.starts + entries.sizes, max_bytes, side="right"))
    return cut(entries, entries.first_index + max(count, 1) - 1)
