"""Validates requests of the client contract, in its order (§2.5, §2.6, §2.8). Pure functions over
messages.

The first broken rule wins and is raised as a `LedgerError`. Rules that depend on the state of the
cluster (whether the topic exists and may be written) are checked elsewhere, after these. Error
texts name the offending value; bodies are never quoted.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from ledgermq.node.broker.calls.consumer_calls import session_of
from ledgermq.node.broker.filters.filters import TagFilter, sql_filter
from ledgermq.node.broker.filters.sql_filter import FilterError
from ledgermq.node.broker.ports import Filter
from ledgermq.node.runtime.config_sections import Delivery, Limits
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto import units
from ledgermq.proto.entries.properties import MESSAGE_ID
from ledgermq.proto.names import (
    RESERVED_KEYS,
    check_lite,
    group_name,
    has_control_character,
    topic_name,
)
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import TopicKind

CLIENT_ID = "x-mq-client-id"
NAMESPACE = "x-mq-namespace"
NODE_BOOT = "x-ledgermq-node-boot"
"""Only in forwarded calls: the process that received the call from its client."""

MESSAGES_MAX = 4096
"""The most messages in one request: each costs the loop and the engine about 50 µs, however small
it is."""
MESSAGE_ID_MAX = 255
"""Bytes; transaction ids and recall handles contain the message id."""
MESSAGE_GROUP_BYTES = 64
RECOVERY_MAX_S = 3600
FILTER_MAX = 1 << 16
SETTINGS_MAX = 1 << 20
"""Bytes; the Settings of every known client are kept in memory."""
# The range of a protobuf Timestamp in milliseconds: the years 1970 to 9999.
TIMESTAMP_MAX_MS = 253_402_300_799_999

ACCEPTED = {
    TopicKind.NORMAL: (pb.NORMAL,),
    TopicKind.FIFO: (pb.FIFO,),
    TopicKind.DELAY: (pb.DELAY,),
    TopicKind.TRANSACTION: (pb.TRANSACTION,),
    TopicKind.MIXED: (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION),
    TopicKind.PRIORITY: (pb.PRIORITY,),
    TopicKind.LITE: (pb.LITE,),
}
"""The message types that a topic accepts (§2.1)."""
ATTEMPT_ID_MAX = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, from the call's metadata."""

    client_id: str
    """The client's own id; in signed calls with the user's name in front."""
    session: str
    """The client as the node that received the call knows it
    (node/broker/calls/consumer_calls.py)."""
    namespace: str = ""
    user: str = ""
    """The authenticated user; empty without authentication, and in a forwarded call, which was
    authenticated where it came in."""
    namespaces: bool = True
    """Whether namespaces count (configuration, access.ignore_namespaces)."""
    peer: str = ""
    """The client's connection (`ServerCall.peer`); empty in a forwarded call."""

    def metadata(self) -> dict[str, str]:
        """The caller's metadata for another node."""
        known = {
            CLIENT_ID: self.client_id,
            NODE_BOOT: self.session[len(session_of(self.client_id, "")) :],
        }
        return {**known, NAMESPACE: self.namespace} if self.namespace else known


def caller_of(
    metadata: Mapping[str, str],
    session: Callable[[str, str], str],
    user: str = "",
    *,
    namespaces: bool = True,
    peer: str = "",
) -> Caller:
    """The caller; only the client id is required (§3.1). `session` returns the session of a client
    id on a connection."""
    client_id = metadata.get(CLIENT_ID, "")
    if not client_id.strip():
        raise fail(
            Code.CLIENT_ID_REQUIRED, f"the header {CLIENT_ID} is missing; every call must carry it"
        )
    if user:
        # Clients choose their ids; the user's name in front keeps a user from acting as another
        # user's client.
        client_id = f"{user}@{client_id}"
    return Caller(
        client_id=client_id,
        session=session(client_id, peer),
        namespace=metadata.get(NAMESPACE, ""),
        user=user,
        namespaces=namespaces,
        peer=peer,
    )


def topic_of(resource: pb.Resource, caller: Caller) -> str:
    """The stored name of a topic. The field's namespace counts, otherwise the header's (§3.3)."""
    return topic_name(_namespace(resource, caller), resource.name)


