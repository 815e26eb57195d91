"""Join: the members of consumer groups that share a topic's queues, coordinated by the leader of
the topic's first broker group.

`ownership.py` decides which member owns which queue; this module has the members' streams, their
signs of life, and timers. All state is in memory: the next leader starts empty but with a later
generation, and assigns no queue that a member may still read. The term of the broker group makes
the generations of different coordinators differ. If a topic grows so that queue numbers mean other
queues, all members start again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.native.callers import CLIENT_ID_MAX, Caller, Callers, as_group, read
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.native.open_streams import OpenStream, OpenStreams
from ledgermq.node.frontend.native.ownership import Ownership
from ledgermq.node.frontend.native.problems import Moved, as_error, problem
from ledgermq.node.frontend.ports import CallGone, Engine, ServerCall
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire.meters import Meter
from ledgermq.node.runtime import metrics
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.names import has_control_character
from ledgermq.proto.status import Code, LedgerError, fail

METHOD = "Join"
CLIENT_TYPE = "native-consumer"
FIRST_WITHIN_S = 30.0
GOODBYE_S = 0.1
"""A stream that is still open this long after its member's last request was closed by the member,
not by a connection failure."""
_TERM_BITS = 32
_MS = 1_000_000


def first_group(topic: Topic) -> str:
    """The broker group whose leader coordinates the topic's consumer groups."""
    return min(topic.placement)


def number_of(topic: Topic, broker_group: str, queue: int) -> int:
    """The number of a queue over all broker groups of its topic."""
    return sum(count for group, count in topic.placement.items() if group < broker_group) + queue


def renumbered(former: Topic, topic: Topic) -> bool:
    """Whether a queue of the former topic has a different number in the new one."""
    return any(
        number_of(former, group, 0) != number_of(topic, group, 0) for group in former.placement
    )


@dataclass(slots=True)
class _Group:
    """One consumer group of one topic, coordinated here. `since`: up to this generation, requests
    use former queue numbers."""

    term: int
    ownership: Ownership
    topic: Topic
    since: int = 0
    seats: dict[str, _Seat] = field(default_factory=dict)
    notified: int = 0
    """The latest generation that every seat has been notified of."""
    timer: asyncio.TimerHandle | None = None


