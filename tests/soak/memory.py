"""Memory over time: what soak tests compare."""

from __future__ import annotations

import statistics


def medians_by_quarter(samples: list[float]) -> list[float]:
    """Of the samples, oldest first."""
    quarter = len(samples) // 4
    return [
        statistics.median(samples[number * quarter : (number + 1) * quarter]) for number in range(4)
    ]
