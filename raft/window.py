"""How many bytes may be under way to one peer: what its link carries within a shortest election timeout, whatever that is.

A heartbeat queues behind everything that was pushed before it. So a window is too large when what was ahead of a confirmed range took
longer than that to be *received*: arriving is what a link does, and answers tell it apart from being durable; a peer whose disk is slow
says with every heartbeat what it has received meanwhile. It is too small when the pipe was filled and the answer came sooner. Between them
it follows the link by a proportion, upwards at most doubling. Nothing is kept but the size: no estimate of a delay that could drift.
"""

from __future__ import annotations

from ledgermq.raft.config import Timing

LEAST_PART = 16
"""Of the first window: so much may always be under way, and whatever its size one entry."""


class Window:
    """least ≤ `size` ≤ `Timing.window_bytes`; before the first answer it is `window_first_bytes`."""

    __slots__ = ("_least", "_most", "_within_ns", "size")

    def __init__(self, timing: Timing) -> None:
        self._most = timing.window_bytes
        self._within_ns = timing.election_min_ns
        self.size = min(timing.window_first_bytes, self._most)
        self._least = max(1, self.size // LEAST_PART)

    def confirmed(self, ahead_bytes: int, took_ns: int) -> None:
        """A range was received `took_ns` after it was pushed, when so many bytes, its own included, were under way."""
        carried = ahead_bytes * self._within_ns // max(1, took_ns)
        if took_ns > self._within_ns:
            self.size = max(self._least, min(self.size, carried))
        elif 2 * ahead_bytes >= self.size:
            self.size = min(self._most, max(self.size, min(2 * self.size, carried)))
