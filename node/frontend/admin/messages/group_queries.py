"""What the leader of a broker group answers to queries: messages by key, id or time, the fate of
one message, progress and resets.

This module holds the part of a query that concerns one broker group, and every replica's answer
about the place of its copy of an entry. `queries.py` chooses the groups and merges their answers.
Derived state is read in `Engine.run`, between two turns; the key index is read on a thread, never
on the loop.

An answer misses nothing that was acknowledged before the question: the leader confirms its
leadership before it reads. It confirms it again afterwards, because some answers contain what only
a leader knows, such as its clock of leases, and because the group may have been opened anew
meanwhile, from an older state. If it no longer leads, the question goes to the next leader. Each
replica answers for the place of its own copy.

A committed message may not be in the key index yet. No answer calls a message absent before the
index has reached the entries that were applied when the question came; if that takes too long, the
answer reports the progress of the index. If the index lost keys during a query, the query is
repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from heapq import heappop, heappush, merge
from typing import Any, TypeVar

from google.protobuf.message import Message

from ledgermq.node.broker.calls.consumer_calls import client_of
from ledgermq.node.broker.calls.operator_calls import Reset, ResetDone
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.frontend.admin.messages.copies import copy_of, judged
from ledgermq.node.frontend.admin.messages.explaining import Explainer
from ledgermq.node.frontend.admin.messages.group_letters import GroupLetters
from ledgermq.node.frontend.admin.messages.group_progress import (
    lite_topics_of,
    progress,
    readers_of,
)
from ledgermq.node.frontend.admin.messages.group_reads import (
    ANSWER_BYTES,
    ANSWER_MAX,
    ReadThrough,
    confirm,
    counted_ms,
    each_by_key,
    message_of,
    name_of,
)
from ledgermq.node.frontend.admin.messages.group_waiting import GroupWaiting
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.entries.message_record import Record, decode_record
from ledgermq.proto.entries.properties import DELIVER_MS, REAL_QUEUE, REAL_TOPIC, Fields, parse
from ledgermq.proto.entries.properties import decode as decode_properties
from ledgermq.proto.names import TIMER_TOPIC, parse_member
from ledgermq.proto.records.time_epochs import NO_EPOCHS, TimeEpochs
from ledgermq.proto.status import Code, LedgerError, fail, refused
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.keys.lookup import TIME_MAX, Lookup
from ledgermq.storage.tiered.ports import StoreFailure
from ledgermq.storage.tiered.tier_reader import TierReader
from ledgermq.storage.tiered.transfer import WrongObject

PAGE = 64
PAGE_BYTES = 1 << 20
BUFFER_BYTES = 16 << 20
INDEXED_WITHIN_S = 2.0
LOOK_AGAIN_S = 0.01
_HEADER = 48
_INDEX = slice(8, 16)
_AT_THE_LEADER = frozenset(
    {
        "GroupQuery",
        "GroupMessage",
        "GroupProgress",
        "GroupWhy",
        "GroupLetters",
        "GroupLetterCounts",
        "GroupWaiting",
    }
)
"""Questions that the leader answers from derived state. Resets and settlements go through the log
and are decided there."""
T = TypeVar("T")
Q = TypeVar("Q", bound=Message)


class GroupQueries:
    """Answers for the replicas of this node."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        through: ReadThrough,
        now_ns: Callable[[], int] = time.monotonic_ns,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._node = node
        self._engine = engine
        self._through = through
        self._now_ns = now_ns
        self._now_ms = now_ms
        self._explainer = Explainer(engine, through, self._until_indexed, now_ns)
        self._letters = GroupLetters(engine, self.query)
        self._waiting = GroupWaiting(engine)
        self.questions: Mapping[
            str, tuple[type[Message], Callable[[str, Any], Awaitable[Any]], Callable[..., Any]]
        ] = {
            "GroupQuery": (peer_pb2.GroupQuery, self.query, peer_pb2.GroupQueryReply),
            "GroupMessage": (peer_pb2.GroupMessage, self.message, peer_pb2.GroupMessageReply),
            "GroupProgress": (peer_pb2.GroupProgress, self.progress, peer_pb2.GroupProgressReply),
            "GroupLetters": (
                peer_pb2.GroupLetters,
                self._letters.letters,
                peer_pb2.GroupLettersReply,
            ),
            "GroupLetterCounts": (
                peer_pb2.GroupLetterCounts,
                self._letters.counts,
                peer_pb2.GroupLetterCountsReply,
            ),
            "GroupSettle": (peer_pb2.GroupSettle, self._letters.settle, peer_pb2.GroupSettleReply),
            "GroupWaiting": (
                peer_pb2.GroupWaiting,
                self._waiting.waiting,
                peer_pb2.GroupWaitingReply,
            ),
            "GroupCancel": (peer_pb2.GroupCancel, self._waiting.cancel, peer_pb2.GroupCancelReply),
            "GroupReset": (peer_pb2.GroupReset, self.reset, peer_pb2.GroupResetReply),
            "GroupTrace": (peer_pb2.GroupTrace, self._explainer.trace, peer_pb2.GroupTraceReply),
            "GroupWhy": (peer_pb2.GroupWhy, self._explainer.why, peer_pb2.GroupWhyReply),
            "Locate": (peer_pb2.Locate, self.locate, peer_pb2.LocateReply),
        }
        """Every question by name: its type, what answers it, and the type of the reply."""

    async def execute(self, method: str, group: str, request: bytes) -> bytes:
        """Answer one question of `queries.py`, from this node or another; the reply carries a
        refusal in its status. Raises CallRefused if the question is for the leader and this node
        does not lead."""
        question, work, reply = self.questions[method]
        led = method in _AT_THE_LEADER
        try:
            if led:
                await confirm(self._engine, group)
            answer = await work(group, question.FromString(request))
            if led:
                await confirm(self._engine, group)
            answer.status.code = Code.OK
        except LedgerError as error:
            answer = reply(status=admin_pb2.Status(code=int(error.code), message=error.message))
        found: bytes = answer.SerializeToString()
        return found

    # -- messages

    async def query(self, group: str, query: peer_pb2.GroupQuery) -> peer_pb2.GroupQueryReply:
        """This broker group's part of a Query: at most `ANSWER_BYTES` plus one message."""
        query.max = max(1, min(query.max, ANSWER_MAX))
        if query.HasField("key") or query.HasField("message_id"):
            return await self._by_key(group, query)
        return await self._by_time(group, query)

    async def _by_key(self, group: str, query: peer_pb2.GroupQuery) -> peer_pb2.GroupQueryReply:
        reply = peer_pb2.GroupQueryReply()
        index = await self._engine.run(group, lambda hosted: hosted.key_index)
        while True:
            setbacks = index.setbacks
            lagging = await self._until_indexed(group)
            begins, stored = (
                await self._through.begins(group, query.topic),
                self._through.stored(group),
            )
            look = await self._engine.run(
                group, lambda hosted: (hosted.lookup, hosted.machine, hosted.machine.time_epochs)
            )
            lookup, machine, epochs = look
            try:
                rows, complete = await asyncio.to_thread(
                    _look_up, lookup, stored, query, begins, machine, epochs
                )
            except StoreFailure as failure:
                newer = "give a time to search only newer messages, which are on the disks"
                raise fail(
                    Code.HA_NOT_AVAILABLE, f"{TierReads.error(failure).message}; {newer}"
                ) from failure
            except WrongObject as wrong:
                raise TierReads.error(wrong) from wrong
            except (OSError, Damaged) as error:
                what = (
                    f"a message of broker group {group} cannot be read on node {self._node}"
                    f" ({error}); audit this node"
                )
                raise fail(Code.INTERNAL_SERVER_ERROR, what) from error
            if lagging is not None or index.setbacks == setbacks:
                break
        if lagging is not None:
            reply.lagging.CopyFrom(lagging)
        reply.more = not complete
        size = 0
        for found, record in rows:
            if size >= ANSWER_BYTES:
                # Bodies are compressed, so the answer may be larger than what was read: the rest
                # comes with the next page.
                reply.more = True
                break
            if record.topic != TIMER_TOPIC:
                reply.messages.append(
                    message_of(
                        found.record,
                        "",
                        query.topic,
                        number=0,
                        group=group,
                        queue=record.queue,
                        offset=record.queue_offset,
                        time_epochs=epochs,
                    )
                )
                size += len(reply.messages[-1].body)
                continue
            waits = parse(record.properties)
            delayed = message_of(
                found.record,
                "",
                query.topic,
                number=0,
                group=group,
                queue=int(waits[REAL_QUEUE]),
                offset=0,
                time_epochs=epochs,
            )
            delayed.delayed_until_ms = int(waits[DELIVER_MS])
            reply.messages.append(delayed)
        return reply

    async def _until_indexed(self, group: str) -> admin_pb2.IndexProgress | None:
        """Wait until the key index holds what is applied now. Returns None once it does, after
        INDEXED_WITHIN_S its progress."""
        applied, indexed = await self._engine.run(
            group, lambda hosted: (hosted.machine.applied_index, _indexed_to(hosted))
        )
        limit = asyncio.get_running_loop().time() + INDEXED_WITHIN_S
        while indexed < applied:
            if asyncio.get_running_loop().time() >= limit:
                return admin_pb2.IndexProgress(
                    broker_group=group, indexed_to=indexed, applied_to=applied
                )
            await asyncio.sleep(LOOK_AGAIN_S)
            indexed = await self._engine.run(group, _indexed_to)
        return None

    async def _by_time(self, group: str, query: peer_pb2.GroupQuery) -> peer_pb2.GroupQueryReply:
        begins = await self._through.begins(group, query.topic)
        if len(query.offsets) > len(begins):
            raise fail(
                Code.BAD_REQUEST,
                "the page token names a queue that does not exist; start again without a token",
            )
        # A queue may have been trimmed since the last page.
        offsets = [max(offset, begin) for offset, begin in zip(query.offsets, begins, strict=False)]
        for queue in range(len(offsets), len(begins)):
            # One search in each turn: a search reads about log2(queue length) records.
            wanted = query.HasField("begin_ms")
            offsets.append(
                await self._through.offset_at(group, query.topic, queue, query.begin_ms)
                if wanted
                else begins[queue]
            )
        scan = _Scan(
            self._look, group, query.topic, query.end_ms if query.HasField("end_ms") else None
        )
        for queue, offset in enumerate(offsets):
            await scan.add(queue, *await self._through.head(group, query.topic, queue, offset))
        reply = peer_pb2.GroupQueryReply(offsets=offsets)
        size = 0
        while scan.heads and len(reply.messages) < query.max and size < ANSWER_BYTES:
            taken = await scan.take()
            if taken is None:
                continue
            queue, offset, record = taken
            message = message_of(
                record,
                "",
                query.topic,
                number=0,
                group=group,
                queue=queue,
                offset=offset,
                time_epochs=scan.time_epochs,
            )
            reply.messages.append(message)
            size += max(len(record), len(message.body))
        reply.more = bool(scan.heads)
        return reply

    async def _look(self, group: str, topic: str, queue: int, first: int) -> Peeked:
        return await self._through.peek(
            group,
            Peek(
                token=self._engine.new_token(),
                topic=topic,
                queue=queue,
                offset=first,
                max_messages=PAGE,
                max_bytes=PAGE_BYTES,
            ),
        )

    # -- one message

    async def message(
        self, group: str, wanted: peer_pb2.GroupMessage
    ) -> peer_pb2.GroupMessageReply:
        """The entry of a message, and the state of the message in every consumer group that uses
        its topic."""
        now_ns = self._now_ns()
        entry = (
            await self._through.entry(group, wanted.topic, wanted.queue, wanted.offset)
            if wanted.offset >= 0
            else None
        )
        if entry is not None:
            consumption = await self._engine.run(
                group, lambda hosted: _consumption(hosted, wanted, now_ns)
            )
            sha256 = hashlib.sha256(entry).hexdigest()
            return peer_pb2.GroupMessageReply(
                index=int.from_bytes(entry[_INDEX], "big"), sha256=sha256, consumption=consumption
            )

        def look(hosted: RunningReplica) -> tuple[int, list[admin_pb2.ConsumptionState]]:
            machine = hosted.machine
            begins = _begins(machine, wanted.topic)
            if not 0 <= wanted.queue < len(begins) or not begins[
                wanted.queue
            ] <= wanted.offset < machine.end(wanted.topic, wanted.queue):
                raise fail(
                    Code.MESSAGE_NOT_FOUND,
                    f"queue {wanted.queue} of topic {wanted.topic} in {group} has no offset"
                    f" {wanted.offset}",
                )
            positions, _, _ = machine.units(wanted.topic, wanted.queue, wanted.offset, 1)
            header = hosted.store.log.record_at(int(positions[0]) - _HEADER, _HEADER)
            return int.from_bytes(header[_INDEX], "big"), _consumption(hosted, wanted, now_ns)

        index, consumption = await self._engine.run(group, look)
        copy = await self._copy(group, index)
        return peer_pb2.GroupMessageReply(index=index, sha256=copy.sha256, consumption=consumption)

    async def locate(self, _: str, wanted: peer_pb2.Locate) -> peer_pb2.LocateReply:
        """This node's copy of an entry."""
        if wanted.broker_group not in self._engine.groups:
            raise fail(
                Code.NOT_FOUND,
                f"node {self._node} has no replica of broker group {wanted.broker_group}",
            )
        return peer_pb2.LocateReply(copy=await self._copy(wanted.broker_group, wanted.index))

    async def _copy(self, group: str, index: int) -> admin_pb2.ReplicaCopy:
        copy, entries = await self._engine.run(
            group, lambda hosted: copy_of(hosted.store, self._node, group, index)
        )
        if entries is not None:
            await asyncio.to_thread(judged, copy, entries)
        return copy

    # -- consumer groups

    async def progress(
        self, group: str, wanted: peer_pb2.GroupProgress
    ) -> peer_pb2.GroupProgressReply:
        """The progress of a consumer group in the topics it has used, or in those given; all from
        one applied state."""
        now_ms = self._now_ms()
        lags = await self._engine.run(
            group,
            lambda hosted: progress(
                hosted.machine, group, wanted.group, tuple(wanted.topics), now_ms
            ),
        )
        return peer_pb2.GroupProgressReply(topics=lags)

    async def reset(self, group: str, wanted: peer_pb2.GroupReset) -> peer_pb2.GroupResetReply:
        """Move the consumer group's cursors in the queues of this broker group, for all members and
        in its lite topics too."""
        which = wanted.WhichOneof("to")
        begins = await self._engine.run(group, lambda hosted: _begins(hosted.machine, wanted.topic))
        lite = await self._engine.run(
            group, lambda hosted: lite_topics_of(hosted.machine, wanted.group, wanted.topic)
        )
        for topic in lite if which != "offset" else ():
            of_lite = peer_pb2.GroupReset()
            of_lite.CopyFrom(wanted)
            of_lite.topic = topic
            await self._reset(
                group, wanted.group, topic, [(0, await self._target(group, of_lite, 0))]
            )
        queues = list(wanted.queues) or list(range(len(begins)))
        targets = []
        for queue in queues:
            targets.append(
                (
                    queue,
                    (
                        wanted.offset
                        if which == "offset"
                        else await self._target(group, wanted, queue)
                    ),
                )
            )
        readers = await self._engine.run(
            group, lambda hosted: readers_of(hosted.machine, wanted.group)
        )
        for reader in readers:
            done = await self._reset(group, reader, wanted.topic, targets)
        cursors = [
            admin_pb2.QueueCursor(broker_group=group, group_queue=queue, cursor=cursor)
            for queue, cursor in done.queues
        ]
        return peer_pb2.GroupResetReply(queues=cursors)

    async def _target(self, group: str, wanted: peer_pb2.GroupReset, queue: int) -> int:
        which = wanted.WhichOneof("to")
        if which == "store_ms":
            return await self._through.offset_at(group, wanted.topic, queue, wanted.store_ms)

        def target(hosted: RunningReplica) -> int:
            machine = hosted.machine
            return int(
                machine.end(wanted.topic, queue)
                if which == "latest"
                else machine.first_position(wanted.topic, queue)
            )

        return await self._engine.run(group, target)

    async def _reset(
        self, group: str, reader: str, topic: str, targets: Sequence[tuple[int, int]]
    ) -> ResetDone:
        outcome = await self._engine.call(
            group, Reset(self._engine.new_token(), reader, topic, tuple(targets))
        )
        if isinstance(outcome, Refused):
            raise refused(outcome.reason, outcome.detail)
        assert isinstance(outcome, ResetDone)
        return outcome