def group_of(resource: pb.Resource, caller: Caller) -> str:
    """The stored name of a consumer group."""
    return group_name(_namespace(resource, caller), resource.name)


def _namespace(resource: pb.Resource, caller: Caller) -> str:
    return (resource.resource_namespace or caller.namespace) if caller.namespaces else ""


# SendMessage


def check_send(request: pb.SendMessageRequest, caller: Caller, limits: Limits, now_ms: int) -> str:
    """Checks 1–15 of §2.5. Returns the stored topic."""
    messages = request.messages
    if not messages:
        raise fail(Code.MESSAGE_CORRUPTED, "the request holds no message")
    if len(messages) > MESSAGES_MAX:
        raise fail(
            Code.BAD_REQUEST,
            f"the request holds {len(messages)} messages; the limit is {MESSAGES_MAX}",
        )
    topic = messages[0].topic
    stored = topic_of(topic, caller)
    if len(messages) > 1:
        for message in messages:
            if (
                message.topic.name != topic.name
                or message.topic.resource_namespace != topic.resource_namespace
            ):
                raise fail(
                    Code.MESSAGE_CORRUPTED,
                    f"the messages of a request must have one topic, not {topic.name} and"
                    f" {message.topic.name}",
                )
    for message in messages:
        _check_message(message, limits, now_ms)
    return stored


def _check_message(message: pb.Message, limits: Limits, now_ms: int) -> None:
    system = message.system_properties
    size = len(message.body)
    if not size:
        raise fail(Code.MESSAGE_BODY_EMPTY, "the message body is empty")
    if size > limits.max_body_bytes:
        raise fail(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the message body has {size} bytes; the limit is {limits.max_body_bytes}",
        )
    _check_properties(message, system, limits)
    if not system.message_id.strip() or has_control_character(system.message_id):
        raise fail(
            Code.ILLEGAL_MESSAGE_ID, "the message id is blank or contains a control character"
        )
    if len(system.message_id.encode()) > MESSAGE_ID_MAX:
        raise fail(Code.ILLEGAL_MESSAGE_ID, f"the message id has more than {MESSAGE_ID_MAX} bytes")
    _check_times(system, now_ms, limits.max_delay_ms)
    _check_groups(system)
    if has_control_character(system.trace_context) or has_control_character(system.born_host):
        raise fail(Code.BAD_REQUEST, "trace_context or born_host contains a control character")
    if system.HasField("body_digest"):
        _check_digest(message.body, system.body_digest)


def _check_properties(message: pb.Message, system: pb.SystemProperties, limits: Limits) -> None:
    user = message.user_properties
    if len(user) > limits.max_user_properties:
        raise fail(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(user)} user properties; the limit is"
            f" {limits.max_user_properties}",
        )
    size = 0
    for key, value in user.items():
        if not key or key in RESERVED_KEYS:
            raise fail(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property key {key!r} is reserved or empty; choose another",
            )
        if has_control_character(key) or has_control_character(value):
            raise fail(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {key!r} contains a control character",
            )
        size += len(key.encode()) + len(value.encode())
    tag = system.tag
    if tag:
        if not tag.strip() or "|" in tag or has_control_character(tag):
            raise fail(
                Code.ILLEGAL_MESSAGE_TAG,
                f"the tag {tag!r} is blank, contains '|' or a control character",
            )
        size += len(tag.encode())
    for key in system.keys:
        if key and (not key.strip() or has_control_character(key)):
            raise fail(
                Code.ILLEGAL_MESSAGE_KEY,
                f"the message key {key!r} is blank or contains a control character",
            )
        size += len(key.encode())
    if size > limits.max_properties_bytes:
        raise fail(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message properties have {size} bytes; the limit is {limits.max_properties_bytes}",
        )


