"""Time epochs: how the store times of a log compare after the clocks of all nodes were wrong
together (docs/format.md §11, Time epochs).

Store times never fall along the log, except at a `time-epoch` record, with which an epoch begins.
An entry of a former epoch *counts* as stored at its store time, or at the begin of a later epoch if
that is earlier. Invariant: counted times never fall along the log. So whatever compares or searches
store times of a log goes by counted ones; without an epoch they are the store times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

EPOCHS_MAX: Final = 64
"""The oldest epochs are forgotten beyond this number. What is before a forgotten one counts as
stored at the begin of the next at the latest."""

AHEAD_MS: Final = 60_000
"""An epoch begins only if store times are ahead of the clock by more than this. What is less is
over in a minute by itself."""


@dataclass(frozen=True, slots=True)
class TimeEpoch:
    """The index and the position of the entry with which an epoch begins, and its store time."""

    index: int
    pos: int
    ms: int


class TimeEpochs:
    """The begins of the epochs of one log, oldest first. A value: it is replaced, never changed."""

    __slots__ = ("_latest", "_places", "begins")

    def __init__(self, begins: Iterable[TimeEpoch] = ()) -> None:
        self.begins = tuple(begins)[-EPOCHS_MAX:]
        self._places = [epoch.pos for epoch in self.begins]
        self._latest = [*accumulate((epoch.ms for epoch in reversed(self.begins)), min)][::-1]
        """By epoch, the latest time at which an entry before its begin counts as stored."""

    def __bool__(self) -> bool:
        return bool(self.begins)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimeEpochs) and self.begins == other.begins

    def __hash__(self) -> int:
        return hash(self.begins)

    def counted(self, store_ms: int, pos: int) -> int:
        """When an entry counts as stored. `pos`: any position inside of it."""
        if not self._places or pos >= self._places[-1]:
            return store_ms
        return min(store_ms, self._latest[bisect_right(self._places, pos)])

    def with_begin(self, epoch: TimeEpoch) -> TimeEpochs:
        """These, and one that begins behind them. The same if it is known already."""
        return (
            self
            if self.begins and self.begins[-1].index >= epoch.index
            else TimeEpochs((*self.begins, epoch))
        )

    def export(self) -> list[list[int]]:
        """As JSON values (format §11)."""
        return [[epoch.index, epoch.pos, epoch.ms] for epoch in self.begins]

    @classmethod
    def restored(cls, exported: Iterable[Any]) -> TimeEpochs:
        return cls([TimeEpoch(int(index), int(pos), int(ms)) for index, pos, ms in exported])


NO_EPOCHS: Final = TimeEpochs()
