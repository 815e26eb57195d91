"""What the leader of a broker group says of messages that wait (delayed ones and half messages),
and how it cancels them: one broker group's part of `waiting_admin.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Recall, Recalled
from ledgermq.node.broker.calls.transaction_calls import Resolve, Resolved
from ledgermq.node.broker.parts.timers.timers import SLOTS, Place, first_place, slot_of
from ledgermq.node.broker.parts.transactions.transactions import half_record
from ledgermq.node.frontend.admin.messages.group_reads import (
    ANSWER_BYTES,
    ANSWER_MAX,
    message_of,
    name_of,
)
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import (
    DELIVER_MS,
    FIRE_MS,
    REAL_QUEUE,
    REAL_TOPIC,
    TIMER_FIRST,
    parse,
)
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.records.time_epochs import TimeEpochs
from ledgermq.proto.status import refused

DELAYED, HALF = KINDS = ("delayed", "half")
CANCELLED, GONE = "cancelled", "gone"
PAGE = 64
PAGE_BYTES = 1 << 20
LOOK_MAX = 4096
"""How many messages one answer looks at, at most one page more."""


@dataclass(slots=True)
class _Page:
    """Some messages that wait, and where to go on. `rows`: (record, offset where it waits, number
    of checks)."""

    epoch: int
    offset: int
    looked: int = 0
    rows: list[tuple[bytes, int, int]] = field(default_factory=list)


class GroupWaiting:
    """Answers for the broker groups that this node leads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def waiting(
        self, group: str, wanted: peer_pb2.GroupWaiting
    ) -> peer_pb2.GroupWaitingReply:
        """Messages of one topic that wait, at most `ANSWER_BYTES` plus a page."""
        reply = peer_pb2.GroupWaitingReply()
        page_of = _delayed_page if wanted.kind == DELAYED else _half_page
        epoch, offset, looked, size = wanted.epoch, wanted.offset, 0, 0
        epochs = await self._engine.run(group, lambda hosted: hosted.machine.time_epochs)
        while (
            len(reply.messages) < min(wanted.max, ANSWER_MAX)
            and size < ANSWER_BYTES
            and looked < LOOK_MAX
        ):
            most = min(PAGE, wanted.max - len(reply.messages))
            page = await self._engine.run(group, page_of(wanted.topic, epoch, offset, most))
            if page is None:
                return reply
            epoch, offset, looked = page.epoch, page.offset, looked + page.looked
            for record, at, checks in page.rows:
                message = _message(group, wanted, record, at, checks, epochs=epochs)
                if message is not None:
                    reply.messages.append(message)
                    size += len(message.message.body)
        reply.more, reply.next_epoch, reply.next_offset = True, epoch, offset
        return reply

    async def cancel(self, group: str, wanted: peer_pb2.GroupCancel) -> peer_pb2.GroupCancelReply:
        """Recall delayed messages, or roll half messages back, each of this topic only. Raises
        LedgerError."""
        cancel = self._recall if wanted.kind == DELAYED else self._roll_back
        states = await asyncio.gather(*(cancel(group, wanted, place) for place in wanted.places))
        return peer_pb2.GroupCancelReply(states=states)

    async def _roll_back(
        self, group: str, wanted: peer_pb2.GroupCancel, place: admin_pb2.WaitingPlace
    ) -> str:
        call = Resolve(
            token=self._engine.new_token(),
            offset=place.offset,
            topic=wanted.topic,
            message_id=place.message_id,
            commit=False,
            user=wanted.user,
        )
        outcome = await self._engine.call(group, call)
        if isinstance(outcome, Refused):
            raise refused(outcome.reason, outcome.detail)
        assert isinstance(outcome, Resolved)
        return CANCELLED if outcome.ok else GONE

    async def _recall(
        self, group: str, wanted: peer_pb2.GroupCancel, place: admin_pb2.WaitingPlace
    ) -> str:
        state, deliver_ms, first = await self._engine.run(group, _delayed_at(wanted.topic, place))
        if state != DELAYED:
            return state
        call = Recall(
            self._engine.new_token(), deliver_ms, first.fire_ms, first.offset, wanted.user
        )
        outcome = await self._engine.call(group, call)
        if isinstance(outcome, Refused):
            raise refused(outcome.reason, outcome.detail)
        assert isinstance(outcome, Recalled)
        if outcome.ok:
            return CANCELLED
        # Another call may have recalled it meanwhile.
        state, _, _ = await self._engine.run(group, _delayed_at(wanted.topic, place))
        return CANCELLED if state == CANCELLED else GONE


