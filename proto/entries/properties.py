"""The property string of a message record (docs/format.md §4.1): its bytes, and the mapping of the
client's fields to it and back.

Pure functions. Names and values never contain the two separators: `encode` refuses them, whatever
the caller checked before, because a separator in a value would forge a property. Protobuf messages
are only read and filled here, never kept.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.names import RESERVED_KEYS, parse_stored
from ledgermq.proto.status import Code, fail

PROPERTIES_MAX = 32767

MESSAGE_ID = "UNIQ_KEY"
TAG = "TAGS"
KEYS = "KEYS"
EXACT_KEYS = "__LMQ.KEYS"
MESSAGE_GROUP = "__SHARDINGKEY"
TRANSACTION_ID = "__transactionId__"
"""Only in delivered messages: RocketMQ stores the message id under this name too."""
TRACE_CONTEXT = "TRACE_CONTEXT"
TRACEPARENT = "traceparent"
"""The user property in which OpenTelemetry's instrumentations put the trace context of a
message."""
BORN_HOST = "__BORNHOST"
ENCODING = "__LMQ.ENC"
PRIORITY = "PRIORITY"
REAL_TOPIC = "REAL_TOPIC"
"""On a waiting topic: the stored topic of the message."""
REAL_QUEUE = "REAL_QID"
DELIVER_MS = "TIMER_DELIVER_MS"
"""On a delayed message, before and after its delivery: the delivery time requested by its producer,
in milliseconds since 1970."""
FIRE_MS = "TIMER_OUT_MS"
"""On the timer topic, behind all other properties: the time at which the message leaves its slot
(format §4.4)."""
TIMER_FIRST = "__LMQ.TIMER"
"""On a message that was stored on the timer topic again: the fire time and queue offset of its
first place."""
INCARNATION = "__LMQ.INC"
"""On the timer topic: the incarnation of the message's real topic when it was stored."""
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
"""On a dead letter: its original stored topic."""
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
ORIGIN = "__LMQ.ORIGIN"
"""On a message made from another one: the kind and the place of that one (format §4.3)."""
TRANSACTION = "TRAN_MSG"
"""`true` on a half message and on the message that it becomes."""
RECOVERY = "__LMQ.RECOVERY"
"""On a half message: the delay in milliseconds before the first check, if the producer requested
one."""
LITE_TOPIC = "__LITE_TOPIC"
OWN_PREFIX = "__LMQ."
UNDECODED = "__LMQ.UNDECODED"
"""Never stored. The user property by which readers learn that a body is handed out compressed, with
the name of the compression: it is not what its record says, or becomes larger than allowed."""
ESCAPE = "__LMQ.U."

_OURS = frozenset(
    {
        MESSAGE_ID,
        TAG,
        KEYS,
        EXACT_KEYS,
        MESSAGE_GROUP,
        TRACE_CONTEXT,
        BORN_HOST,
        ENCODING,
        PRIORITY,
        DELIVER_MS,
    }
)
_ESCAPED = _OURS | RESERVED_KEYS
_GZIP = "GZIP"
MS_DIGITS_MAX = 15
"""Limit of a time in milliseconds since 1970 that fits a protobuf Timestamp."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The client's view of a message's properties. None: not sent."""

    message_id: str | None = None
    tag: str | None = None
    keys: Sequence[str] = ()
    message_group: str | None = None
    trace_context: str | None = None
    born_host: str | None = None
    gzip: bool = False
    user: Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    transaction: bool = False
    """Sent as part of a transaction."""
    deliver_ms: int | None = None
    lite_topic: str | None = None
    dead_letter_of: tuple[str, str] | None = None
    """On a dead letter: stored topic and id of the original message. Not encoded, because no client
    sends it."""


def stored_key(key: str) -> str:
    """The stored name of a user property; `TAGS` means the tag, which cannot be the name of a user
    property."""
    return key if key == TAG else stored_user_name(key)


def stored_user_name(key: str) -> str:
    """The stored name of a user property."""
    return ESCAPE + key if key in _ESCAPED or key.startswith(OWN_PREFIX) else key


def _join(pairs: list[str]) -> bytes:
    """`pairs` holds name, value, name, value …"""
    if not pairs:
        return b""
    count = len(pairs) // 2
    text = (
        "\x02".join(
            [f"{name}\x01{value}" for name, value in zip(pairs[::2], pairs[1::2], strict=True)]
        )
        + "\x02"
    )
    if text.count("\x01") != count or text.count("\x02") != count:
        raise fail(
            Code.BAD_REQUEST,
            "a message property contains the control character U+0001 or U+0002; remove it",
        )
    data = text.encode()
    if len(data) > PROPERTIES_MAX:
        raise fail(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message properties take {len(data)} bytes; the limit is {PROPERTIES_MAX}",
        )
    return data


