"""Reads from a broker group that this node leads, on its disks and below them in the object store,
and messages in the form of the admin service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.calls.read_calls import Confirm, Confirmed, Peek, Peeked
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.rocketmq.wire.bodies import plain
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto import admin_pb2
from ledgermq.proto.entries.compression import compression_of
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import UNDECODED
from ledgermq.proto.entries.properties import decode as decode_properties
from ledgermq.proto.records.time_epochs import NO_EPOCHS, TimeEpochs
from ledgermq.proto.status import refused
from ledgermq.storage.keys.lookup import Found, Lookup
from ledgermq.storage.tiered.tier_reader import TierReader

ANSWER_MAX = 1000
ANSWER_BYTES = 8 << 20


async def confirm(engine: Engine, group: str) -> None:
    """Confirm that this node leads the group and has applied everything acknowledged before the
    call. Raises CallRefused, LedgerError."""
    outcome = await engine.call(group, Confirm(engine.new_token()))
    _raise_refused(outcome)
    assert isinstance(outcome, Confirmed)


def _raise_refused(outcome: Any) -> None:
    if isinstance(outcome, Refused):
        raise (
            CallRefused(outcome)
            if outcome.reason == "not-leader"
            else refused(outcome.reason, outcome.detail)
        )


async def peek(engine: Engine, group: str, call: Peek) -> Peeked:
    """Committed messages of one queue of a broker group that this node leads. Raises CallRefused if
    it does not lead, LedgerError."""
    outcome = await engine.call(group, call)
    _raise_refused(outcome)
    assert isinstance(outcome, Peeked)
    return outcome


class ReadThrough:
    """Reads of broker groups that this node leads. Without `tier` there is nothing below the local
    begin."""

    def __init__(self, engine: Engine, tier: TierReads | None = None) -> None:
        self._engine = engine
        self._tier = tier

    async def peek(self, group: str, call: Peek) -> Peeked:
        """As `peek`. The answer may end where the local log goes on. Raises CallRefused,
        LedgerError."""
        peeked = await peek(self._engine, group, call)
        if self._tier is None or call.offset >= peeked.begin_offset or not call.max_messages:
            return peeked
        found = await self._tier.entries(
            group,
            call.topic,
            call.queue,
            call.offset,
            max_bytes=call.max_bytes,
            count=call.max_messages,
        )
        if found is None:
            return peeked
        records = tuple(found.records())
        return replace(
            peeked,
            records=records,
            next_offset=found.first + len(records),
            begin_offset=found.first,
        )

    async def begins(self, group: str, topic: str) -> list[int]:
        """The first offset of every queue that may be read here. Raises LedgerError if the topic is
        not in force."""
        tiered = self._tier is not None

        def look(hosted: RunningReplica) -> list[int]:
            machine = hosted.machine
            config = machine.topics.get(topic)
            if config is None:
                raise refused(
                    "unknown-topic", f"topic {topic} is not in force in this broker group"
                )
            return [
                (machine.floor if tiered else machine.begin)(topic, queue)
                for queue in range(config.queues)
            ]

        return await self._engine.run(group, look)

    async def offset_at(self, group: str, topic: str, queue: int, store_ms: int) -> int:
        """The first offset that was stored at `store_ms` or later. Raises LedgerError."""
        found = await self._engine.run(
            group, lambda hosted: int(hosted.machine.offset_at(topic, queue, store_ms))
        )
        return (
            found
            if self._tier is None
            else await self._tier.offset_at(group, topic, queue, store_ms, found)
        )

    async def head(self, group: str, topic: str, queue: int, offset: int) -> tuple[int, int | None]:
        """The first message from an offset on, and when it counts as stored, in ms; None for the
        time at the end of the queue. Raises LedgerError."""
        if self._tier is not None:
            found = await self._tier.entries(group, topic, queue, offset, max_bytes=1, count=1)
            if found is not None:
                return found.first, counted_ms(next(found.records()), await self.time_epochs(group))

        def look(hosted: RunningReplica) -> tuple[int, int | None]:
            machine = hosted.machine
            first = max(offset, machine.begin(topic, queue))
            return first, machine.stored_ms(topic, queue, first) if first < machine.end(
                topic, queue
            ) else None

        return await self._engine.run(group, look)

    async def time_epochs(self, group: str) -> TimeEpochs:
        """The time epochs of a broker group. Raises LedgerError."""
        return await self._engine.run(group, lambda hosted: hosted.machine.time_epochs)

    async def entry(self, group: str, topic: str, queue: int, offset: int) -> bytes | None:
        """The entry of a message in the object store; None if the local log has it, or nothing has.
        Raises LedgerError."""
        found = (
            None
            if self._tier is None
            else await self._tier.entries(group, topic, queue, offset, max_bytes=1, count=1)
        )
        return b"".join(found.pieces) if found is not None and found.first == offset else None

    def stored(self, group: str) -> TierReader | None:
        """The reader for searches by key, on a thread of the caller; None without tiered
        storage."""
        return None if self._tier is None else self._tier.reader(group)


def each_by_key(
    lookup: Lookup,
    stored: TierReader | None,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int,
    epochs: TimeEpochs = NO_EPOCHS,
) -> Iterator[Found]:
    """Messages with a key, newest first: of the local log, then of the object store below it.
    Raises OSError, StorageError."""
    last = None
    for found in lookup.each_by_key(topic, key, begin_ms, end_ms, epochs):
        last = found.physical_offset
        yield found
    # Asked after the local search: what was trimmed meanwhile is found in the store.
    if stored is None or not (begin := lookup.begin_pos):
        return
    below = begin if last is None else min(begin, last)
    yield from stored.each_by_key(topic, key, begin_ms, end_ms, below, epochs=epochs)


def counted_ms(record: bytes, time_epochs: TimeEpochs) -> int:
    """When a message record counts as stored."""
    found = decode_record(record)
    return time_epochs.counted(found.store_ms, found.physical_offset)


def message_of(
    record: bytes,
    namespace: str,
    topic: str,
    number: int,
    group: str,
    queue: int,
    offset: int,
    time_epochs: TimeEpochs = NO_EPOCHS,
) -> admin_pb2.PeekedMessage:
    """A message record in the form of the admin service. `number` is the queue's number over all
    broker groups of the topic. Its store time is that at which it counts as stored, because answers
    are put in this order."""
    found = plain(decode_record(record))
    fields = decode_properties(found.properties)
    left = compression_of(found.sysflag)
    return admin_pb2.PeekedMessage(
        message_id=fields.message_id,
        topic=admin_pb2.Name(namespace=namespace, name=topic),
        queue=number,
        offset=offset,
        tag=fields.tag,
        keys=fields.keys,
        message_group=fields.message_group,
        properties=fields.user if left is None else {**fields.user, UNDECODED: left},
        body=bytes(found.body),
        born_ms=found.born_ms,
        store_ms=time_epochs.counted(found.store_ms, found.physical_offset),
        broker_group=group,
        group_queue=queue,
        body_encoding="gzip" if fields.gzip else None,
    )


def name_of(stored: str) -> admin_pb2.Name:
    """Split a stored name into namespace and name."""
    namespace, _, name = stored.rpartition("@")
    return admin_pb2.Name(namespace=namespace, name=name)