def _half_page(topic: str, _: int, offset: int, most: int) -> Callable[[Any], _Page | None]:
    def page(hosted: RunningReplica) -> _Page | None:
        machine = hosted.machine
        halves = [
            (at, half)
            for at, half in machine.transactions.halves.items()
            if half.topic == topic and at >= offset
        ][:most]
        if not halves:
            return None
        found, size = _Page(0, offset), 0
        for at, half in halves:
            record = half_record(machine, at)
            found.rows.append((record, at, half.checks))
            found.offset, found.looked, size = at + 1, found.looked + 1, size + len(record)
            if size >= PAGE_BYTES:
                break
        return found

    return page


def _delayed_page(topic: str, epoch: int, offset: int, most: int) -> Callable[[Any], _Page | None]:
    """Messages of the first timer slot from a minute (`epoch`) on that holds messages."""

    def page(hosted: RunningReplica) -> _Page | None:
        machine, timers = hosted.machine, hosted.machine.timers
        at = timers.next_epoch(epoch)
        if at is None:
            return None
        slot, first = at % SLOTS, timers.first_of(at)
        assert first is not None, "the epoch holds messages"
        begin = max(first, offset) if at == epoch else first
        count = min(PAGE, machine.end(TIMER_TOPIC, slot) - begin)
        if count <= 0:
            return _Page(at + 1, 0)
        positions, sizes, _ = machine.units(TIMER_TOPIC, slot, begin, count)
        fits = max(
            1, int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), PAGE_BYTES, side="right"))
        )
        found = _Page(at, begin)
        for position, size in zip(positions[:fits].tolist(), sizes[:fits].tolist(), strict=True):
            record = machine.record(position, size)
            properties = decode_record(record).properties
            waits = machine.delayed_state(found.offset, properties)[0] == DELAYED
            if waits and parse(properties).get(REAL_TOPIC) == topic:
                found.rows.append((record, found.offset, 0))
            found.offset, found.looked = found.offset + 1, found.looked + 1
            if len(found.rows) >= most:
                break
        return found

    return page


def _delayed_at(
    topic: str, place: admin_pb2.WaitingPlace
) -> Callable[[Any], tuple[str, int, Place]]:
    """The state of the message at a place (delayed, cancelled or gone), its delivery time, and its
    first place."""

    def look(hosted: RunningReplica) -> tuple[str, int, Place]:
        machine, slot = hosted.machine, slot_of(place.fire_ms)
        gone = GONE, 0, Place(place.fire_ms, place.offset)
        if not machine.begin(TIMER_TOPIC, slot) <= place.offset < machine.end(TIMER_TOPIC, slot):
            return gone
        positions, sizes, _ = machine.units(TIMER_TOPIC, slot, place.offset, 1)
        properties = bytes(machine.properties(int(positions[0]), int(sizes[0])))
        stored = parse(properties)
        if stored.get(REAL_TOPIC) != topic or int(stored[FIRE_MS]) != place.fire_ms:
            return gone
        state, deliver_ms = machine.delayed_state(place.offset, properties)
        known = {"delayed": DELAYED, "recalled": CANCELLED}.get(state, GONE)
        return (
            known,
            deliver_ms,
            first_place(stored.get(TIMER_FIRST, ""), place.fire_ms, place.offset),
        )

    return look


def _message(
    group: str,
    wanted: peer_pb2.GroupWaiting,
    record: bytes,
    at: int,
    checks: int,
    epochs: TimeEpochs,
) -> admin_pb2.WaitingMessage | None:
    """A record that waits, in the form of the admin service; None if it is not wanted."""
    stored = parse(decode_record(record).properties)
    name = name_of(wanted.topic)
    message = message_of(
        record,
        name.namespace,
        topic=name.name,
        number=0,
        group=group,
        queue=int(stored.get(REAL_QUEUE, "0")),
        offset=0,
        time_epochs=epochs,
    )
    if wanted.message_ids and message.message_id not in wanted.message_ids:
        return None
    if wanted.HasField("begin_ms") and message.store_ms < wanted.begin_ms:
        return None
    if wanted.HasField("end_ms") and message.store_ms >= wanted.end_ms:
        return None
    place = admin_pb2.WaitingPlace(broker_group=group, offset=at, message_id=message.message_id)
    if wanted.kind == DELAYED:
        message.delayed_until_ms, place.fire_ms = int(stored[DELIVER_MS]), int(stored[FIRE_MS])
    return admin_pb2.WaitingMessage(message=message, place=place, checks=checks)
