"""HA groups on real processes: official and native clients, the classes of acknowledgements, and
the status."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ledgermq.client.api.connection import Connection
from ledgermq.client.messages.sending import Outgoing, Sender
from ledgermq.node.process.local import LocalCluster
from tests.cluster import http, leader, running, wait_for
from tests.contract.official import message, official
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

GROUPS = {"sync": {"replication": "ha"}, "alone": {"replication": "ha", "ack": "async"}}


@pytest.fixture(scope="module", params=["alone", "sync"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Clusters with one HA group each, one per acknowledgement mode, so that a topic is completely
    in the group."""
    name = str(request.param)
    with running(
        tmp_path_factory.mktemp("ha"), groups=({"name": name, **GROUPS[name]},)
    ) as cluster:
        yield cluster


@pytest.fixture
def cli(cluster: LocalCluster) -> CommandLine:
    return CommandLine.of(cluster)


def group_of(cluster: LocalCluster) -> str:
    return cluster.groups[0].name


def class_of(cluster: LocalCluster) -> str:
    return "master" if group_of(cluster) == "alone" else "durable"


def test_every_acknowledgement_names_its_class(cluster: LocalCluster, cli: CommandLine) -> None:
    """Through whichever node it was sent; a topic that asks for more gets it."""
    cli.ok("topic", "create", "plain")
    cli.ok("topic", "create", "sure", "--durability", "high")
    for topic, expected in (("plain", class_of(cluster)), ("sure", "durable")):
        for address in cluster.nodes.values():
            with Connection(f"{address.host}:{address.client_port}") as connection:
                summary = Sender(connection).send_all([Outgoing(topic, b"x")])
            assert (summary.acknowledged, summary.durability) == (1, expected), summary.first_error
    assert cli.consume_all("plain", "g") == ["x"] * 3


def test_native_streams_and_their_receipts(
    cluster: LocalCluster, cli: CommandLine, tmp_path: Path
) -> None:
    """A file is sent in frames; every receipt says its class and proves itself against the log."""
    cli.ok("topic", "create", "native")
    source, receipts = tmp_path / "in.jsonl", tmp_path / "receipts.parquet"
    source.write_text("".join(f'{{"body":"m{number}"}}\n' for number in range(500)))
    sent = cli.ok(
        "send", "--topic", "native", "--file", source, "--receipts", receipts, "--json"
    ).json
    assert (sent["acknowledged"], sent["durability"]) == (500, class_of(cluster))
    assert set(pq.read_table(receipts).column("durability").to_pylist()) == {class_of(cluster)}
    cli.ok("receipts", "verify", receipts)
    assert sorted(cli.consume_all("native", "g")) == sorted(f"m{number}" for number in range(500))


def test_an_official_client_sends_and_receives_over_a_handover(
    cluster: LocalCluster, cli: CommandLine, tmp_path: Path
) -> None:
    """The client does not notice it: the brokers stay the same."""
    cli.ok("topic", "create", "orders")
    group = group_of(cluster)
    with official(cluster, tmp_path / "home") as client:
        client.do("producer", name="p", topics=["orders"])
        client.do("send", name="p", message=message("orders", "before"))
        other = next(node for node in cluster.nodes if node != leader(cluster, group))
        assert (
            f"{other} leads {group}"
            in cli.ok("transfer", group, "--to", other, "--timeout", "30s").out
        )
        client.do("send", name="p", message=message("orders", "after"))
    assert sorted(cli.consume_all("orders", "g")) == ["after", "before"]
    why = cli.ok("why-leader-moved", group, "--json").json
    assert why["reason"] == "operator", why


def test_status_and_metrics_tell_master_epoch_and_in_sync_set(
    cluster: LocalCluster, cli: CommandLine
) -> None:
    """For people master and slave, for scripts leader and follower."""
    name = group_of(cluster)

    def in_sync() -> dict[str, Any] | None:
        told = cli.ok("status", "--json").json
        group: dict[str, Any] = told["groups"][0]
        return group if told["health"] == "ok" else None

    found = wait_for(in_sync, 60, "all replicas in sync")
    assert found["replication"] == "ha" and found["ha"]["epoch"] == found["term"]
    assert found["ha"]["in_sync"] == ["n1", "n2", "n3"] and found["ha"]["short"] is None
    assert (found["ha"]["ack"], found["ha"]["min_in_sync"]) == (
        ("async", 1) if name == "alone" else ("in-sync", 2)
    )
    assert sorted(replica["role"] for replica in found["replicas"]) == [
        "follower",
        "follower",
        "leader",
    ]
    text = cli.ok("status").out
    assert "master" in text and "slave" in text and "HA groups" in text
    size = f'ledgermq_broker_group_in_sync{{broker_group="{name}"}} 3.0'
    wait_for(
        lambda: size in http(cluster, leader(cluster, name), "/metrics")[1],
        60,
        "the size of the set at the master",
    )
