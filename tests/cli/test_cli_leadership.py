"""`transfer`, `begin-time-epoch` and `why-leader-moved` from argument to output, against a scripted
node."""

from __future__ import annotations

import json

import pytest

from ledgermq import cli
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import Code
from tests.client.fake_cluster import admin_status, fake_nodes

GROUP = ["transfer", "g1", "--to", "n2"]


def answer(done: bool, lag: int = 0) -> admin_pb2.TransferLeadershipResponse:
    return admin_pb2.TransferLeadershipResponse(status=admin_status(), done=done, lag_entries=lag)


def test_transfer_asks_until_it_is_done(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request joins the running transfer; the result is one line, or one object."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        node.answers("TransferLeadership", answer(False, 500), answer(False, 20), answer(True))
        assert cli.run(GROUP) == 0
        assert capfd.readouterr().out == "n2 leads g1\n"
        assert node.requests["TransferLeadership"] == 3 * [
            admin_pb2.TransferLeadershipRequest(broker_group="g1", to="n2")
        ]
        assert cli.run([*GROUP, "--json"]) == 0
        assert json.loads(capfd.readouterr().out) == {"v": 1, "group": "g1", "leader": "n2"}


def test_transfer_says_why_not(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 with the leader's own sentence, 4 when the target does not come near in time, 3 without a
    leader."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        status = admin_pb2.Status(
            code=Code.PRECONDITION_FAILED, message="n2 has not been heard for 500 ms"
        )
        node.answers("TransferLeadership", admin_pb2.TransferLeadershipResponse(status=status))
        assert cli.run(GROUP) == 4
        assert "n2 has not been heard for 500 ms; " in capfd.readouterr().err
        node.answers("TransferLeadership", answer(False, 9))
        assert cli.run([*GROUP, "--timeout", "300ms", "-q"]) == 4
        assert "n2 does not lead g1 yet: it lacks 9 entries on its disk" in capfd.readouterr().err
        status = admin_pb2.Status(
            code=Code.HA_NOT_AVAILABLE, message="broker group g1 had no leader within the deadline"
        )
        node.answers("TransferLeadership", admin_pb2.TransferLeadershipResponse(status=status))
        assert cli.run([*GROUP, "--timeout", "300ms"]) == 3


def test_a_time_epoch_begins(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with --yes where nobody can be asked; without a reason the leader refuses it."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        ahead = admin_pb2.BrokerGroupInfo(
            group="g1", leader="n1", level=3, store_time_ahead_ms=90_000
        )
        node.answers(
            "ClusterStatus", admin_pb2.ClusterStatusResponse(status=admin_status(), groups=[ahead])
        )
        node.answers(
            "BeginTimeEpoch",
            admin_pb2.BeginTimeEpochResponse(status=admin_status(), before_ms=90_000, ms=1_000),
        )
        assert cli.run(["begin-time-epoch", "g1"]) == 64
        assert (
            "1 min 30 s ahead of its leader's clock. Begin a time epoch" in capfd.readouterr().err
        )
        assert "BeginTimeEpoch" not in node.requests
        assert cli.run(["begin-time-epoch", "g1", "--yes"]) == 0
        told = (
            "a time epoch of g1 began at 1970-01-01T00:00:01Z; the newest store time before was"
            " 1970-01-01T00:01:30Z\n"
        )
        assert capfd.readouterr().out == told
        assert cli.run(["begin-time-epoch", "g1", "--yes", "--json"]) == 0
        assert json.loads(capfd.readouterr().out) == {
            "v": 1,
            "group": "g1",
            "before_ms": 90_000,
            "ms": 1_000,
        }
        assert node.requests["BeginTimeEpoch"] == 2 * [
            admin_pb2.BeginTimeEpochRequest(broker_group="g1")
        ]
        status = admin_pb2.Status(code=Code.PRECONDITION_FAILED, message="not ahead")
        node.answers("ClusterStatus", admin_pb2.ClusterStatusResponse(status=admin_status()))
        node.answers("BeginTimeEpoch", admin_pb2.BeginTimeEpochResponse(status=status))
        assert cli.run(["begin-time-epoch", "g1"]) == 4


def test_why_leader_moved_is_a_sentence_and_its_evidence(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text and the object say the same."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        told = admin_pb2.LeadershipHistoryResponse(
            status=admin_status(), answer="It moved.", reason="operator", evidence=["one", "two"]
        )
        node.answers("LeadershipHistory", told)
        assert cli.run(["why-leader-moved", "g1"]) == 0
        assert capfd.readouterr().out == "It moved.\n  one\n  two\n"
        assert cli.run(["why-leader-moved", "g1", "--last", "3", "--json"]) == 0
        expected = {"v": 1, "answer": "It moved.", "reason": "operator", "evidence": ["one", "two"]}
        assert json.loads(capfd.readouterr().out) == expected
        assert [request.last for request in node.requests["LeadershipHistory"]] == [10, 3]
        assert cli.run(["why-leader-moved", "g1", "--last", "0"]) == 64
