"""Offsets that consumer groups have committed: how far a group that pulls says it is, per (consumer group, stored topic, queue).

Here lives replicated state only: a pure function of the log (invariant I8), the same on leader, follower and after a restart. An offset is
the next one to be read. It moves when its group says so and when an operator resets the group, forwards or backwards, and never by itself:
not with a change of leaders, not with a trim. Whoever shows one brings it into what the queue still holds.

A group that leases (`delivery.py`) has no row here unless it also commits. Memory is one number per queue that a group commits (I11).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ledgermq.node.broker.state.delivery import QueueKey


class Offsets:
    """The committed offsets of one broker group."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], dict[int, int]] = {}
        """(consumer group, stored topic) → queue → offset"""

    def __len__(self) -> int:
        return sum(map(len, self._pairs.values()))

    def get(self, key: QueueKey) -> int | None:
        """What the group committed; None if it never did."""
        return self._pairs.get((key[0], key[1]), {}).get(key[2])

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Every (consumer group, stored topic) with an offset."""
        return self._pairs.keys()

    def commits(self, group: str, topic: str) -> bool:
        """Has the group committed an offset in any queue of this topic?"""
        return (group, topic) in self._pairs

    def apply(self, rows: Iterable[tuple[str, str, int, int]]) -> None:
        """Apply an `offset` record: (group, topic, queue, offset) each; of several for one queue the last counts."""
        for group, topic, queue, offset in rows:
            self._pairs.setdefault((group, topic), {})[queue] = offset

    def apply_reset(self, group: str, topic: str, queues: Iterable[tuple[int, int]]) -> None:
        """Apply a `reset` record: it moves a group that commits offsets in this topic as well."""
        known = self._pairs.get((group, topic))
        if known is not None:
            known.update(queues)

    def forget_group(self, group: str) -> None:
        """The consumer group was deleted."""
        self._forget([pair for pair in self._pairs if pair[0] == group])

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted or began a new incarnation."""
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
