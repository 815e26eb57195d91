"""Limits the rate of background reads: to a byte budget, and to far less while other work needs the
processors.

If a piece of work took much longer than its processor time, it waited for a processor, for the
interpreter or for the disk. Then other work needs the same resource, and the background work rests.
The only clocks are the wall time and the thread's own processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WAITED_FACTOR = 1.5
"""A piece whose wall time exceeds its processor time by this factor had to wait."""
BUSY_REST_FACTOR = 50
"""The rest after such a piece, as a multiple of its processor time: about a fiftieth of a
processor."""


class Pace:
    """The pace of one thread: call `begin` before a piece of work and `rest_s` after it."""

    def __init__(
        self,
        bytes_per_s: float,
        rest_factor: float = 0.0,
        now_s: Callable[[], float] = time.perf_counter,
        spent_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`rest_factor`: the minimum rest after a piece, as a multiple of its processor time."""
        self._bytes_per_s = bytes_per_s
        self._rest_factor = rest_factor
        self._now_s, self._now_spent_s = now_s, spent_s
        self._wall_s = self._spent_s = 0.0

    def begin(self) -> None:
        self._wall_s, self._spent_s = self._now_s(), self._now_spent_s()

    def rest_s(self, length: int) -> float:
        """The time to rest after a piece of `length` bytes, in seconds."""
        return rest_s(
            length,
            self._now_s() - self._wall_s,
            self._now_spent_s() - self._spent_s,
            self._bytes_per_s,
            self._rest_factor,
        )


def rest_s(
    length: int, wall_s: float, spent_s: float, bytes_per_s: float, rest_factor: float
) -> float:
    """The rest in seconds after a piece of `length` bytes with a wall time of `wall_s` and a
    processor time of `spent_s`."""
    waited = wall_s > WAITED_FACTOR * spent_s
    factor = max(rest_factor, BUSY_REST_FACTOR if waited else 0.0)
    return max(length / bytes_per_s - wall_s, factor * spent_s, 0.0)
