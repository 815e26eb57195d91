"""Limits how fast all audits together read from this node's disk, and slows them down while the event loop is busy.

Pure arithmetic over a clock that is passed in. A reader asks before every piece how long to wait, and must then wait that long.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.proto.token_bucket import TokenBucket

LATE_S = 0.001
"""If the event loop takes a result later than this, it is busy with other work."""
REST_FACTOR = 20
"""Reading pauses for this many times the delay of the loop."""
REST_MAX_S = 1.0


class Budget:
    """The read budget of one node."""

    def __init__(self, bytes_per_s: int, now_s: Callable[[], float]) -> None:
        # No burst: unused time is not made up for.
        self._bucket = TokenBucket(bytes_per_s, 0)
        self._now_s = now_s

    def wait_s(self, size: int, late_s: float) -> float:
        """Seconds to wait before reading the next piece, of `size` bytes. `late_s`: how late the loop took the previous result."""
        now_s = self._now_s()
        rest_s = min(REST_FACTOR * late_s, REST_MAX_S) if late_s > LATE_S else 0.0
        wait_s = self._bucket.wait(now_s) + rest_s
        self._bucket.take(size + rest_s * self._bucket.rate, now_s)
        return wait_s
