"""How far a consumer group is: its backlog in messages and time, read from one applied state of a
broker group's leader. Changes nothing.

For each queue, the lag is the distance from the group's position to the queue's end. In a
broadcasting group every client has its own position, and the slowest client counts for the queue.
For a topic of kind lite, the lite topics that the group has used are summed in queue 0 of each
broker group, which then has no position. Clients and lite topics that lag are also listed
individually, up to PARTS_MAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgermq.node.broker.queries.backlog import latest_ms
from ledgermq.proto import admin_pb2
from ledgermq.proto.names import base_group, parent_of, parse_lite, parse_member
from ledgermq.proto.types import TopicKind

PARTS_MAX = 1000
"""The most clients or lite topics that are listed individually, those with the greatest lag
first."""


def progress(
    machine: Any, broker_group: str, group: str, topics: Sequence[str], now_ms: int
) -> list[admin_pb2.TopicLag]:
    """The lag of a group in this broker group's queues, for the topics that it has used, or for
    `topics` if given. Times in ms."""
    lags = []
    for topic in topics or topics_of(machine, group):
        config = machine.topics.get(topic)
        lag = admin_pb2.TopicLag(topic=admin_pb2.Name(name=topic))
        if config is not None and config.kind is TopicKind.LITE:
            _fill_lite(lag, machine, broker_group, group, topic, now_ms=now_ms)
        elif config is not None:
            members = readers_of(machine, group)
            for queue in range(config.queues):
                places = [_place(machine, (reader, topic, queue), now_ms) for reader in members]
                for place in places:
                    place.broker_group, place.group_queue = broker_group, queue
                slowest = min(places, key=lambda place: place.cursor)
                slowest.leased = sum(place.leased for place in places)
                lag.queues.append(slowest)
            if members != [group]:
                _fill_members(lag, machine, members, topic, now_ms)
        lags.append(lag)
    return lags


def topics_of(machine: Any, group: str) -> list[str]:
    """Stored names of the topics that a consumer group has read from."""
    leased = {
        parent_of(topic) for name, topic, _ in machine.delivery.queues if base_group(name) == group
    }
    return sorted(leased | {topic for name, topic in machine.offsets.pairs() if name == group})


def readers_of(machine: Any, group: str) -> list[str]:
    """The group itself, or the members of a broadcasting group, each of which has positions of its
    own."""
    return sorted(
        {
            name
            for name, _, _ in machine.delivery.queues
            if base_group(name) == group and name != group
        }
    ) or [group]


def lite_topics_of(machine: Any, group: str, topic: str) -> list[str]:
    """Stored names of the lite topics of a topic that a consumer group has used."""
    return sorted(
        found
        for name, found, _ in machine.delivery.queues
        if name == group and found != topic and parent_of(found) == topic
    )


def _place(machine: Any, key: tuple[str, str, int], now_ms: int) -> admin_pb2.QueueLag:
    _, topic, queue = key
    # No message waits below the lowest position of a group, however far the group had read.
    cursor, end = (
        max(machine.cursor(key), machine.first_position(topic, queue)),
        machine.end(topic, queue),
    )
    rows = len(machine.delivery.queues[key].rows) if key in machine.delivery.queues else 0
    known = machine.groups.get(key[0])
    # Only for a FIFO group, where rows are few.
    waiting = machine.delivery.waiting(key) if rows and known is not None and known.fifo else []
    one = admin_pb2.QueueLag(
        cursor=cursor, end=end, lag=end - cursor + len(waiting), leased=rows - len(waiting)
    )
    if one.lag:
        oldest = waiting[0] if waiting else cursor
        one.oldest_age_ms = max(
            0, now_ms - latest_ms(machine, topic, queue, oldest, machine.stored_ms)
        )
    return one


def _part(
    places: Sequence[admin_pb2.QueueLag], client: str = "", lite_topic: str = ""
) -> admin_pb2.PartLag:
    part = admin_pb2.PartLag(client=client, lite_topic=lite_topic)
    part.lag, part.leased = (
        sum(place.lag for place in places),
        sum(place.leased for place in places),
    )
    ages = [place.oldest_age_ms for place in places if place.HasField("oldest_age_ms")]
    if ages:
        part.oldest_age_ms = max(ages)
    return part


def _fill_members(
    lag: admin_pb2.TopicLag, machine: Any, members: Sequence[str], topic: str, now_ms: int
) -> None:
    queues = range(len(lag.queues))
    parts = [
        _part(
            [_place(machine, (name, topic, queue), now_ms) for queue in queues],
            client=parse_member(name)[1],
        )
        for name in members
    ]
    lag.parts.extend(_furthest(parts))


def _fill_lite(
    lag: admin_pb2.TopicLag, machine: Any, broker_group: str, group: str, topic: str, now_ms: int
) -> None:
    parts = [
        _part([_place(machine, (group, name, 0), now_ms)], lite_topic=parse_lite(name)[1])
        for name in lite_topics_of(machine, group, topic)
    ]
    total = _part([])
    for queue in range(machine.topics[topic].queues):
        lag.queues.add(broker_group=broker_group, group_queue=queue, lag=0, leased=0)
    for part in parts:
        total.lag += part.lag
        total.leased += part.leased
        if part.HasField("oldest_age_ms"):
            total.oldest_age_ms = max(total.oldest_age_ms, part.oldest_age_ms)
    lag.queues[0].lag, lag.queues[0].leased = total.lag, total.leased
    if total.HasField("oldest_age_ms"):
        lag.queues[0].oldest_age_ms = total.oldest_age_ms
    lag.parts.extend(_furthest(parts))


def _furthest(parts: list[admin_pb2.PartLag]) -> list[admin_pb2.PartLag]:
    behind = [part for part in parts if part.lag or part.leased or part.client]
    return sorted(behind, key=lambda part: (-part.lag, part.client, part.lite_topic))[:PARTS_MAX]
