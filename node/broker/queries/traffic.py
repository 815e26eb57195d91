"""What a leader has stored and handed out since its replica was opened, by topic and by consumer
group.

For metrics only: no decision depends on it, nothing of it is replicated or stored. The counts of a
former leader stay, so that no counter goes back when it leads again. Costs one addition per topic
of an applied range (of a few messages on several topics: one per message), and one row per answered
Receive, whatever number of messages they have. Memory: a row per topic in force, and per consumer
group and topic that exist (`forget`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ledgermq.node.broker.parts.ports import Positions
from ledgermq.node.broker.plan import Leased
from ledgermq.proto.entries.layout import HEADER_BYTES, Columns
from ledgermq.proto.names import base_group, parent_of
from ledgermq.proto.types import Range

Pair = tuple[str, str]
"""(consumer group, topic), as clients know them: without a member of the group or the name of a
lite topic."""
_PAIRS_MIN = 4096


@dataclass(slots=True)
class Stored:
    """Messages stored in a topic, and the bytes of their records."""

    messages: int = 0
    bytes: int = 0


@dataclass(slots=True)
class HandedOut:
    """Messages leased to a consumer group, the bytes of their records, how many of them were
    delivered before, and messages that became dead letters."""

    messages: int = 0
    bytes: int = 0
    again: int = 0
    dead: int = 0


class Traffic:
    """The counts of one broker group's leader."""

    def __init__(self, delivery: Positions) -> None:
        self._delivery = delivery
        self._pairs_max = _PAIRS_MIN
        self.stored: dict[str, Stored] = {}
        """By topic."""
        self.handed_out: dict[Pair, HandedOut] = {}

    def applied(self, entries: Range, columns: Columns, topics: Mapping[str, object]) -> None:
        """Count the entries of a range on topics in force, in `topics`."""
        if len(columns.topics) == 1:
            stored = entries.last_index - entries.first_index + 1
            rows: Iterable[tuple[str, int, int]] = (
                (columns.topics[0], stored, len(entries.data) - stored * HEADER_BYTES),
            )
        else:
            rows = _by_topic(columns)
        for stored_topic, messages, size in rows:
            count = self.stored.get(stored_topic)
            if count is None:
                topic = parent_of(stored_topic)
                if topic not in topics:
                    continue
                count = self.stored.setdefault(topic, Stored())
            count.messages += messages
            count.bytes += size

    def leased(self, rows: Iterable[Leased]) -> None:
        """Count what a plan that is in the log hands out."""
        for row in rows:
            count = self.handed_out.setdefault(
                (base_group(row.group), parent_of(row.topic)), HandedOut()
            )
            count.messages += row.messages
            count.bytes += row.bytes
            count.again += row.again
            count.dead += row.dead

    def forget(self, topics: Mapping[str, object]) -> None:
        """Forget topics that are no longer in force and, when the pairs have become many, those of
        consumer groups without a position."""
        self.stored = {topic: count for topic, count in self.stored.items() if topic in topics}
        self.handed_out = {
            pair: count for pair, count in self.handed_out.items() if pair[1] in topics
        }
        if len(self.handed_out) > self._pairs_max:
            known = {
                (base_group(group), parent_of(topic)) for group, topic, _ in self._delivery.queues
            }
            self.handed_out = {
                pair: count for pair, count in self.handed_out.items() if pair in known
            }
            self._pairs_max = max(_PAIRS_MIN, 2 * len(self.handed_out))


def _by_topic(columns: Columns) -> Iterable[tuple[str, int, int]]:
    """Stored topic, messages, and bytes of their records; a topic may come more than once."""
    if columns.rows is not None:
        # The arrays of few entries would be made for this alone.
        return [(row[0], 1, row[5]) for row in columns.rows]
    counts = np.bincount(columns.topic_of, minlength=len(columns.topics)).tolist()
    sizes = (
        np.bincount(columns.topic_of, weights=columns.sizes, minlength=len(columns.topics))
        .astype(np.int64)
        .tolist()
    )
    return zip(columns.topics, counts, sizes, strict=True)
