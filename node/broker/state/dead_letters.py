"""Dead letters: the copy of a message that a consumer group has used up its attempts on, in the group's dead-letter topic.

The copy is itself the mark (docs/format.md §4.3): applying it ends the row it names, so there is exactly one for every message that a group
gives up, whatever becomes of the leader that wrote it. Body, keys, tag and all properties stay as they were; where it came from is
added. Pure.
"""

from __future__ import annotations

from ledgermq.node.broker.ports import Messages
from ledgermq.node.broker.state.delivery import QueueKey
from ledgermq.node.broker.state.origins import origin_text
from ledgermq.proto.entry_encoding import entry_bytes
from ledgermq.proto.message_record import decode_record
from ledgermq.proto.names import DLQ_PREFIX, base_group, parent_of, parse_stored, stored_name
from ledgermq.proto.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    EXACT_KEYS,
    MESSAGE_ID,
    ORIGIN,
    PROPERTIES_MAX,
    TRACE_CONTEXT,
    edited,
    parse,
)
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind

KIND = "dlq"


def dead_letter_topic(group: str) -> str:
    """The stored name of a consumer group's dead-letter topic."""
    namespace, name = parse_stored(base_group(group))
    return stored_name(namespace, DLQ_PREFIX + name)


def topic_config(stored: str) -> TopicConfig:
    """How a dead-letter topic is configured. It belongs to the log that needs it: no controller gives it an incarnation."""
    return TopicConfig(*parse_stored(stored), TopicKind.NORMAL, 1, Permission.READ_WRITE, 0)


def copy(messages: Messages, key: QueueKey, offset: int, lease: int, entry_bytes_max: int) -> Draft | None:
    """The dead letter of a message in flight under this lease; None if it fits no log file."""
    group, topic, queue = key
    positions, sizes, codes = messages.units(topic, queue, offset, 1)
    record = decode_record(messages.record(int(positions[0]), int(sizes[0])))
    put = {DLQ_ORIGIN_TOPIC: parent_of(topic), ORIGIN: origin_text(KIND, group, topic, queue, offset, lease)}
    message_id = parse(record.properties).get(MESSAGE_ID)
    if message_id is not None:
        put[DLQ_ORIGIN_MESSAGE_ID] = message_id
    properties = _fitting(bytes(record.properties), put)
    stored = dead_letter_topic(group)
    if properties is None or entry_bytes(stored, len(record.body), len(properties)) > entry_bytes_max:
        return None
    body, origin = bytes(record.body), messages.index_at(int(positions[0]))
    return Draft(stored, 0, body, properties, record.born_ms, int(codes[0]), origin=origin, sysflag=record.sysflag)


def _fitting(properties: bytes, put: dict[str, str]) -> bytes | None:
    """With what is added; where there is no room, what only repeats or accompanies goes first."""
    for drop in ((), (EXACT_KEYS,), (EXACT_KEYS, TRACE_CONTEXT)):
        try:
            data = edited(properties, put, drop)
        except LedgerError:
            continue
        if len(data) <= PROPERTIES_MAX:
            return data
    return None
