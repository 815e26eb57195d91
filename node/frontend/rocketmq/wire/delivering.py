"""Converts a message record to the message that a consumer receives (§4.2). Pure."""

from __future__ import annotations

from functools import lru_cache

from google.protobuf.timestamp_pb2 import Timestamp

from ledgermq.node.broker.calls.consumer_calls import Handle, Lease
from ledgermq.node.frontend.rocketmq.wire.bodies import plain
from ledgermq.node.frontend.rocketmq.wire.handles import Handles
from ledgermq.node.frontend.rocketmq.wire.validation import TIMESTAMP_MAX_MS, md5
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.compression import COMPRESSED, compression_of
from ledgermq.proto.entries.message_record import Record, decode_record
from ledgermq.proto.entries.properties import UNDECODED, fill_message
from ledgermq.proto.names import parent_of, parse_stored


def pulled(topic: str, queue: int, offset: int, stored: bytes) -> pb.Message:
    """A message without a lease: the record's contents, digest, encoding, queue and offset."""
    out = pb.Message()
    _pulled(out, topic, queue, offset, stored)
    return out


def leased(
    out: pb.Message,
    handles: Handles,
    broker_group: str,
    consumer_group: str,
    topic: str,
    lease: Lease,
    invisible_ms: int | None,
) -> None:
    """Make an empty message a leased one, with everything that official clients need: digest,
    encoding, handle, attempt, times, queue and offset. It is filled in place because a message is
    copied when it is put into a response."""
    topic = lease.topic or topic
    _pulled(out, topic, lease.queue, lease.queue_offset, lease.record)
    system = out.system_properties
    system.delivery_attempt = lease.attempt
    system.receipt_handle = handles.make(
        broker_group,
        Handle(
            group=consumer_group,
            topic=topic,
            queue=lease.queue,
            queue_offset=lease.queue_offset,
            lease_number=lease.lease_number,
            attempt=lease.attempt,
        ),
    )
    if invisible_ms is not None:
        system.invisible_duration.FromMilliseconds(invisible_ms)


def undecided(topic: str, record: Record) -> pb.Message:
    """A half message for the producer that is asked to decide it: complete, but without a handle to
    acknowledge."""
    out = pb.Message()
    _fill(out, topic, record)
    return out


def _pulled(out: pb.Message, topic: str, queue: int, offset: int, stored: bytes) -> None:
    _fill(out, topic, decode_record(stored))
    system = out.system_properties
    system.queue_id = queue
    system.queue_offset = offset


def _fill(out: pb.Message, topic: str, record: Record) -> None:
    """The contents of a message, which do not depend on its place or its receiver."""
    record = plain(record)
    resource, system = out.topic, out.system_properties
    resource.resource_namespace, resource.name = _named(topic)
    out.body = record.body
    fill_message(record.properties, out)
    if record.sysflag & COMPRESSED and (left := compression_of(record.sysflag)) is not None:
        out.user_properties[UNDECODED] = left
    digest = system.body_digest
    digest.type, digest.checksum = pb.MD5, md5(record.body)
    _set_time(system.born_timestamp, min(max(record.born_ms, 0), TIMESTAMP_MAX_MS))
    _set_time(system.store_timestamp, record.store_ms)
    system.store_host = record.store_host


def _set_time(out: Timestamp, ms: int) -> None:
    """`out.FromMilliseconds`, which costs four times as much."""
    out.seconds, rest = divmod(ms, 1000)
    out.nanos = rest * 1_000_000


@lru_cache(maxsize=256)
def _named(topic: str) -> tuple[str, str]:
    """(namespace, name) by which clients know a stored topic."""
    return parse_stored(parent_of(topic))
