"""A rate with a burst: the token bucket for quotas, new connections, audits and observers.

Pure arithmetic over a clock that is passed in. The caller chooses the unit of time (seconds,
nanoseconds); the rate is in tokens per unit.
"""

from __future__ import annotations


class TokenBucket:
    """Fills with `rate` tokens per unit of time up to `burst`; full at first. `take` may go below
    zero: later tokens pay the debt."""

    __slots__ = ("_at", "_left", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self._left = burst
        self._at = float("-inf")

    def available(self, now: float) -> float:
        """Tokens at `now`: at most `burst`, below zero while there is a debt."""
        return min(self.burst, self._left + (now - self._at) * self.rate)

    def take(self, tokens: float, now: float) -> None:
        self._left, self._at = self.available(now) - tokens, now

    def wait(self, now: float, tokens: float = 0.0) -> float:
        """Time until `available` is at least `tokens`, which are at most `burst`."""
        return max(0.0, (tokens - self.available(now)) / self.rate)
