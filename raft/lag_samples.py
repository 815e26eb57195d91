"""How far behind a copy is in time and bytes, given only its last entry: samples of where the leader's log ended when.

Arithmetic over samples; `isr_review.py` decides which copy is too far behind.
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
    """Samples of one leader's log, oldest first, at most SAMPLES_MAX; a copy that ends before the oldest sample is as far behind as that
    sample is."""

    def __init__(self, end_index: int, now_ns: int) -> None:
        self._samples = [Sample(NO_INDEX, now_ns, 0), Sample(end_index, now_ns, 0)]
        self._total_bytes = 0

    def appended(self, size: int) -> None:
        """The leader appended so many bytes."""
        self._total_bytes += size

    def sample(self, end_index: int, now_ns: int) -> None:
        """Where the log ends now. If the log stood still, its last sample moves, so that a copy that has all of it is not behind."""
        if self._samples[-1].end_index == end_index:
            del self._samples[-1]
        self._samples.append(Sample(end_index, now_ns, self._total_bytes))
        if len(self._samples) > SAMPLES_MAX:
            # Half as fine behind the middle: what is far behind need not be known to the tenth of a second.
            middle = SAMPLES_MAX // 2
            self._samples = [self._samples[0], *self._samples[1:middle:2], *self._samples[middle:]]

    def behind(self, index: int, end_index: int, now_ns: int) -> tuple[int, int]:
        """(nanoseconds, bytes) that a copy which ends with `index` lacks; never less than it does."""
        if index >= end_index:
            return 0, 0
        at = bisect_right(self._samples, index, key=lambda sample: sample.end_index) - 1
        known = self._samples[max(at, 0)]
        return now_ns - known.now_ns, self._total_bytes - known.total_bytes
