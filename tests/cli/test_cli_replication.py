"""`elect` and `replication` from argument to output, against a scripted node."""

from __future__ import annotations

import json

import pytest

from ledgermq import cli
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from tests.client.fake_cluster import admin_status, fake_nodes

ELECT = ["elect", "g1", "--node", "n2"]
LOSS = "n2 has entries up to 7; 3 later ones, of 40 ms, are known to exist and would be lost"


def refusal(message: str) -> pb.Status:
    return pb.Status(code=Code.PRECONDITION_FAILED, message=message)


def led(epoch: int) -> pb.ClusterStatusResponse:
    return pb.ClusterStatusResponse(
        status=admin_status(), groups=[pb.BrokerGroupInfo(group="g1", leader="n2", term=epoch)]
    )


def test_an_election_waits_until_the_master_leads(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question; then the status, until the new epoch has a leader."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        node.answers(
            "ElectMaster",
            pb.ElectMasterResponse(status=admin_status(), epoch=5, loss="nothing is lost"),
        )
        node.answers("ClusterStatus", led(4), led(5))
        assert cli.run(ELECT) == 0
        assert capfd.readouterr().out == "n2 is master of g1 in epoch 5: nothing is lost\n"
        assert node.requests["ElectMaster"] == [pb.ElectMasterRequest(broker_group="g1", node="n2")]
        assert len(node.requests["ClusterStatus"]) == 2


def test_unclean_election_previews_its_loss_before_confirmation(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `--yes` nothing happens but the question what would be lost."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        told = pb.ElectMasterResponse(status=admin_status(), loss=LOSS, lost_entries=3, lost_ms=40)
        node.answers("ElectMaster", told)
        assert cli.run([*ELECT, "--unclean"]) == 64
        assert LOSS in capfd.readouterr().err
        assert [request.preview for request in node.requests["ElectMaster"]] == [True]
        granted = pb.ElectMasterResponse()
        granted.CopyFrom(told)
        granted.epoch = 5
        node.answers("ElectMaster", told, granted)
        node.answers("ClusterStatus", led(5))
        assert cli.run([*ELECT, "--unclean", "--yes", "--json"]) == 0
        expected = {
            "v": 1,
            "group": "g1",
            "master": "n2",
            "epoch": 5,
            "loss": LOSS,
            "lost_entries": 3,
            "lost_ms": 40,
        }
        assert json.loads(capfd.readouterr().out) == expected
        assert [request.preview for request in node.requests["ElectMaster"]] == [True, True, False]


def test_an_election_that_is_refused_says_why(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 with the reason; 4 as well for a master that does not come to lead."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        node.answers(
            "ElectMaster", pb.ElectMasterResponse(status=refusal("n1 is master of g1 (epoch 4)"))
        )
        assert cli.run(ELECT) == 4
        assert "n1 is master of g1 (epoch 4)" in capfd.readouterr().err
        node.answers("ElectMaster", pb.ElectMasterResponse(status=admin_status(), epoch=5))
        node.answers("ClusterStatus", led(4))
        assert cli.run([*ELECT, "--timeout", "300ms"]) == 4
        assert "does not lead" in capfd.readouterr().err


def test_a_change_of_replication_is_followed_until_it_is_done(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request continues the change; `--no-wait` sends one request; a change without progress
    ends the command with the reason for the wait."""
    under_way = pb.ChangeReplicationResponse(
        status=admin_status(), waits_for="every voter confirms the change", replication="raft to ha"
    )
    done = pb.ChangeReplicationResponse(status=admin_status(), done=True, replication="ha")
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        node.answers("ChangeReplication", under_way, under_way, done)
        assert cli.run(["replication", "g1", "--to", "ha", "-q"]) == 0
        assert capfd.readouterr().out == "g1 goes by ha\n"
        assert node.requests["ChangeReplication"] == 3 * [
            pb.ChangeReplicationRequest(broker_group="g1", to="ha")
        ]
        node.answers("ChangeReplication", under_way)
        assert cli.run(["replication", "g1", "--to", "ha", "--no-wait", "--json"]) == 0
        expected = {
            "v": 1,
            "group": "g1",
            "replication": "raft to ha",
            "min_in_sync": None,
            "done": False,
        }
        assert json.loads(capfd.readouterr().out) == expected | {
            "waits_for": "every voter confirms the change"
        }
        assert cli.run(["replication", "g1", "--to", "ha", "--timeout", "300ms", "-q"]) == 4
        assert "it waits until every voter confirms the change" in capfd.readouterr().err
        assert cli.run(["replication", "g1", "--to", "chain"]) == 64


def test_another_minimum_is_asked_for_by_name_and_recorded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller one needs a yes, and nothing is sent without; a minimum and a kind together are
    wrong usage."""
    ha = pb.HaInfo(min_in_sync=2)
    status = pb.ClusterStatusResponse(
        status=admin_status(), groups=[pb.BrokerGroupInfo(group="h1", ha=ha)]
    )
    done = pb.ChangeReplicationResponse(
        status=admin_status(), done=True, replication="ha", min_in_sync=1
    )
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        node.answers("ClusterStatus", status)
        node.answers("ChangeReplication", done)
        assert cli.run(["replication", "h1", "--min-in-sync", "1"]) == 64
        assert (
            "acknowledging what only 1 of the replicas of h1 have, instead of 2, cannot be undone"
            in capfd.readouterr().err
        )
        assert "ChangeReplication" not in node.requests
        assert cli.run(["replication", "h1", "--min-in-sync", "1", "--yes"]) == 0
        assert capfd.readouterr().out == "h1 goes by min_in_sync 1\n"
        assert node.requests["ChangeReplication"] == [
            pb.ChangeReplicationRequest(broker_group="h1", min_in_sync=1)
        ]
        assert cli.run(["replication", "h1", "--min-in-sync", "1", "--yes", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["min_in_sync"] == 1
        assert cli.run(["replication", "h1", "--min-in-sync", "3", "-q"]) == 0, (
            "a greater one asks nothing"
        )
        for wrong in ([], ["--to", "ha", "--min-in-sync", "1"], ["--min-in-sync", "0"]):
            assert cli.run(["replication", "h1", "--yes", *wrong]) == 64
