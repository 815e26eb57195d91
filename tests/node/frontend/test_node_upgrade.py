"""`upgrade finish` over several broker groups: what it asks, what it refuses, and that it can be
interrupted and repeated anywhere.

The cluster here is a model: nodes that read a level each, the logs of groups, and a controller. A
seed loses answers and elections, replaces programs and creates groups between any two steps. What
must hold is checked whenever a record is appended. The last tests plant mistakes and expect the
model to find them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.broker.calls.member_calls import RaiseLevel
from ledgermq.node.broker.calls.operator_calls import Kept
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.frontend.admin.cluster.upgrade_admin import (
    RAISE_METHOD,
    Replies,
    Upgrades,
    in_the_way,
)
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import peer_pb2
from ledgermq.proto.records.control import LevelRecord
from ledgermq.proto.status import Code, LedgerError, fail

SEEDS = range(60)
NODES = ("n1", "n2", "n3", "n4")


class Broken(Exception):
    """A rule does not hold."""


class Model:
    """A cluster whose node n1 leads everything: the engine, forwarder, controller and overview of
    its `Upgrades`."""

    kind: type[Upgrades] = Upgrades

    def __init__(self, *reads: int, groups: int = 3) -> None:
        self.reads: dict[str, int | None] = dict(zip(NODES, reads, strict=True))
        """Node → the highest level that its program reads; None: it is down."""
        self.levels = {f"g{number + 1}": 1 for number in range(groups)}
        self.members = {group: NODES[:3] for group in self.levels}
        self.state = SimpleNamespace(broker_groups=dict.fromkeys(self.levels), level=1)
        self.appended: list[tuple[str, LevelRecord]] = []
        self.chance: random.Random | None = None
        self.unit = self.kind(self, self, self, self)  # type: ignore[arg-type]

    # -- overview

    @property
    def nodes(self) -> Sequence[str]:
        return NODES

    async def gather(self) -> Replies:
        self.happens()
        return {node: self._reply(node) for node in NODES}

    def _reply(self, node: str) -> peer_pb2.NodeStatusReply | None:
        reads = self.reads[node]
        # A program of level 1 may not know levels yet.
        info = pb.NodeInfo(
            node=node, up=True, version="0.2.0", level_max=reads if reads != 1 else None
        )
        return None if reads is None else peer_pb2.NodeStatusReply(node=info)

    # -- engine

    @property
    def views(self) -> Mapping[str, Any]:
        return {
            group: SimpleNamespace(level=level, in_effect=self.members[group])
            for group, level in self.levels.items()
        }

    def new_token(self) -> int:
        return 1

    async def call(self, group: str, call: RaiseLevel) -> Kept | Refused:
        if missing := set(self.members[group]) - call.asked:
            return Refused("members-not-yet", detail=f"{sorted(missing)} was not asked")
        lost = self.chance is not None and self.chance.random() < 0.2
        if lost and self.chance is not None and self.chance.random() < 0.5:
            return Refused("unknown-outcome")
        self.levels[group] += call.record.level == self.levels[group] + 1
        self.appended.append((group, call.record))
        for node in self.members[group]:
            reads = self.reads[node]
            if reads is not None and reads < call.record.level:
                raise Broken(f"{node} stops at the record of {group}")
        return Refused("unknown-outcome") if lost else Kept()

    # -- forwarder

    async def submit(
        self, group: str, method: str, _: Any, request: bytes, deadline: float, *, repeatable: bool
    ) -> Sequence[bytes]:
        assert method == RAISE_METHOD and repeatable
        if self.chance is not None and self.chance.random() < 0.1:
            raise CallRefused(
                Refused(
                    "not-leader", detail=f"broker group {group} had no leader within the deadline"
                )
            )
        asked = peer_pb2.GroupRaise.FromString(request)
        return [(await self.unit.raise_here(group, asked.level, asked.user)).SerializeToString()]

    # -- controller

    async def barrier(self) -> None:
        """Always current."""

    async def raise_level(self, level: int) -> None:
        if self.chance is not None and self.chance.random() < 0.2:
            raise fail(Code.PROXY_TIMEOUT, "no quorum")
        if behind := sorted(
            group for group in self.state.broker_groups if self.levels[group] < level
        ):
            raise Broken(f"the cluster is raised before {', '.join(behind)}")
        if below := [
            node for node, reads in self.reads.items() if reads is not None and reads < level
        ]:
            raise Broken(f"the cluster is raised above {', '.join(below)}")
        self.state.level = max(self.state.level, level)

    # -- faults

    def happens(self) -> None:
        """Before a question: a program is replaced or stops or starts, or a group is created. A
        group that exists keeps its members."""
        if self.chance is None or self.chance.random() < 0.6:
            return
        node = self.chance.choice(NODES)
        least = max(
            [
                self.state.level,
                *(level for group, level in self.levels.items() if node in self.members[group]),
            ]
        )
        self.reads[node] = self.chance.choice((None, *range(least, 4)))
        if self.chance.random() < 0.3 and len(self.levels) < 6:
            group = f"g{len(self.levels) + 1}"
            self.levels[group], self.members[group] = 1, tuple(sorted(self.chance.sample(NODES, 3)))
            self.state.broker_groups[group] = None

    def finish(self, user: str = "root") -> pb.FinishUpgradeResponse:
        return asyncio.run(self.unit.finish(user))


def test_every_group_is_raised_in_turn_and_then_the_cluster() -> None:
    """Each record names who asked. Asked again, there is nothing to raise."""
    model = Model(2, 2, 3, 3)
    model.reads["n1"] = model.reads["n2"] = 3
    answer = model.finish()
    assert (answer.done, answer.level, list(answer.raised), answer.changed) == (
        True,
        3,
        ["g1", "g2", "g3"],
        True,
    )
    assert model.appended == [
        (group, LevelRecord(level, "root")) for group in ("g1", "g2", "g3") for level in (2, 3)
    ]
    assert (set(model.levels.values()), model.state.level) == ({3}, 3)
    again = model.finish()
    assert (again.done, again.level, list(again.raised), again.changed) == (
        True,
        3,
        [],
        False,
    ) and len(model.appended) == 6


def test_upgrade_of_a_single_release_cluster_changes_no_level() -> None:
    """Also while a node of it is known to read no more."""
    answer = Model(1, 1, 1, 1).finish()
    assert (answer.done, answer.level, list(answer.raised), answer.changed) == (True, 1, [], False)


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        ((2, 1, 2, 2), "node n2 runs LedgerMQ 0.2.0, which reads up to level 1: upgrade it"),
        (
            (2, 2, None, 2),
            (
                "node n3 does not answer: start it or, if it is gone for good, remove it (ledgermq"
                " member remove n3)"
            ),
        ),
        ((2, 2, 2, 1), "node n4 runs LedgerMQ 0.2.0, which reads up to level 1: upgrade it"),
        (
            (1, 1, None, 2),
            "node n1 runs LedgerMQ 0.2.0, which reads up to level 1: upgrade it; node n2 runs",
        ),
    ],
)
def test_node_below_the_level_is_named_and_stops_the_upgrade(
    reads: tuple[int | None, ...], said: str
) -> None:
    """Also one that has no replica: it could get one."""
    model = Model(*reads)  # type: ignore[arg-type]
    with pytest.raises(LedgerError) as refused:
        model.finish()
    assert refused.value.code == Code.PRECONDITION_FAILED
    assert (
        refused.value.message.startswith("the upgrade to feature level 2 cannot be finished: ")
        and said in refused.value.message
    )
    assert not model.appended and model.state.level == 1


def test_a_group_that_is_interrupted_is_named_and_a_repeated_call_goes_on() -> None:
    """A member that appeared between question and record, and a group without a leader."""
    model = Model(2, 2, 2, 2)
    model.members["g2"] = ("n1", "n2", "n9")
    model.reads["n9"] = None
    with pytest.raises(LedgerError, match="node n9 does not answer"):
        model.finish()
    assert model.levels == {"g1": 2, "g2": 1, "g3": 1} and model.state.level == 1
    model.members["g2"] = NODES[:3]
    answer = model.finish()
    assert answer.done and list(answer.raised) == ["g2", "g3"] and model.state.level == 2


def test_unfinished_upgrade_names_the_awaited_group() -> None:
    model = Model(2, 2, 2, 2)
    model.call = lambda group, call: _done(
        Refused("members-not-yet", detail="n5 became a member meanwhile")
    )  # type: ignore[method-assign]
    answer = model.finish()
    assert (answer.done, answer.waits_for) == (
        False,
        "broker group g1: n5 became a member meanwhile",
    )


def test_a_new_group_gets_the_level_of_the_cluster_from_its_leader() -> None:
    """Or the reason why not yet."""
    model = Model(2, 2, None, 2)
    assert asyncio.run(model.unit.raise_local("g1", 2)).endswith(
        "remove it (ledgermq member remove n3)"
    )
    model.reads["n3"] = 2
    assert asyncio.run(model.unit.raise_local("g1", 2)) == "" and model.levels["g1"] == 2
    assert model.appended == [("g1", LevelRecord(2))]


async def _done(outcome: Any) -> Any:
    return outcome


def finished(model: Model) -> bool:
    """An operator says `finish` until it is done, while nodes and groups come and go; in the end
    all nodes read the highest level. Raises Broken."""
    for _ in range(40):
        try:
            answer = model.finish()
        except LedgerError:
            continue
        if answer.done:
            return (
                all(model.levels[group] >= answer.level for group in model.state.broker_groups)
                and model.state.level >= answer.level
            )
        if model.chance is not None and model.chance.random() < 0.1:
            break
    model.chance = None
    model.reads = dict.fromkeys(NODES, 3)
    answer = model.finish()
    return answer.done and {*model.levels.values(), model.state.level} == {3}


def run(seed: int, kind: type[Upgrades]) -> bool:
    """Whether everything that must hold held."""

    class Kind(Model):
        pass

    Kind.kind = kind
    model = Kind(2, 1, 2, 2)
    model.chance = random.Random(seed)
    try:
        return finished(model)
    except Broken:
        return False


@pytest.mark.parametrize("seed", SEEDS)
def test_interrupted_upgrades_leave_no_node_below_the_level(seed: int) -> None:
    assert run(seed, Upgrades)


class AsksOneLess(Upgrades):
    """Assumes that n2 reads what the others read."""

    def _require(self, replies: Replies, members: Iterable[str], level: int) -> None:
        if in_the_way(replies, set(NODES) - {"n2"}, level):
            super()._require(replies, members, level)

    async def raise_here(self, group: str, level: int, user: str) -> pb.FinishUpgradeResponse:
        for step in range(self._engine.views[group].level + 1, level + 1):
            await self._engine.call(group, RaiseLevel(1, LevelRecord(step, user), frozenset(NODES)))
        return pb.FinishUpgradeResponse(status=pb.Status(code=int(Code.OK)), done=True)


class ForgetsAGroup(Upgrades):
    """Takes the last group for raised."""

    async def _raise(self, group: str, level: int, user: str) -> pb.FinishUpgradeResponse:
        if group == max(self._controller.state.broker_groups):
            return pb.FinishUpgradeResponse(done=True)
        return await super()._raise(group, level, user)


class AsksOnce(Upgrades):
    """Raises the controller by what was answered before the groups were raised."""

    def _require(self, replies: Replies, members: Iterable[str], level: int) -> None:
        self._asked = getattr(self, "_asked", 0) + 1
        if members or self._asked == 1:
            super()._require(replies, members, level)


@pytest.mark.parametrize("kind", [AsksOneLess, ForgetsAGroup, AsksOnce])
def test_a_planted_mistake_is_found(kind: type[Upgrades]) -> None:
    assert not all(run(seed, kind) for seed in SEEDS)
