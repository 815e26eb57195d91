"""Intent comes into force through the leader only, after a barrier, one difference at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.controller import reconcile
from ledgermq.node.controller.reconcile import Reconciler, difference
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicKind


def topic(name: str, queues: int = 1, incarnation: int = 1, namespace: str = "") -> TopicConfig:
    return TopicConfig(
        namespace, name, TopicKind.NORMAL, queues, Permission.READ_WRITE, incarnation
    )


def view(
    leader: str = "n1", serving: bool = True, term: int = 1, **topics: TopicConfig
) -> GroupView:
    return GroupView(leader, term, serving, topics, {}, {})


def intent(
    *topics: TopicConfig,
    groups: dict[tuple[str, str], GroupConfig] | None = None,
    gone: frozenset[tuple[str, str]] = frozenset(),
    gone_groups: frozenset[tuple[str, str]] = frozenset(),
) -> Any:
    return SimpleNamespace(
        level=1,
        groups=groups or {},
        topics={},
        topics_of=lambda group: topics,
        gone_topics=lambda group: gone,
        deleted_groups=gone_groups,
    )


def test_difference_lists_new_changed_and_deleted_objects() -> None:
    """One call contains all differences by stored name; objects unknown to the desired state stay;
    no difference gives None."""
    kept, grown = topic("kept"), topic("grown", 2)
    in_force = view(kept=kept, grown=topic("grown"), old=topic("old"))
    in_force.groups["gone"] = GroupConfig("", "gone")
    in_force.topics["unknown"] = topic("unknown")
    in_force.groups["unknown"] = GroupConfig("", "unknown")
    wanted = intent(
        kept,
        grown,
        topic("new", namespace="ns"),
        groups={("", "c"): GroupConfig("", "c", 3)},
        gone=frozenset({("", "old"), ("", "gone-long-ago")}),
        gone_groups=frozenset({("", "gone")}),
    )
    call = difference(in_force, "g1", wanted, lambda: 7)
    assert call == Configure(
        7, [grown, topic("new", namespace="ns")], [GroupConfig("", "c", 3)], ["old"], ["gone"]
    )
    assert difference(view(kept=kept), "g1", intent(kept), lambda: 7) is None


@dataclass
class World:
    """A controller, and an engine that carries out all calls."""

    state: Any
    views: dict[str, GroupView]
    outcomes: list[Any] = field(default_factory=list)
    calls: list[Configure] = field(default_factory=list)
    barriers: int = 0
    before_barrier: Callable[[], None] = lambda: None
    tokens: int = 0
    adopted: list[tuple[str, str, str]] = field(default_factory=list)

    async def adopt_topic(self, namespace: str, name: str, broker_group: str) -> None:
        self.adopted.append((namespace, name, broker_group))
        self.state.topics[namespace, name] = SimpleNamespace(placement={broker_group: 1})

    async def barrier(self) -> None:
        self.barriers += 1
        self.before_barrier()

    def new_token(self) -> int:
        self.tokens += 1
        return self.tokens

    def call(self, group: str, call: Any) -> asyncio.Future[Any]:
        self.calls.append(call)
        outcome = self.outcomes.pop(0) if self.outcomes else Configured()
        if isinstance(outcome, Configured):
            known = self.views[group]
            topics = {item.name: item for item in self.state.topics_of(group)}
            self.views[group] = GroupView(known.leader, known.term, known.serving, topics, {}, {})
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(outcome)
        return future


async def settle(world: World, reconciler: Reconciler, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)


def start(world: World) -> Reconciler:
    reconciler = Reconciler("n1", world, world, ["g1"])
    reconciler.start()
    reconciler.changed()
    return reconciler


async def test_leader_waits_for_a_barrier_before_it_deletes_or_creates() -> None:
    """The state before the barrier may be older than the log: acting on it would delete a topic
    that exists."""
    world = World(intent(), {"g1": view(born=topic("born"))})

    def catch_up() -> None:
        world.state = intent(topic("born"), topic("next"))

    world.before_barrier = catch_up
    reconciler = start(world)
    await settle(world, reconciler, lambda: bool(world.calls))
    assert world.calls == [Configure(1, [topic("next")], [], [], [])]
    assert world.barriers == 1
    world.state = intent(topic("born"), gone=frozenset({("", "next")}))
    reconciler.changed()
    await settle(world, reconciler, lambda: len(world.calls) == 2)
    assert list(world.calls[1].deleted_topics) == ["next"]
    assert world.barriers == 1, "later states of the same term need no barrier"
    world.views["g1"] = view(term=2, born=topic("born"))
    reconciler.changed()
    await settle(world, reconciler, lambda: world.barriers == 2)
    reconciler.stop()


async def test_only_a_serving_leader_reconciles_configuration() -> None:
    """Only the serving leader writes configuration."""
    for idle in (view("n2"), view("n1", serving=False)):
        world = World(intent(topic("t")), {"g1": idle})
        reconciler = start(world)
        await settle(world, reconciler, lambda: True)
        assert not world.calls and not world.barriers
        reconciler.stop()


async def test_refusals_and_a_missing_quorum_are_tried_again(monkeypatch: Any) -> None:
    """Neither a refused Configure nor a controller without a leader ends the reconciler."""
    monkeypatch.setattr(reconcile, "RETRY_S", 0.0)

    world = World(intent(topic("t")), {"g1": view()}, outcomes=[Refused("disk-full")])

    def fail_once() -> None:
        if world.barriers == 1:
            raise ConnectionError("no quorum")

    world.before_barrier = fail_once
    reconciler = start(world)
    await settle(world, reconciler, lambda: len(world.calls) == 2)
    assert world.barriers == 2 and world.views["g1"].topics
    reconciler.stop()


async def test_dead_letter_topics_of_a_log_are_told_to_the_controller() -> None:
    """What the log of another broker group has is not enough, and nothing about them is ever
    written to a log."""
    letters = {"%DLQ%g": topic("%DLQ%g"), "ns@%DLQ%h": topic("%DLQ%h", namespace="ns")}
    world = World(intent(), {"g1": view(**letters)})
    world.state.topics["", "%DLQ%g"] = SimpleNamespace(placement={"g2": 1})
    reconciler = start(world)
    await settle(world, reconciler, lambda: len(world.adopted) == 2)
    reconciler.changed()
    await settle(world, reconciler, lambda: True)
    assert (
        sorted(world.adopted) == [("", "%DLQ%g", "g1"), ("ns", "%DLQ%h", "g1")] and not world.calls
    )
    reconciler.stop()


async def test_the_leader_of_a_group_below_the_level_of_the_cluster_raises_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After its configuration, and again and again until all members could be asked."""
    monkeypatch.setattr(reconcile, "LEVEL_RETRY_S", 0.0)

    world = World(intent(topic("born")), {"g1": view()})
    world.state.level = 2
    asked: list[tuple[str, int]] = []

    async def raise_level(group: str, level: int) -> str:
        assert world.calls, "configuration comes first"
        asked.append((group, level))
        if len(asked) < 3:
            return "node n3 does not answer"
        world.views["g1"] = replace(world.views["g1"], level=2)
        return ""

    reconciler = Reconciler("n1", world, world, ["g1"], raise_level)
    reconciler.start()
    reconciler.changed()
    await settle(world, reconciler, lambda: len(asked) == 3)
    reconciler.changed()
    await settle(world, reconciler, lambda: world.views["g1"].level == 2)
    assert asked == 3 * [("g1", 2)]
    reconciler.stop()
