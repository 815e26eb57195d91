"""Reads from a broker group that this node leads, and messages in the form of the admin service."""

from __future__ import annotations

from typing import Any

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.calls.read_calls import Confirm, Confirmed, Peek, Peeked
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.rocketmq.wire.bodies import plain
from ledgermq.proto import admin_pb2
from ledgermq.proto.message_record import decode_record
from ledgermq.proto.properties import decode as decode_properties
from ledgermq.proto.status import refused

ANSWER_MAX = 1000
ANSWER_BYTES = 8 << 20


async def confirm(engine: Engine, group: str) -> None:
    """Confirm that this node leads the group and has applied everything acknowledged before the call. Raises CallRefused, LedgerError."""
    outcome = await engine.call(group, Confirm(engine.new_token()))
    _raise_refused(outcome)
    assert isinstance(outcome, Confirmed)


def _raise_refused(outcome: Any) -> None:
    if isinstance(outcome, Refused):
        raise CallRefused(outcome) if outcome.reason == "not-leader" else refused(outcome.reason, outcome.detail)


async def peek(engine: Engine, group: str, call: Peek) -> Peeked:
    """Committed messages of one queue of a broker group that this node leads. Raises CallRefused if it does not lead, LedgerError."""
    outcome = await engine.call(group, call)
    _raise_refused(outcome)
    assert isinstance(outcome, Peeked)
    return outcome


def message_of(record: bytes, namespace: str, topic: str, number: int, group: str, queue: int, offset: int) -> admin_pb2.PeekedMessage:
    """A message record in the form of the admin service. `number` is the queue's number over all broker groups of the topic."""
    found = plain(decode_record(record))
    fields = decode_properties(found.properties)
    return admin_pb2.PeekedMessage(
        message_id=fields.message_id,
        topic=admin_pb2.Name(namespace=namespace, name=topic),
        queue=number,
        offset=offset,
        tag=fields.tag,
        keys=fields.keys,
        message_group=fields.message_group,
        properties=fields.user,
        body=bytes(found.body),
        born_ms=found.born_ms,
        store_ms=found.store_ms,
        broker_group=group,
        group_queue=queue,
        body_encoding="gzip" if fields.gzip else None,
    )


def name_of(stored: str) -> admin_pb2.Name:
    """Split a stored name into namespace and name."""
    namespace, _, name = stored.rpartition("@")
    return admin_pb2.Name(namespace=namespace, name=name)
