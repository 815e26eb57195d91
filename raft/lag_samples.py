"""How far a copy is behind in time and bytes, given only its last entry: samples of the end of the
leader's log over time.

Arithmetic only; `isr_review.py` decides which copy is too far behind.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ledgermq.raft.messages import NO_INDEX

SAMPLES_MAX = 256


class Sample(NamedTuple):
    """The log ended with `end_index` at `now_ns`, and `total_bytes` had been appended by then."""

    end_index: int
    now_ns: int
    total_bytes: int


class LagSamples:
    """Samples of one leader's log, oldest first, at most SAMPLES_MAX. A copy that ends before the
    oldest sample counts as far behind as that sample."""

    def __init__(self, end_index: int, now_ns: int) -> None:
        self._samples = [Sample(NO_INDEX, now_ns, 0), Sample(end_index, now_ns, 0)]
        self._total_bytes = 0

    def appended(self, size: int) -> None:
        """The leader appended this many bytes."""
        self._total_bytes += size

    def sample(self, end_index: int, now_ns: int) -> None:
        """Sample the end of the log. If it has not changed, the last sample moves in time, so that
        a complete copy is not behind."""
        if self._samples[-1].end_index == end_index:
            del self._samples[-1]
        self._samples.append(Sample(end_index, now_ns, self._total_bytes))
        if len(self._samples) > SAMPLES_MAX:
            # Thins the older half: a large lag need not be known precisely.
            middle = SAMPLES_MAX // 2
            self._samples = [self._samples[0], *self._samples[1:middle:2], *self._samples[middle:]]

    def behind(self, index: int, end_index: int, now_ns: int) -> tuple[int, int]:
        """(nanoseconds, bytes) that a copy which ends with `index` lacks; never less than it really
        lacks."""
        if index >= end_index:
            return 0, 0
        at = bisect_right(self._samples, index, key=lambda sample: sample.end_index) - 1
        known = self._samples[max(at, 0)]
        return now_ns - known.now_ns, self._total_bytes - known.total_bytes