def key_values(keys: Sequence[str]) -> tuple[str, str | None]:
    """The values of `KEYS` and, if that could not be split again, of `__LMQ.KEYS`."""
    joined = " ".join(keys)
    if joined.split(" ") == list(keys) and "" not in keys:
        return joined, None
    return joined, json.dumps(list(keys), ensure_ascii=False, separators=(",", ":"))


def encode(fields: Fields) -> bytes:
    """The property string for `fields`. An empty tag or message group counts as not sent (contract
    §2.5)."""
    pairs: list[str] = []
    if fields.message_id is not None:
        pairs += (MESSAGE_ID, fields.message_id)
    if fields.tag:
        pairs += (TAG, fields.tag)
    if fields.keys:
        joined, exact = key_values(fields.keys)
        pairs += (KEYS, joined)
        if exact is not None:
            pairs += (EXACT_KEYS, exact)
    if fields.message_group:
        pairs += (MESSAGE_GROUP, fields.message_group)
    if fields.trace_context is not None:
        pairs += (TRACE_CONTEXT, fields.trace_context)
    if fields.born_host:
        pairs += (BORN_HOST, fields.born_host)
    if fields.gzip:
        pairs += (ENCODING, _GZIP)
    if fields.priority is not None:
        pairs += (PRIORITY, str(fields.priority))
    if fields.transaction:
        pairs += (TRANSACTION, "true")
    if fields.deliver_ms is not None:
        pairs += (DELIVER_MS, str(fields.deliver_ms))
    if fields.lite_topic:
        pairs += (LITE_TOPIC, fields.lite_topic)
    for key in sorted(fields.user):
        pairs += (stored_user_name(key), fields.user[key])
    return _join(pairs)


def encode_message(message: pb.Message) -> bytes:
    """The property string of a message sent by a client."""
    system = message.system_properties
    return encode(
        Fields(
            message_id=system.message_id,
            tag=system.tag,
            keys=system.keys,
            message_group=system.message_group,
            trace_context=system.trace_context if system.HasField("trace_context") else None,
            born_host=system.born_host,
            gzip=system.body_encoding == pb.GZIP,
            priority=system.priority if system.HasField("priority") else None,
            transaction=system.message_type == pb.TRANSACTION,
            deliver_ms=deliver_ms_of(message) if system.HasField("delivery_timestamp") else None,
            lite_topic=system.lite_topic,
            user=message.user_properties,
        )
    )


