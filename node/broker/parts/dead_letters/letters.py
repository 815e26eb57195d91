"""Which dead letters are settled: resent to their consumer group, or purged. The same on every
replica (docs/format.md §11, Dead letters).

A dead letter is an offset in queue 0 of a dead-letter topic. The settled offsets of a topic are
kept as ranges that do not overlap; ranges that touch and have the same settlement are one. So a job
that settles all letters costs one range, whatever their number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, ClassVar

from ledgermq.node.broker.origins import Mark
from ledgermq.node.broker.part import Effects, StatePart, Takers
from ledgermq.node.broker.parts.ports import Positions
from ledgermq.proto.records.control import LettersRecord

KIND = "dlq"
"""Of the mark that a dead letter is."""
RANGES_MAX = 65_536
"""The leader settles no letter that would add a range beyond this many in a broker group."""

Settled = list[tuple[int, int, str]]
"""(first offset, end, settlement), ascending."""


class Letters(StatePart):
    """The settled dead letters of one broker group, by stored dead-letter topic. `begin(topic,
    queue)`: the beginning of a queue."""

    KEY = "letters"

    def __init__(self, delivery: Positions, begin: Callable[[str, int], int]) -> None:
        self._delivery = delivery
        self._begin = begin
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

    def take_copy(self, index: int, mark: Mark, effects: Effects) -> None:
        """A dead letter was stored: the message from which it was made is done for its group."""
        group, topic, queue, offset, lease = mark.fields
        effects.touched += self._delivery.apply_dead_letter(
            (group, topic, int(queue)), int(offset), int(lease)
        )

    def take_settlement(self, index: int, record: LettersRecord, effects: Effects) -> None:
        """The original of a resent letter is visible again for its group. A settled one changes
        nothing."""
        begin = self._begin(record.topic, 0)
        for at, offset in enumerate(record.offsets):
            if offset >= begin and self.settle(record.topic, offset, record.how) and record.places:
                group, topic, queue, original = record.places[at]
                effects.touched += self._delivery.apply_resent(
                    index, (group, topic, queue), original
                )

    RECORDS: ClassVar[Takers] = {LettersRecord: take_settlement}
    MARKS: ClassVar[Takers] = {KIND: take_copy}

    def trimmed(self, effects: Effects) -> None:
        """Letters below the begin no longer exist."""
        for topic in list(self._topics):
            self.trim(topic, self._begin(topic, 0))

    def trim(self, topic: str, begin: int) -> None:
        kept = [
            (max(first, begin), end, how) for first, end, how in self._topics[topic] if end > begin
        ]
        if kept:
            self._topics[topic] = kept
        else:
            del self._topics[topic]

    def topic_ended(self, topic: str, effects: Effects) -> None:
        self._topics.pop(topic, None)

    def export(self) -> dict[str, Any]:
        return {
            topic: [list(each) for each in self._topics[topic]] for topic in sorted(self._topics)
        }

    def restore(self, exported: dict[str, Any]) -> None:
        self._topics = {
            topic: [(first, end, how) for first, end, how in ranges]
            for topic, ranges in exported.items()
        }


def _before(ranges: Settled, offset: int) -> int:
    """The place of the last range that begins at or below an offset; −1 if there is none."""
    return bisect_right(ranges, offset, key=lambda each: each[0]) - 1
