"""Converts a message record to the message that a consumer receives (§4.2). Pure."""

from __future__ import annotations

from ledgermq.node.broker.calls.consumer_calls import Handle, Lease
from ledgermq.node.frontend.rocketmq.wire.bodies import plain
from ledgermq.node.frontend.rocketmq.wire.handles import Handles
from ledgermq.node.frontend.rocketmq.wire.validation import TIMESTAMP_MAX_MS, md5
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.message_record import Record, decode_record
from ledgermq.proto.names import parent_of, parse_stored
from ledgermq.proto.properties import fill_message


def pulled(topic: str, queue: int, offset: int, stored: bytes) -> pb.Message:
    """A message without a lease: the record's contents, digest, encoding, queue and offset."""
    out = _content(topic, decode_record(stored))
    system = out.system_properties
    system.queue_id = queue
    system.queue_offset = offset
    return out


def message(handles: Handles, broker_group: str, consumer_group: str, topic: str, lease: Lease, invisible_ms: int | None) -> pb.Message:
    """A leased message with everything that official clients need: digest, encoding, handle, attempt, times, queue and offset."""
    topic = lease.topic or topic
    out = pulled(topic, lease.queue, lease.queue_offset, lease.record)
    system = out.system_properties
    system.delivery_attempt = lease.attempt
    system.receipt_handle = handles.make(
        broker_group, Handle(consumer_group, topic, lease.queue, lease.queue_offset, lease.lease_number, lease.attempt)
    )
    if invisible_ms is not None:
        system.invisible_duration.FromMilliseconds(invisible_ms)
    return out


def undecided(topic: str, record: Record) -> pb.Message:
    """A half message for the producer that is asked to decide it: complete, but without a handle to acknowledge."""
    return _content(topic, record)


def _content(topic: str, record: Record) -> pb.Message:
    """The contents of a message, which do not depend on its place or its receiver."""
    record = plain(record)
    namespace, name = parse_stored(parent_of(topic))
    out = pb.Message(topic=pb.Resource(resource_namespace=namespace, name=name), body=record.body)
    fill_message(record.properties, out)
    system = out.system_properties
    system.body_digest.type = pb.MD5
    system.body_digest.checksum = md5(record.body)
    system.born_timestamp.FromMilliseconds(min(max(record.born_ms, 0), TIMESTAMP_MAX_MS))
    system.store_timestamp.FromMilliseconds(record.store_ms)
    system.store_host = record.store_host
    return out
