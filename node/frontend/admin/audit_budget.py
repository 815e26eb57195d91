"""How fast audits may read from this node's disk: all of them together, and slower while the node has better things to do.

Pure arithmetic over a clock that is passed in. Whoever reads asks before every piece how long to wait; a wait that was told is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.proto.token_bucket import TokenBucket

LATE_S = 0.001
"""An event loop that takes a result later than this has work of its own."""
REST_FACTOR = 20
"""Reading rests so many times as long as the loop was late."""
REST_MAX_S = 1.0


class Budget:
    """One for a node."""

    def __init__(self, bytes_per_s: int, now_s: Callable[[], float]) -> None:
        # No burst: time in which nothing was read is not made up for.
        self._bucket = TokenBucket(bytes_per_s, 0)
        self._now_s = now_s

    def wait_s(self, size: int, late_s: float) -> float:
        """How long to wait before the next piece, of `size` bytes, is read. `late_s`: how late the loop took the one before."""
        now_s = self._now_s()
        rest_s = min(REST_FACTOR * late_s, REST_MAX_S) if late_s > LATE_S else 0.0
        wait_s = self._bucket.wait(now_s) + rest_s
        self._bucket.take(size + rest_s * self._bucket.rate, now_s)
        return wait_s
