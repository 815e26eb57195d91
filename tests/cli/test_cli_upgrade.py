"""`upgrade status` and `upgrade finish` from argument to output, against a scripted node."""

from __future__ import annotations

import json

import pytest

from ledgermq import cli
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from tests.client.fake_cluster import admin_status, fake_nodes


def answered(*nodes: pb.NodeInfo, level: int | None = 1) -> pb.ClusterStatusResponse:
    return pb.ClusterStatusResponse(
        status=admin_status(), nodes=nodes, groups=[pb.BrokerGroupInfo(group="g1", level=level)]
    )


def node(name: str, level_max: int | None, version: str = "0.2.0") -> pb.NodeInfo:
    return pb.NodeInfo(node=name, up=True, version=version, level_max=level_max)


def asked(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    answer: pb.ClusterStatusResponse,
    *options: str,
) -> str:
    with fake_nodes() as (fake,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", fake.endpoint)
        fake.answers("ClusterStatus", answer)
        assert cli.run(["upgrade", "status", *options]) == 0
    return capfd.readouterr().out


def test_upgrade_status_without_obstacles_lists_all_nodes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that states no level reads level 1."""
    out = asked(monkeypatch, capfd, answered(node("n1", 1), node("n2", None, "0.1.0")))
    assert out.splitlines()[-1] == "nothing is in the way: all nodes read the same levels"
    assert [
        line.split()[1:8:2] for line in out.splitlines() if " n1 " in line or " n2 " in line
    ] == [
        ["n1", "up", "0.2.0", "1"],
        ["n2", "up", "0.1.0", "1"],
    ]


def test_it_names_the_nodes_that_are_in_the_way(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older program, and a node that cannot be asked."""
    found = json.loads(
        asked(
            monkeypatch,
            capfd,
            answered(node("n1", 2), node("n2", 1), pb.NodeInfo(node="n3")),
            "--json",
        )
    )
    assert found == {
        "v": 1,
        "level": 1,
        "nodes": [
            {"node": "n1", "up": True, "version": "0.2.0", "level_max": 2},
            {"node": "n2", "up": True, "version": "0.2.0", "level_max": 1},
            {"node": "n3", "up": False, "version": None, "level_max": None},
        ],
        "broker_groups": [{"broker_group": "g1", "level": 1}],
        "in_the_way": [
            "node n2 reads up to level 1, others up to 2; upgrade it",
            "node n3 does not answer, so the level that it reads is not known; start it",
        ],
    }
    out = asked(monkeypatch, capfd, answered(node("n1", 2), node("n2", 1), level=None))
    assert (
        out.splitlines()[-1]
        == "in the way: node n2 reads up to level 1, others up to 2; upgrade it"
    )
    assert "?" in out, "no replica of the group answers"


# -- finish


def finished(
    monkeypatch: pytest.MonkeyPatch,
    status: pb.ClusterStatusResponse,
    answers: list[pb.FinishUpgradeResponse],
    *options: str,
) -> tuple[int, list[str]]:
    """The exit status of `upgrade finish`, and the calls that it made."""
    with fake_nodes() as (fake,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", fake.endpoint)
        fake.answers("ClusterStatus", status)
        fake.answers("FinishUpgrade", *answers)
        return cli.run(["upgrade", "finish", *options]), [
            call for call, requests in fake.requests.items() for _ in requests
        ]


def step(
    done: bool = True,
    waits_for: str = "",
    level: int = 2,
    raised: tuple[str, ...] = (),
    changed: bool = False,
) -> pb.FinishUpgradeResponse:
    return pb.FinishUpgradeResponse(
        status=admin_status(),
        done=done,
        waits_for=waits_for,
        level=level,
        raised=raised,
        changed=changed,
    )


UPGRADED = (node("n1", 2), node("n2", 2))


def test_finish_is_asked_for_until_it_is_done(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        step(False, "broker group g2: no leader", raised=("g1",), changed=True),
        step(False, "broker group g2: no leader"),
    ]
    code, calls = finished(
        monkeypatch,
        answered(*UPGRADED),
        [*steps, step(raised=("g2",), changed=True)],
        "--yes",
        "--json",
    )
    assert code == 0 and calls.count("FinishUpgrade") == 3
    assert json.loads(capfd.readouterr().out) == {
        "v": 1,
        "level": 2,
        "raised": ["g1", "g2"],
        "changed": True,
    }
    assert finished(monkeypatch, answered(*UPGRADED), [step(changed=True)], "--yes")[0] == 0
    assert (
        capfd.readouterr().out
        == "finished: all broker groups and the cluster have feature level 2\n"
    )


def test_without_a_terminal_finish_needs_to_be_confirmed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if there is something to raise; nothing is asked of the cluster before."""
    code, calls = finished(monkeypatch, answered(*UPGRADED), [step()])
    assert code == 64 and calls == ["ClusterStatus"]
    said = (
        "raising the cluster to feature level 2, from which no node goes back to an older release,"
        " cannot be undone; confirm with --yes"
    )
    assert said in capfd.readouterr().err


def test_upgrade_finish_at_the_highest_level_raises_no_level(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finished(monkeypatch, answered(node("n1", 1), node("n2", None)), [step(level=1)])[0] == 0
    said = (
        "nothing to raise: all broker groups and the cluster have feature level 1, the highest that"
        " the nodes read\n"
    )
    assert capfd.readouterr().out == said


def test_blocked_upgrade_finish_names_its_obstacle(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal of the cluster; and what it waits for, when there is no progress within the
    timeout."""
    refusal = pb.FinishUpgradeResponse(
        status=pb.Status(code=Code.PRECONDITION_FAILED, message="node n2 does not answer: start it")
    )
    assert (
        finished(monkeypatch, answered(node("n1", 2), pb.NodeInfo(node="n2")), [refusal], "--yes")[
            0
        ]
        == 4
    )
    assert "node n2 does not answer: start it" in capfd.readouterr().err
    assert (
        finished(
            monkeypatch,
            answered(*UPGRADED),
            [step(False, "broker group g1: no leader")],
            "--yes",
            "--timeout",
            "1s",
        )[0]
        == 4
    )
    assert "it waits for: broker group g1: no leader; remove the cause" in capfd.readouterr().err


def test_status_says_that_there_is_a_way_back(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until all groups and the cluster have the level."""
    said = (
        "until ledgermq upgrade finish raises them to level 2, nodes can go back to the former"
        " release\n"
    )
    assert asked(monkeypatch, capfd, answered(*UPGRADED)).endswith(said)
    assert asked(monkeypatch, capfd, answered(*UPGRADED, level=2)).endswith(said)
    done = answered(*UPGRADED, level=2)
    done.level = 2
    assert said not in asked(monkeypatch, capfd, done)