class _Scan:
    """Merges messages of several queues of one topic by the time at which they count as stored.
    Keeps about `BUFFER_BYTES` of them, independent of their number."""

    def __init__(
        self,
        look: Callable[[str, str, int, int], Awaitable[Peeked]],
        group: str,
        topic: str,
        end_ms: int | None,
    ) -> None:
        self._look = look
        self._group = group
        self._topic = topic
        self._end_ms = end_ms
        self.heads: list[tuple[int, int, int]] = []
        """(store time, queue, offset) of the next message of each queue, as a heap."""
        self.time_epochs = NO_EPOCHS
        """As of the last page."""
        self._pages: dict[int, deque[bytes]] = {}
        self._size = 0

    async def add(self, queue: int, offset: int, store_ms: int | None) -> None:
        """Add a queue. `store_ms` belongs to the message at `offset`; None at the end of the
        queue."""
        if store_ms is not None and (self._end_ms is None or store_ms < self._end_ms):
            heappush(self.heads, (store_ms, queue, offset))

    async def take(self) -> tuple[int, int, bytes] | None:
        """The oldest message: queue, offset, record. None if it was trimmed meanwhile; the queue
        then continues behind the trimmed part."""
        _, queue, offset = heappop(self.heads)
        first = offset if self._pages.get(queue) else await self._load(queue, offset)
        page = self._pages[queue]
        if first != offset or not page:
            await self._go_on(queue, first)
            return None
        record = page.popleft()
        self._size -= len(record)
        await self._go_on(queue, offset + 1 if page else await self._load(queue, offset + 1))
        return queue, offset, record

    async def _go_on(self, queue: int, offset: int) -> None:
        """Set the first offset of a queue's page; an empty page means the end of the queue."""
        page = self._pages[queue]
        await self.add(queue, offset, counted_ms(page[0], self.time_epochs) if page else None)

    async def _load(self, queue: int, offset: int) -> int:
        """Read the next page of a queue. Returns the offset of its first record, which is greater
        than `offset` if messages were trimmed meanwhile. If the buffer is full, the pages of other
        queues are dropped and read again later."""
        if self._size > BUFFER_BYTES:
            self._pages.clear()
            self._size = 0
        peeked = await self._look(self._group, self._topic, queue, offset)
        self.time_epochs = peeked.time_epochs
        page = self._pages[queue] = deque(peeked.records)
        self._size += sum(map(len, page))
        return peeked.next_offset - len(page)


