"""Explains one message from the view of a replica: its trace, and why a consumer group has not
received it.

Reads the key index and the log on a thread, never on the loop, and at most SCAN_BYTES for each
question; reads state in `Engine.run`, between two turns. `queries.py` chooses the broker groups and
merges their answers.

The object store is asked for a message that no disk here has, or that was made from an entry that
no disk here has. So what happened to a newer message is told while the store is away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from ledgermq.node.broker.calls.consumer_calls import WIRE_MAX, Handle, client_of
from ledgermq.node.broker.parts.transactions.transactions import HALF_QUEUE
from ledgermq.node.broker.queries.trace import Event, Subject, events_of
from ledgermq.node.broker.queries.why_delivery import Facts, absent, why
from ledgermq.node.frontend.admin.messages.group_reads import ReadThrough, each_by_key
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.rocketmq.wire import delivering
from ledgermq.node.frontend.rocketmq.wire.handles import Handles
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto import admin_pb2, messaging_pb2, peer_pb2
from ledgermq.proto.entries.message_record import Record, decode_record
from ledgermq.proto.entries.properties import MESSAGE_ID, ORIGIN, REAL_TOPIC, parse
from ledgermq.proto.names import HALF_TOPIC, TIMER_TOPIC, parse_stored
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import Range
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.keys.lookup import TIME_MAX
from ledgermq.storage.tiered.ports import StoreFailure
from ledgermq.storage.tiered.tier_reader import TierReader
from ledgermq.storage.tiered.transfer import WrongObject

SCAN_BYTES = 32 << 20
"""The most bytes of the log that one answer scans."""
READ_BYTES = 1 << 20
SCAN_S = 1.0
T = TypeVar("T")


class Explainer:
    """Answers for the replicas of one node. `indexed(group)` waits for the key index; it returns
    None once the index is complete."""

    def __init__(
        self,
        engine: Engine,
        through: ReadThrough,
        indexed: Callable[[str], Awaitable[Any]],
        now_ns: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._through = through
        self._indexed = indexed
        self._now_ns = now_ns

    async def trace(self, group: str, question: peer_pb2.GroupTrace) -> peer_pb2.GroupTraceReply:
        """One page of a message's history."""
        await self._indexed(group)
        lookup, reader = await self._engine.run(
            group, lambda hosted: (hosted.lookup, hosted.reader)
        )
        stored = self._through.stored(group)
        subject, copies = await self._thread(
            _copies, lookup, stored, question.topic, question.message_id
        )
        if not copies:
            return peer_pb2.GroupTraceReply()
        first = question.from_index or min(subject.places.values())
        events, next_index = await self._thread(_scanned, reader, stored, subject, first)
        reply = peer_pb2.GroupTraceReply(next_index=next_index, found=True)
        reply.events.extend(_event(group, event) for event in events)
        return reply

    async def why(self, group: str, question: peer_pb2.GroupWhy) -> peer_pb2.GroupWhyReply:
        """Why the consumer group has not received the message, as far as this broker group
        knows."""
        lagging = await self._indexed(group)
        lookup, reader = await self._engine.run(
            group, lambda hosted: (hosted.lookup, hosted.reader)
        )
        stored = self._through.stored(group)
        subject, copies = await self._thread(
            _copies, lookup, stored, question.topic, question.message_id
        )
        if not copies:
            begins_ms = await self._thread(_begins_ms, reader)
            found = absent(question.message_id, [question.topic], begins_ms, lagging is not None)
            return peer_pb2.GroupWhyReply(
                answer=found.answer, reason=found.reason, evidence=found.evidence
            )
        events, next_index = await self._thread(
            _scanned, reader, stored, subject, min(subject.places.values())
        )
        visible = next((copy for copy in copies if copy.topic == question.topic), None)
        now_ns = self._now_ns()
        facts = await self._engine.run(
            group,
            lambda hosted: _facts(
                hosted, question, visible, newest=copies[0], events=events, now_ns=now_ns
            ),
        )
        size = 0 if visible is None else await self._thread(_wire_bytes, group, question, visible)
        found = why(
            replace(facts, complete=next_index == 0, too_large=size if size > WIRE_MAX else 0)
        )
        return peer_pb2.GroupWhyReply(
            answer=found.answer, reason=found.reason, evidence=found.evidence
        )

    async def _thread(self, work: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.to_thread(work, *arguments)
        except (StoreFailure, WrongObject) as error:
            raise TierReads.error(error) from error
        except (OSError, Damaged) as error:
            raise fail(
                Code.INTERNAL_SERVER_ERROR,
                f"the log cannot be read here ({error}); audit this node",
            ) from error


def _copies(
    lookup: Any, stored: TierReader | None, topic: str, message_id: str
) -> tuple[Subject, list[Record]]:
    """Every entry of the message, newest first, and the places of these entries."""
    subject, copies = _copies_in(lookup, None, topic, message_id)
    if stored is not None and (not copies or ORIGIN in parse(copies[-1].properties)):
        return _copies_in(lookup, stored, topic, message_id)
    return subject, copies


def _copies_in(
    lookup: Any, stored: TierReader | None, topic: str, message_id: str
) -> tuple[Subject, list[Record]]:
    subject, copies = Subject(topic, message_id), []
    for name in (topic, TIMER_TOPIC, HALF_TOPIC):
        for found in each_by_key(
            lookup, stored, topic=name, key=message_id, begin_ms=0, end_ms=TIME_MAX
        ):
            record = decode_record(found.record)
            properties = parse(record.properties)
            dead = properties.get(ORIGIN, "").startswith("dlq:")
            if (
                properties.get(MESSAGE_ID) != message_id
                or dead
                or (name != topic and properties.get(REAL_TOPIC) != topic)
            ):
                continue
            subject.places[name, record.queue, record.queue_offset] = found.index
            copies.append(record)
    return subject, sorted(copies, key=lambda record: record.physical_offset, reverse=True)


def _wire_bytes(group: str, question: peer_pb2.GroupWhy, visible: Record) -> int:
    """The message's length in bytes as a consumer receives it, within a few bytes: a handle's
    length does not depend on the secret."""
    message = delivering.undecided(question.topic, visible)
    system = message.system_properties
    system.queue_id, system.queue_offset, system.delivery_attempt = (
        visible.queue,
        visible.queue_offset,
        1,
    )
    handle = Handle(
        group=question.group,
        topic=question.topic,
        queue=visible.queue,
        queue_offset=visible.queue_offset,
        lease_number=1 << 32,
        attempt=1,
    )
    system.receipt_handle = Handles(b"").make(group, handle)
    return len(messaging_pb2.ReceiveMessageResponse(message=message).SerializeToString())


def _scanned(
    reader: Any, stored: TierReader | None, subject: Subject, first: int
) -> tuple[list[Event], int]:
    """Events from an entry on, and the entry to continue from; 0 at the end of the log."""
    events: list[Event] = []
    limit, size = time.monotonic() + SCAN_S, 0
    index, end = first, reader.limits.end_index
    while index < end:
        if size >= SCAN_BYTES or time.monotonic() > limit:
            return events, index
        begin = reader.limits.begin_index
        if index < begin and stored is None:
            index = begin
            continue
        piece = (
            stored.read(index, READ_BYTES)
            if stored is not None and index < begin
            else reader.read(index, READ_BYTES)
        )
        if piece is None:
            # This entry was just trimmed from the disk, or, below its begin, from the store.
            index = (
                max(index + 1, stored.first_index())
                if stored is not None and index < begin
                else index
            )
            continue
        entries = Range(
            piece.first_index,
            piece.last_index,
            term=0,
            pos=piece.pos,
            data=piece.data,
            starts=piece.starts,
            sizes=piece.sizes,
            prev_chain=0,
            last_chain=0,
        )
        events += events_of(entries, subject)
        size += len(piece.data)
        index = piece.last_index + 1
    return events, 0


def _begins_ms(reader: Any) -> int | None:
    """When the first retained entry was stored, in ms; None if retention removed nothing."""
    limits = reader.limits
    piece = (
        reader.read(limits.begin_index, 1) if 0 < limits.begin_index < limits.end_index else None
    )
    return None if piece is None else decode_record(piece.data[48 : int(piece.sizes[0])]).store_ms


def _facts(
    hosted: RunningReplica,
    question: peer_pb2.GroupWhy,
    visible: Record | None,
    newest: Record,
    events: list[Event],
    now_ns: int,
) -> Facts:
    """The state that the answer rests on, read at one moment."""
    machine, leader = hosted.machine, hosted.group.leader
    names: dict[str, Any] = {
        "message_id": question.message_id,
        "group": question.group,
        "topic": question.topic,
        "events": events,
    }
    if visible is None:
        return Facts(**names, **_waiting(machine, newest))
    key = (question.group, question.topic, visible.queue)
    offset = visible.queue_offset
    row = machine.delivery.row(key, offset)
    lease_ms = next(
        (
            event.store_ms
            for event in reversed(events)
            if row is not None and event.index == row.lease
        ),
        None,
    )
    used = key in machine.delivery.queues or (question.group, question.topic) in set(
        machine.offsets.pairs()
    )
    polls = sum(
        poll.call.group == question.group and poll.call.topic == question.topic
        for poll in leader.polls.all()
    )
    return Facts(
        **names,
        queue=visible.queue,
        offset=offset,
        deleted=offset < machine.floor(question.topic, visible.queue),
        begin=machine.first_position(question.topic, visible.queue),
        store=leader.tier.failure_of(key[:2])
        if offset < machine.begin(question.topic, visible.queue)
        else "",
        cursor=machine.cursor(key) if used else None,
        row=None if row is None else (row.attempt, client_of(row.client), row.duration_ms),
        resent=row is not None and row.lease > 0 and row.attempt == 0,
        expired=row is not None and leader.clock.expired(now_ns, key, offset),
        lease_ms=lease_ms,
        polls=polls,
    )


def _waiting(machine: Any, copy: Record) -> dict[str, Any]:
    """The state of a copy that waits on a hidden topic."""
    if copy.topic == HALF_TOPIC:
        assert copy.queue == HALF_QUEUE, copy
        return {"waiting": "half" if copy.queue_offset in machine.transactions.halves else ""}
    state, deliver_ms = machine.delayed_state(copy.queue_offset, copy.properties)
    return {"waiting": state, "deliver_ms": deliver_ms}


def _event(broker_group: str, event: Event) -> admin_pb2.TraceEvent:
    out = admin_pb2.TraceEvent(
        broker_group=broker_group,
        index=event.index,
        store_ms=event.store_ms,
        kind=event.kind,
        attempt=event.attempt,
        client=event.client,
        duration_ms=event.duration_ms,
        detail=event.detail,
    )
    if event.group is not None:
        out.group.namespace, out.group.name = parse_stored(event.group)
    return out
