"""How far each consumer group is in each topic, read from one state of a broker group's leader.
Changes nothing.

A message that is not done is *ready* (never leased, or visible again), *in flight* (leased), or was
skipped in a FIFO group because an earlier message of its message group was not done. The lag is the
sum of the three. In a broadcasting group every client has its own position, and the slowest client
counts for a queue. The lite topics of a topic are counted together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseClock
from ledgermq.node.broker.queries.traffic import Pair
from ledgermq.node.broker.queues import QueueKey
from ledgermq.proto.names import base_group, parent_of
from ledgermq.proto.types import TopicKind

StoredMs = Callable[[str, int, int], int]
"""(stored topic, queue, offset) of an existing message → its store time."""


@dataclass(slots=True)
class Backlog:
    """The messages of a topic that a consumer group has not finished. The ages are 0 if there is
    none of the kind, and those of messages that only the object store has are at least so much."""

    ready: int = 0
    in_flight: int = 0
    lag: int = 0
    ready_age_ms: int = 0
    lag_age_ms: int = 0


def positions(machine: Machine) -> dict[Pair, list[QueueKey]]:
    """The queues in which a consumer group has a position, for every group and topic in force that
    it has used. One pass over all positions."""
    used: dict[Pair, dict[str, None]] = {}
    found: dict[Pair, list[QueueKey]] = {}
    for reader, stored, queue in machine.delivery.queues:
        pair = base_group(reader), parent_of(stored)
        if stored != pair[1]:
            found.setdefault(pair, []).append((reader, stored, queue))
        elif stored in machine.topics:
            used.setdefault(pair, {})[reader] = None
    for pair in machine.offsets.pairs():
        used.setdefault(pair, {})[pair[0]] = None
    for pair, readers in used.items():
        topic = machine.topics.get(pair[1])
        if topic is not None and topic.kind is not TopicKind.LITE:
            members = [reader for reader in readers if reader != pair[0]] or list(readers)
            found[pair] = [
                (reader, pair[1], queue) for reader in members for queue in range(topic.queues)
            ]
    return {pair: keys for pair, keys in found.items() if pair[1] in machine.topics}


def backlog(
    machine: Machine, clock: LeaseClock, keys: Sequence[QueueKey], now_ms: int, stored_ms: StoredMs
) -> Backlog:
    """The backlog of one consumer group in the queues of one topic."""
    found = Backlog()
    ready_from: dict[tuple[str, int], int] = {}
    lag_from: dict[tuple[str, int], int] = {}
    starts: dict[tuple[str, int], int] = {}
    for key in keys:
        _, topic, number = key
        place = topic, number
        start = max(machine.cursor(key), machine.first_position(topic, number))
        starts[place] = min(start, starts.get(place, start))
        queue = machine.delivery.queues.get(key)
        if queue is None or not len(queue.rows):
            continue
        group = machine.groups.get(base_group(key[0]))
        visible, first_visible = clock.visible(key)
        # In a FIFO group rows are few.
        skipped = machine.delivery.waiting(key) if group is not None and group.fifo else ()
        if skipped:
            # To the clock, a skipped message is one whose lease has ended.
            again = set(clock.ready(key)).difference(skipped)
            visible, first_visible = len(again), min(again, default=None)
        found.ready += visible
        found.in_flight += len(queue.rows) - len(skipped) - visible
        found.lag += len(queue.rows)
        _lower(lag_from, place, queue.rows.first())
        _lower(ready_from, place, first_visible)
    for place, start in starts.items():
        topic, number = place
        new = machine.end(topic, number) - start
        if new > 0:
            found.ready += new
            found.lag += new
            _lower(ready_from, place, start)
            _lower(lag_from, place, start)
    found.ready_age_ms = _oldest(machine, ready_from, now_ms, stored_ms)
    found.lag_age_ms = _oldest(machine, lag_from, now_ms, stored_ms)
    return found


def _lower(offsets: dict[tuple[str, int], int], place: tuple[str, int], offset: int | None) -> None:
    if offset is not None:
        offsets[place] = min(offset, offsets.get(place, offset))


def _oldest(
    machine: Machine, offsets: Mapping[tuple[str, int], int], now_ms: int, stored_ms: StoredMs
) -> int:
    """Store times never decrease along a queue, so the lowest offset of each is its oldest
    message."""
    ages = [
        now_ms - latest_ms(machine, topic, queue, offset, stored_ms)
        for (topic, queue), offset in offsets.items()
    ]
    return max([0, *ages])


def latest_ms(machine: Machine, topic: str, queue: int, offset: int, stored_ms: StoredMs) -> int:
    """The store time of a message on the disks. For one that only the object store has, the
    earliest time that is known to be later."""
    first = max(offset, machine.begin(topic, queue))
    if first < machine.end(topic, queue):
        return stored_ms(topic, queue, first)
    # Everything before the begin was stored before the trim, and counts as stored no later than the
    # last entry.
    return min(machine.trims[-1].store_ms, machine.store_ms)