def _look_up(
    lookup: Lookup,
    stored: TierReader | None,
    query: peer_pb2.GroupQuery,
    begins: Sequence[int],
    machine: Any,
    epochs: TimeEpochs,
) -> tuple[list[tuple[Any, Any]], bool]:
    """Pairs (found, decoded record) of exact matches, newest first, up to the limits of one answer;
    and whether they are complete.

    Runs on a thread. One index serves keys and ids, and still holds messages of an older
    incarnation of the topic. A message on the timer topic belongs to the answer until it is
    delivered.
    """
    begin = query.begin_ms if query.HasField("begin_ms") else 0
    end = query.end_ms if query.HasField("end_ms") else TIME_MAX
    wanted = query.key if query.HasField("key") else query.message_id
    rows: list[tuple[Any, Any]] = []
    skipped = size = 0
    # A delayed message that is not delivered yet keeps its file on the disks.
    of_topic = each_by_key(
        lookup, stored, query.topic, key=wanted, begin_ms=begin, end_ms=end, epochs=epochs
    )
    places = [of_topic, lookup.each_by_key(TIMER_TOPIC, wanted, begin, end, epochs)]
    for found in merge(*places, key=lambda found: -found.index):
        record = decode_record(found.record)
        if record.topic == TIMER_TOPIC:
            known = _waits(record, query.topic, machine)
        else:
            known = record.queue < len(begins) and record.queue_offset >= begins[record.queue]
        stored_ms = epochs.counted(record.store_ms, found.physical_offset)
        if (
            not known
            or not begin <= stored_ms < end
            or not _is_wanted(query, decode_properties(record.properties))
        ):
            continue
        if not rows and skipped < query.skip and stored_ms == end - 1:
            skipped += 1
            continue
        if len(rows) >= query.max or size >= ANSWER_BYTES:
            return rows, False
        rows.append((found, record))
        size += len(found.record)
    return rows, True


