"""What the leader of a broker group says of its dead letters, and their settlement: one broker
group's part of `letters_admin.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ledgermq.node.broker.calls.operator_calls import LettersSettled, SettleLetters
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.read_calls import Peek
from ledgermq.node.broker.parts.dead_letters import dead_letters
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.frontend.admin.messages.group_reads import (
    ANSWER_BYTES,
    ANSWER_MAX,
    message_of,
    name_of,
    peek,
)
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import parse
from ledgermq.proto.names import DELIVERY_TOPIC, is_dead_letter_topic, parent_of, parse_member
from ledgermq.proto.records import control
from ledgermq.proto.status import Code, fail, refused
from ledgermq.storage.files.errors import Damaged

PAGE = 64
PAGE_BYTES = 1 << 20
LOOK_MAX = 4096
"""How many letters one answer looks at, at most one page more."""
CHANGES_MAX = 64
"""How many changes of one lease are followed."""
_UNSETTLED = frozenset({dead_letters.WAITING, dead_letters.ORPHANED})

QueryGroup = Callable[[str, peer_pb2.GroupQuery], Awaitable[peer_pb2.GroupQueryReply]]


class GroupLetters:
    """Answers for the broker groups that this node leads. `query` finds messages of one broker
    group by their id."""

    def __init__(self, engine: Engine, query: QueryGroup) -> None:
        self._engine = engine
        self._query = query

    async def letters(
        self, group: str, wanted: peer_pb2.GroupLetters
    ) -> peer_pb2.GroupLettersReply:
        """Dead letters of one dead-letter topic, at most `ANSWER_BYTES` plus one message."""
        topic = wanted.topic
        reply = peer_pb2.GroupLettersReply()
        if not await self._engine.run(group, lambda hosted: topic in hosted.machine.topics):
            return reply
        if wanted.message_ids:
            await self._by_id(group, wanted, reply)
            return reply
        offset = wanted.offset
        if wanted.HasField("begin_ms"):
            offset = max(
                offset,
                await self._engine.run(
                    group, lambda hosted: hosted.machine.offset_at(topic, 0, wanted.begin_ms)
                ),
            )
        size = looked = 0
        while (
            len(reply.letters) < min(wanted.max, ANSWER_MAX)
            and size < ANSWER_BYTES
            and looked < LOOK_MAX
        ):
            if not wanted.settled:
                offset = await self._engine.run(group, _next_unsettled(topic, offset))
            count = min(PAGE, wanted.max - len(reply.letters), wanted.end - offset)
            if count <= 0:
                return reply
            peeked = await peek(
                self._engine,
                group,
                Peek(
                    token=self._engine.new_token(),
                    topic=topic,
                    queue=0,
                    offset=offset,
                    max_messages=count,
                    max_bytes=PAGE_BYTES,
                ),
            )
            if not peeked.records:
                return reply
            first = peeked.next_offset - len(peeked.records)
            records, epochs = enumerate(peeked.records, first), peeked.time_epochs
            name = name_of(topic)
            page = [
                message_of(
                    record,
                    name.namespace,
                    name.name,
                    number=0,
                    group=group,
                    queue=0,
                    offset=at,
                    time_epochs=epochs,
                )
                for at, record in records
            ]
            # If letters were trimmed meanwhile, the page begins at a higher offset than was asked
            # for.
            page = [message for message in page if message.offset < wanted.end]
            if wanted.HasField("end_ms"):
                page = [message for message in page if message.store_ms < wanted.end_ms]
            for letter in await self._judged(group, wanted, page):
                size += len(letter.message.body)
                reply.letters.append(letter)
            offset, looked = peeked.next_offset, looked + len(peeked.records)
            if len(page) < len(peeked.records):
                return reply
        if offset < wanted.end:
            reply.next_offset = offset
        return reply

    async def _by_id(
        self, group: str, wanted: peer_pb2.GroupLetters, reply: peer_pb2.GroupLettersReply
    ) -> None:
        for message_id in dict.fromkeys(wanted.message_ids):
            query = peer_pb2.GroupQuery(topic=wanted.topic, message_id=message_id, max=ANSWER_MAX)
            for name in ("begin_ms", "end_ms"):
                if wanted.HasField(name):
                    setattr(query, name, getattr(wanted, name))
            found = await self._query(group, query)
            if found.HasField("lagging"):
                reply.lagging.CopyFrom(found.lagging)
            for message in found.messages:
                message.topic.CopyFrom(name_of(wanted.topic))
            page = sorted(
                (message for message in found.messages if message.offset < wanted.end),
                key=lambda message: message.offset,
            )
            reply.letters.extend(await self._judged(group, wanted, page))

    async def _judged(
        self, group: str, wanted: peer_pb2.GroupLetters, page: Sequence[admin_pb2.PeekedMessage]
    ) -> list[admin_pb2.DeadLetter]:
        """The messages as letters with their states, without those that are not wanted."""
        topic = wanted.topic

        def look(hosted: RunningReplica) -> tuple[Any, list[tuple[str, Any, int]]]:
            machine = hosted.machine
            states = [dead_letters.state_of(machine, topic, message.offset) for message in page]
            return hosted.reader, [
                (state, None, 0)
                if state == dead_letters.GONE
                else (
                    state,
                    dead_letters.origin_of(machine, topic, message.offset),
                    _last_lease(machine, topic, message.offset),
                )
                for state, message in zip(states, page, strict=True)
            ]

        letters = []
        reader, found = await self._engine.run(group, look)
        leased = [
            (message.offset, lease)
            for message, (_, _, lease) in zip(page, found, strict=True)
            if lease
        ]
        tries = await self._tries(reader, dead_letters.own_queue(topic), leased)
        for message, (state, origin, _) in zip(page, found, strict=True):
            # A letter may have been trimmed since it was read.
            if state == dead_letters.GONE or (state not in _UNSETTLED and not wanted.settled):
                continue
            letter = admin_pb2.DeadLetter(
                state=state, body_bytes=len(message.body), tries=tries.get(message.offset, 0)
            )
            letter.message.CopyFrom(message)
            if not wanted.bodies:
                letter.message.ClearField("body")
            if origin is not None:
                (reader, stored, letter.group_queue), letter.offset = origin
                letter.client = parse_member(reader)[1]
                letter.topic.CopyFrom(name_of(parent_of(stored)))
            letters.append(letter)
        return letters

    async def _tries(
        self, reader: Any, key: QueueKey, leases: Sequence[tuple[int, int]]
    ) -> dict[int, int]:
        try:
            return await asyncio.to_thread(_attempts, reader, key, leases) if leases else {}
        except (OSError, Damaged) as error:
            raise fail(
                Code.INTERNAL_SERVER_ERROR,
                f"the log cannot be read here ({error}); audit this node",
            ) from error

    async def counts(
        self, group: str, wanted: peer_pb2.GroupLetterCounts
    ) -> peer_pb2.GroupLetterCountsReply:
        """How many dead letters there are, and how many are settled; all from one applied state."""

        def look(hosted: RunningReplica) -> peer_pb2.GroupLetterCountsReply:
            machine = hosted.machine
            reply = peer_pb2.GroupLetterCountsReply()
            for topic in sorted(set(wanted.topics or machine.topics) & machine.topics.keys()):
                if is_dead_letter_topic(topic):
                    reply.counts.append(_count(machine, topic))
                    reply.ends.append(machine.end(topic, 0))
            return reply

        return await self._engine.run(group, look)

    async def settle(self, group: str, wanted: peer_pb2.GroupSettle) -> peer_pb2.GroupSettleReply:
        """Settle dead letters of one topic, by one record of the log. Raises LedgerError."""
        call = SettleLetters(
            self._engine.new_token(), wanted.topic, tuple(wanted.offsets), wanted.how, wanted.user
        )
        outcome = await self._engine.call(group, call)
        if isinstance(outcome, Refused):
            raise refused(outcome.reason, outcome.detail)
        assert isinstance(outcome, LettersSettled)
        return peer_pb2.GroupSettleReply(states=outcome.states)


def _last_lease(machine: Any, topic: str, offset: int) -> int:
    """The last lease that the letter's own group had of it and did not acknowledge; 0 if none is
    known."""
    key = dead_letters.own_queue(topic)
    return machine.delivery.lease(key, offset) or machine.delivery.lapsed.last(key, offset) or 0


def _attempts(reader: Any, key: QueueKey, leases: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Which attempt each lease was, given as (offset, lease number), by offset. Without those that
    retention removed just now, and those that were changed more often than `CHANGES_MAX` times."""
    return {
        offset: attempt
        for offset, lease in leases
        if (attempt := _attempt(reader, key, offset, lease))
    }


