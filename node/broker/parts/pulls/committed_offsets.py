"""Offsets that consumer groups have committed: the position of a pulling group, per (consumer
group, stored topic, queue).

Replicated state, a pure function of the log (invariant I8): the same on leader and followers and
after a restart. An offset is the next one to read. It moves, forwards or backwards, when its group
commits it and when an operator resets the group, and never otherwise: neither a change of leaders
nor a trim moves it. Readers of an offset clamp it to the queue.

A group that leases (`delivery.py`) has no row here unless it also commits. Memory is one number per
queue that a group commits (I11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ledgermq.node.broker.part import Effects, StatePart, Takers
from ledgermq.node.broker.parts.ports import Positions
from ledgermq.node.broker.queues import QueueKey
from ledgermq.proto.records.control import OffsetRecord, ResetRecord
from ledgermq.proto.types import GroupConfig


class Offsets(StatePart):
    """The committed offsets of one broker group. A `reset` record moves both these and the cursors
    of `delivery`."""

    KEY = "offsets"

    def __init__(self, delivery: Positions, queues_of: Callable[[str], int]) -> None:
        self._delivery = delivery
        self._queues_of = queues_of
        self._pairs: dict[tuple[str, str], dict[int, int]] = {}
        """(consumer group, stored topic) → queue → offset"""

    def __len__(self) -> int:
        return sum(map(len, self._pairs.values()))

    def get(self, key: QueueKey) -> int | None:
        """The offset that the group committed; None if it never did."""
        return self._pairs.get((key[0], key[1]), {}).get(key[2])

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Every (consumer group, stored topic) with an offset."""
        return self._pairs.keys()

    def commits(self, group: str, topic: str) -> bool:
        """Whether the group has committed an offset in any queue of this topic."""
        return (group, topic) in self._pairs

    def take_offsets(self, index: int, record: OffsetRecord, effects: Effects) -> None:
        """The last one for a queue counts."""
        for group, topic, queue, offset in record.offsets:
            if queue < self._queues_of(topic):
                self._pairs.setdefault((group, topic), {})[queue] = offset

    def take_reset(self, index: int, record: ResetRecord, effects: Effects) -> None:
        """It also moves a group that commits offsets in this topic. Receives that wait for the
        topic may find messages again."""
        effects.touched += self._delivery.apply_reset(record.group, record.topic, record.queues)
        effects.topics[record.topic] = None
        known = self._pairs.get((record.group, record.topic))
        if known is not None:
            known.update(record.queues)

    RECORDS: ClassVar[Takers] = {OffsetRecord: take_offsets, ResetRecord: take_reset}

    def group_changed(self, group: str, config: GroupConfig | None, effects: Effects) -> None:
        if config is None:
            self._forget([pair for pair in self._pairs if pair[0] == group])

    def topic_ended(self, topic: str, effects: Effects) -> None:
        self._forget([pair for pair in self._pairs if pair[1] == topic])

    def _forget(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            del self._pairs[pair]

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11): group → topic → queue → offset."""
        out: dict[str, Any] = {}
        for group, topic in sorted(self._pairs):
            rows = self._pairs[group, topic]
            out.setdefault(group, {})[topic] = {str(queue): rows[queue] for queue in sorted(rows)}
        return out

    def restore(self, exported: dict[str, Any]) -> None:
        """Replace the state by what `export` returned."""
        self._pairs = {
            (group, topic): {int(queue): offset for queue, offset in rows.items()}
            for group, topics in exported.items()
            for topic, rows in topics.items()
        }
