"""How many bytes may be under way to one peer: what its link carries within the shortest election
timeout.

A heartbeat queues behind everything that was pushed before it. A window is therefore too large if
the bytes ahead of a confirmed range took longer than that timeout to be *received*. Only reception
counts, because durability depends on the peer's disk; a peer with a slow disk still reports with
every heartbeat what it has received. A window is too small if it was full and the answer came
sooner. Between the two it is adjusted in proportion to the link, at most doubling. Only the size is
kept: there is no estimate of a delay that could drift.
"""

from __future__ import annotations

from ledgermq.raft.config import Timing

LEAST_PART = 16
"""The smallest window is this fraction (1/16) of the first window; one entry of any size is always
allowed."""


class Window:
    """The window of one peer: least ≤ `size` ≤ `Timing.window_bytes`; before the first answer it is
    `window_first_bytes`."""

    __slots__ = ("_least", "_most", "_within_ns", "size")

    def __init__(self, timing: Timing) -> None:
        self._most = timing.window_bytes
        self._within_ns = timing.election_min_ns
        self.size = min(timing.window_first_bytes, self._most)
        self._least = max(1, self.size // LEAST_PART)

    def confirmed(self, ahead_bytes: int, took_ns: int) -> None:
        """A range was received `took_ns` after it was pushed, when `ahead_bytes`, including its
        own, were under way."""
        carried = ahead_bytes * self._within_ns // max(1, took_ns)
        if took_ns > self._within_ns:
            self.size = max(self._least, min(self.size, carried))
        elif 2 * ahead_bytes >= self.size:
            self.size = min(self._most, max(self.size, min(2 * self.size, carried)))