def _attempt(reader: Any, key: QueueKey, offset: int, lease: int) -> int:
    """A lease number is the index of a record: of the `lease` record, which has the attempt, or of
    a `change`, which has the lease before it. So all of them are behind the letter in the log. 0:
    unknown."""
    for _ in range(CHANGES_MAX):
        piece = reader.read(lease, 1)
        if piece is None:
            return 0
        record = decode_record(piece.data[HEADER_BYTES : int(piece.sizes[0])])
        said = (
            control.decode(parse(record.properties).get("TAGS", ""), record.body)
            if record.topic == DELIVERY_TOPIC
            else None
        )
        if isinstance(said, control.LeaseRecord):
            return next(
                (
                    attempts[offsets.index(offset)]
                    for _, offsets, attempts in said.leased
                    if offset in offsets
                ),
                0,
            )
        if not isinstance(said, control.ChangeRecord):
            return 0
        lease = next(
            before
            for *place, at, before, _, _ in said.changes
            if (tuple(place), at) == (key, offset)
        )
    return 0


def _next_unsettled(topic: str, offset: int) -> Callable[[Any], int]:
    return lambda hosted: int(
        hosted.machine.letters.next_unsettled(topic, max(offset, hosted.machine.begin(topic, 0)))
    )


def _count(machine: Any, topic: str) -> admin_pb2.DeadLetterCount:
    begin, end = machine.begin(topic, 0), machine.end(topic, 0)
    count = admin_pb2.DeadLetterCount(group=name_of(topic), unsettled=end - begin)
    for first, to, how in machine.letters.ranges(topic):
        letters = max(0, to - max(first, begin))
        setattr(count, how, getattr(count, how) + letters)
        count.unsettled -= letters
    if count.unsettled:
        count.oldest_ms = machine.stored_ms(topic, 0, machine.letters.next_unsettled(topic, begin))
    return count
