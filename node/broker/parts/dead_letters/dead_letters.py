"""Dead letters: copies, in a consumer group's dead-letter topic, of messages that have used up
their attempts in the group.

The copy itself marks the message as done (docs/format.md §4.3): applying it ends the message's row,
so there is exactly one dead letter for each message that a group gives up, even if the leader that
wrote it fails. Body, keys, tag and properties are unchanged; the origin is added. Pure functions.
"""

from __future__ import annotations

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.origins import origin_text
from ledgermq.node.broker.parts.dead_letters.letters import KIND
from ledgermq.node.broker.ports import Messages
from ledgermq.node.broker.queues import QueueKey
from ledgermq.proto.entries.entry_encoding import entry_bytes
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    EXACT_KEYS,
    MESSAGE_ID,
    ORIGIN,
    PROPERTIES_MAX,
    TRACE_CONTEXT,
    edited,
    parse,
    value_of,
)
from ledgermq.proto.names import DLQ_PREFIX, base_group, parent_of, parse_stored, stored_name
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind

WAITING, ORPHANED, GONE = "waiting", "orphaned", "gone"
"""States of a dead letter that is not settled: it can be resent; it cannot, because the original
message or the position of its consumer group is gone; there is no such letter."""


def dead_letter_topic(group: str) -> str:
    """The stored name of a consumer group's dead-letter topic."""
    namespace, name = parse_stored(base_group(group))
    return stored_name(namespace, DLQ_PREFIX + name)


def own_queue(topic: str) -> QueueKey:
    """The queue of a dead-letter topic, as the consumer group whose letters it has reads it."""
    namespace, name = parse_stored(topic)
    return stored_name(namespace, name.removeprefix(DLQ_PREFIX)), topic, 0


def is_own(group: str, topic: str) -> bool:
    """Whether the group's dead letters are in this topic. A message that the group gives up there
    is no new letter: it stays where it lies and ends there, by a `lease` record that passes it
    over. A copy would be read and given up again, without end."""
    return topic == dead_letter_topic(group)


def topic_config(stored: str) -> TopicConfig:
    """The configuration of a dead-letter topic. It exists only in this group's log; the controller
    assigns it no incarnation."""
    namespace, name = parse_stored(stored)
    return TopicConfig(
        namespace=namespace,
        name=name,
        kind=TopicKind.NORMAL,
        queues=1,
        permission=Permission.READ_WRITE,
        incarnation=0,
    )


def copy(
    messages: Messages, key: QueueKey, offset: int, lease: int, entry_bytes_max: int
) -> Draft | None:
    """The dead letter of a message in flight under this lease; None if it fits no log file."""
    group, topic, queue = key
    positions, sizes, codes = messages.units(topic, queue, offset, 1)
    record = decode_record(messages.record(int(positions[0]), int(sizes[0])))
    put = {
        DLQ_ORIGIN_TOPIC: parent_of(topic),
        ORIGIN: origin_text(KIND, group, topic, queue, offset, lease),
    }
    message_id = parse(record.properties).get(MESSAGE_ID)
    if message_id is not None:
        put[DLQ_ORIGIN_MESSAGE_ID] = message_id
    properties = _fitting(bytes(record.properties), put)
    stored = dead_letter_topic(group)
    if (
        properties is None
        or entry_bytes(stored, len(record.body), len(properties)) > entry_bytes_max
    ):
        return None
    body, origin = bytes(record.body), messages.index_at(int(positions[0]))
    return Draft(
        stored_topic=stored,
        queue=0,
        body=body,
        properties=properties,
        born_ms=record.born_ms,
        tags_code=int(codes[0]),
        origin=origin,
        sysflag=record.sysflag,
    )


def state_of(machine: Machine, topic: str, offset: int) -> str:
    """The state of a dead letter: how it was settled, or one of the states above."""
    if not machine.begin(topic, 0) <= offset < machine.end(topic, 0):
        return GONE
    settled = machine.letters.settlement(topic, offset)
    if settled:
        return settled
    origin = origin_of(machine, topic, offset)
    if origin is None:
        return ORPHANED
    key, place = origin
    return WAITING if machine.delivery.holds(key, place) else ORPHANED


def origin_of(messages: Messages, topic: str, offset: int) -> tuple[QueueKey, int] | None:
    """The queue and offset of the message of which this is the dead letter; None for a message that
    a client sent to the topic."""
    positions, sizes, _ = messages.units(topic, 0, offset, 1)
    return place_of(value_of(messages.properties(int(positions[0]), int(sizes[0])), ORIGIN) or "")


def place_of(origin: str) -> tuple[QueueKey, int] | None:
    """The place that the mark of a dead letter names; None for another text."""
    kind, *fields = origin.split(":")
    if kind != KIND:
        return None
    group, topic, queue, offset, _ = fields
    return (group, topic, int(queue)), int(offset)


def _fitting(properties: bytes, put: dict[str, str]) -> bytes | None:
    """The properties with the additions. If they are too long, the repeated keys go first, then the
    trace context; None if still too long."""
    for drop in ((), (EXACT_KEYS,), (EXACT_KEYS, TRACE_CONTEXT)):
        try:
            data = edited(properties, put, drop)
        except LedgerError:
            continue
        if len(data) <= PROPERTIES_MAX:
            return data
    return None
