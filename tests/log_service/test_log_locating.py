"""Locate: the places of queues, their leaders, and the access control."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledgermq.proto import log_pb2 as pb
from tests.log_service.log_stage import LOG_ID, Stage, Wire, on_the_wire, signed


@asynccontextmanager
async def staged(stage: Stage) -> AsyncIterator[tuple[Stage, Wire]]:
    async with on_the_wire(stage) as wire:
        yield stage, wire


async def test_a_topic_is_found_with_its_queues_and_leader() -> None:
    """The answer has all broker groups of the topic, with the endpoints that their leaders
    advertise."""
    async with staged(Stage()) as (stage, wire):
        stage.topic("T", queues=3)
        stage.moves("n2")
        found = await wire.unary("Locate", pb.LocateRequest(topic="T"))
        assert not found.HasField("problem")
        assert (found.cluster_id, found.kind) == ("cluster", "normal")
        [group] = found.broker_groups
        assert (group.name, list(group.queues), group.log_id) == ("g1", [0, 1, 2], LOG_ID)
        assert (group.leader.leader, group.leader.endpoint, group.leader.term) == (
            "n2",
            "10.0.0.2:8081",
            4,
        )


async def test_without_a_leader_the_place_is_told_all_the_same() -> None:
    """An empty leader says: ask again."""
    async with staged(Stage()) as (stage, wire):
        stage.topic("T")
        stage.moves(None)
        found = await wire.unary("Locate", pb.LocateRequest(topic="T"))
        assert found.broker_groups[0].leader == pb.Redirect(broker_group="g1", term=4)


async def test_namespaces_tell_topics_apart() -> None:
    """The field counts, then the header."""
    async with staged(Stage()) as (stage, wire):
        stage.topic("T", queues=2, namespace="a")
        for request, metadata in (
            (pb.LocateRequest(topic="T", namespace="a"), ()),
            (pb.LocateRequest(topic="T"), (("x-mq-namespace", "a"),)),
        ):
            found = await wire.unary("Locate", request, metadata)
            assert list(found.broker_groups[0].queues) == [0, 1]
        assert (await wire.unary("Locate", pb.LocateRequest(topic="T"))).problem.code == 40402


async def test_unlocatable_topic_is_a_problem() -> None:
    """Unknown only after asking the quorum once more; bad names and bytes that are no request with
    their own codes."""
    async with staged(Stage()) as (stage, wire):
        missing = await wire.unary("Locate", pb.LocateRequest(topic="missing"))
        assert (missing.problem.code, missing.problem.retryable, stage.quorum.barriers) == (
            40402,
            False,
            1,
        )
        assert (
            await wire.unary("Locate", pb.LocateRequest(topic="rmq_sys_x"))
        ).problem.code == 40002
        assert (await wire.unary("Locate", b"\xff\xff\xff")).problem.code == 40000
        families = {
            sample.labels["method"]
            for family in stage.meters.families()
            for sample in family.samples
        }
        assert "Log/Locate" in families


async def test_locate_needs_permission_on_the_topic() -> None:
    """The permission to publish or to read suffices; other users do not learn whether the topic
    exists."""
    async with staged(Stage(authentication=True)) as (stage, wire):
        stage.topic("T")
        stage.user("writer", "secret-of-writer", "publish:topic:T")
        stage.user("reader", "secret-of-reader", "subscribe:topic:T")
        stage.user("other", "secret-of-other", "publish:topic:else")
        for name, code in (("writer", 0), ("reader", 0), ("other", 40300)):
            found = await wire.unary(
                "Locate", pb.LocateRequest(topic="T"), signed(name, f"secret-of-{name}")
            )
            assert found.problem.code == code, name
        assert (await wire.unary("Locate", pb.LocateRequest(topic="T"))).problem.code == 40100
