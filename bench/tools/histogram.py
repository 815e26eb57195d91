"""Latencies without coordinated omission: intended send times, and histograms that are merged, not
averaged.

A sender that waits for an answer before its next send omits exactly the sends that a stall would
have delayed. So the intended time of every send is fixed before the run (`Schedule`), and latency
counts from there, whenever it really left. Histograms have buckets of a fixed relative width (as in
HdrHistogram: G. Tene), so those of several processes or runs can be added; the percentiles of a sum
are never means of percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SUB_BITS = 7
"""Each power of two has 2^7 buckets: a value is known to within 0.8 %."""
UNIT_NS = 1000
"""The first buckets are a microsecond wide."""
POWERS = 40
BUCKETS = (POWERS - SUB_BITS + 2) << SUB_BITS
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)


def bucket_of(value_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The buckets of values; negative values are in the first, values beyond the last power of two
    in the last."""
    units = np.clip(value_ns // UNIT_NS, 0, (1 << POWERS) - 1)
    shift = np.maximum(np.frexp(units.astype(np.float64))[1] - SUB_BITS - 1, 0).astype(np.int64)
    return (shift << SUB_BITS) + (units >> shift)


def upper_ns(bucket: int) -> int:
    """The largest value of a bucket."""
    shift = max((bucket >> SUB_BITS) - 1, 0)
    return (((bucket - (shift << SUB_BITS)) + 1) << shift) * UNIT_NS - 1


@dataclass
class Histogram:
    """Counts of latencies by bucket, and the exact maximum."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    most_ns: int = 0

    def add(
        self, values_ns: Iterable[int] | NDArray[np.int64], weights: NDArray[np.int64] | None = None
    ) -> None:
        """Count values; `weights`: how often each counts."""
        values = np.asarray(
            list(values_ns) if not isinstance(values_ns, np.ndarray) else values_ns, np.int64
        )
        if values.size:
            np.add.at(self.counts, bucket_of(values), 1 if weights is None else weights)
            self.most_ns = max(self.most_ns, int(values.max()))

    def merge(self, other: Histogram) -> None:
        self.counts += other.counts
        self.most_ns = max(self.most_ns, other.most_ns)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def percentile_ns(self, percent: float) -> int:
        """The smallest known value that at least `percent` of all values do not exceed."""
        if not self.total:
            raise ValueError("no value was counted")
        rank = max(1, math.ceil(self.total * percent / 100 - 1e-9))
        return min(upper_ns(int(np.searchsorted(np.cumsum(self.counts), rank))), self.most_ns)

    def summary_ms(self) -> dict[str, float]:
        found = {
            f"p{percent:g}_ms": round(self.percentile_ns(percent) / 1e6, 3)
            for percent in PERCENTILES
        }
        return {**found, "max_ms": round(self.most_ns / 1e6, 3)}

    def document(self) -> dict[str, object]:
        """Non-empty buckets, for JSON and `from_document`."""
        where = np.flatnonzero(self.counts)
        return {
            "buckets": where.tolist(),
            "counts": self.counts[where].tolist(),
            "most_ns": self.most_ns,
        }

    @classmethod
    def from_document(cls, document: dict[str, object]) -> Histogram:
        found = cls()
        found.counts[np.asarray(document["buckets"], np.int64)] = document["counts"]
        found.most_ns = int(document["most_ns"])  # type: ignore[call-overload]
        return found


@dataclass(frozen=True)
class Schedule:
    """Sends at fixed intervals from a start time, in nanoseconds; a late send leaves at once and
    does not shift the others."""

    begin_ns: int
    per_second: float

    def intended_ns(self, number: int) -> int:
        return self.begin_ns + round(number * 1e9 / self.per_second)

    def due(self, now_ns: int) -> int:
        """The number of sends that should have started by now."""
        return max(0, math.floor((now_ns - self.begin_ns) * self.per_second / 1e9) + 1)