def _check_times(system: pb.SystemProperties, now_ms: int, max_delay_ms: int) -> None:
    if system.HasField("orphaned_transaction_recovery_duration"):
        recovery = system.orphaned_transaction_recovery_duration
        if recovery.seconds > RECOVERY_MAX_S or (
            recovery.seconds == RECOVERY_MAX_S and recovery.nanos > 0
        ):
            raise fail(
                Code.BAD_REQUEST,
                f"orphaned_transaction_recovery_duration is {recovery.seconds} s; the limit is"
                f" {RECOVERY_MAX_S} s",
            )
    if system.HasField("delivery_timestamp"):
        at_ms = (
            system.delivery_timestamp.seconds * 1000 + system.delivery_timestamp.nanos // 1_000_000
        )
        if at_ms > now_ms + max_delay_ms:
            limit = f"the limit is {units.duration_text(max_delay_ms)} (limits.max_delay_ms)"
            raise fail(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the delivery timestamp is too far ahead, {limit}; it counts seconds since 1970",
            )


def _check_groups(system: pb.SystemProperties) -> None:
    group = system.message_group
    if group and (
        not group.strip()
        or len(group.encode()) >= MESSAGE_GROUP_BYTES
        or has_control_character(group)
    ):
        raise fail(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"a message group must be plain text, not blank, below {MESSAGE_GROUP_BYTES} bytes",
        )
    if system.lite_topic:
        check_lite(system.lite_topic)


def _check_digest(body: bytes, digest: pb.Digest) -> None:
    """Check a digest of a known type (§4.3: the text of CRC32 differs between clients)."""
    given = digest.checksum.strip().upper()
    if digest.type == pb.MD5:
        good = given == md5(body)
    elif digest.type == pb.SHA1:
        good = given == hashlib.sha1(body, usedforsecurity=False).hexdigest().upper()
    elif digest.type == pb.CRC32:
        crc = zlib.crc32(body)
        good = given.lstrip("0") == f"{crc:X}".lstrip("0") or given == str(crc)
    else:
        return
    if not good:
        raise fail(Code.MESSAGE_CORRUPTED, "the body does not match the digest in body_digest")


def md5(body: bytes) -> str:
    """The digest that every official client understands."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def kind_of(system: pb.SystemProperties) -> int:
    """The kind of a message, from its properties (§2.5)."""
    if system.message_type == pb.TRANSACTION:
        return pb.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return pb.DELAY
    if system.message_group:
        return pb.FIFO
    if system.HasField("priority"):
        return pb.PRIORITY
    return pb.LITE if system.lite_topic else pb.NORMAL


def check_kinds(request: pb.SendMessageRequest, kind: TopicKind) -> None:
    """Check 17 of §2.5. Checks every message, because a half message stored as a normal one would
    be delivered at once."""
    accepted = ACCEPTED[kind]
    for message in request.messages:
        is_kind = kind_of(message.system_properties)
        if is_kind not in accepted:
            name, taken = (
                pb.MessageType.Name(is_kind),
                " or ".join([pb.MessageType.Name(each) for each in accepted]),
            )
            detail = (
                f"a message of type {name} does not fit the topic, which takes {taken} messages"
            )
            raise fail(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, detail)
    if len(request.messages) == 1:
        return
    transactional = sum(
        message.system_properties.message_type == pb.TRANSACTION for message in request.messages
    )
    if 0 < transactional < len(request.messages):
        raise fail(
            Code.BAD_REQUEST,
            "a request must not mix messages of transactions with others; send them in two"
            " requests",
        )


def recovery_ms(system: pb.SystemProperties) -> int | None:
    """After how many ms the producer of a half message wants to be asked about it; None if it does
    not say."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return None
    return max(0, duration_ms(system.orphaned_transaction_recovery_duration))


def born_ms(system: pb.SystemProperties) -> int:
    """The client's birth time in ms, limited to the range of a Timestamp."""
    at_ms = system.born_timestamp.seconds * 1000 + system.born_timestamp.nanos // 1_000_000
    return min(max(at_ms, 0), TIMESTAMP_MAX_MS)


# Receiving


def filter_of(expression: pb.FilterExpression) -> Filter:
    """The filter of a consumer. An expression without a type filters by tag."""
    if expression.type == pb.SQL:
        return _sql_filter(expression.expression)
    return _tag_filter(expression.expression)


def _sql_filter(text: str) -> Filter:
    try:
        return sql_filter(text)
    except FilterError as error:
        raise fail(Code.ILLEGAL_FILTER_EXPRESSION, f"the SQL filter is wrong at {error}") from None


