"""Commit, Offsets and Join on a real port: offsets that last, queues that change hands, and members
that no longer own what they commit."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.frontend.native.committing import OWNED
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.status import Code
from tests.log_service.fetch_stage import DrivenStage, Group
from tests.log_service.log_stage import ADDRESSES, SERVICE, Wire, on_the_wire, signed

LIVENESS_MS = 1000


@asynccontextmanager
async def played(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[DrivenStage, Wire]]:
    """A stage with a topic of four queues, ten messages in each."""
    group = Group(tmp_path)
    try:
        stage = DrivenStage(group, member_liveness_ms=LIVENESS_MS, **options)
        stage.topic("T", queues=4)
        group.produce([("T", queue, 60) for queue in range(4) for _ in range(10)])
        async with on_the_wire(stage) as wire:
            yield stage, wire
    finally:
        group.close()


class Member:
    """The client's end of one Join: it gives signs of life by itself, and says that it has finished
    a generation when the test does."""

    def __init__(self, wire: Wire, name: str, metadata: Any = ()) -> None:
        self.name = name
        self.call = wire.channel.stream_stream(
            SERVICE + "Join", response_deserializer=pb.JoinResponse.FromString
        )(metadata=metadata, timeout=30)
        self.share = pb.Assignment()
        self.finished = 0
        self._living: asyncio.Task[None] | None = None

    async def join(self, generation: int = 0, **options: Any) -> None:
        names = {"broker_group": "g1", "topic": "T", "consumer_group": "G", "member": self.name}
        self.finished = generation
        await self.call.write(
            pb.JoinRequest(generation=generation, **{**names, **options}).SerializeToString()
        )
        self._living = asyncio.create_task(self._live())

    async def _live(self) -> None:
        while not self.call.done():
            await asyncio.sleep(LIVENESS_MS / 5000)
            await self.call.write(pb.JoinRequest(generation=self.finished).SerializeToString())

    async def hear(self) -> pb.JoinResponse:
        found = await self.call.read()
        assert isinstance(found, pb.JoinResponse), found
        if found.HasField("assignment"):
            self.share = found.assignment
        else:
            self.end()
        return found

    async def until(self, *queues: int) -> None:
        """Read answers until these queues are assigned."""
        while (found := await self.hear()).assignment.queues != list(queues):
            assert found.HasField("assignment"), found

    async def finish(self) -> None:
        """It reads only its own queues."""
        self.finished = self.share.generation
        await self.call.write(pb.JoinRequest(generation=self.finished).SerializeToString())

    async def leave(self) -> None:
        self.end()
        await self.call.done_writing()

    def break_off(self) -> None:
        self.end()
        self.call.cancel()

    def end(self) -> None:
        """No sign of life any more."""
        if self._living is not None:
            self._living.cancel()


def commit(
    queue: int = 0,
    offset: int = 5,
    member: Member | None = None,
    generation: int = 0,
    **options: Any,
) -> pb.CommitRequest:
    request = pb.CommitRequest(
        **{"broker_group": "g1", "topic": "T", "consumer_group": "G", **options}
    )
    request.offsets.add(queue=queue, offset=offset)
    if member is not None:
        request.member, request.generation = member.name, generation or member.share.generation
    return request


async def committed(wire: Wire) -> list[int]:
    found = await wire.unary(
        "Offsets", pb.OffsetsRequest(broker_group="g1", topic="T", consumer_group="G")
    )
    assert [(at.queue, at.begin, at.end) for at in found.queues] == [
        (queue, 0, 10) for queue in range(4)
    ]
    return [at.committed for at in found.queues]


async def test_offsets_last(tmp_path: Path) -> None:
    """What was committed is read; several at once; the last one counts."""
    async with played(tmp_path) as (stage, wire):
        assert await committed(wire) == [-1] * 4
        request = commit(0, 5)
        request.offsets.add(queue=3, offset=10)
        assert await wire.unary("Commit", request) == pb.CommitResponse()
        assert await committed(wire) == [5, -1, -1, 10]
        await wire.unary("Commit", commit(0, 2))
        assert await committed(wire) == [2, -1, -1, 10]
        # The same place that every other consumer of the group sees.
        assert stage.group.driver.group.machine.offsets.get(("G", "T", 3)) == 10


async def test_invalid_commit_is_answered_with_a_problem(tmp_path: Path) -> None:
    """Unknown queues and offsets, invalid names, and a node that does not lead."""
    async with played(tmp_path) as (stage, wire):
        for request, code in (
            (commit(4), Code.BAD_REQUEST),
            (commit(-1), Code.BAD_REQUEST),
            (commit(0, 11), Code.ILLEGAL_OFFSET),
            (commit(0, -1), Code.ILLEGAL_OFFSET),
            (commit(topic="U"), Code.TOPIC_NOT_FOUND),
            (commit(consumer_group=""), Code.ILLEGAL_CONSUMER_GROUP),
            (commit(broker_group="g2"), Code.BAD_REQUEST),
        ):
            assert (await wire.unary("Commit", request)).problem.code == code, request
        assert (await wire.unary("Commit", b"\xff")).problem.code == Code.BAD_REQUEST
        assert await committed(wire) == [-1] * 4
        stage.engine.show("n2", serving=False)
        for method, asked in (
            ("Commit", commit()),
            ("Offsets", pb.OffsetsRequest(broker_group="g1", topic="T", consumer_group="G")),
        ):
            assert (await wire.unary(method, asked)).redirect.leader == "n2"


async def test_members_share_the_queues_and_hand_them_over(tmp_path: Path) -> None:
    """The first has all; the second gets its half once the first let go; a goodbye gives everything
    back at once."""
    async with played(tmp_path) as (_, wire):
        a, b = Member(wire, "a"), Member(wire, "b")
        await a.join()
        await a.until(0, 1, 2, 3)
        assert a.share.members == ["a"] and a.share.liveness_ms == LIVENESS_MS
        before = a.share.generation
        assert not (await wire.unary("Commit", commit(3, 4, a))).HasField("problem")
        await b.join()
        assert (await b.hear()).assignment.queues == []
        await a.until(0, 1)
        # On its way: what the former owner read may still be committed, and nothing by the next.
        assert not (await wire.unary("Commit", commit(3, 6, a, before))).HasField("problem")
        assert (
            await wire.unary("Commit", commit(3, 7, b))
        ).problem.code == Code.PRECONDITION_FAILED
        await a.finish()
        await b.until(2, 3)
        assert b.share.members == ["a", "b"]
        assert (
            await wire.unary("Commit", commit(3, 7, a))
        ).problem.code == Code.PRECONDITION_FAILED
        assert not (await wire.unary("Commit", commit(3, 7, b))).HasField("problem")
        assert await committed(wire) == [-1, -1, -1, 7]
        await a.leave()
        await b.until(0, 1, 2, 3)


async def test_a_member_that_breaks_off_loses_its_queues_by_time(tmp_path: Path) -> None:
    """Not at once: it may still read. Until then it may come back and keep them."""
    async with played(tmp_path) as (_, wire):
        a, b = Member(wire, "a"), Member(wire, "b")
        await a.join()
        await a.until(0, 1, 2, 3)
        a.break_off()
        again = Member(wire, "a")
        await again.join(generation=a.share.generation, queues=a.share.queues)
        assert (await again.hear()).assignment.queues == [0, 1, 2, 3]
        again.break_off()
        await b.join()
        assert (await b.hear()).assignment.queues == []
        await b.until(0, 1, 2, 3)
        assert (
            await wire.unary("Commit", commit(0, 1, again))
        ).problem.code == Code.PRECONDITION_FAILED


async def test_a_new_stream_of_a_member_ends_the_former(tmp_path: Path) -> None:
    """A new stream with the same name and no state gets the queues only once no former stream of
    that name can read them."""
    async with played(tmp_path) as (_, wire):
        a, again = Member(wire, "a"), Member(wire, "a")
        await a.join()
        await a.until(0, 1, 2, 3)
        await again.join()
        assert (await again.hear()).assignment.queues == []
        while not (found := await a.hear()).HasField("problem"):
            continue
        assert found.problem.code == Code.PRECONDITION_FAILED
        await again.until(0, 1, 2, 3)


async def test_dismissed_member_leaves_no_cycle_for_the_collector(tmp_path: Path) -> None:
    """Its seat goes with its stream."""

    gc.collect()
    gc.disable()
    try:
        async with played(tmp_path) as (stage, wire):
            member = Member(wire, "a")
            await member.join()
            await member.until(0, 1, 2, 3)
            (group,) = stage.service._joiner._groups.values()
            seat = weakref.ref(group.seats["a"])
            stage.engine.show("n2", serving=False)
            stage.service.led_elsewhere("g1")
            while not (await member.hear()).HasField("redirect"):
                continue
            async with asyncio.timeout(10):
                while seat() is not None:
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_members_keep_their_queues_at_the_next_coordinator(tmp_path: Path) -> None:
    """Members are redirected; at the next coordinator, a member that claims its queues has them at
    once, in a later generation, and no other member gets them."""
    async with played(tmp_path) as (stage, wire):
        a, b = Member(wire, "a"), Member(wire, "b")
        await a.join()
        await a.until(0, 1, 2, 3)
        stage.engine.show("n2", serving=False)
        stage.service.led_elsewhere("g1")
        while not (found := await a.hear()).HasField("redirect"):
            continue
        assert found.redirect.leader == "n2"
        view = stage.group.driver.view
        assert view is not None
        stage.engine.lead(view.term + 1)
        await b.join()
        assert (await b.hear()).assignment.queues == []
        again = Member(wire, "a")
        await again.join(generation=a.share.generation, queues=[0, 1])
        await again.until(0, 1)
        assert again.share.generation > a.share.generation
        await again.finish()
        assert not (await wire.unary("Commit", commit(0, 1, again))).HasField("problem")
        assert (
            await wire.unary("Commit", commit(0, 1, a))
        ).problem.code == Code.PRECONDITION_FAILED

        await b.until(2, 3)


async def test_queues_that_get_other_numbers_are_given_out_anew(tmp_path: Path) -> None:
    """When a topic grows in its first broker group, numbers mean other queues: no member continues
    with its queues under an earlier assignment, and no queue is assigned before its former owner
    has been informed or counts as gone."""
    async with played(tmp_path) as (stage, wire):
        nodes = {name: {"client": at} for name, at in ADDRESSES.items()}
        stage.quorum.command(
            {
                "op": "set-cluster",
                "nodes": nodes,
                "broker_groups": {"g1": ["n1", "n2"], "g2": ["n1", "n2"]},
            }
        )
        stage.topic("U", queues=4)
        a = Member(wire, "a")
        await a.join(topic="U")
        await a.until(0, 1, 2, 3)
        unchanged = {"permission": None, "durability": None, "dedup_ms": None}
        stage.quorum.command(
            {"op": "update-topic", "ns": "", "name": "U", "queues": 6, **unchanged}
        )
        assert dict(stage.quorum.state.topics["", "U"].placement) == {"g1": 3, "g2": 3}
        while not (found := await a.hear()).HasField("problem"):
            assert found.assignment.queues == [0, 1, 2, 3], found
        assert found.problem.code == Code.PRECONDITION_FAILED
        late = Member(wire, "a")
        await late.join(topic="U", generation=a.share.generation, queues=[0, 1, 2, 3])
        assert (await late.hear()).problem.code == Code.PRECONDITION_FAILED
        again = Member(wire, "a")
        await again.join(topic="U")
        assert (await again.hear()).assignment.queues == []
        assert (
            await wire.unary("Commit", commit(0, 0, again, a.share.generation, topic="U"))
        ).HasField("problem")
        await again.until(0, 1, 2, 3, 4, 5)
        assert again.share.generation > a.share.generation


async def test_coordinator_answers_ownership_for_other_nodes(tmp_path: Path) -> None:
    """As the leader of another broker group of the topic does for a commit there."""
    async with played(tmp_path) as (stage, wire):
        a = Member(wire, "a")
        await a.join()
        await a.until(0, 1, 2, 3)
        for generation, code in (
            (a.share.generation, 0),
            (a.share.generation + 1, Code.PRECONDITION_FAILED),
        ):
            request = commit(2, 0, a, generation)
            (data,) = await stage.service.execute("g1", OWNED, request.SerializeToString())
            assert pb.CommitResponse.FromString(data).problem.code == code


class Successor:
    """The next coordinator, which gave every queue to other members."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def submit(self, group: str, method: str, *_: Any, **__: Any) -> list[bytes]:
        self.asked.append((group, method))
        answer = pb.CommitResponse()
        answer.problem.code = int(Code.PRECONDITION_FAILED)
        return [answer.SerializeToString()]