def _waits(record: Record, topic: str, machine: Any) -> bool:
    """Whether a delayed message is still to be delivered to this topic."""
    if parse(record.properties).get(REAL_TOPIC) != topic:
        return False
    return bool(machine.delayed_state(record.queue_offset, record.properties)[0] == "delayed")


def _is_wanted(query: peer_pb2.GroupQuery, fields: Fields) -> bool:
    return (
        query.key in fields.keys if query.HasField("key") else fields.message_id == query.message_id
    )


def _begins(machine: Any, topic: str) -> list[int]:
    """The first offset of every queue of a topic. Raises LedgerError if the topic is not in
    force."""
    config = machine.topics.get(topic)
    if config is None:
        raise refused("unknown-topic", f"topic {topic} is not in force in this broker group")
    return [machine.begin(topic, queue) for queue in range(config.queues)]


def _indexed_to(hosted: RunningReplica) -> int:
    """The last entry whose keys the index holds."""
    return int(hosted.key_index.next_index) - 1


def _consumption(
    hosted: RunningReplica, wanted: peer_pb2.GroupMessage, now_ns: int
) -> list[admin_pb2.ConsumptionState]:
    delivery, clock = hosted.machine.delivery, hosted.group.leader.clock
    states = []
    leasing = {group for group, topic, _ in delivery.queues if topic == wanted.topic}
    for name in sorted(
        leasing
        | {group for group, topic in hosted.machine.offsets.pairs() if topic == wanted.topic}
    ):
        key = (name, wanted.topic, wanted.queue)
        row = delivery.row(key, wanted.offset)
        base, member = parse_member(name)
        state = admin_pb2.ConsumptionState(group=name_of(base), client=member or None)
        if row is not None:
            state.state = (
                "waiting"
                if not row.lease
                else "visible again"
                if clock.expired(now_ns, key, wanted.offset)
                else "leased"
            )
            state.attempt, state.client = row.attempt, client_of(row.client)
        else:
            state.state = (
                "done" if wanted.offset < hosted.machine.cursor(key) else "not delivered yet"
            )
        states.append(state)
    return states
