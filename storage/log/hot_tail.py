"""The newest entries of a log as they were appended: what applies or pushes them need not read them
back.

Invariant: between two calls every range held here is what the log says, byte for byte; so `cut`
lets go of everything, before the log loses an entry. What is held was written by this process or
read from the log, and needs no further check.

A range stays until it is committed and the turn after that has ended: it is applied and pushed
without being read back. Long ranges together have at most `MOST_BYTES`, or there is one of them. Of
the short ones only the last `SHORT_RANGES` stay, because many short ranges are better read from the
log at once.

No file, no clock and no thread: the owner of the log owns this too. What native readers follow is
another window (`node/broker/recent.py`): it holds applied entries with their columns, for other
threads, and only while somebody reads.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.proto.types import Range

LEAST_BYTES = 64 << 10
"""A range with fewer bytes is short."""
MOST_BYTES = 8 << 20
SHORT_RANGES = 4


class HotTail:
    """Ranges in log order."""

    def __init__(self) -> None:
        self._long: deque[Range] = deque()
        self._short: deque[Range] = deque(maxlen=SHORT_RANGES)
        self._bytes = 0
        self._committed = -1

    def appended(self, entries: Range) -> None:
        """Written to the log's end just now. Nobody may write to its bytes any more."""
        if len(entries.data) < LEAST_BYTES:
            self._short.append(entries)
            return
        self._long.append(entries)
        self._bytes += len(entries.data)
        while self._bytes > MOST_BYTES and len(self._long) > 1:
            self._drop_first()

    def cut(self) -> None:
        """Entries are about to be removed from the log's end."""
        self._long.clear()
        self._short.clear()
        self._bytes = 0

    def end_turn(self, commit_index: int) -> None:
        """What was committed when the turn before ended has been applied since, or is read from the
        log."""
        while self._long and self._long[0].last_index <= self._committed:
            self._drop_first()
        while self._short and self._short[0].last_index <= self._committed:
            self._short.popleft()
        self._committed = commit_index

    def read(self, first_index: int, max_bytes: int) -> Range | None:
        """As `EntryLog.read`, within one range; None if the entry is in none."""
        for kept in (self._short, self._long):
            for entries in kept:
                if entries.first_index == first_index and len(entries.data) <= max_bytes:
                    return entries
                if entries.first_index <= first_index <= entries.last_index:
                    return _first(tail_of(entries, first_index), max_bytes)
        return None

    def _drop_first(self) -> None:
        self._bytes -= len(self._long.popleft().data)


def _first(entries: Range, max_bytes: int) -> Range:
    """At least one entry, then up to `max_bytes`."""
    if len(entries.data) <= max_bytes:
        return entries
    count = int(np.searchsorted(entries.starts + entries.sizes, max_bytes, side="right"))
    return cut(entries, entries.first_index + max(count, 1) - 1)
