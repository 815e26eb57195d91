"""`member` on any node: each step may be repeated, nothing is half done silently, and the
explanation is the refuser's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.broker.calls.member_calls import ChangeMembers, GroupMembers, MembersChanged
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.controller import metadata
from ledgermq.node.controller.controller import Health
from ledgermq.node.controller.state import ADDRESS_KINDS, NODE_STATE, State
from ledgermq.node.frontend.admin.cluster import member_admin as module
from ledgermq.node.frontend.admin.cluster.member_admin import Members
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.status import BadRequest, Code, Conflict, LedgerError
from ledgermq.proto.types import PeerProgress, ReplicaStatus, Role

Kind = pb.ChangeMemberRequest.Kind
NODES = {
    name: {kind: f"{name}:{port}" for port, kind in enumerate(ADDRESS_KINDS)}
    for name in ("n1", "n2", "n3")
}
FOURTH = pb.NodeAddresses(client="n4:4", peer="n4:1", controller="n4:2", http="n4:3")


class FakeController:
    """The state machine, without a quorum."""

    def __init__(self) -> None:
        self.state = State()
        self.health = Health("n1", voters=("n1", "n2", "n3"), reached=frozenset(NODES))
        self.named = 0
        """How often the voters were named anew."""
        self.submit(
            {
                "op": "set-cluster",
                "nodes": NODES,
                "broker_groups": {"g1": list(NODES), "g2": list(NODES)},
            }
        )

    def submit(self, command: dict[str, Any]) -> None:
        self.state, outcome = metadata.apply(self.state, command)
        if outcome.code != Code.OK:
            raise LedgerError(Code(outcome.code), outcome.detail)

    async def barrier(self) -> None:
        """Always current."""

    async def set_node(
        self, node: str, addresses: Mapping[str, str], *, state: str | None = None
    ) -> None:
        self.submit({"op": "set-node", "node": node, "addresses": dict(addresses), "state": state})

    async def remove_node(self, node: str) -> None:
        self.submit({"op": "remove-node", "node": node})

    async def place_replica(self, group: str, node: str, *, present: bool) -> None:
        self.submit({"op": "place-replica", "group": group, "node": node, "present": present})

    async def set_voter(self, node: str, *, present: bool) -> None:
        voters = {*self.health.voters, node} if present else set(self.health.voters) - {node}
        self.health = Health("n1", voters=tuple(sorted(voters)), reached=self.health.reached)

    async def name_voters(self) -> None:
        self.named += 1


class Bench:
    """One node, n1, that leads both groups."""

    def __init__(self) -> None:
        self.controller = FakeController()
        self.members = {group: GroupMembers(0, ("n1", "n2", "n3")) for group in ("g1", "g2")}
        self.asked: list[ChangeMembers] = []
        self.refuse: Refused | None = None
        self.behind: dict[str, int] = {}
        self.links = {name: SimpleNamespace(up=True, refusal=None) for name in ("n2", "n3")}
        self.book = SimpleNamespace(
            presented={"g1": {}, "g2": {}},
            level_max=dict.fromkeys(("n2", "n3", "n4", "n5"), LEVEL_MAX),
        )
        roster = SimpleNamespace(address=lambda node, kind: f"{node}:{kind}")
        self.unit = Members("n1", self, self, self.controller, roster, self.links, self.book)  # type: ignore[arg-type]

    # -- engine

    @property
    def views(self) -> Any:
        return {group: SimpleNamespace(members=members) for group, members in self.members.items()}

    def new_token(self) -> int:
        return 1

    async def call(self, group: str, call: ChangeMembers) -> Any:
        self.asked.append(call)
        if self.refuse is not None:
            return self.refuse
        former = self.members[group]
        voters = tuple(name for name in former.voters if name != call.node) + (
            (call.node,) if call.kind == "promote" else ()
        )
        learners = (former.learners - {call.node}) | (
            {call.node} if call.kind == "add" else frozenset()
        )
        observers = (former.observers - {call.node}) | (
            {call.node} if call.kind == "add" and call.observer else frozenset()
        )
        self.members[group] = GroupMembers(former.index + 1, voters, learners, observers=observers)
        return MembersChanged(self.members[group])

    async def status(self, group: str) -> ReplicaStatus:
        ends = {name: 1000 - self.behind.get(name, 0) for name in self.links}
        peers = tuple(PeerProgress(name, Role.FOLLOWER, end, end) for name, end in ends.items())
        return ReplicaStatus(group, "n1", Role.LEADER, 1, "n1", 0, 1000, 1000, 1000, 1000, peers)

    # -- forwarder

    async def submit(
        self,
        group: str,
        method: str,
        metadata: Mapping[str, str],
        request: bytes,
        deadline: float,
        *,
        repeatable: bool,
    ) -> Sequence[bytes]:
        assert not repeatable and method == module.CHANGE_METHOD
        return [
            (
                await self.unit.change_here(group, pb.ChangeMemberRequest.FromString(request))
            ).SerializeToString()
        ]

    async def ask(self, node: str, method: str, request: bytes, deadline: float) -> Sequence[bytes]:
        answer = pb.ChangeMemberResponse(done=True, waits_for=f"asked {node}")
        answer.status.code = int(Code.OK)
        return [answer.SerializeToString()]

    # -- what tests do

    def joins(self, node: str = "n4") -> None:
        """Its process has started and was let in."""
        self.links[node] = SimpleNamespace(up=True, refusal=None)
        for group in self.members:
            self.book.presented[group][node] = f"inc-{node}"

    def change(self, kind: int, node: str = "n4", **fields: Any) -> pb.ChangeMemberResponse:
        return run(self.unit.change(pb.ChangeMemberRequest(kind=kind, node=node, **fields)))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(module, "STEP_WITHIN_S", 0.0)
    return Bench()


def test_a_node_that_reads_less_than_the_level_is_not_added(bench: Bench) -> None:
    """Its greeting may be older than the level. Once it runs a program that reads the level, the
    same request is granted."""
    bench.joins()
    bench.controller.state = replace(bench.controller.state, level=2)
    bench.book.level_max = {"n4": 1}
    with pytest.raises(
        LedgerError, match="feature level 2, and node n4 reads up to 1: upgrade n4 first"
    ) as caught:
        bench.change(Kind.ADD, addresses=FOURTH)
    assert caught.value.code == Code.PRECONDITION_FAILED and not bench.asked
    bench.book.level_max = {"n4": 2}
    assert bench.change(Kind.ADD).done and [
        (call.kind, call.level_max) for call in bench.asked
    ] == 2 * [("add", 2)]


def test_a_node_that_has_not_greeted_yet_is_waited_for(bench: Bench) -> None:
    """What it reads is not known yet: it may be of this very version, so nothing says that it must
    be upgraded. The same at the leader of a group, which another node may have asked."""
    bench.joins()
    bench.controller.state = replace(bench.controller.state, level=LEVEL_MAX)
    bench.book.level_max.clear()
    waiting = bench.change(Kind.ADD, addresses=FOURTH)
    assert (
        not waiting.done
        and "node n4 has not greeted n1 yet" in waiting.waits_for
        and not bench.asked
    )
    there = run(bench.unit.change_here("g1", pb.ChangeMemberRequest(kind=Kind.ADD, node="n4")))
    assert (
        not there.done
        and "broker group g1: node n4 has not greeted n1 yet" in there.waits_for
        and not bench.asked
    )
    bench.book.level_max["n4"] = LEVEL_MAX
    assert bench.change(Kind.ADD, addresses=FOURTH).done


def test_node_knows_its_own_level_without_a_greeting(bench: Bench) -> None:
    """Asked about itself, it is not taken for a node that greeted nobody."""
    bench.controller.state = replace(bench.controller.state, level=LEVEL_MAX)
    bench.links["n1"] = SimpleNamespace(up=True, refusal=None)
    assert bench.change(Kind.ADD, "n1").done


def test_a_node_joins_step_by_step(bench: Bench) -> None:
    """First it is known, then reached, then a voter of the quorum and a learner of what it hosts,
    then it catches up; then it may vote."""
    waiting = bench.change(Kind.ADD, addresses=FOURTH)
    assert (
        not waiting.done
        and "does not answer at n4:peer" in waiting.waits_for
        and "join: true" in waiting.waits_for
    )
    assert bench.controller.state.nodes["n4"]["state"] == "joining" and not bench.asked
    bench.joins()
    bench.behind["n4"] = 900
    waiting = bench.change(Kind.ADD)
    assert not waiting.done and "broker group g1: n4 lacks 900 entries" in waiting.waits_for
    assert [(call.kind, call.node, call.incarnation) for call in bench.asked] == 2 * [
        ("add", "n4", "inc-n4")
    ]
    assert (
        "n4" in bench.controller.health.voters
        and "n4" in bench.controller.state.broker_groups["g2"]
    )
    assert not bench.change(Kind.PROMOTE).done and len(bench.asked) == 2, (
        "a lagging node is not promoted"
    )
    bench.behind["n4"] = 3
    assert bench.change(Kind.ADD).done and len(bench.asked) == 2, (
        "what is so is not asked for again"
    )
    done = bench.change(Kind.PROMOTE)
    assert (
        done.done
        and {row.role for row in done.groups} == {"voter"}
        and "state" not in bench.controller.state.nodes["n4"]
    )
    assert bench.change(Kind.PROMOTE).done and len(bench.asked) == 4


def test_observer_joins_and_is_promoted_only_explicitly(bench: Bench) -> None:
    """An observer does not join the controller quorum, and promote needs an explicit option; a
    voter cannot become an observer."""
    bench.joins()
    done = bench.change(Kind.ADD, addresses=FOURTH, observer=True)
    assert (
        done.done
        and {row.role for row in done.groups} == {"observer"}
        and all(call.observer for call in bench.asked)
    )
    assert (
        "n4" not in bench.controller.health.voters
        and bench.controller.state.nodes["n4"]["state"] == "observer"
    )
    assert (
        bench.change(Kind.ADD, observer=True).done
        and bench.controller.named == 1
        and len(bench.asked) == 2
    )
    with pytest.raises(
        Conflict, match=r"n4 is an observer of broker group g1, g2; .*--observer-too"
    ):
        bench.change(Kind.PROMOTE)
    assert len(bench.asked) == 2
    done = bench.change(Kind.PROMOTE, observer=True)
    assert (
        done.done
        and {row.role for row in done.groups} == {"voter"}
        and "state" not in bench.controller.state.nodes["n4"]
    )
    with pytest.raises(Conflict, match="n4 is a voter already; to make it an observer, remove it"):
        bench.change(Kind.ADD, observer=True)
    with pytest.raises(
        Conflict, match="votes in the controller quorum, and an observer votes nowhere"
    ):
        bench.change(Kind.ADD, "n3", observer=True)


def test_removal_covers_one_group_or_the_whole_node(bench: Bench) -> None:
    """With a group it stays a node; without, it is forgotten, and asking again is fine."""
    assert bench.change(Kind.REMOVE, "n3", broker_groups=["g2"]).done
    assert (
        bench.members["g2"].voters == ("n1", "n2")
        and "n3" in bench.controller.state.nodes
        and "n3" in bench.controller.health.voters
    )
    assert bench.change(Kind.REMOVE, "n3").done
    assert bench.members["g1"].voters == ("n1", "n2") and bench.controller.health.voters == (
        "n1",
        "n2",
    )
    assert "n3" in bench.controller.state.removed_nodes and "n3" not in bench.controller.state.nodes
    assert bench.change(Kind.REMOVE, "n3").done


def test_a_node_that_is_asked_to_remove_itself_asks_another(bench: Bench) -> None:
    """It would not receive the result. The last node cannot be removed."""
    assert bench.change(Kind.REMOVE, "n1").waits_for == "asked n2"
    for link in bench.links.values():
        link.up = False
    with pytest.raises(Conflict, match="the last node cannot go"):
        bench.change(Kind.REMOVE, "n1")


def test_refusal_of_a_member_change_is_returned_verbatim(bench: Bench) -> None:
    """The group's leader, the controller quorum, or this node; nothing is changed elsewhere
    before."""
    bench.refuse = Refused("members-refused", detail="n2 is all that is left of three")
    with pytest.raises(Conflict, match="broker group g1: n2 is all that is left of three"):
        bench.change(Kind.REMOVE, "n3")
    assert (
        "n3" in bench.controller.state.broker_groups["g1"]
        and "n3" in bench.controller.health.voters
    )
    bench.refuse = Refused("not-leader")
    with pytest.raises(CallRefused):
        run(bench.unit.change_here("g1", pb.ChangeMemberRequest(kind=Kind.REMOVE, node="n3")))
    bench.controller.health = Health("n1", voters=("n1", "n2", "n3"), reached=frozenset({"n1"}))
    asked = len(bench.asked)
    with pytest.raises(Conflict, match="only 1 can be reached"):
        bench.change(Kind.REMOVE, "n3")
    assert len(bench.asked) == asked


@pytest.mark.parametrize("kind", [Kind.REMOVE, Kind.PROMOTE])
def test_member_change_waits_until_the_in_sync_set_is_left(bench: Bench, kind: int) -> None:
    """A member of the in-sync set first leaves the set; the same command then continues."""
    bench.joins()
    bench.change(Kind.ADD, addresses=FOURTH)
    node = "n4" if kind == Kind.PROMOTE else "n3"
    bench.refuse = Refused("members-not-yet", detail="it is still in the in-sync set")
    answer = bench.change(kind, node)
    assert not answer.done and "broker group g1: it is still in the in-sync set" in answer.waits_for
    assert (
        "n3" in bench.controller.state.broker_groups["g1"]
        and "n3" in bench.controller.health.voters
    )
    bench.refuse = None
    assert bench.change(kind, node).done


def test_a_node_that_did_not_answer_when_it_was_added_is_let_in_later(bench: Bench) -> None:
    """The command that needs it adds it to the controller quorum. Other nodes are not changed."""
    assert "does not answer" in bench.change(Kind.ADD, addresses=FOURTH).waits_for
    assert "n4" not in bench.controller.health.voters
    bench.joins()
    for _ in range(2):
        run(bench.unit.let_in("n4"))
    run(bench.unit.let_in("n3"))
    assert bench.controller.health.voters == ("n1", "n2", "n3", "n4")


@pytest.mark.parametrize(
    ("kind", "node", "fields", "error", "said"),
    [
        (Kind.ADD, "n4", {}, BadRequest, "give its address"),
        (
            Kind.ADD,
            "n4",
            {"addresses": pb.NodeAddresses(peer="n2:1")},
            Conflict,
            "n2:1 is an address of node n2",
        ),
        (
            Kind.ADD,
            "n2",
            {"addresses": pb.NodeAddresses(peer="new:1")},
            Conflict,
            "at another address; .* member set-address n2",
        ),
        (
            Kind.PROMOTE,
            "n4",
            {},
            Conflict,
            "n4 is not part of this cluster; its nodes are n1, n2, n3",
        ),
        (Kind.REMOVE, "n4", {}, Conflict, "n4 is not part of this cluster"),
        (Kind.SET_ADDRESS, "n4", {"addresses": FOURTH}, Conflict, "n4 is not part of this cluster"),
        (Kind.SET_ADDRESS, "n2", {}, BadRequest, "an address is needed"),
        *(
            (
                Kind.SET_ADDRESS,
                "n2",
                {"addresses": pb.NodeAddresses(peer=at)},
                BadRequest,
                "the peer address .* is not an address",
            )
            for at in ("new", "new:0", "new:x", "::1:9081", "[::1]", "a:1:2")
        ),
        (
            Kind.REMOVE,
            "n2",
            {"broker_groups": ["g9"]},
            BadRequest,
            "broker group 'g9' does not exist; known: g1, g2",
        ),
        (Kind.UNKNOWN, "n2", {}, BadRequest, "does not know that kind"),
    ],
)
def test_wrong_requests(
    bench: Bench, kind: int, node: str, fields: dict[str, Any], error: type[LedgerError], said: str
) -> None:
    """Each with a sentence, and nothing asked of any group."""
    with pytest.raises(error, match=said):
        bench.change(kind, node, **fields)
    assert not bench.asked


def test_spare_node_is_a_member_at_once(bench: Bench) -> None:
    """A spare node: nothing has to catch up, and it votes among the controllers."""
    bench.links["n4"] = SimpleNamespace(up=True, refusal=None)
    assert bench.change(Kind.ADD, addresses=FOURTH).done
    assert (
        NODE_STATE not in bench.controller.state.nodes["n4"]
        and "n4" in bench.controller.health.voters
    )
    assert not bench.asked


def test_moving_a_node_and_the_list(bench: Bench) -> None:
    """The list shows the address of every node and the report of each leader."""
    assert bench.change(Kind.SET_ADDRESS, "n2", addresses=pb.NodeAddresses(peer="new:1")).done
    listed = {info.node: info for info in run(bench.unit.listed()).members}
    assert listed["n2"].addresses.peer == "new:1" and listed["n2"].addresses.client == "n2:0"
    assert all(info.up and info.controller and info.state == "member" for info in listed.values())
    assert [(row.broker_group, row.role) for row in listed["n3"].groups] == [
        ("g1", "voter"),
        ("g2", "voter"),
    ]
