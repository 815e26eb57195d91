"""`ledgermq broker-group`, `move-replica` and `rebalance` from argument to output, against a
scripted node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ledgermq import cli
from ledgermq.client.api import changes
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(changes, "ASK_AGAIN_S", 0.01)
    with fake_nodes() as (found,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", found.endpoint)
        yield found


def test_a_group_is_asked_for_until_it_serves(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """The request has the given options; the creation is reported although the last answer says
    that the group exists."""
    first = pb.AddBrokerGroupResponse(
        status=admin_status(), created=True, waits_for="no leader", replicas=["n2", "n1"]
    )
    node.answers(
        "AddBrokerGroup",
        first,
        pb.AddBrokerGroupResponse(status=admin_status(), done=True, replicas=["n2", "n1"]),
    )
    assert (
        cli.run(
            [
                "broker-group",
                "add",
                "g4",
                "--replicas",
                "n1, n2",
                "--replication",
                "ha",
                "--set",
                "ack=async",
            ]
        )
        == 0
    )
    assert capfd.readouterr().out == "created: g4 on n1, n2\n"
    assert node.requests["AddBrokerGroup"][0] == pb.AddBrokerGroupRequest(
        name="g4", replicas=["n1", "n2"], settings={"replication": "ha", "ack": "async"}
    )


@pytest.mark.parametrize(
    "wrong", [["--replicas", "n1", "--count", "2"], ["--replicas", " ,"], ["--set", "ack"]]
)
def test_wrong_words_are_usage(
    node: FakeNode, capfd: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    """Nothing is asked."""
    assert cli.run(["broker-group", "add", "g4", *wrong]) == 64
    assert capfd.readouterr().err.startswith("error: ") and not node.requests["AddBrokerGroup"]


def test_a_move_is_asked_for_until_it_is_done(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """And says what stays behind."""
    lag = pb.MemberProgress(broker_group="g1", node="n4", role="learner", lag_entries=70_000)
    waiting = pb.MoveReplicaResponse(
        status=admin_status(), step="catch-up", waits_for="70000", progress=lag
    )
    node.answers(
        "MoveReplica",
        waiting,
        pb.MoveReplicaResponse(
            status=admin_status(), done=True, step="done", left_directory="n1: g1/"
        ),
    )
    assert cli.run(["move-replica", "g1", "--from", "n1", "--to", "n4"]) == 0
    assert (
        capfd.readouterr().out == "g1: the replica of n1 is on n4 now; its files stay in n1: g1/\n"
    )
    assert len(node.requests["MoveReplica"]) == 2


def test_a_move_that_does_not_move_is_an_error_with_its_reason(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error comes after the timeout; the same command continues later."""
    node.answers(
        "MoveReplica",
        pb.MoveReplicaResponse(status=admin_status(), step="open", waits_for="node n4 is silent"),
    )
    assert cli.run(["move-replica", "g1", "--from", "n1", "--to", "n4", "--timeout", "200ms"]) == 4
    assert "node n4 is silent" in capfd.readouterr().err
    status = pb.Status(
        code=int(Code.PRECONDITION_FAILED), message="it would lose its quorum; start those first"
    )
    node.answers("MoveReplica", pb.MoveReplicaResponse(status=status))
    assert cli.run(["move-replica", "g1", "--from", "n1", "--to", "n4"]) == 4
    assert "it would lose its quorum" in capfd.readouterr().err


STEPS = [
    pb.RebalanceStep(
        kind="move-replica",
        broker_group="g1",
        from_node="n1",
        to_node="n4",
        reason="n1 has 3 replicas and n4 has 0",
    ),
    pb.RebalanceStep(
        kind="move-leader", broker_group="g2", from_node="n1", to_node="n2", reason="n1 leads 2"
    ),
    pb.RebalanceStep(
        kind="add-queues",
        broker_group="g2",
        topic=pb.Name(name="t"),
        queues=8,
        reason="it has none",
    ),
]


