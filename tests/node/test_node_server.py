"""A node as it is composed: parts that are built from what a node begins with also serve what comes
to it later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ledgermq.node.process.server import Node
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import validate
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.types import Role
from ledgermq.storage.files.real_disk import RealDisk


def test_a_replica_that_came_later_serves_follower_reads(tmp_path: Path) -> None:
    """Its age is asked of the replica that is there now; of one that leaves it is unknown, and the
    reader goes to the leader."""
    tree = yaml.safe_load(EXAMPLE)
    tree["data"] = str(tmp_path)
    tree["cluster"]["groups"] = [
        {"name": "g1", "replicas": ["n1", "n2", "n3"], "follower_reads": True}
    ]
    node = Node(validate(tree), b"s" * 32, RealDisk(), {}, None)
    local = node.frontend._local
    view = SimpleNamespace(serving=False, members=None, role=Role.FOLLOWER)
    local._views = {"g1": view}  # type: ignore[dict-item]
    node.replicas.groups["g1"] = SimpleNamespace(age_ns=lambda now_ns: 5_000_000)  # type: ignore[assignment]
    found = local.standing("g1", 10)
    assert found is not None and found.age_ms == 5
    assert local.standing("g1", 4) is None
    del node.replicas.groups["g1"]
    assert local.standing("g1", 10) is None


def test_clients_are_sent_to_the_advertised_address(tmp_path: Path) -> None:
    """In routes without endpoints of the client's, in redirects to a leader, and in the status."""
    tree = yaml.safe_load(EXAMPLE)
    tree["data"] = str(tmp_path)
    for number in (1, 2, 3):
        tree["nodes"][f"n{number}"] |= {
            "advertised_host": f"mq{number}.example.com",
            "advertised_port": 31000,
        }
    node = Node(validate(tree), b"s" * 32, RealDisk(), {}, None)
    endpoints = node.frontend.messaging._endpoints(pb.Endpoints())
    assert [(at.host, at.port) for at in endpoints.addresses] == [("mq1.example.com", 31000)]
    assert node.frontend.leaders._endpoint("n2") == "mq2.example.com:31000"
    assert asyncio.run(node.frontend.admin.overview.own()).node.endpoint == "mq1.example.com:31000"
    assert node.replicas.roster.peers()["n2"] == ("127.0.0.1:9082",)


def test_new_preferred_leader_hurries_the_disk_check_once_a_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for a term and a preferred leader, and only where this node leads: it must know whose
    disks are full before it hands over."""
    tree = yaml.safe_load(EXAMPLE)
    tree["data"] = str(tmp_path)
    tree["cluster"]["groups"] = [
        {"name": "g1", "replicas": ["n1", "n2", "n3"], "preferred_leader": "n2"}
    ]
    node = Node(validate(tree), b"s" * 32, RealDisk(), {}, None)
    told: list[str | None] = []
    monkeypatch.setattr(node.replicas.engine, "notify", lambda group, call: told.append(call.node))
    monkeypatch.setattr(node.replicas.clock, "leader_instead", lambda wanted, voters: wanted)
    hurried = []
    for leader, term in (("n2", 1), ("n1", 2), ("n1", 2), ("n1", 3)):
        node.replicas.engine.views["g1"] = SimpleNamespace(leader=leader, term=term, members=None)  # type: ignore[assignment]
        node.preferred_leaders.tell("g1")
        hurried.append(node.maintenance.retainer._hurry.is_set())
        node.maintenance.retainer._hurry.clear()
    assert hurried == [False, True, False, True] and told == ["n2", "n2"]
