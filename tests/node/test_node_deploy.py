"""The configurations that the image brings are valid, and what they promise is in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_loading import load
from tests.tiered.s3_servers import VERSITYGW

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def of(file: str, node: str, **variables: str) -> NodeConfig:
    """As deploy/entrypoint.sh starts it."""
    minted = {
        "CLUSTER__ID": "6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
        "CLUSTER__CREATED_MS": "1767225600000",
        "CLUSTER__SECRET": "ab" * 32,
    }
    given = {"NODE": node, **minted, **variables}
    return load(
        DEPLOY / file, environment={f"LEDGERMQ_{name}": value for name, value in given.items()}
    )


@pytest.mark.parametrize("file", sorted(path.name for path in DEPLOY.glob("*.yaml")))
def test_every_node_has_every_group_and_prefers_to_lead_one(file: str) -> None:
    """Three Raft groups whose preferred leaders are three nodes; all nodes see the same groups."""
    configs = {node: of(file, node) for node in ("n1", "n2", "n3")}
    for config in configs.values():
        groups = config.cluster.groups
        assert groups == configs["n1"].cluster.groups
        assert {group.replicas for group in groups} == {("n1", "n2", "n3")}
        assert {group.preferred_leader for group in groups if group.replication == "raft"} == set(
            configs
        )


def test_compose_tells_clients_the_ports_that_it_publishes() -> None:
    """Native streams go to the node that leads, at its advertised address: that of the host, unless
    the variables say otherwise."""
    services = yaml.safe_load((DEPLOY.parent / "compose.yaml").read_text())["services"]
    for node in ("n1", "n2", "n3"):
        given = {
            name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
            for name, value in services[node]["environment"].items()
        }
        assert given.pop("LEDGERMQ_NODE") == node
        variables = {
            name.removeprefix("LEDGERMQ_"): value
            for name, value in given.items()
            if name.startswith("LEDGERMQ_")
        }
        for number, (name, address) in enumerate(
            sorted(of("node.yaml", node, **variables).nodes.items()), 1
        ):
            host, port = address.advertised
            assert (host, port) == ("127.0.0.1", 8080 + number)
            assert any(text.endswith(f":{port}:{port}") for text in services[name]["ports"])


def test_the_tiered_configuration_is_the_plain_one_with_the_store_of_compose() -> None:
    """Same groups and nodes; the address is that of the service `store`, whose image has the
    bucket, and whose keys the nodes get."""
    plain, tiered = of("node.yaml", "n1"), of("node-tiered.yaml", "n1")
    assert (tiered.cluster, tiered.nodes, tiered.access) == (
        plain.cluster,
        plain.nodes,
        plain.access,
    )
    assert tiered.tiered.url == "s3://ledger/compose" and tiered.tiered.credentials_file is None
    compose = yaml.safe_load((DEPLOY.parent / "compose.yaml").read_text())
    store, image = compose["services"]["store"], (DEPLOY / "store/Dockerfile").read_text()
    assert (
        tiered.tiered.endpoint == "http://store:7070"
        and store["profiles"] == ["tiered"]
        and "ports" not in store
    )
    assert (
        "EXPOSE 7070" in image and "/buckets/ledger " in image and "/buckets" in store["volumes"][0]
    )
    assert VERSITYGW in image, "the tests run the same server"
    keys = {name.removeprefix("ROOT_"): value for name, value in store["environment"].items()}
    for service in ("n1", "n2", "n3", "audit", "spark-worker", "spark-audit"):
        given = compose["services"][service]["environment"]
        assert (given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"]) == (
            keys["ACCESS_KEY"],
            keys["SECRET_KEY"],
        )


def test_the_ha_group_waits_for_a_slave() -> None:
    """`node-ha.yaml` is node.yaml with a fourth group; nothing in it is acknowledged by the master
    alone."""
    plain, more = of("node.yaml", "n1").cluster.groups, of("node-ha.yaml", "n1").cluster.groups
    assert more[:3] == plain
    (ha,) = more[3:]
    assert (ha.replication, ha.ack_async, ha.least_in_sync) == ("ha", False, 2)