class _Seat:
    """The stream of one member."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.failure: Exception | None = None

    def end(self, failure: Exception) -> None:
        self.failure = failure
        self.changed.set()


class Joiner:
    """All consumer groups that this node coordinates. Belongs to the loop's thread."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        topics: Topics,
        leaders: Leaders,
        callers: Callers,
        streams: OpenStreams,
        meter: Meter,
        liveness_ms: int,
        now_ns: Callable[[], int],
    ) -> None:
        self._node = node
        self._engine = engine
        self._topics = topics
        self._leaders = leaders
        self._callers = callers
        self._streams = streams
        self._meter = meter
        self._liveness_ms = liveness_ms
        self._now_ns = now_ns
        self._groups: dict[tuple[str, str], _Group] = {}
        self._latest = 0
        """The latest generation of any forgotten consumer group, because no generation may occur
        twice."""
        self._serving: dict[str, tuple[int, int]] = {}
        """Broker group → the term in which it is led here, and since when: for a liveness period,
        other coordinators' members may read."""
        engine.on_view(self._view)

    def _view(self, broker_group: str, view: GroupView) -> None:
        if view.serving and self._serving.get(broker_group, (0, 0))[0] != view.term:
            self._serving[broker_group] = view.term, self._now_ns()

    def owns(self, stored: str, consumer: str, member: str, queue: int, generation: int) -> bool:
        """Whether a member owns a queue, given by its number, in a generation."""
        group = self._groups.get((stored, consumer))
        topic = self._topics.known(stored)
        if (
            group is None
            or topic is None
            or not self._current(topic, group)
            or renumbered(group.topic, topic)
        ):
            return False
        group.ownership.expire(self._now_ns())
        return group.ownership.owns(member, queue, generation)

    async def serve(self, context: ServerCall) -> None:
        """Serve one member's stream."""
        began, code = perf_counter(), int(Code.OK)
        last: pb.JoinResponse | None = None
        try:
            await self._serve(context)
        except Moved as moved:
            code = int(Code.HA_NOT_AVAILABLE)
            last = pb.JoinResponse(redirect=await self._leaders.settled(moved.broker_group))
        except CallGone:
            last = None
        except Exception as error:  # the client gets a problem, never an exception
            last = pb.JoinResponse(problem=problem(as_error(error, self._node, METHOD)))
            code = last.problem.code
        self._meter.count_code(code, perf_counter() - began)
        if last is not None:
            with contextlib.suppress(CallGone):
                await context.write(last.SerializeToString())

    async def _serve(self, context: ServerCall) -> None:
        try:
            async with asyncio.timeout(FIRST_WITHIN_S):
                data = await context.read()
        except TimeoutError:
            raise fail(
                Code.REQUEST_TIMEOUT, "the first request of the Join did not come in time"
            ) from None
        if data is None:
            return
        caller = await self._callers.of(context)
        request = pb.JoinRequest.FromString(data)
        stored, consumer = (
            caller.topic(request.namespace, request.topic),
            caller.group(request.namespace, request.consumer_group),
        )
        self._allow(caller, stored, consumer)
        if (
            not request.member
            or len(request.member) > CLIENT_ID_MAX
            or has_control_character(request.member)
        ):
            raise fail(
                Code.BAD_REQUEST,
                f"a member needs a name of at most {CLIENT_ID_MAX} characters, without control"
                " characters",
            )
        topic = await self._topics.find(stored)
        if not topic.permission.readable:
            raise fail(Code.FORBIDDEN, f"topic {stored} has no readable queue")
        coordinator = first_group(topic)
        if request.broker_group != coordinator or not self._leaders.serves(coordinator):
            raise Moved(coordinator)
        seat = _Seat()
        key = (stored, consumer)
        listed = OpenStream(
            client_id=caller.client_id,
            type=CLIENT_TYPE,
            broker_group=coordinator,
            end=lambda: seat.end(Moved(coordinator)),
            topics={stored},
            group=consumer,
        )
        with self._streams.held(listed):
            await self._sit(
                key,
                group=self._group(key, topic),
                request=request,
                seat=seat,
                context=context,
                caller=caller,
            )

    async def _sit(
        self,
        key: tuple[str, str],
        group: _Group,
        request: pb.JoinRequest,
        seat: _Seat,
        context: ServerCall,
        caller: Caller,
    ) -> None:
        member = request.member
        if request.generation and request.generation <= group.since:
            raise _other_numbers(key[0])
        former = group.seats.get(member)
        if former is not None:
            former.end(
                fail(Code.PRECONDITION_FAILED, f"another stream of member {member} was opened")
            )
        group.seats[member] = seat
        metrics.JOIN_STREAMS.inc()
        group.ownership.join(member, request.generation, request.queues, self._now_ns())
        self._notify(key, group, seat)
        listening = asyncio.create_task(self._listen(key, group, member, seat, context))
        try:
            while True:
                await seat.changed.wait()
                seat.changed.clear()
                if seat.failure is not None:
                    raise seat.failure
                self._allow(caller, *key)
                share = group.ownership.share(member)
                if share is None:
                    if listening.done():
                        return
                    reason = (
                        f"member {member} was silent for too long and counts as gone: join again"
                        " without any queues"
                    )
                    raise fail(Code.PRECONDITION_FAILED, reason)
                answer = pb.Assignment(
                    generation=share.generation, queues=share.queues, members=share.members
                )
                answer.liveness_ms = self._liveness_ms
                await context.write(pb.JoinResponse(assignment=answer).SerializeToString())
        finally:
            listening.cancel()
            # A raised exception references this call, and so itself: a reference cycle
            # (`problems.bare`).
            seat.failure = None
            metrics.JOIN_STREAMS.dec()
            if group.seats.get(member) is seat:
                # The member stays until its liveness ends: it may return on another stream.
                del group.seats[member]

    async def _listen(
        self, key: tuple[str, str], group: _Group, member: str, seat: _Seat, context: ServerCall
    ) -> None:
        """Handle signs of life. When the client closes its side, the member leaves."""
        try:
            while (data := await context.read()) is not None:
                request = pb.JoinRequest.FromString(data)
                topic = await self._topics.find(key[0])
                if not self._current(topic, group):
                    raise Moved(first_group(topic))
                if renumbered(group.topic, topic):
                    self._renumber(key, group, topic)
                    raise _other_numbers(key[0])
                group.ownership.resize(topic.queues, self._now_ns())
                group.ownership.alive(member, request.generation, self._now_ns())
                self._notify(key, group, seat)
            # A broken connection ends the requests too, but shortly after that cancels the handler
            # and this task: then the member has not left.
            await asyncio.sleep(GOODBYE_S)
            if group.seats.get(member) is seat:
                group.ownership.leave(member, self._now_ns())
                self._notify(key, group, seat)
        except Exception as error:  # it ends the stream in `_sit`, which reports it to the member
            seat.end(error)

    def _group(self, key: tuple[str, str], topic: Topic) -> _Group:
        """The group as coordinated in the current term."""
        group = self._groups.get(key)
        if group is not None and self._current(topic, group) and renumbered(group.topic, topic):
            group = self._renumber(key, group, topic)
        if group is None or not self._current(topic, group):
            if group is not None and group.timer is not None:
                group.timer.cancel()
            coordinator, liveness_ns = first_group(topic), self._liveness_ms * _MS
            term = self._engine.views[coordinator].term
            known, since_ns = self._serving.get(coordinator, (0, 0))
            since_ns = since_ns if known == term else self._now_ns()
            ownership = Ownership(
                max(term << _TERM_BITS, self._latest),
                topic.queues,
                liveness_ns,
                since_ns + liveness_ns,
            )
            group = self._groups[key] = _Group(term, ownership, topic)
        group.ownership.resize(topic.queues, self._now_ns())
        return group

    def _renumber(self, key: tuple[str, str], former: _Group, topic: Topic) -> _Group:
        """End every stream and start anew. For a liveness period no queue is assigned: members may
        still read by the former numbers."""
        if self._groups.get(key) is not former:
            return former
        if former.timer is not None:
            former.timer.cancel()
        for seat in former.seats.values():
            seat.end(_other_numbers(key[0]))
        generation, liveness_ns = former.ownership.generation, self._liveness_ms * _MS
        ownership = Ownership(generation, topic.queues, liveness_ns, self._now_ns() + liveness_ns)
        group = self._groups[key] = _Group(former.term, ownership, topic, generation)
        self._notify(key, group, None)
        return group

    def _current(self, topic: Topic, group: _Group) -> bool:
        """Whether this node has coordinated the group without interruption."""
        coordinator = first_group(topic)
        view = self._engine.views.get(coordinator)
        return (
            view is not None
            and view.serving
            and view.term == group.term
            and first_group(group.topic) == coordinator
        )

    def _notify(self, key: tuple[str, str], group: _Group, seat: _Seat | None) -> None:
        """Answer the member that sent a request, and every member if there is a new generation; set
        the next timer."""
        if seat is not None:
            seat.changed.set()
        generation = group.ownership.generation
        if generation != group.notified:
            group.notified = generation
            for other in group.seats.values():
                other.changed.set()
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        next_ns = group.ownership.next_ns
        if next_ns is None:
            # There is no member, and none can still be reading: forget the group.
            self._latest = max(self._latest, generation)
            if self._groups.get(key) is group:
                del self._groups[key]
        else:
            delay_s = max(0, next_ns - self._now_ns()) / 1e9
            group.timer = asyncio.get_running_loop().call_later(
                delay_s, self._time_passed, key, group
            )

    def _time_passed(self, key: tuple[str, str], group: _Group) -> None:
        group.timer = None
        group.ownership.expire(self._now_ns())
        self._notify(key, group, None)

    def _allow(self, caller: Caller, stored: str, consumer: str) -> None:
        self._callers.allow(caller, read(stored))
        self._callers.allow(caller, as_group(consumer))


def _other_numbers(stored: str) -> LedgerError:
    return fail(
        Code.PRECONDITION_FAILED,
        f"the queues of topic {stored} have other numbers now: join again without any queues",
    )
