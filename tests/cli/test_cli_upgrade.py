"""`upgrade status` from argument to output, against a scripted node."""

from __future__ import annotations

import json

import pytest

from ledgermq import cli
from ledgermq.proto import admin_pb2 as pb
from tests.client.fake_cluster import admin_status, fake_nodes


def answered(*nodes: pb.NodeInfo, level: int | None = 1) -> pb.ClusterStatusResponse:
    return pb.ClusterStatusResponse(status=admin_status(), nodes=nodes, groups=[pb.BrokerGroupInfo(group="g1", level=level)])


def node(name: str, level_max: int | None, version: str = "0.2.0") -> pb.NodeInfo:
    return pb.NodeInfo(node=name, up=True, version=version, level_max=level_max)


def asked(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], answer: pb.ClusterStatusResponse, *options: str) -> str:
    with fake_nodes() as (fake,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", fake.endpoint)
        fake.answers("ClusterStatus", answer)
        assert cli.run(["upgrade", "status", *options]) == 0
    return capfd.readouterr().out


def test_nothing_is_in_the_way_when_all_nodes_read_the_same(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that states no level reads level 1."""
    out = asked(monkeypatch, capfd, answered(node("n1", 1), node("n2", None, "0.1.0")))
    assert out.splitlines()[-1] == "nothing is in the way: all nodes read the same levels"
    assert [line.split()[1:8:2] for line in out.splitlines() if " n1 " in line or " n2 " in line] == [
        ["n1", "up", "0.2.0", "1"],
        ["n2", "up", "0.1.0", "1"],
    ]


def test_it_names_the_nodes_that_are_in_the_way(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An older program, and a node that cannot be asked."""
    found = json.loads(asked(monkeypatch, capfd, answered(node("n1", 2), node("n2", 1), pb.NodeInfo(node="n3")), "--json"))
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
    assert out.splitlines()[-1] == "in the way: node n2 reads up to level 1, others up to 2; upgrade it"
    assert "?" in out, "no replica of the group answers"
