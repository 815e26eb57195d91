"""`member scale`: its plan in every small cluster, at every point of an interruption, and the
command against a scripted node."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ledgermq import cli
from ledgermq.client.plans.scaling import Cluster, Group, Member, Plan, Step, facts, plan
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from tests.cli.test_cli_drain import members, status
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes


def names(numbers: tuple[int, ...]) -> frozenset[str]:
    return frozenset(f"mq-{number}" for number in numbers)


def cluster_of(nodes: frozenset[str], up: frozenset[str], *groups: Group) -> Cluster:
    return Cluster(
        {node: Member(node in up, controller=True) for node in sorted(nodes)},
        {f"g{k}": group for k, group in enumerate(groups, 1)},
    )


def stages(voters: frozenset[str], nodes: frozenset[str], up: frozenset[str]) -> Iterator[Group]:
    """A group at rest, and at each point of each move of one of its replicas."""
    yield Group(voters, voters & up)
    for source in sorted(voters):
        for target in sorted(nodes - voters):
            move = (source, target)
            yield Group(voters, voters & up, move=move)
            yield Group(voters, voters & up, others=frozenset({target}), move=move)
            yield Group(voters | {target}, (voters | {target}) & up, move=move)
            after = voters - {source} | {target}
            yield Group(after, after & up, move=move)


def works(group: Group) -> bool:
    return len(group.sound) * 2 > len(group.voters)


def quorum(cluster: Cluster) -> bool:
    voting = [member for member in cluster.members.values() if member.controller]
    return sum(member.up for member in voting) * 2 > len(voting)


def after(cluster: Cluster, step: Step) -> Cluster:
    """The cluster behind the next single change of a step, as the nodes make it: one record of one
    group, or one of the controllers."""
    if step.kind == "remove":
        assert not any(step.node in group.voters for group in cluster.groups.values()), (
            "a node that leaves has no voting replica"
        )
        return Cluster(
            {name: member for name, member in cluster.members.items() if name != step.node},
            cluster.groups,
        )
    if step.kind in ("add", "promote"):
        return Cluster(
            {**cluster.members, step.node: Member(up=True, controller=True)}, cluster.groups
        )
    group = cluster.groups[step.group]
    assert group.move in (None, (step.node, step.target)), "one move of a group at a time"
    up = frozenset(name for name, member in cluster.members.items() if member.up)
    begun = replace(group, move=(step.node, step.target))
    if step.kind == "abort":
        assert step.node in group.voters, "what is given up leaves the source"
        voters, others, move = group.voters - {step.target}, group.others - {step.target}, None
    elif group.move is None:
        assert step.target in up
        voters, others, move = group.voters, group.others, begun.move
    elif step.target not in group.others | group.voters:
        voters, others, move = group.voters, group.others | {step.target}, begun.move
    elif step.target in group.others:
        voters, others, move = (
            group.voters | {step.target},
            group.others - {step.target},
            begun.move,
        )
    elif step.node in group.voters:
        voters, others, move = group.voters - {step.node}, group.others, begun.move
    else:
        voters, others, move = group.voters, group.others, None
    changed = Group(voters, voters & up, move=move, others=others)
    assert len(voters ^ group.voters) <= 1, "one change of voters at a time"
    return Cluster(cluster.members, {**cluster.groups, step.group: changed})


def followed(cluster: Cluster, count: int) -> tuple[Cluster, bool]:
    """Plan, make one change, plan anew, as a command that is interrupted after each change; returns
    the end and whether it is as wanted."""
    for _ in range(60):
        found = plan(cluster, "mq", count, adds=False)
        if found.refused or not found.steps:
            assert not (found.refused and found.steps)
            return cluster, not found.refused
        former, cluster = cluster, after(cluster, found.steps[0])
        assert quorum(cluster) or not quorum(former), "the controllers keep their majority"
        for name, group in cluster.groups.items():
            assert works(group) or not works(former.groups[name]), f"{name} keeps its majority"
            assert group.sound or not former.groups[name].sound, "the last copy in sync stays"
            if found.steps[0].kind != "abort":
                extra = step_gain(former.groups[name], group)
                assert len(group.sound) >= len(former.groups[name].sound) - extra, (
                    "no voter in sync goes before its successor votes"
                )
    raise AssertionError(f"no end: {cluster}")


def step_gain(former: Group, group: Group) -> int:
    """One: a source in sync went, whose successor votes already; the group has as many voters as
    before the move."""
    return int(
        group.move is not None
        and group.move[0] in former.sound - group.sound
        and group.move[1] in group.sound
    )


def small_clusters(nodes: frozenset[str]) -> Iterator[Cluster]:
    for size in (1, 3):
        for voters in map(frozenset, itertools.combinations(sorted(nodes), size)):
            for down in range(3):
                for missing in itertools.combinations(sorted(nodes), down):
                    up = nodes - frozenset(missing)
                    for group in stages(voters, nodes, up):
                        yield cluster_of(nodes, up, group)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 2, 3, 4)])
def test_every_small_cluster_shrinks_safely_or_not_at_all(numbers: tuple[int, ...]) -> None:
    """Groups placed anywhere, moves at any point, up to two nodes down: majorities and copies stay,
    and planning ends. What is whole and up always shrinks down to the number of replicas; a plan
    that is refused at its first step has changed nothing. As the set contains every point of every
    move, a node that stops in between is another of these clusters."""
    nodes, ends = names(numbers), {True: 0, False: 0}
    for cluster in small_clusters(nodes):
        (group,) = cluster.groups.values()
        for count in range(1, max(numbers) + 1):
            first = plan(cluster, "mq", count, adds=False)
            end, done = followed(cluster, count)
            ends[done] += 1
            assert not first.refused or end is cluster
            remaining = frozenset(node for node in nodes if int(node[3:]) < count)
            if not first.refused:
                assert (
                    done
                    and frozenset(end.members) == remaining
                    and end.groups["g1"].voters <= remaining
                )
                assert (
                    len(end.groups["g1"].voters) == group.factor
                    or end.groups["g1"].voters == group.voters
                )
            elif all(member.up for member in cluster.members.values()):
                assert len(remaining) < group.factor, first.refused
    assert ends[True] and ends[False]


def test_refused_scale_names_groups_that_lose_their_quorum() -> None:
    nodes = names((0, 1, 2, 3, 4))
    three, far = (
        Group(names((0, 1, 2)), names((0, 1, 2))),
        Group(names((2, 3, 4)), names((2, 3, 4))),
    )
    whole = cluster_of(nodes, nodes, three, far)
    assert (
        plan(whole, "mq", 2).refused
        == "broker group g1 has 3 replicas, and only 2 nodes would remain for them"
    )
    assert plan(whole, "other", 3).refused.startswith(
        "no member is named other-0, other-1 …; the members are mq-0,"
    )
    assert (
        plan(cluster_of(nodes, nodes, replace(far, led=False)), "mq", 3).refused
        == "broker group g1 has no leader"
    )
    down = cluster_of(nodes, nodes - {"mq-0"}, Group(far.voters, far.voters))
    assert (
        plan(down, "mq", 3).refused
        == "no node can take the replica of broker group g1 from mq-4; these are down: mq-0"
    )
    two_down = cluster_of(nodes, names((0, 3, 4)))
    assert (
        plan(two_down, "mq", 3).refused
        == "the controller quorum would have 4 members without mq-4 and need 3, and these are down:"
        " mq-1, mq-2"
    )
    behind = cluster_of(nodes, nodes, Group(far.voters, names((3,))))
    assert (
        plan(behind, "mq", 3).refused
        == "broker group g1 would have 4 voters and need 3, and these are down or not in sync:"
        " mq-2, mq-4"
    )
    ha = cluster_of(nodes, nodes, Group(far.voters, names((4,)), least=3))
    assert "need 3, and these are down or not in sync: mq-2, mq-3" in plan(ha, "mq", 3).refused


def test_replicas_move_before_nodes_leave_and_nodes_that_are_down_leave_first() -> None:
    nodes = names((0, 1, 2, 3, 4))
    found = plan(cluster_of(nodes, nodes, Group(names((2, 3, 4)), names((2, 3, 4)))), "mq", 3)
    moves = (Step("move", "mq-3", "g1", "mq-0"), Step("move", "mq-4", "g1", "mq-1"))
    assert found.steps == (*moves, Step("remove", "mq-4"), Step("remove", "mq-3"))
    assert plan(cluster_of(nodes, nodes - {"mq-3"}), "mq", 3).steps == (
        Step("remove", "mq-3"),
        Step("remove", "mq-4"),
    )
    workers = {
        "mq-1": Member(True, True),
        "mq-1.2": Member(True, False),
        "mq-0": Member(True, True),
        "mq-0.2": Member(True, False),
    }
    assert plan(Cluster(workers, {}), "mq", 1).steps == (
        Step("remove", "mq-1.2"),
        Step("remove", "mq-1"),
    )


def test_nodes_join_once_and_learners_get_their_votes() -> None:
    """Other nodes stay as they are, and a replica that moves is promoted by its move."""
    found = {
        **cluster_of(names((0, 1, 2)), names((0, 1, 2))).members,
        "dr1": Member(True, False, "observer"),
    }
    assert plan(Cluster(found, {}), "mq", 4, workers=2).steps == tuple(
        Step("add", node) for node in ("mq-0.2", "mq-1.2", "mq-2.2", "mq-3", "mq-3.2")
    )
    assert plan(Cluster(found, {}), "mq", 4, adds=False) == Plan()
    learning = Cluster({**found, "mq-3": Member(True, True, "joining", learns=True)}, {})
    assert plan(learning, "mq", 4).steps == (Step("promote", "mq-3"),)
    moving = Group(names((0, 1, 2)), names((0, 1, 2)), others=names((3,)), move=("mq-0", "mq-3"))
    assert plan(Cluster(learning.members, {"g1": moving}), "mq", 4).steps == (Step("add", "mq-3"),)


def test_unknown_leader_or_node_counts_as_unsafe() -> None:
    """Without a leader every node that is meant to replicate counts as a voter, and none is in
    sync; a node that one of two answers calls down is down."""
    told, listed = status("n1"), members(down=("n2",))
    told.nodes[2].up = False
    entry = pb.BrokerGroupEntry(broker_group="g1", replicas=["n1", "n4"])
    entry.move.from_node, entry.move.to_node = "n1", "n4"
    cluster = facts(told, listed, [entry])
    assert [name for name, member in cluster.members.items() if member.up] == ["n1"]
    assert cluster.groups["g1"] == Group(
        frozenset({"n1", "n2", "n3"}), frozenset({"n1", "n2"}), move=("n1", "n4")
    )
    told.groups[0].ClearField("leader")
    unled = facts(told, listed, [entry]).groups["g1"]
    assert (unled.voters, unled.sound, unled.led) == (
        frozenset({"n1", "n2", "n3", "n4"}),
        frozenset(),
        False,
    )


# -- the command

FOUR = tuple(f"mq-{number}" for number in range(4))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    with fake_nodes() as (fake,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", fake.endpoint)
        monkeypatch.setattr("ledgermq.client.cli.scale_commands.ASK_AGAIN_S", 0.0)
        fake.answers("ClusterStatus", status("mq-0", FOUR[1:]))
        fake.answers("ListBrokerGroups", groups(FOUR[1:]))
        yield fake


def groups(replicas: tuple[str, ...]) -> pb.ListBrokerGroupsResponse:
    return pb.ListBrokerGroupsResponse(
        status=admin_status(), groups=[pb.BrokerGroupEntry(broker_group="g1", replicas=replicas)]
    )


def listed(names: tuple[str, ...]) -> pb.ListMembersResponse:
    return pb.ListMembersResponse(status=admin_status(), members=members(names))


def test_scale_plans_anew_after_each_answer(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """The move is asked for until it is done; then the node, which has no replica any more,
    leaves."""
    first, then = status("mq-1", FOUR[1:]), status("mq-1", FOUR[:3])
    for info in (first, then):
        del info.nodes[:]
        info.nodes.extend(pb.NodeInfo(node=name, up=True) for name in FOUR)
    node.answers("ClusterStatus", first, first, first, then)
    node.answers("ListMembers", *4 * [listed(FOUR)], listed(FOUR[:3]))
    waits = pb.MoveReplicaResponse(
        status=admin_status(), step="catch-up", waits_for="mq-0 lacks 7 entries"
    )
    node.answers("MoveReplica", waits, pb.MoveReplicaResponse(status=admin_status(), done=True))
    node.answers("ChangeMember", pb.ChangeMemberResponse(status=admin_status(), done=True))
    assert cli.run(["member", "scale", "mq", "--replicas", "3", "--yes", "-q"]) == 0
    assert (
        capfd.readouterr().out
        == "1. move the replica of g1 from mq-3 to mq-0\n2. remove mq-3\ndone: move the replica of"
        " g1 from mq-3 to mq-0\ndone: remove mq-3\nno member of mq is beyond 3 nodes\n"
    )
    assert node.requests["MoveReplica"] == 2 * [
        pb.MoveReplicaRequest(broker_group="g1", from_node="mq-3", to_node="mq-0")
    ]
    assert [request.kind for request in node.requests["ChangeMember"]] == [
        pb.ChangeMemberRequest.REMOVE
    ]


def test_scale_up_adds_nodes_and_spreads_groups(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    found = status("mq-0", FOUR[:3])
    node.answers("ClusterStatus", found)
    waits = pb.ChangeMemberResponse(status=admin_status(), waits_for="it does not answer")
    node.answers("ChangeMember", waits, pb.ChangeMemberResponse(status=admin_status(), done=True))
    node.answers("ListMembers", *3 * [listed(FOUR[:3])], listed(FOUR))
    queues = pb.RebalanceStep(kind="add-queues", broker_group="g1", queues=8)
    leader = pb.RebalanceStep(
        kind="move-leader", broker_group="g1", from_node="mq-0", to_node="mq-1"
    )
    plans = [
        pb.PlanRebalanceResponse(status=admin_status(), steps=steps)
        for steps in ([queues, leader], [queues])
    ]
    node.answers("PlanRebalance", *plans)
    node.answers("PreferLeader", pb.PreferLeaderResponse(status=admin_status()))
    node.answers(
        "TransferLeadership", pb.TransferLeadershipResponse(status=admin_status(), done=True)
    )
    options = [
        "--replicas",
        "4",
        "--address",
        "{node}.nodes:81:82:83:84",
        *(f"--advertised=mq{k}.example.com:99" for k in range(4)),
    ]
    assert cli.run(["member", "scale", "mq", *options, "--json", "-q"]) == 0
    assert json.loads(capfd.readouterr().out)["taken"] == [
        "add mq-3",
        "let mq-1 lead g1 instead of mq-0",
    ]
    addresses = pb.NodeAddresses(
        client="mq3.example.com:99",
        peer="mq-3.nodes:82",
        controller="mq-3.nodes:83",
        http="mq-3.nodes:84",
    )
    request = pb.ChangeMemberRequest(
        kind=pb.ChangeMemberRequest.ADD, node="mq-3", addresses=addresses
    )
    assert node.requests["ChangeMember"] == [request, request]


def test_refused_or_dry_scale_sends_no_change(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    found = status("mq-1", FOUR[1:])
    found.nodes.add(node="mq-0", up=True)
    node.answers("ClusterStatus", found)
    node.answers("ListMembers", listed(FOUR))
    assert cli.run(["member", "scale", "mq", "--replicas", "2", "--yes"]) == 4
    said = capfd.readouterr().err
    assert (
        "2 nodes: broker group g1 has 3 replicas, and only 2 nodes would remain for them; nothing"
        " was changed; " in said
    )
    assert cli.run(["member", "scale", "mq", "--replicas", "3"]) == 64, "removing nodes needs --yes"
    assert "removing mq-3 from the cluster cannot be undone" in capfd.readouterr().err
    assert cli.run(["member", "scale", "mq", "--replicas", "3", "--dry-run"]) == 0
    assert capfd.readouterr().out == "1. move the replica of g1 from mq-3 to mq-0\n2. remove mq-3\n"
    assert cli.run(["member", "scale", "mq", "--replicas", "3", "--address", "nowhere"]) == 64
    assert (
        cli.run(
            ["member", "scale", "mq", "--replicas", "3", "--address", "h:81", "--advertised", "h:1"]
        )
        == 64
    )
    assert not {"ChangeMember", "MoveReplica", "PlanRebalance"} & set(node.requests)


def test_scale_of_an_older_node_uses_only_drain_calls(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before an upgrade, with as many nodes as wanted, the calls of `member drain` are enough."""
    node.answers("ListMembers", listed(FOUR))
    refusal = pb.ListBrokerGroupsResponse(
        status=pb.Status(code=Code.FORBIDDEN, message="no permission")
    )
    node.answers("ListBrokerGroups", refusal)
    assert cli.run(["member", "scale", "mq", "--replicas", "4", "--yes"]) == 0
    assert (
        capfd.readouterr().out == "no member of mq is beyond 4 nodes\n"
        and "ListBrokerGroups" not in node.requests
    )
    assert cli.run(["member", "scale", "mq", "--replicas", "3", "--yes"]) == 4


def test_scale_ends_without_progress(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    found = status("mq-1", FOUR[1:])
    found.nodes.add(node="mq-0", up=True)
    node.answers("ClusterStatus", found)
    node.answers("ListMembers", listed(FOUR))
    node.answers(
        "MoveReplica",
        pb.MoveReplicaResponse(
            status=admin_status(), step="catch-up", waits_for="mq-0 lacks 7 entries"
        ),
    )
    assert cli.run(["member", "scale", "mq", "--replicas", "3", "--yes", "--timeout", "100ms"]) == 4
    assert (
        "no progress for 0.1 s: move the replica of g1 from mq-3 to mq-0: mq-0 lacks 7 entries"
        in capfd.readouterr().err
    )
