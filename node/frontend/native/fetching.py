"""Fetch: a stream of committed entries for one reader, limited by the reader's credit.

This module holds the opening, permissions, credit, quotas and the end of a stream; `tailing.py`
decides what comes next. The leader of the broker group serves a stream; if another node leads, the
stream ends with a Redirect, and the reader continues there behind the last entry it got. Entries
are handed out only after they are applied here, so they are committed.

A reader may allow any replica to serve it (`local_reads.py`). Its stream then ends with a Redirect
if this replica's data becomes too old, or if the reader has seen more than this replica has, so
that a reader's position never goes back.

A response is no larger than the remaining credit, except for a single larger entry: then the credit
falls below zero.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from time import perf_counter

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.calls.read_calls import Confirm
from ledgermq.node.broker.ports import Unreadable
from ledgermq.node.controller.grants import Kind, Need
from ledgermq.node.frontend.native.answers import Answer
from ledgermq.node.frontend.native.callers import ADMINISTRATOR, Caller, Callers, as_group, read
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.native.log_tail import LogTail
from ledgermq.node.frontend.native.open_streams import OpenStream, OpenStreams
from ledgermq.node.frontend.native.problems import Moved, as_error, problem
from ledgermq.node.frontend.native.reading import Ends, read_ends
from ledgermq.node.frontend.native.sources import GroupSource, Sources, Waiter
from ledgermq.node.frontend.native.tailing import Gone, QueueTail
from ledgermq.node.frontend.ports import BatchTrace, CallGone, ServerCall, Spans
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire.meters import Meter
from ledgermq.node.frontend.routing.local_reads import LEADER, LocalReads, Standing
from ledgermq.node.frontend.security.quotas import Hold
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.answer_budget import ANSWERS, COPIES
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import messaging_pb2
from ledgermq.proto.status import Code, LedgerError, fail, refused

METHOD = "Fetch"
CLIENT_TYPE = "native-consumer"
RESPONSE_BYTES = 1 << 20
"""The bytes of entries in one response, if the reader gives no limit."""
RESPONSE_BYTES_MAX = 3 << 20
"""gRPC clients accept messages of at most 4 MiB by default."""
TOPIC_WITHIN_S = 5.0
"""How long to wait for an agreed topic to come into force."""
OPEN_WITHIN_S = 30.0
LAST_WORDS_S = 1.0
"""How long a redirected reader may take to end its stream."""
FAREWELL_S = 5.0
"""How long a reader that got everything it wanted may take to end its stream."""
SIGN_OF_LIFE_S = 1.0
"""A replica that does not lead sends a sign of life this often, and checks whether it may
continue."""
_OWES_S = 1.0
"""A stream that is over its quota is checked again after this time at the latest."""


class Fetcher:
    """The Fetch of one node. Belongs to the loop's thread."""

    def __init__(
        self,
        node: str,
        topics: Topics,
        sources: Sources,
        leaders: Leaders,
        callers: Callers,
        streams: OpenStreams,
        meter: Meter,
        local: LocalReads,
        spans: Spans | None,
    ) -> None:
        self.node = node
        self.spans = spans
        self._local = local
        self._topics = topics
        self._sources = sources
        self._leaders = leaders
        self._callers = callers
        self._streams = streams
        self._meter = meter

    async def serve(self, context: ServerCall) -> None:
        """Serve one stream, from its first request to its last answer."""
        began = perf_counter()
        listening: set[asyncio.Task[None]] = set()
        try:
            last = await self._ended(context, listening)
            self._meter.count_code(_code_of(last), perf_counter() - began)
            if last is None:
                return
            with contextlib.suppress(CallGone):
                await context.write(last.SerializeToString())
                if listening:
                    # A client that is still writing credit would lose this answer.
                    await asyncio.wait(listening, timeout=LAST_WORDS_S)
        finally:
            for task in listening:
                task.cancel()

    async def _ended(
        self, context: ServerCall, listening: set[asyncio.Task[None]]
    ) -> pb.FetchResponse | None:
        """Serve a stream. Returns its last answer, or None if there is none."""
        try:
            await self._serve(context, listening)
            return None
        except Moved as moved:
            return pb.FetchResponse(redirect=await self._leaders.settled(moved.broker_group))
        except CallGone:
            # The reader left in the middle of an answer.
            return None
        except Exception as error:  # the client gets a problem, never an exception
            return pb.FetchResponse(problem=problem(_as_ledger_error(error, self.node)))

    async def _serve(self, context: ServerCall, listening: set[asyncio.Task[None]]) -> None:
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                data = await context.read()
        except TimeoutError:
            raise fail(
                Code.REQUEST_TIMEOUT, "the opening of the Fetch did not come in time"
            ) from None
        if data is None:
            return
        # After the first request, not before it: a client that is refused while it writes sees a
        # broken stream instead of the reason.
        caller = await self._callers.of(context)
        first = pb.FetchRequest.FromString(data)
        if first.WhichOneof("request") != "open":
            raise fail(Code.BAD_REQUEST, "the first request of a Fetch must be its opening")
        stream = _Stream(self, caller, first.open, context)
        with (
            self._hold(caller, stream.consumer_group) or _NOTHING as hold,
            self._streams.held(stream.listed()),
        ):
            listening.add(asyncio.create_task(stream.listen()))
            try:
                await stream.run(hold)
            finally:
                stream.close()

    def _hold(self, caller: Caller, consumer_group: str) -> Hold | None:
        names = [consumer_group] if consumer_group else []
        return self._callers.enter(caller, Kind.GROUP, names, receive=True, messages=0, size=0)

    # -- what a stream needs from its node

    def allow(self, caller: Caller, needs: tuple[Need, ...]) -> None:
        """Check all needs. Raises FORBIDDEN."""
        for need in needs:
            self._callers.allow(caller, need)

    @property
    def views(self) -> Mapping[str, GroupView]:
        return self._sources.engine.views

    def view(self, broker_group: str) -> GroupView:
        """The view of a group that this node leads. Raises Moved."""
        view = self.views.get(broker_group)
        if view is None or not view.serving:
            raise Moved(broker_group)
        return view

    def bound_ms(self, opening: pb.OpenFetch) -> int | None:
        """The staleness bound in ms for a reader that allows any replica; None if only the leader
        may serve it."""
        return (
            self._local.bound_ms(opening.broker_group, opening.max_age_ms)
            if opening.any_replica
            else None
        )

    def standing(self, broker_group: str, bound_ms: int) -> Standing:
        """The standing of the replica here. Raises Moved if it may not serve now."""
        local_standing = self._local.standing(broker_group, bound_ms)
        if local_standing is None:
            raise Moved(broker_group)
        return local_standing

    async def confirm(self, broker_group: str) -> None:
        """Confirm that this node leads and has applied everything acknowledged before the call.
        Raises Moved, LedgerError."""
        if not await self._topics.has_broker_group(broker_group):
            raise fail(Code.NOT_FOUND, f"there is no broker group {broker_group!r}; ask Locate")
        engine = self._sources.engine
        outcome = await engine.call(broker_group, Confirm(engine.new_token()))
        if isinstance(outcome, Refused):
            if outcome.reason == "not-leader":
                raise Moved(broker_group)
            raise refused(outcome.reason, outcome.detail)

    async def find(self, stored: str, broker_group: str) -> None:
        """Check that the topic can be read in this broker group. Raises TOPIC_NOT_FOUND, FORBIDDEN,
        BAD_REQUEST."""
        topic = await self._topics.find(stored)
        if not topic.permission.readable:
            raise fail(Code.FORBIDDEN, f"topic {stored} has no readable queue")
        if broker_group not in topic.placement:
            raise fail(
                Code.BAD_REQUEST,
                f"topic {stored} has no queues in broker group {broker_group}; ask Locate",
            )

    async def open(self, broker_group: str, waiter: Waiter) -> GroupSource:
        return await self._sources.open(broker_group, waiter)

    def close(self, source: GroupSource, waiter: Waiter) -> None:
        self._sources.close(source, waiter)


