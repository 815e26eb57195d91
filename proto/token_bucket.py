"""A rate with a burst: the one token bucket for quotas, new connections, audits and observers.

Pure arithmetic over a clock that is passed in. The caller chooses the unit of time (seconds, nanoseconds); the rate is in tokens per unit.
"""

from __future__ import annotations


class TokenBucket:
    """Fills with `rate` tokens per unit of time up to `burst`; full at first. `take` may go below zero: later tokens pay the debt."""

    __slots__ = ("_full_at", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self._full_at = float("-inf")

    def available(self, now: float) -> float:
        """Tokens at `now`: at most `burst`, below zero while there is a debt."""
        return self.burst - max(0.0, self._full_at - now) * self.rate

    def take(self, tokens: float, now: float) -> None:
        self._full_at = max(self._full_at, now) + tokens / self.rate

    def wait(self, now: float, tokens: float = 0.0) -> float:
        """Time until `available` is at least `tokens`, which are at most `burst`."""
        return max(0.0, self._full_at - now - (self.burst - tokens) / self.rate)
