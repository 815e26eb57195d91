"""Commit and Offsets: the positions of consumer groups in queues, kept in the log as for every
other consumer (`group_offsets.py`).

A commit is durable on a majority when it is answered. A commit that names a member counts only
while that member owns the queue; the group's coordinator decides that. The coordinator is the
leader of the topic's first broker group, which may be another node.

A node that was replaced as leader may not know it. So it confirms its leadership before it says
whose a queue is, and before it calls an offset wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.calls.read_calls import CommitOffset, Confirm
from ledgermq.node.frontend.native.callers import Caller, Callers, as_group, read
from ledgermq.node.frontend.native.joining import Joiner, first_group, number_of
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.native.problems import Moved
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.status import Code, LedgerError, fail, refused

OWNED = "ledgermq.v1.Log/owned"
"""The question to the coordinator whether a member owns queues; only between nodes."""
WITHIN_S = 5.0
OFFSETS_MAX = 4096


class Committer:
    """Commit and Offsets of one node."""

    def __init__(
        self,
        engine: Engine,
        topics: Topics,
        leaders: Leaders,
        callers: Callers,
        joiner: Joiner,
        forwarder: Forwarder,
        *,
        tiered: bool,
    ) -> None:
        self._engine = engine
        self._tiered = tiered
        self._topics = topics
        self._leaders = leaders
        self._callers = callers
        self._joiner = joiner
        self._forwarder = forwarder

    async def commit(self, request: pb.CommitRequest, caller: Caller) -> pb.CommitResponse:
        """Commit offsets. Raises Moved, and LedgerError if it is not known that everything was
        committed; a commit can be repeated."""
        broker_group = request.broker_group
        stored, consumer = await self._check(request, caller)
        if len(request.offsets) > OFFSETS_MAX:
            raise fail(
                Code.BAD_REQUEST,
                f"a commit has at most {OFFSETS_MAX} offsets, not {len(request.offsets)}",
            )
        if self._objection(request, stored) is not None:
            await self._confirm(broker_group)
            if (objection := self._objection(request, stored)) is not None:
                raise objection
        if request.member:
            await self._require_owner(request, stored, consumer)
        calls = [
            CommitOffset(self._engine.new_token(), consumer, stored, at.queue, at.offset)
            for at in request.offsets
        ]
        for outcome in await asyncio.gather(
            *(self._engine.call(broker_group, call) for call in calls)
        ):
            _raise_refused(outcome, broker_group)
        return pb.CommitResponse()

    async def offsets(self, request: pb.OffsetsRequest, caller: Caller) -> pb.OffsetsResponse:
        """The group's positions, including everything committed before the call. Raises Moved,
        LedgerError."""
        broker_group = request.broker_group
        stored, consumer = await self._check(request, caller)
        await self._confirm(broker_group)
        response = pb.OffsetsResponse()
        for queue, (committed, begin, end) in enumerate(
            await self._engine.run(broker_group, _states(stored, consumer, tiered=self._tiered))
        ):
            response.queues.add(queue=queue, committed=committed, begin=begin, end=end)
        return response

    def _objection(self, request: pb.CommitRequest, stored: str) -> LedgerError | None:
        """Why these offsets cannot be committed, by the queues as of the last view; None if they
        can."""
        broker_group = request.broker_group
        ends = self._engine.views[broker_group].queue_ends.get(stored, ())
        if not ends:
            return fail(
                Code.HA_NOT_AVAILABLE,
                f"topic {stored} is being set up in broker group {broker_group}; try again",
            )
        for at in request.offsets:
            if not 0 <= at.queue < len(ends):
                return fail(
                    Code.BAD_REQUEST,
                    f"topic {stored} has the queues 0 to {len(ends) - 1} in {broker_group}, not"
                    f" {at.queue}",
                )
            if not 0 <= at.offset <= ends[at.queue]:
                return fail(
                    Code.ILLEGAL_OFFSET,
                    f"queue {at.queue} of topic {stored} ends at {ends[at.queue]}: {at.offset} is"
                    " not in it",
                )
        return None

    async def _confirm(self, broker_group: str) -> None:
        """Confirm that this node leads and has applied everything acknowledged before the call.
        Raises Moved, LedgerError."""
        _raise_refused(
            await self._engine.call(broker_group, Confirm(self._engine.new_token())), broker_group
        )

    async def _check(self, request: Any, caller: Caller) -> tuple[str, str]:
        """The stored names of topic and consumer group. Checks that the caller may read as the
        group, and that this node leads the broker group. Raises Moved, LedgerError."""
        stored, consumer = (
            caller.topic(request.namespace, request.topic),
            caller.group(request.namespace, request.consumer_group),
        )
        self._callers.allow(caller, read(stored))
        self._callers.allow(caller, as_group(consumer))
        topic = await self._topics.find(stored)
        if request.broker_group not in topic.placement:
            raise fail(
                Code.BAD_REQUEST,
                f"topic {stored} has no queues in broker group {request.broker_group!r}; ask"
                " Locate",
            )
        if not self._leaders.serves(request.broker_group):
            raise Moved(request.broker_group)
        return stored, consumer

    # -- ownership of queues

    async def _require_owner(self, request: pb.CommitRequest, stored: str, consumer: str) -> None:
        topic = await self._topics.find(stored)
        owned = pb.CommitRequest(
            topic=stored,
            consumer_group=consumer,
            member=request.member,
            generation=request.generation,
        )
        for at in request.offsets:
            owned.offsets.add(queue=number_of(topic, request.broker_group, at.queue))
        coordinator = first_group(topic)
        if self._leaders.serves(coordinator):
            try:
                await self._confirm(coordinator)
            except Moved:
                # The next coordinator is asked below.
                pass
            else:
                self._judge(owned)
                return
        deadline = asyncio.get_running_loop().time() + WITHIN_S
        data = owned.SerializeToString()
        answers = await self._forwarder.submit(
            coordinator, OWNED, {}, data, deadline, repeatable=True
        )
        answer = pb.CommitResponse.FromString(answers[0])
        if answer.HasField("problem"):
            raise fail(answer.problem.code, answer.problem.message)

    async def execute(self, coordinator: str, data: bytes) -> Sequence[bytes]:
        """Answer another node's ownership question, as coordinator. Raises CallRefused if this node
        is not the coordinator."""
        if not self._leaders.serves(coordinator):
            raise CallRefused(Refused("not-leader"))
        answer = pb.CommitResponse()
        try:
            await self._confirm(coordinator)
            self._judge(pb.CommitRequest.FromString(data))
        except Moved as moved:
            raise CallRefused(Refused("not-leader")) from moved
        except LedgerError as error:
            answer.problem.code, answer.problem.message = int(error.code), error.message
        return [answer.SerializeToString()]

    def _judge(self, owned: pb.CommitRequest) -> None:
        """Check ownership; takes stored names, and queues by number. Raises PRECONDITION_FAILED."""
        for at in owned.offsets:
            if not self._joiner.owns(
                owned.topic, owned.consumer_group, owned.member, at.queue, owned.generation
            ):
                problem = (
                    f"queue {at.queue} of topic {owned.topic} is not {owned.member}'s in generation"
                    f" {owned.generation}"
                )
                raise fail(
                    Code.PRECONDITION_FAILED, f"{problem} of consumer group {owned.consumer_group}"
                )


def _states(
    stored: str, consumer: str, *, tiered: bool
) -> Callable[[Any], list[tuple[int, int, int]]]:
    """Reads committed (−1: none), begin and end of every queue; runs between two turns. `tiered`:
    what was trimmed can still be read."""

    def read_states(hosted: RunningReplica) -> list[tuple[int, int, int]]:
        machine = hosted.machine
        states = []
        for queue in range(machine.queues_of(stored)):
            begin = machine.begin(stored, queue)
            committed = machine.offsets.get((consumer, stored, queue))
            low = machine.floor(stored, queue) if tiered else begin
            states.append(
                (
                    -1 if committed is None else max(committed, low),
                    begin,
                    machine.end(stored, queue),
                )
            )
        return states

    return read_states


def _raise_refused(outcome: object, broker_group: str) -> None:
    if isinstance(outcome, Refused):
        if outcome.reason == "not-leader":
            raise Moved(broker_group)
        raise refused(outcome.reason, outcome.detail)