def deliver_ms_of(message: pb.Message) -> int:
    """The delivery time requested by a client, rounded up so that no message is early; 0 without
    one."""
    at = message.system_properties.delivery_timestamp
    return max(0, at.seconds * 1000 - -at.nanos // 1_000_000)


def priority_of(message: pb.Message) -> int:
    """The priority of a message, −1 if it has none: the client's field, or for clients without that
    field a user property of that name."""
    if message.system_properties.HasField("priority"):
        return message.system_properties.priority
    number = _number(message.user_properties.get(PRIORITY, ""))
    return -1 if number is None else number


def _number(text: str) -> int | None:
    """An integer that fits the client's field, an int32; otherwise None."""
    digits = text.removeprefix("-")
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else 1 << 31
    return number if -(1 << 31) <= number < 1 << 31 else None


def parse(data: bytes | memoryview) -> dict[str, str]:
    """Name → value as stored, in order. A piece without a name separator is skipped, as in
    RocketMQ; a final 0x02 may be missing."""
    out: dict[str, str] = {}
    for piece in bytes(data).decode().split("\x02"):
        name, separator, value = piece.partition("\x01")
        if separator:
            out[name] = value
    return out


def value_of(data: bytes, name: str) -> str | None:
    """The value stored under one name, without parsing the others; only for names that no user
    property can have."""
    field = f"\x02{name}\x01".encode()
    at = 0 if data.startswith(field[1:]) else data.find(field) + 1
    if not at and not data.startswith(field[1:]):
        return None
    at += len(field) - 1
    end = data.find(b"\x02", at)
    return data[at : end if end >= 0 else len(data)].decode()


_ID_FIRST = f"{MESSAGE_ID}\x01".encode()


def message_id_of(data: bytes) -> str | None:
    """The message id in a property string: the first property as written by `encode`, otherwise
    wherever it is."""
    if data.startswith(_ID_FIRST):
        return (
            data[len(_ID_FIRST) : data.index(b"\x02")].decode()
            if b"\x02" in data
            else parse(data)[MESSAGE_ID]
        )
    return parse(data).get(MESSAGE_ID)


def edited(data: bytes | memoryview, put: Mapping[str, str], drop: Collection[str] = ()) -> bytes:
    """The property string with these stored names set, behind all others, and some removed;
    everything else keeps its place."""
    pairs: list[str] = []
    for name, value in parse(data).items():
        if name not in put and name not in drop:
            pairs += (name, value)
    for name, value in put.items():
        pairs += (name, value)
    return _join(pairs)


def decode(data: bytes | memoryview) -> Fields:
    """The inverse of `encode`."""
    stored = parse(data)
    take = stored.pop
    message_id, tag, joined, exact = (
        take(MESSAGE_ID, None),
        take(TAG, None),
        take(KEYS, None),
        take(EXACT_KEYS, None),
    )
    keys: Sequence[str] = ()
    if exact is not None:
        keys = tuple(json.loads(exact))
    elif joined is not None:
        keys = tuple(joined.split(" "))
    group, trace, born, encoding = (
        take(MESSAGE_GROUP, None),
        take(TRACE_CONTEXT, None),
        take(BORN_HOST, None),
        take(ENCODING, None),
    )
    priority, deliver = _number(stored.get(PRIORITY, "")), stored.get(DELIVER_MS, "")
    deliver_ms = (
        int(deliver)
        if deliver.isascii() and deliver.isdigit() and len(deliver) <= MS_DIGITS_MAX
        else None
    )
    user = {
        name.removeprefix(ESCAPE): value
        for name, value in stored.items()
        if name.startswith(ESCAPE) or not _is_ours(name)
    }
    origin = stored.get(DLQ_ORIGIN_TOPIC)
    return Fields(
        message_id=message_id,
        tag=tag,
        keys=keys,
        message_group=group,
        trace_context=trace,
        born_host=born,
        gzip=encoding == _GZIP,
        user=user,
        priority=priority,
        transaction=stored.get(TRANSACTION) == "true",
        deliver_ms=deliver_ms,
        lite_topic=stored.get(LITE_TOPIC),
        dead_letter_of=None if origin is None else (origin, stored.get(DLQ_ORIGIN_MESSAGE_ID, "")),
    )


def _is_ours(name: str) -> bool:
    return name in _ESCAPED or name.startswith(OWN_PREFIX)


def fill_message(data: bytes | memoryview, message: pb.Message) -> Fields:
    """Write the property string's content into a message to deliver: user properties, ids, tag,
    keys, group, encoding, type. As in RocketMQ the message group, and the id of a message that was
    sent in a transaction, are among the user properties too, unless its sender set properties of
    these names."""
    fields = decode(data)
    system = message.system_properties
    if fields.message_group is not None:
        message.user_properties[MESSAGE_GROUP] = fields.message_group
    if fields.transaction and fields.message_id is not None:
        message.user_properties[TRANSACTION_ID] = fields.message_id
    if fields.user:
        message.user_properties.update(fields.user)
    if fields.message_id is not None:
        system.message_id = fields.message_id
    if fields.tag is not None:
        system.tag = fields.tag
    if fields.keys:
        system.keys.extend(fields.keys)
    if fields.message_group is not None:
        system.message_group = fields.message_group
    if fields.trace_context is not None:
        system.trace_context = fields.trace_context
    if fields.born_host is not None:
        system.born_host = fields.born_host
    if fields.priority is not None:
        system.priority = fields.priority
    if fields.dead_letter_of is not None:
        topic, system.dead_letter_queue.message_id = fields.dead_letter_of
        system.dead_letter_queue.topic = parse_stored(topic)[1]
    system.body_encoding = pb.GZIP if fields.gzip else pb.IDENTITY
    if fields.deliver_ms is not None:
        system.delivery_timestamp.FromMilliseconds(fields.deliver_ms)
    if fields.lite_topic is not None:
        system.lite_topic = fields.lite_topic
    system.message_type = type_of(fields)
    return fields


def type_of(fields: Fields) -> pb.MessageType:
    """The kind of a delivered message, by its content, in the same order in which the kind of a
    sent message is decided (contract §2.5)."""
    if fields.transaction:
        return pb.TRANSACTION
    if fields.deliver_ms is not None:
        return pb.DELAY
    if fields.message_group is not None:
        return pb.FIFO
    if fields.priority is not None:
        return pb.PRIORITY
    return pb.NORMAL if fields.lite_topic is None else pb.LITE
