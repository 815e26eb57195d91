"""`member drain`: what its judgement waits for, as a table, and the command against a scripted
node."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from ledgermq import cli
from ledgermq.client.plans.draining import BEHIND_MAX_BYTES, Drain, plan
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.signature import operator_of
from ledgermq.proto.status import Code
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes

NODES = ("n1", "n2", "n3")
Change = Callable[[pb.ClusterStatusResponse], object]


def status(leader: str = "n1", voters: tuple[str, ...] = NODES) -> pb.ClusterStatusResponse:
    """A healthy cluster of one broker group."""
    found = pb.ClusterStatusResponse(status=admin_status(), health="ok")
    for name in voters:
        found.nodes.add(node=name, up=True)
    group = found.groups.add(group="g1", leader=leader, voters=voters)
    for end, name in enumerate(voters):
        replica = group.replicas.add(
            node=name,
            role="leader" if name == leader else "follower",
            state="running",
            end_index=100 + end,
        )
        if name != leader:
            replica.catch_up.state, replica.catch_up.behind_bytes = "flowing", 0
    return found


def members(names: tuple[str, ...] = NODES, down: tuple[str, ...] = ()) -> list[pb.MemberInfo]:
    return [pb.MemberInfo(node=name, up=name not in down, controller=True) for name in names]


def replica(found: pb.ClusterStatusResponse, name: str) -> pb.ReplicaInfo:
    return next(known for known in found.groups[0].replicas if known.node == name)


def test_a_healthy_cluster_only_needs_another_leader() -> None:
    """The replica with the longest log takes over; a follower, and a node without a replica, can
    stop as they are."""
    assert plan(status(), members(), "n1") == Drain(transfers={"g1": "n3"})
    assert plan(status("n2"), members(), "n1") == Drain()
    elsewhere = status("n2", ("n2", "n3", "n4"))
    assert plan(elsewhere, members(("n2", "n3", "n4")), "n1") == Drain()


def test_a_worker_stops_with_its_node() -> None:
    voters = ("n1.2", "n2", "n3")
    assert plan(status("n1.2", voters), members(), "n1") == Drain(transfers={"g1": "n3"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: setattr(found.nodes[2], "up", False), "n3 is down"),
        (lambda found: setattr(replica(found, "n3"), "fenced", "disk"), "n3 has stopped"),
        (lambda found: setattr(replica(found, "n3"), "state", "repairing"), "n3 is repairing"),
        (lambda found: replica(found, "n3").ClearField("role"), "n3 has no role"),
        (
            lambda found: setattr(replica(found, "n3").catch_up, "state", "installing"),
            "n3 is installing",
        ),
        (
            lambda found: replica(found, "n3").ClearField("catch_up"),
            "n3 is not known to the leader",
        ),
        (
            lambda found: setattr(
                replica(found, "n3").catch_up, "behind_bytes", BEHIND_MAX_BYTES + 1
            ),
            "n3 lacks 8.00 MiB",
        ),
        (lambda found: found.groups[0].replicas.pop(2), "n3 is down"),
    ],
)
def test_a_majority_of_replicas_that_can_commit_must_remain(change: Change, said: str) -> None:
    """Nothing is handed over before, and a follower waits as a leader does."""
    for leader in ("n1", "n2"):
        found = status(leader)
        change(found)
        assert plan(found, members(), "n1") == Drain(
            waits=[f"broker group g1 needs 2 replicas without n1, and {said}"]
        )


def test_drain_waits_for_a_group_without_a_leader() -> None:
    found = status()
    found.groups[0].ClearField("leader")
    assert plan(found, members(), "n1").waits == ["broker group g1 has no leader"]


@pytest.mark.parametrize(
    ("in_sync", "least", "waits"),
    [(NODES, 2, []), (("n1", "n2"), 2, ["n3 is not in sync"]), (("n1", "n2"), 1, [])],
)
def test_an_ha_group_keeps_its_in_sync_set(
    in_sync: tuple[str, ...], least: int, waits: list[str]
) -> None:
    found = status()
    found.groups[0].ha.CopyFrom(pb.HaInfo(in_sync=in_sync, min_in_sync=least))
    drain = plan(found, members(), "n1")
    assert drain.waits == [
        f"broker group g1 needs 2 replicas without n1, and {why}" for why in waits
    ]
    assert drain.transfers == ({} if waits else {"g1": "n3" if "n3" in in_sync else "n2"})


def test_drain_of_one_of_two_voters_is_a_loss() -> None:
    """A stop of one of two voters stops the group, however long one waits."""
    two = plan(status(voters=("n1", "n2")), members(("n1", "n2")), "n1")
    assert not two.waits and not two.transfers
    assert two.losses == [
        "broker group g1 needs 2 of n1, n2: it stops with n1",
        "the controller quorum needs 2 of n1, n2: it stops with n1",
    ]
    assert len(plan(status(voters=("n1",)), members(("n1",)), "n1").losses) == 2


def test_the_controller_quorum_keeps_a_majority_too() -> None:
    found = plan(status("n2"), members(down=("n3",)), "n1")
    assert found.waits == [
        "the controller quorum needs 2 members without n1, and these are down: n3"
    ]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    with fake_nodes() as (fake,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", fake.endpoint)
        monkeypatch.setattr("ledgermq.client.cli.member_commands.ASK_AGAIN_S", 0.0)
        fake.answers(
            "ListMembers", pb.ListMembersResponse(status=admin_status(), members=members())
        )
        yield fake


def moved(done: bool) -> pb.TransferLeadershipResponse:
    return pb.TransferLeadershipResponse(
        status=admin_status(), done=done, lag_entries=0 if done else 5
    )


def test_drain_waits_then_hands_over_then_ends(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """A replica that is down comes back, a refused transfer is asked again, and the end is a state
    in which the node leads nothing."""
    down = status()
    down.nodes[2].up = False
    refusal = pb.TransferLeadershipResponse(
        status=pb.Status(code=Code.PRECONDITION_FAILED, message="n3 has not been heard for 500 ms")
    )
    node.answers("ClusterStatus", down, status(), status(), status(), status("n3"))
    node.answers("TransferLeadership", refusal, moved(False), moved(True))
    assert cli.run(["member", "drain", "n1", "-q"]) == 0
    assert capfd.readouterr().out == "n3 leads g1\nn1 can stop\n"
    assert node.requests["TransferLeadership"] == 3 * [
        pb.TransferLeadershipRequest(broker_group="g1", to="n3")
    ]
    assert len(node.requests["ClusterStatus"]) == 5


def test_drain_as_json_and_as_the_operator(
    node: FakeNode, capfd: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    """The cluster secret signs the calls: the machine of a node has no user's keys."""
    node.answers("ClusterStatus", status(voters=("n1", "n2")))
    secret = f"{tmp_path}/secret"
    with open(secret, "w") as file:
        file.write("s" * 32 + "\n")
    assert cli.run(["member", "drain", "n1", "--json", "--cluster-secret", secret]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "v": 1,
        "node": "n1",
        "transfers": [],
        "losses": ["broker group g1 needs 2 of n1, n2: it stops with n1"],
    }
    assert any(operator_of(b"s" * 32).access_key in value for _, value in node.metadata)


def test_drain_ends_with_4_and_the_reasons(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not within the time, or no such node; 3 if nobody answers."""
    found = status("n2")
    found.nodes[2].up = False
    node.answers("ClusterStatus", found)
    assert cli.run(["member", "drain", "n1", "--timeout", "100ms"]) == 4
    assert (
        "n1 cannot stop without a loss: broker group g1 needs 2 replicas without n1, and n3 is"
        " down; " in capfd.readouterr().err
    )
    node.answers("ClusterStatus", status())
    node.answers("TransferLeadership", moved(False))
    assert cli.run(["member", "drain", "n1", "--timeout", "100ms"]) == 4
    assert "n3 does not lead g1 yet" in capfd.readouterr().err
    assert cli.run(["member", "drain", "n9"]) == 4
    assert "there is no node n9; name one of n1, n2, n3" in capfd.readouterr().err
    node.stop()
    assert cli.run(["member", "drain", "n1", "--timeout", "100ms"]) == 3
