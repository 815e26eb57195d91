"""A node as it is composed: parts that are built from what a node begins with also serve what comes to it later."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import yaml

from ledgermq.node.process.server import Node
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import validate
from ledgermq.proto.types import Role
from ledgermq.storage.real_disk import RealDisk


def test_a_replica_that_came_later_serves_follower_reads(tmp_path: Path) -> None:
    """Its age is asked of the replica that is there now; of one that leaves it is unknown, and the reader goes to the leader."""
    tree = yaml.safe_load(EXAMPLE)
    tree["data"] = str(tmp_path)
    tree["cluster"]["groups"] = [{"name": "g1", "replicas": ["n1", "n2", "n3"], "follower_reads": True}]
    node = Node(validate(tree), b"s" * 32, RealDisk(), {}, None)
    view = SimpleNamespace(serving=False, members=None, role=Role.FOLLOWER)
    node._local._views = {"g1": view}  # type: ignore[dict-item]
    node._groups["g1"] = SimpleNamespace(age_ns=lambda now_ns: 5_000_000)  # type: ignore[assignment]
    found = node._local.standing("g1", 10)
    assert found is not None and found.age_ms == 5
    assert node._local.standing("g1", 4) is None
    del node._groups["g1"]
    assert node._local.standing("g1", 10) is None
