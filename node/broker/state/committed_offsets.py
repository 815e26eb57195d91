"""Offsets that consumer groups have committed: the position of a pulling group, per (consumer group, stored topic, queue).

Replicated state, a pure function of the log (invariant I8): the same on leader and followers and after a restart. An offset is the next one
to read. It moves, forwards or backwards, when its group commits it and when an operator resets the group, and never otherwise: neither a
change of leaders nor a trim moves it. Readers of an offset clamp it to the queue.

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
        """The offset that the group committed; None if it never did."""
        return self._pairs.get((key[0], key[1]), {}).get(key[2])

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Every (consumer group, stored topic) with an offset."""
        return self._pairs.keys()

    def commits(self, group: str, topic: str) -> bool:
        """Whether the group has committed an offset in any queue of this topic."""
        return (group, topic) in self._pairs

    def apply(self, rows: Iterable[tuple[str, str, int, int]]) -> None:
        """Apply an `offset` record: (group, topic, queue, offset) each; the last one for a queue counts."""
        for group, topic, queue, offset in rows:
            self._pairs.setdefault((group, topic), {})[queue] = offset

    def apply_reset(self, group: str, topic: str, queues: Iterable[tuple[int, int]]) -> None:
        """Apply a `reset` record, which also moves a group that commits offsets in this topic."""
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
