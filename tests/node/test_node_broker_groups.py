"""`broker-group add` and `move-replica` on any node: what cannot be is refused with the reason,
what passes is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.controller import metadata
from ledgermq.node.controller.broker_groups import GroupSpec, Move
from ledgermq.node.frontend.admin.cluster.broker_group_admin import BrokerGroups
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code, LedgerError, fail

Kind = pb.ChangeMemberRequest.Kind
NODES = ("n1", "n2", "n3", "n4")
WOULD_STALL = (
    "this would lose the quorum: 3 of the voters n1, n2, n3, n4 are needed, and n2, n3 cannot be"
    " heard"
)


class World:
    """Node n1 of four, which receives the calls; the group's leader grants all changes except those
    in `refuses`."""

    def __init__(self, *, voters: Sequence[str] = ("n1", "n2", "n3"), **settings: Any) -> None:
        self.state = metadata.State()
        self.roles = dict.fromkeys(voters, "voter")
        self.lag: int | None = 0
        self.led_by: str | None = "n1"
        self.replication = ""
        """As the leader states it; empty: it is of an older release."""
        self.refuses: dict[int, str] = {}
        self.not_yet: dict[int, str] = {}
        self.transferred: list[str] = []
        self.transfer_refusal = ""
        self.let_into_the_quorum: list[str] = []
        self.links = {name: SimpleNamespace(up=True) for name in NODES if name != "n1"}
        nodes = {name: {"peer": f"{name}:1"} for name in NODES}
        spec = {"replicas": list(voters), "data_file_bytes": 1 << 20, **settings}
        self._submit(
            "set-cluster", nodes=nodes, broker_groups={"g1": list(voters)}, specs={"g1": spec}
        )
        config = SimpleNamespace(node="n1", cluster=SimpleNamespace(groups=()))
        roster = SimpleNamespace(address=lambda node, kind: f"{node}:{kind}")
        leaders = SimpleNamespace(leader=lambda group: self.led_by)
        leadership = SimpleNamespace(transfer=self._transfer)
        self.unit = BrokerGroups(config, self, self, leadership, leaders, roster, self.links)  # type: ignore[arg-type]

    def _submit(self, op: str, **fields: Any) -> None:
        self.state, outcome = metadata.apply(self.state, {"op": op, **fields})
        if outcome.code != Code.OK:
            raise fail(outcome.code, outcome.detail)

    # -- the controller

    async def barrier(self) -> None:
        """Always current."""

    async def begin_move(self, group: str, move: Move) -> None:
        self._submit("begin-move", group=group, **{"from": move.source, "to": move.target})

    async def end_move(self, group: str, move: Move, *, done: bool) -> None:
        self._submit("end-move", group=group, **{"from": move.source, "to": move.target}, done=done)

    async def add_broker_group(self, group: str, settings: Any) -> tuple[GroupSpec, bool]:
        known = group in self.state.broker_groups
        self._submit("add-broker-group", group=group, settings=settings)
        return self.state.specs[group], not known

    async def prefer_leader(self, group: str, node: str) -> None:
        self._submit("prefer-leader", group=group, node=node)

    async def set_node(self, node: str, addresses: Any, *, state: str | None = None) -> None:
        self._submit("set-node", node=node, addresses=addresses, state=state)

    # -- the group's leader

    async def of_group(self, group: str) -> pb.ChangeMemberResponse:
        if self.led_by is None:
            raise fail(Code.HA_NOT_AVAILABLE, "broker group g1 had no leader within the deadline")
        members = [
            pb.MemberProgress(broker_group=group, node=node, role=role)
            for node, role in self.roles.items()
        ]
        return pb.ChangeMemberResponse(groups=members, replication=self.replication)

    async def of_node(self, group: str, node: str) -> pb.MemberProgress | None:
        role = self.roles.get(node)
        return (
            None
            if role is None
            else pb.MemberProgress(broker_group=group, node=node, role=role, lag_entries=self.lag)
        )

    async def changed(
        self, group: str, kind: pb.ChangeMemberRequest.Kind, node: str
    ) -> pb.ChangeMemberResponse:
        if kind in self.refuses:
            raise fail(Code.PRECONDITION_FAILED, f"broker group {group}: {self.refuses[kind]}")
        if kind in self.not_yet:
            return pb.ChangeMemberResponse(waits_for=f"broker group {group}: {self.not_yet[kind]}")
        if kind == Kind.REMOVE:
            self.roles.pop(node, None)
        else:
            self.roles[node] = "learner" if kind == Kind.ADD else "voter"
        found = await self.of_node(group, node)
        return pb.ChangeMemberResponse(done=True, groups=[] if found is None else [found])

    async def let_in(self, node: str) -> None:
        self.let_into_the_quorum.append(node)

    async def _transfer(
        self, request: pb.TransferLeadershipRequest
    ) -> pb.TransferLeadershipResponse:
        if self.transfer_refusal:
            raise fail(Code.PRECONDITION_FAILED, self.transfer_refusal)
        self.led_by = request.to
        self.transferred.append(request.to)
        return pb.TransferLeadershipResponse(done=True)

    # -- what tests do

    def silent(self, *nodes: str) -> None:
        for node in nodes:
            self.links[node].up = False

    def ask(
        self, source: str = "n1", target: str = "n4", *, abort: bool = False
    ) -> pb.MoveReplicaResponse:
        request = pb.MoveReplicaRequest(
            broker_group="g1", from_node=source, to_node=target, abort=abort
        )
        return asyncio.run(self.unit.move(request))

    def refused(self, **how: Any) -> str:
        with pytest.raises(LedgerError) as found:
            self.ask(**how)
        assert "; " in found.value.message, "every refusal says what to do"
        return found.value.message

    @property
    def move(self) -> Move | None:
        return self.state.specs["g1"].move


def test_a_move_adds_promotes_hands_over_and_removes() -> None:
    """And asked for again it is done."""
    world = World()
    assert world.ask().done and world.roles == {"n2": "voter", "n3": "voter", "n4": "voter"}
    assert (
        world.transferred == ["n4"]
        and world.move is None
        and world.state.broker_groups["g1"] == ("n2", "n3", "n4")
    )
    assert world.ask().done


def test_a_move_between_workers_of_one_node_is_not_begun() -> None:
    """For a while both would be members, and one machine two of the voters, which the group's
    leader refuses for as long as it is asked."""
    world = World()
    world._submit("set-node", node="n1.2", addresses={"peer": "n1.2:1"}, state="member")
    world.links["n1.2"] = SimpleNamespace(up=True)
    assert "n1 and n1.2 are workers of one node" in world.refused(target="n1.2")
    assert world.move is None


def test_a_move_to_or_from_an_observer_is_not_begun() -> None:
    """To one, it would wait for ever for a vote that only an operator gives on purpose. From one,
    the new replica would vote."""
    world = World()
    world.roles["n4"] = "observer"
    assert "n4 is an observer of broker group g1" in world.refused()
    world._submit("set-node", node="n5", addresses={"peer": "n5:1"}, state="member")
    world.links["n5"] = SimpleNamespace(up=True)
    assert "n4 is an observer of broker group g1" in world.refused(source="n4", target="n5")
    assert world.move is None and world.roles["n4"] == "observer"


@pytest.mark.parametrize("silent", [("n2", "n3"), ("n3",)])
def test_a_move_that_would_lose_the_quorum_is_not_begun(silent: tuple[str, ...]) -> None:
    """Neither on the way nor in the end; a group of two has none to lose."""
    world = World() if len(silent) == 2 else World(voters=("n1", "n3"))
    world.silent(*silent)
    said = world.refused()
    assert (
        "would lose its quorum" in said
        and f"missing: {', '.join(silent)}" in said
        and "start those first" in said
    )
    assert world.move is None


def test_a_quorum_that_would_be_lost_meanwhile_is_an_error_at_once() -> None:
    """The command fails instead of waiting; repeated once the nodes are back, it continues, and it
    can still be cancelled."""
    world = World()
    world.refuses[Kind.PROMOTE] = (
        "n4 is 9 entries behind entry 12, the end of the log; promote it once it has caught up"
    )
    assert world.ask().step == "promote"
    world.refuses[Kind.PROMOTE] = WOULD_STALL
    assert "this would lose the quorum" in world.ask().waits_for, (
        "who is not heard for a moment is waited for"
    )
    world.silent("n2", "n3")
    said = world.refused()
    assert (
        "of which only 2 answer (missing: n2, n3): it would lose its quorum" in said
        and "run the same command again" in said
    )
    assert world.move == Move("n1", "n4")
    world.refuses.clear()
    world.links["n2"].up = world.links["n3"].up = True
    assert world.ask().done


NOT_IN_SYNC = "n4 is not in sync; the in-sync set is n1, n2, n3"


def test_a_target_that_cannot_lead_yet_is_waited_for() -> None:
    """A replica that was just promoted comes into the in-sync set of an HA group a moment later. So
    it is when a move is given up."""
    world = World(replication="ha", ack="in-sync", min_in_sync=2)
    world.transfer_refusal = NOT_IN_SYNC
    waits = world.ask()
    assert (
        not waits.done
        and waits.step == "hand-over"
        and waits.waits_for == f"broker group g1: {NOT_IN_SYNC}"
    )
    assert world.roles["n1"] == "voter"
    world.led_by = "n4"
    assert world.ask(abort=True).step == "hand-over" and world.roles["n4"] == "voter"
    world.led_by, world.transfer_refusal = "n1", ""
    assert world.ask().done and world.transferred == ["n4"]


def test_a_hand_over_without_enough_nodes_is_an_error_at_once() -> None:
    """Waiting for stopped nodes cannot bring them into the in-sync set."""
    world = World(replication="ha", ack="in-sync", min_in_sync=3)
    world.transfer_refusal = NOT_IN_SYNC
    world.ask()
    world.silent("n2", "n3")
    assert "of which only 2 answer (missing: n2, n3): it demands 3 in sync" in world.refused()


def test_impossible_change_is_waited_for_while_enough_nodes_answer() -> None:
    """The leader reports this in its answer, not as a refusal, and names the missing node."""
    world = World()
    world.not_yet[Kind.REMOVE] = "the change before, entry 7, is not committed yet; ask again"
    waits = world.ask()
    assert waits.step == "remove" and "entry 7" in waits.waits_for
    world.silent("n2", "n3")
    assert "missing: n2, n3" in world.refused()


def test_a_target_that_was_down_when_it_was_added_is_let_in_by_the_move() -> None:
    """`member add` need not be repeated; the replicas of a new group are admitted too."""
    world = World()
    world.lag = 10_000
    world.ask()
    assert world.let_into_the_quorum == ["n4"] and world.move == Move("n1", "n4")
    assert added(world, replicas=["n2", "n4"]).created and world.let_into_the_quorum == [
        "n4",
        "n2",
        "n4",
    ]


def test_without_a_leader_the_silent_ones_are_named() -> None:
    """As far as they are the reason: an election is waited for, and passes."""
    world = World()
    world.refuses[Kind.PROMOTE] = "it lacks entries"
    world.ask()
    world.led_by = None
    world.silent("n2")
    with pytest.raises(LedgerError) as passing:
        world.ask()
    assert passing.value.retryable
    world.silent("n3")
    for abort in (False, True):
        said = world.refused(abort=abort)
        assert (
            "has no quorum: of its 4 replicas n2, n3 do not answer" in said
            and "start those first" in said
        )


def test_an_ha_group_keeps_as_many_as_it_demands() -> None:
    """Its minimum, where a group that elects keeps a majority."""
    world = World(replication="ha", ack="in-sync", min_in_sync=3)
    world.silent("n2")
    said = world.refused()
    assert (
        "of which only 2 answer (missing: n2): it demands 3 in sync" in said and world.move is None
    )
    relaxed = World(replication="ha", ack="in-sync", min_in_sync=1)
    relaxed.silent("n2", "n3")
    assert relaxed.ask().done


@pytest.mark.parametrize(
    ("stated", "listed"),
    [
        ("", "raft"),
        ("raft", "raft"),
        ("raft to ha", "raft to ha"),
        ("ha", "ha"),
        ("ha to raft", "ha to raft"),
    ],
)
def test_the_list_shows_the_replication_that_a_group_has_now(stated: str, listed: str) -> None:
    """The settings are those it was created with. While it has no leader, the former statement
    counts."""
    world = World(replication="raft")
    world.replication = stated
    assert [entry.replication for entry in asyncio.run(world.unit.listed()).groups] == [listed]
    world.led_by = None
    assert [entry.replication for entry in asyncio.run(world.unit.listed()).groups] == [listed]


def test_a_group_that_was_created_as_ha_and_elects_now_keeps_its_majority() -> None:
    """Its minimum in sync has no meaning any more."""
    world = World(replication="ha", ack="in-sync", min_in_sync=1)
    world.replication = "raft"
    world.silent("n2", "n3")
    assert "it would lose its quorum" in world.refused() and world.move is None


def test_a_target_that_dies_is_named_while_it_is_waited_for() -> None:
    """It may come back, and has what it was sent."""
    world = World()
    world.lag = 10_000
    assert world.ask().waits_for == "broker group g1: n4 lacks 10000 entries"
    world.lag = None
    world.silent("n4")
    assert (
        world.ask().waits_for
        == "broker group g1: node n4 does not answer at n4:peer (its peer port)"
    )


@pytest.mark.parametrize("how_far", [Kind.ADD, Kind.PROMOTE, Kind.REMOVE])
def test_a_move_is_given_up_from_wherever_it_is(how_far: int) -> None:
    """All roles are restored. The command reports if there is no move, or if the source was already
    removed."""
    world = World()
    world.refuses[how_far] = "not now"
    world.ask()
    del world.refuses[how_far]
    assert world.ask(abort=True).done and world.roles == dict.fromkeys(("n1", "n2", "n3"), "voter")
    assert (
        world.move is None
        and world.state.broker_groups["g1"] == ("n1", "n2", "n3")
        and world.led_by == "n1"
    )
    assert "no replica is on its way from n1 to n4" in world.refused(abort=True)


def test_move_without_its_source_replica_is_finished() -> None:
    """There is nothing to go back to."""
    world = World()
    world.refuses[Kind.REMOVE] = "not now"
    world.ask()
    del world.roles["n1"]
    assert "the replica of n1 is removed already" in world.refused(abort=True)
    assert world.ask().done


# -- a new group


def added(world: World, name: str = "g2", **fields: Any) -> pb.AddBrokerGroupResponse:
    return asyncio.run(world.unit.add(pb.AddBrokerGroupRequest(name=name, **fields)))


def test_a_group_goes_where_the_fewest_replicas_are() -> None:
    """And asked for again it is the same one."""
    world = World()
    first = added(world, count=2)
    assert first.created and first.replicas == ["n1", "n4"] and not added(world).created


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"count": 5},
            (
                "a broker group with 5 replicas needs as many nodes, and 4 answer: n1, n2, n3, n4;"
                " start or add nodes"
            ),
        ),
        (
            {"replicas": ["n1", "n9"]},
            "names the replica n9, which is no node of this cluster; known: n1, n2, n3, n4",
        ),
        ({"replicas": ["n1", "n1"]}, "replicas must not name a node twice"),
        (
            {"replicas": ["n1"], "settings": {"replication": "ha"}},
            "an HA group needs at least two replicas",
        ),
        (
            {"replicas": ["n1", "n2"], "settings": {"replication": "ha", "min_in_sync": "3"}},
            (
                "min_in_sync is 3, and the group has 2 replicas: no send could ever be accepted;"
                " lower it"
            ),
        ),
        ({"settings": {"min_in_sync": "2"}}, "min_in_sync is a setting of HA groups"),
        ({"settings": {"no_such_key": "1"}}, "no_such_key"),
        ({"name": "controller"}, "cannot be called controller"),
        (
            {"name": "rmq_sys_ledgermq_timer"},
            "'rmq_sys_ledgermq_timer' is reserved; choose another",
        ),
        ({"name": "TBW102"}, "'TBW102' is reserved; choose another"),
        ({"name": "CID_RMQ_SYS_x"}, "'CID_RMQ_SYS_x' is reserved; choose another"),
        (
            {"name": "g1", "replicas": ["n1", "n4"]},
            "broker group g1 exists, begun with other settings",
        ),
        ({"name": "g1", "count": 2}, "broker group g1 exists, begun with 3 replicas"),
    ],
)
def test_a_group_that_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    """With what to do, and nothing is begun."""
    world = World()
    before = world.state
    with pytest.raises(LedgerError) as found:
        added(world, **fields)
    assert words in found.value.message and "; " in found.value.message and world.state == before


def test_a_group_begins_only_while_all_answer() -> None:
    """The error names the missing node, because it may have a replica of that name."""
    world = World()
    world.silent("n3")
    with pytest.raises(
        LedgerError,
        match="n3 does not answer; start n3, or remove it for good: ledgermq member remove n3",
    ):
        added(world, replicas=["n1", "n2"])
    assert "g2" not in world.state.broker_groups


def test_two_nodes_at_one_address_are_one_place() -> None:
    """For a new group as for a move."""
    world = World()
    world.state, _ = metadata.apply(
        world.state, {"op": "set-node", "node": "n4", "addresses": {"peer": "n3:1"}, "state": None}
    )
    with pytest.raises(LedgerError, match=r"nodes n3 and n4 have one address, n3:1: .*set-address"):
        added(world, replicas=["n3", "n4"])
    assert "nodes n3 and n4 have one address" in world.refused()