def replaced(stage: DrivenStage) -> None:
    """Another node leads the broker group; the view of this one does not say so yet."""
    stage.engine.leads = False


async def test_replaced_coordinator_no_longer_answers_ownership(
    tmp_path: Path,
) -> None:
    """Its successor may have given the queue to another member: neither a member's commit nor the
    question of another node is answered from what it knows."""
    async with played(tmp_path) as (stage, wire):
        a = Member(wire, "a")
        await a.join()
        await a.until(0, 1, 2, 3)
        replaced(stage)
        request = commit(2, 0, a)
        with pytest.raises(CallRefused) as caught:
            await stage.service.execute("g1", OWNED, request.SerializeToString())
        assert caught.value.refused.reason == "not-leader"
        successor = Successor()
        vars(vars(stage.service)["_committer"])["_forwarder"] = successor
        assert (await wire.unary("Commit", request)).problem.code == Code.PRECONDITION_FAILED
        assert successor.asked == [("g1", OWNED)]


async def test_a_leader_that_was_replaced_calls_no_offset_wrong(tmp_path: Path) -> None:
    """Its successor may have stored messages up to there."""
    async with played(tmp_path) as (stage, wire):
        replaced(stage)
        assert (await wire.unary("Commit", commit(0, 11))).HasField("redirect")
        assert (await wire.unary("Commit", commit(5, 1))).HasField("redirect")


async def test_join_and_commit_need_read_permission(tmp_path: Path) -> None:
    """Topic and group, both."""
    async with played(tmp_path, authentication=True) as (stage, wire):
        stage.user("half", "s3cret-of-half", "subscribe:topic:T")
        stage.user("whole", "s3cret-of-whole", "subscribe:topic:T", "subscribe:group:G")
        for user, code in (("half", Code.FORBIDDEN), ("whole", 0)):
            metadata = signed(user, f"s3cret-of-{user}")
            assert (await wire.unary("Commit", commit(), metadata)).problem.code == code
            member = Member(wire, "a", metadata)
            await member.join()
            assert (await member.hear()).problem.code == code
        for bad in (
            {"member": ""},
            {"member": "x" * 300},
            {"topic": "U"},
            {"consumer_group": "a b"},
        ):
            member = Member(wire, "a", signed("whole", "s3cret-of-whole"))
            await member.join(**bad)
            assert (await member.hear()).HasField("problem"), bad