def test_rebalance_dry_run_lists_steps_without_moving(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """A line for each step, with its reason."""
    node.answers(
        "PlanRebalance",
        pb.PlanRebalanceResponse(status=admin_status(), steps=STEPS, notes=["f stays"]),
    )
    assert cli.run(["rebalance", "--dry-run"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "1. move the replica of g1 from n1 to n4: n1 has 3 replicas and n4 has 0",
        "2. let n2 lead g2 instead of n1: n1 leads 2",
        "3. 8 queues of topic t in g2: it has none",
        "note: f stays",
    ]
    assert cli.run(["rebalance"]) == 64, "it does not move anything unasked"
    assert not node.requests["MoveReplica"]


def test_the_steps_are_taken_in_order(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    """Each by its own call; a balanced cluster has none."""
    node.answers("PlanRebalance", pb.PlanRebalanceResponse(status=admin_status(), steps=STEPS))
    node.answers("MoveReplica", pb.MoveReplicaResponse(status=admin_status(), done=True))
    node.answers("PreferLeader", pb.PreferLeaderResponse(status=admin_status()))
    node.answers(
        "TransferLeadership", pb.TransferLeadershipResponse(status=admin_status(), done=True)
    )
    node.answers("UpdateTopic", pb.UpdateTopicResponse(status=admin_status()))
    assert cli.run(["rebalance", "--yes", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["taken"] == 3
    assert node.requests["PreferLeader"] == [pb.PreferLeaderRequest(broker_group="g2", node="n2")]
    assert node.requests["UpdateTopic"] == [
        pb.UpdateTopicRequest(topic=pb.Name(name="t"), grow={"g2": 8})
    ]
    node.answers("PlanRebalance", pb.PlanRebalanceResponse(status=admin_status()))
    assert cli.run(["rebalance", "--yes"]) == 0
    assert capfd.readouterr().out == "balanced: nothing to move\n"


def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as soon as a command waits."""

    def pressed(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pressed)


def test_ctrl_c_states_finished_steps_and_how_to_continue(
    node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a balance: the finished steps, the running step, and how to continue or undo it."""
    steps = [STEPS[2], STEPS[0], STEPS[1]]
    node.answers("PlanRebalance", pb.PlanRebalanceResponse(status=admin_status(), steps=steps))
    node.answers("UpdateTopic", pb.UpdateTopicResponse(status=admin_status()))
    node.answers(
        "MoveReplica",
        pb.MoveReplicaResponse(status=admin_status(), step="catch-up", waits_for="entries"),
    )
    interrupt(monkeypatch)
    assert cli.run(["rebalance", "--yes"]) == 130
    told = capfd.readouterr()
    assert told.out.splitlines()[-1] == "done: 8 queues of topic t in g2"
    assert (
        told.err.splitlines()[-1]
        == "error: stopped in step 2 of 3, move the replica of g1 from n1 to n4: completed steps"
        " stay; continue: ledgermq rebalance, or abort this move: ledgermq move-replica g1"
        " --from n1 --to n4 --abort"
    )
    assert cli.run(["move-replica", "g1", "--from", "n1", "--to", "n4"]) == 130
    assert (
        capfd.readouterr().err.splitlines()[-1]
        == "error: stopped while the replica of g1 is on its way from n1 to n4; continue: ledgermq"
        " move-replica g1 --from n1 --to n4, or abort: ledgermq move-replica g1 --from n1 --to"
        " n4 --abort"
    )
    assert cli.run(["move-replica", "g1", "--from", "n1", "--to", "n4", "--abort"]) == 130
    assert (
        capfd.readouterr()
        .err.splitlines()[-1]
        .endswith("n1 to n4; continue: ledgermq move-replica g1 --from n1 --to n4 --abort")
    )


def test_a_step_that_is_refused_is_named(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    """With its number and the reason."""
    node.answers("PlanRebalance", pb.PlanRebalanceResponse(status=admin_status(), steps=STEPS))
    status = pb.Status(
        code=int(Code.PRECONDITION_FAILED), message="it would lose its quorum; start those first"
    )
    node.answers("MoveReplica", pb.MoveReplicaResponse(status=status))
    assert cli.run(["rebalance", "--yes"]) == 4
    assert (
        capfd.readouterr().err.splitlines()[-1]
        == "error: step 1 of 3, move the replica of g1 from n1 to n4: it would lose its quorum;"
        " start those first"
    )
