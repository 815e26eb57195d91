"""How fast reading in the background may go: never faster than a budget, and far slower while others want the processors.

A piece of work that took much longer than it computed had to wait, for a processor, for the interpreter or for the disk: somebody else
wants it too, and whoever is in the background gives way. Nothing here reads a clock but that of its own thread.
"""

from __future__ import annotations

import time

WAITED_FACTOR = 1.5
"""A piece that took so many times its own computing time met others."""
BUSY_REST_FACTOR = 50
"""Then it rests so many times as long as it computed: a fiftieth of a processor."""


class Pace:
    """The pace of one thread: `begin` before a piece, `rest_s` behind it."""

    def __init__(self, bytes_per_s: float, rest_factor: float = 0.0) -> None:
        """It rests at least `rest_factor` times as long as it computed, however small the pieces are."""
        self._bytes_per_s = bytes_per_s
        self._rest_factor = rest_factor
        self._wall_s = self._spent_s = 0.0

    def begin(self) -> None:
        self._wall_s, self._spent_s = time.perf_counter(), time.thread_time()

    def rest_s(self, length: int) -> float:
        """How long to rest after a piece of `length` bytes, in seconds."""
        return rest_s(length, time.perf_counter() - self._wall_s, time.thread_time() - self._spent_s, self._bytes_per_s, self._rest_factor)


def rest_s(length: int, wall_s: float, spent_s: float, bytes_per_s: float, rest_factor: float) -> float:
    """As `Pace.rest_s`, of a piece that took `wall_s` and computed `spent_s`."""
    waited = wall_s > WAITED_FACTOR * spent_s
    factor = max(rest_factor, BUSY_REST_FACTOR if waited else 0.0)
    return max(length / bytes_per_s - wall_s, factor * spent_s, 0.0)
