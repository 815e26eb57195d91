"""A window on the next timers of one epoch, read from its slot in columns and steps.

A slot holds its messages in order of arrival. To get the next ones in firing order, a window reads
the whole slot in steps of a bounded number of units and keeps the lowest keys. If the slot has more
messages than the window holds, the slot is read again when the window is used up. So memory is
bounded, however many messages are due in one minute, or in one millisecond.
"""

from __future__ import annotations

import numpy as np

from ledgermq.node.broker.parts.timers.timers import SLOT_MS, SLOTS, key_of
from ledgermq.node.broker.ports import Messages
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.types import I32, I64

WINDOW_ROWS = 1 << 16
SCAN_UNITS = 1 << 17
"""Units examined in one step."""
EVERYTHING = 1 << 62
_OFFSET_MASK = (1 << 40) - 1


class Window:
    """Rows of one epoch with keys above `after`, in key order. `at` is the first row not taken yet.
    `end`: where the slot ends for it; None: at the end of the queue."""

    def __init__(
        self, units: Messages, epoch: int, first: int, after: int, end: int | None = None
    ) -> None:
        self.epoch = epoch
        self.at = 0
        self._units = units
        self._slot = epoch % SLOTS
        self._next = max(first, units.begin(TIMER_TOPIC, self._slot))
        """The first queue offset not examined yet."""
        self._after = after
        self._end = end
        self._bound = EVERYTHING
        """Rows with higher keys were left out."""
        self._parts: list[tuple[I64, I64, I32]] = []
        """Keys, positions and sizes of rows that are not merged yet."""
        self._found = 0
        self.keys: I64 = np.zeros(0, np.int64)
        self.positions: I64 = np.zeros(0, np.int64)
        self.sizes: I32 = np.zeros(0, np.int32)

    def __len__(self) -> int:
        """The number of rows not taken yet."""
        return len(self.keys) - self.at

    @property
    def current(self) -> bool:
        """Whether the whole slot was examined, so that the rows are the next ones to fire."""
        return not self._parts and self._next >= self._slot_end

    @property
    def _slot_end(self) -> int:
        return self._units.end(TIMER_TOPIC, self._slot) if self._end is None else self._end

    @property
    def whole(self) -> bool:
        """Whether no row of the epoch was left out."""
        return self._bound == EVERYTHING

    def fire_ms(self, row: int) -> int:
        return self.epoch * SLOT_MS + (int(self.keys[row]) >> 40)

    def offset(self, row: int) -> int:
        return (int(self.keys[row]) & _OFFSET_MASK) - 1

    def until(self, fire_ms: int) -> int:
        """One past the last row that fires at or before this time."""
        if fire_ms >= (self.epoch + 1) * SLOT_MS:
            return len(self.keys)
        return (
            int(np.searchsorted(self.keys, key_of(fire_ms, _OFFSET_MASK - 1), side="right"))
            if fire_ms >= self.epoch * SLOT_MS
            else 0
        )

    def step(self) -> None:
        """Examine more of the slot; at its end, sort the rows."""
        # The log may have been trimmed where no message waits any more.
        self._next = max(self._next, self._units.begin(TIMER_TOPIC, self._slot))
        count = min(SCAN_UNITS, self._slot_end - self._next)
        if count > 0:
            positions, sizes, fire_times = self._units.units(
                TIMER_TOPIC, self._slot, self._next, count
            )
            keys = (fire_times % SLOT_MS) << 40 | (np.arange(self._next, self._next + count) + 1)
            wanted = (
                (fire_times // SLOT_MS == self.epoch) & (keys > self._after) & (keys <= self._bound)
            )
            self._next += count
            if wanted.any():
                self._parts.append((keys[wanted], positions[wanted], sizes[wanted]))
                self._found += int(wanted.sum())
        if self._found > WINDOW_ROWS or (self._parts and self._next >= self._slot_end):
            self._merge()

    def _merge(self) -> None:
        parts = [
            (self.keys[self.at :], self.positions[self.at :], self.sizes[self.at :]),
            *self._parts,
        ]
        keys = np.concatenate([part[0] for part in parts])
        positions, sizes = (
            np.concatenate([part[1] for part in parts]),
            np.concatenate([part[2] for part in parts]),
        )
        order = np.argsort(keys, kind="stable")[: 2 * WINDOW_ROWS]
        if len(order) < len(keys):
            order = order[:WINDOW_ROWS]
            self._bound = int(keys[order[-1]])
        self.keys, self.positions, self.sizes, self.at = (
            keys[order],
            positions[order],
            sizes[order],
            0,
        )
        self._parts, self._found = [], 0
