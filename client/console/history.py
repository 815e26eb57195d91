"""Numbers over time, for the pictures: bounded series of samples that were taken while pages were
open.

Only arithmetic lives here. A value that is unknown is None. Counters that fall (a leader that does
not know everything yet) give no rate.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from itertools import pairwise
from time import time

from ledgermq.client.results import ClusterStatus

SAMPLES = 300
SERIES_MAX = 256

Values = tuple[float | None, ...]


class History:
    """Series by key. `now` gives the time of day that pictures show."""

    def __init__(self, now: Callable[[], float] = time) -> None:
        self._now = now
        self._series: OrderedDict[Hashable, deque[tuple[float, Values]]] = OrderedDict()
        self.topic_rates: dict[str, float] = {}
        """Messages per second of each topic, between the last two states of the cluster."""
        self._topics: tuple[float, dict[str, int]] = (0.0, {})

    def add(self, key: Hashable, *values: float | None) -> None:
        series = self._series.setdefault(key, deque(maxlen=SAMPLES))
        self._series.move_to_end(key)
        series.append((self._now(), values))
        while len(self._series) > SERIES_MAX:
            self._series.popitem(last=False)

    def samples(self, key: Hashable) -> list[tuple[float, Values]]:
        return list(self._series.get(key, ()))

    def rates(self, key: Hashable) -> list[tuple[float, Values]]:
        """The samples of counters as changes per second."""
        samples = self.samples(key)
        per_second = []
        for (before, old), (after, new) in pairwise(samples):
            if after > before:
                steps = zip(old, new, strict=True)
                per_second.append(
                    (
                        after,
                        tuple(
                            None if a is None or b is None or b < a else (b - a) / (after - before)
                            for a, b in steps
                        ),
                    )
                )
        return per_second

    def add_status(self, status: ClusterStatus, at: float) -> None:
        """Keep what pictures show of a state of the cluster. `at`: on a clock that never goes
        back."""
        before, former = self._topics
        counts = {
            topic.name: topic.messages for topic in status.topics if topic.messages is not None
        }
        if former and at > before:
            steps = {
                name: (count - former[name]) / (at - before)
                for name, count in counts.items()
                if name in former
            }
            self.topic_rates = {name: rate for name, rate in steps.items() if rate >= 0}
        self._topics = (at, counts)
        self.add("messages", sum(counts.values()) if len(counts) == len(status.topics) else None)
        for group in status.groups:
            self.add(("term", group.name), group.term)
            for replica in group.replicas:
                self.add(
                    ("replica", group.name, replica.node),
                    replica.end_index,
                    replica.commit_index,
                    replica.lag_entries,
                )