class _Nothing:
    """The hold used if no quota applies."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Nothing()


class _Stream:
    """The stream of one reader."""

    def __init__(
        self, fetcher: Fetcher, caller: Caller, opening: pb.OpenFetch, context: ServerCall
    ) -> None:
        """Raises LedgerError for an invalid opening."""
        self._fetcher = fetcher
        self._caller = caller
        self._opening = opening
        self._context = context
        self._group = opening.broker_group
        self._topic = caller.topic(opening.namespace, opening.topic) if opening.topic else ""
        self.consumer_group = (
            caller.group(opening.namespace, opening.consumer_group)
            if opening.consumer_group
            else ""
        )
        self._needs: tuple[Need, ...] = (read(self._topic),) if self._topic else (ADMINISTRATOR,)
        if self.consumer_group:
            self._needs += (as_group(self.consumer_group),)
        self._max_bytes = min(opening.max_response_bytes or RESPONSE_BYTES, RESPONSE_BYTES_MAX)
        self._credit = int(opening.credit_bytes)
        self._broken: Exception | None = None
        """Why the stream ends: a later request, or this node."""
        self._silent = asyncio.Event()
        """The reader has closed its side."""
        self._waiter = Waiter(self._topic)
        self._source: GroupSource | None = None
        self._bound_ms = fetcher.bound_ms(opening)
        """If set, this node serves the stream as leader or not, as long as its data is no older
        than this."""
        self._seen: tuple[object, ...] = ()
        self._trace: BatchTrace | None = None
        if fetcher.spans is not None and self._topic:
            topic = messaging_pb2.Resource(resource_namespace=opening.namespace, name=opening.topic)
            self._trace = fetcher.spans.batches_of(
                context, caller.client_id, topic, opening.consumer_group
            )
        _check(opening)

    async def listen(self) -> None:
        """Receive credit. A reader that closes its side still gets what it gave credit for."""
        try:
            while (data := await self._context.read()) is not None:
                request = pb.FetchRequest.FromString(data)
                if request.WhichOneof("request") != "credit_bytes":
                    raise fail(Code.BAD_REQUEST, "after the opening, a Fetch takes only credit")
                self._credit += request.credit_bytes
                self._waiter.stir()
            self._silent.set()
        except (LedgerError, DecodeError) as error:
            self._broken = error
            self._waiter.stir()

    def listed(self) -> OpenStream:
        """The stream's entry in the list of clients."""
        topics = {self._topic} if self._topic else set()
        anywhere = self._bound_ms is not None
        return OpenStream(
            client_id=self._caller.client_id,
            type=CLIENT_TYPE,
            broker_group=self._group,
            end=self._end,
            topics=topics,
            group=self.consumer_group,
            anywhere=anywhere,
        )

    def _end(self) -> None:
        """End the stream with a redirect."""
        self._broken = Moved(self._group)
        self._waiter.stir()

    def close(self) -> None:
        if self._source is not None:
            self._fetcher.close(self._source, self._waiter)
            self._source = None
            metrics.FETCH_STREAMS.labels(self._group).dec()
        # A raised exception references this stream, and so itself and the window of tens of MiB: a
        # reference cycle (`problems.bare`).
        self._broken = None

    async def run(self, hold: Hold | None) -> None:
        """Send everything the reader asked for. Raises Moved, LedgerError, Gone, Unreadable,
        OSError."""
        fetcher, group = self._fetcher, self._group
        fetcher.allow(self._caller, self._needs)
        if self._bound_ms is None or self._standing().role == LEADER:
            await fetcher.confirm(group)
        if self._topic:
            await fetcher.find(self._topic, group)
        self._source = await fetcher.open(group, self._waiter)
        metrics.FETCH_STREAMS.labels(group).inc()
        tail = await (
            self._open_topic(self._source) if self._topic else self._open_log(self._source)
        )
        caught_up_told = False
        while True:
            self._waiter.begin()
            if self._broken is not None:
                raise self._broken
            view = self._view()
            fetcher.allow(self._caller, self._needs)
            if tail.finished:
                await self._context.write(self._caught_up(tail))
                await self._farewell()
                return
            if self._credit <= 0:
                metrics.FETCH_CREDIT_WAITS.labels(group).inc()
                await self._advance()
                continue
            room = min(self._max_bytes, self._credit)
            if await self._sent(tail, view, room, hold):
                caught_up_told = False
                continue
            if tail.finished:
                continue
            if not caught_up_told:
                caught_up_told = True
                await self._context.write(self._caught_up(tail))
                continue
            caught_up_told = await self._advance()

    def _standing(self) -> Standing:
        """This node's standing for the stream. Raises Moved if it may not serve it."""
        if self._bound_ms is None:
            self._fetcher.view(self._group)
            return Standing(LEADER, None)
        return self._fetcher.standing(self._group, self._bound_ms)

    def _view(self) -> GroupView:
        """The current view of the group. Raises Moved if this node may not serve the stream."""
        self._standing()
        return self._fetcher.views[self._group]

    async def _advance(self) -> bool:
        """Wait for something new. False if it is time for a sign of life; a leader needs none."""
        if self._bound_ms is None:
            await self._waiter.wait()
            return True
        try:
            async with asyncio.timeout(SIGN_OF_LIFE_S):
                await self._waiter.wait()
        except TimeoutError:
            return False
        return True

    async def _farewell(self) -> None:
        """Let the reader end the stream: if the node ended it while the reader writes credit,
        answers on their way would be lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._silent.wait()

    async def _sent(
        self, tail: QueueTail | LogTail, view: GroupView, room: int, hold: Hold | None
    ) -> bool:
        """Send what comes next; False if there is nothing. A function of its own, so that a waiting
        reader keeps no answers alive."""
        with await ANSWERS.reserve(COPIES * room) as share:
            answers = await self._next(tail, view, room)
            share.settle(COPIES * sum([answer.size for answer in answers]))
            for answer in answers:
                await self._send(answer, hold)
            return bool(answers)

    async def _next(self, tail: QueueTail | LogTail, view: GroupView, room: int) -> list[Answer]:
        if isinstance(tail, LogTail):
            return await tail.read(room)
        config = view.topics.get(self._topic)
        if config is None:
            raise Gone(self._topic)
        if not config.permission.readable:
            raise fail(Code.FORBIDDEN, f"topic {self._topic} has no readable queue")
        return await tail.read(view.queue_ends[self._topic], config.incarnation, room)

    async def _send(self, answer: Answer, hold: Hold | None) -> None:
        self._credit -= answer.size
        metrics.FETCHED_BYTES.labels(self._group, answer.source).inc(answer.size)
        metrics.FETCHED_MESSAGES.labels(self._group, answer.source).inc(answer.count)
        if answer.skipped:
            metrics.FETCH_SKIPPED.labels(self._group).inc(answer.skipped)
        with (
            contextlib.nullcontext()
            if self._trace is None
            else self._trace(answer.count, answer.data)
        ):
            await self._context.write(answer.data)
        if hold is not None:
            hold.cost(answer.count, answer.size)
            while self._broken is None and (owed_s := hold.owed_s()) > 0:
                await asyncio.sleep(min(owed_s, _OWES_S))

    # -- the opening

    async def _open_topic(self, source: GroupSource) -> QueueTail:
        ends = await self._in_force(source)
        places: dict[int, int] = {}
        for wanted in _places(self._opening):
            places[wanted.queue] = await self._place(source, ends, wanted)
        goals = {queue: ends.ends[queue] for queue in places} if self._opening.until_end else None
        opened = self._opened(source, ends.applied_index)
        for queue, offset in places.items():
            opened.begins.add(queue=queue, first_offset=offset)
            opened.ends.add(queue=queue, first_offset=ends.ends[queue])
        await self._context.write(pb.FetchResponse(opened=opened).SerializeToString())
        return QueueTail(source, self._topic, ends, places, goals)

    async def _in_force(self, source: GroupSource) -> Ends:
        """The topic's queues in the log of this broker group. Raises HA_NOT_AVAILABLE if the topic
        does not come into force in time."""
        until = asyncio.get_running_loop().time() + TOPIC_WITHIN_S
        while True:
            self._waiter.begin()
            ends = await source.run(lambda hosted: read_ends(hosted, self._topic))
            if ends is not None:
                return ends
            self._standing()
            try:
                async with asyncio.timeout_at(until):
                    await self._waiter.wait()
            except TimeoutError:
                reason = (
                    f"topic {self._topic} is being set up in broker group {self._group}; try again"
                )
                raise fail(Code.HA_NOT_AVAILABLE, reason) from None

    async def _place(self, source: GroupSource, ends: Ends, wanted: pb.FetchFrom) -> int:
        queue = wanted.queue
        if not 0 <= queue < len(ends.ends):
            raise fail(
                Code.BAD_REQUEST,
                f"topic {self._topic} has the queues 0 to {len(ends.ends) - 1} in {self._group},"
                f" not {queue}",
            )
        begin, end = ends.begins[queue], ends.ends[queue]
        match wanted.WhichOneof("place"):
            case "offset":
                if not 0 <= wanted.offset <= end:
                    self._let_leader_judge()
                    reason = (
                        f"offset {wanted.offset} is outside of queue {queue} of topic"
                        f" {self._topic}, which holds {begin} to {end}"
                    )
                    raise fail(Code.ILLEGAL_OFFSET, f"{reason} (exclusive)")
                return await self._from(source, begin, queue, wanted.offset)
            case "store_ms":
                return await source.offset_at(self._topic, queue, begin, end, wanted.store_ms)
            case _:
                return await self._from(source, begin, queue, 0) if wanted.earliest else end

    async def _from(self, source: GroupSource, begin: int, queue: int, offset: int) -> int:
        """The first offset from one on that can be read. Raises LedgerError if the object store has
        it and cannot be read."""
        if source.tier is None or offset >= begin:
            return max(begin, offset)
        return await source.tier.first_offset(self._group, self._topic, queue, offset)

    async def _open_log(self, source: GroupSource) -> LogTail:
        begin, applied = await source.run(
            lambda hosted: (int(hosted.machine.begin_index), int(hosted.machine.applied_index))
        )
        first = self._opening.from_index
        if not 0 <= first <= applied + 1:
            self._let_leader_judge()
            raise fail(
                Code.ILLEGAL_OFFSET,
                f"log index {first} is outside of the log of {self._group}, which holds {begin} to"
                f" {applied}",
            )
        first = (
            max(first, begin)
            if source.tier is None
            else await source.tier.first_index(self._group, first, begin)
        )
        opened = self._opened(source, applied)
        opened.begins.add(queue=-1, first_offset=first)
        opened.ends.add(queue=-1, first_offset=applied + 1)
        await self._context.write(pb.FetchResponse(opened=opened).SerializeToString())
        return LogTail(source, first, applied + 1 if self._opening.until_end else None)

    def _let_leader_judge(self) -> None:
        """An offset behind the end here may exist at the leader. Raises Moved if another node
        leads."""
        if self._standing().role != LEADER:
            raise Moved(self._group)

    def _opened(self, source: GroupSource, applied_index: int) -> pb.FetchOpened:
        standing = self._standing()
        opened = pb.FetchOpened(
            commit_index=applied_index,
            log_id=source.log_id,
            replica=self._fetcher.node,
            role=standing.role,
        )
        if standing.age_ms is not None:
            opened.age_ms = standing.age_ms
        return opened

    def _caught_up(self, tail: QueueTail | LogTail) -> bytes:
        ends: Mapping[int, int] = (
            {-1: tail.next_index} if isinstance(tail, LogTail) else tail.places
        )
        caught_up = pb.CaughtUp(commit_index=tail.next_index - 1)
        if (age_ms := self._standing().age_ms) is not None:
            caught_up.age_ms = age_ms
        for queue, offset in ends.items():
            caught_up.ends.add(queue=queue, first_offset=offset)
        return pb.FetchResponse(caught_up=caught_up).SerializeToString()


def _places(opening: pb.OpenFetch) -> Sequence[pb.FetchFrom]:
    """The field `from`, whose name is a keyword of Python."""
    places: Sequence[pb.FetchFrom] = getattr(opening, "from")
    return places


def _check(opening: pb.OpenFetch) -> None:
    """Check an opening on its own. Raises BAD_REQUEST."""
    if not opening.topic:
        if _places(opening):
            raise fail(
                Code.BAD_REQUEST, "a Fetch without a topic must begin at from_index, not in queues"
            )
        return
    if not _places(opening):
        raise fail(
            Code.BAD_REQUEST, "a Fetch of a topic must name the queues to read, each with a start"
        )
    if len({wanted.queue for wanted in _places(opening)}) < len(_places(opening)):
        raise fail(Code.BAD_REQUEST, "a queue is named twice")
    if any(wanted.WhichOneof("place") is None for wanted in _places(opening)):
        raise fail(
            Code.BAD_REQUEST,
            "every queue needs a start: an offset, a time, the earliest message or the end",
        )


def _code_of(last: pb.FetchResponse | None) -> int:
    """The status code with which metrics count a stream that ended this way."""
    if last is None:
        return int(Code.OK)
    return last.problem.code if last.HasField("problem") else int(Code.HA_NOT_AVAILABLE)


def _as_ledger_error(error: Exception, node: str) -> LedgerError:
    """The error for the reader, from what ended its stream."""
    if isinstance(error, Gone):
        return fail(Code.TOPIC_NOT_FOUND, f"topic {error} was deleted")
    if isinstance(error, CallRefused | LedgerError):
        return as_error(error, node, METHOD)
    if isinstance(error, Unreadable):
        reason = f"a message cannot be read on node {node} ({error}); the node will repair it"
        return fail(Code.INTERNAL_SERVER_ERROR, reason)
    return as_error(error, node, METHOD)
