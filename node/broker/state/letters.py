"""Which dead letters are settled: resent to their consumer group, or purged. The same on every replica (docs/format.md §11, Dead letters).

A dead letter is an offset in queue 0 of a dead-letter topic. The settled offsets of a topic are kept as ranges that do not overlap; ranges
that touch and have the same settlement are one. So a job that settles all letters costs one range, whatever their number.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

RANGES_MAX = 65_536
"""The leader settles no letter that would add a range beyond this many in a broker group."""

Settled = list[tuple[int, int, str]]
"""(first offset, end, settlement), ascending."""


class Letters:
    """The settled dead letters of one broker group, by stored dead-letter topic."""

    def __init__(self) -> None:
        self._topics: dict[str, Settled] = {}

    def settlement(self, topic: str, offset: int) -> str:
        """How the letter was settled; empty if it was not."""
        ranges = self._topics.get(topic, [])
        at = _before(ranges, offset)
        return ranges[at][2] if at >= 0 and offset < ranges[at][1] else ""

    def ranges(self, topic: str) -> Settled:
        """The settled offsets of a topic. Not to be changed."""
        return self._topics.get(topic, [])

    def next_unsettled(self, topic: str, offset: int) -> int:
        """The first offset from this one on that is not settled."""
        ranges = self._topics.get(topic, [])
        for first, end, _ in ranges[max(0, _before(ranges, offset)) :]:
            if first > offset:
                break
            offset = max(offset, end)
        return offset

    @property
    def count(self) -> int:
        """The number of ranges of all topics."""
        return sum(map(len, self._topics.values()))

    def settle(self, topic: str, offset: int, how: str) -> bool:
        """Settle a letter. Returns False, and changes nothing, if it is settled already."""
        if self.settlement(topic, offset):
            return False
        ranges = self._topics.setdefault(topic, [])
        at = _before(ranges, offset) + 1
        first, end = offset, offset + 1
        low = high = at
        if at > 0 and ranges[at - 1][1:] == (offset, how):
            first, low = ranges[at - 1][0], at - 1
        if at < len(ranges) and ranges[at][0] == end and ranges[at][2] == how:
            end, high = ranges[at][1], at + 1
        ranges[low:high] = [(first, end, how)]
        return True

    def trim(self, topic: str, begin: int) -> None:
        """Letters below `begin` no longer exist."""
        kept = [(max(first, begin), end, how) for first, end, how in self._topics.get(topic, ()) if end > begin]
        if kept:
            self._topics[topic] = kept
        else:
            self.forget_topic(topic)

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted, or its letters are gone."""
        self._topics.pop(topic, None)

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11)."""
        return {topic: [list(each) for each in self._topics[topic]] for topic in sorted(self._topics)}

    def restore(self, exported: dict[str, Any]) -> None:
        self._topics = {topic: [(first, end, how) for first, end, how in ranges] for topic, ranges in exported.items()}


def _before(ranges: Settled, offset: int) -> int:
    """The place of the last range that begins at or below an offset; −1 if there is none."""
    return bisect_right(ranges, offset, key=lambda each: each[0]) - 1