def _tag_filter(text: str) -> TagFilter:
    """`*` or an empty text accepts everything; `a || b` are alternatives (§5.8)."""
    if len(text) > FILTER_MAX or has_control_character(text):
        raise fail(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"a tag filter must have at most {FILTER_MAX} characters and no control character",
        )
    if text.strip() in ("", "*"):
        return TagFilter()
    tags = frozenset(tag for tag in (part.strip() for part in text.split("||")) if tag)
    if not tags:
        raise fail(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"the tag filter {text!r} names no tag; use '*' or 'a || b'",
        )
    if any("|" in tag for tag in tags):
        raise fail(
            Code.ILLEGAL_FILTER_EXPRESSION, f"the tag filter {text!r} is not of the form 'a || b'"
        )
    return TagFilter() if "*" in tags else TagFilter(tags)


def invisible_ms(request: pb.ReceiveMessageRequest, delivery: Delivery) -> int | None:
    """The requested length of the leases in ms; None: renewed while the client is alive."""
    if request.auto_renew:
        return None
    if not request.HasField("invisible_duration"):
        raise fail(
            Code.ILLEGAL_INVISIBLE_TIME, "invisible_duration is missing; give it, or set auto_renew"
        )
    length = duration_ms(request.invisible_duration)
    if not delivery.min_invisible_ms <= length <= delivery.max_invisible_ms:
        raise _illegal_invisible(length, delivery.min_invisible_ms, delivery.max_invisible_ms)
    return length


def changed_ms(request: pb.ChangeInvisibleDurationRequest, delivery: Delivery) -> int:
    """The new length of a lease in ms; 0: visible at once."""
    if not request.HasField("invisible_duration"):
        raise fail(Code.ILLEGAL_INVISIBLE_TIME, "invisible_duration is missing")
    length = duration_ms(request.invisible_duration)
    if request.invisible_duration.nanos < 0 or not 0 <= length <= delivery.max_invisible_ms:
        raise _illegal_invisible(length, 0, delivery.max_invisible_ms)
    return length


def _illegal_invisible(length: int, least: int, most: int) -> Exception:
    # RocketMQ's words, which clients look for.
    limit = f"small. min is {least}" if length < least else f"large. max is {most}"
    return fail(
        Code.ILLEGAL_INVISIBLE_TIME,
        f"the invisibleTime is too {limit}, not {length} ms; give {least} to {most} ms",
    )


def duration_ms(duration: Duration) -> int:
    """A protobuf Duration in whole milliseconds."""
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def attempt_id(request: pb.ReceiveMessageRequest) -> str:
    """The id that makes a repeated Receive of a FIFO group the same one; it is stored with the
    lease."""
    if len(request.attempt_id.encode()) > ATTEMPT_ID_MAX:
        raise fail(Code.BAD_REQUEST, f"the attempt id has more than {ATTEMPT_ID_MAX} bytes")
    return request.attempt_id


def batch_size(request: pb.ReceiveMessageRequest, limits: Limits) -> int:
    """The most messages that a Receive may get."""
    return min(max(request.batch_size, 1), limits.max_receive_batch)


# Telemetry


def check_settings(settings: pb.Settings, caller: Caller) -> None:
    """The rules of §2.4 for a client's Settings.

    Filters are checked when the client receives: the answer to a call reaches the application, but
    the reason why a stream ended does not. The Java client, for example, tries again on the ended
    stream and reports only that.
    """
    if settings.ByteSize() > SETTINGS_MAX:
        raise fail(
            Code.BAD_REQUEST,
            f"the settings have {settings.ByteSize()} bytes; the limit is {SETTINGS_MAX}",
        )
    kind = settings.WhichOneof("pub_sub")
    if kind is None:
        raise fail(Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
    if kind == "publishing":
        for topic in settings.publishing.topics:
            topic_of(topic, caller)
        return
    group_of(settings.subscription.group, caller)
    for entry in settings.subscription.subscriptions:
        topic_of(entry.topic, caller)


assert MESSAGE_ID in RESERVED_KEYS, "a client could forge the identity of a message"
