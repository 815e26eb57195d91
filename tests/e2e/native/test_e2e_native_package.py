"""A cluster whose nodes use ledgermq-native or do without it, and change that with a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledgermq.cli import run
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import kernels
from tests.cluster import create_topic, log_events, running, wait_for
from tests.contract.official import official, receive, send, simple, text
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.verify]


@pytest.mark.skipif(not kernels.NATIVE, reason=kernels.described())
def test_nodes_change_the_mode_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The official client sends and receives through each node of both mixtures, and all replicas
    have the same log."""
    with running(tmp_path) as cluster:
        create_topic(cluster, "t")
        cli = CommandLine.of(cluster)
        for pure in ("n1",), ("n2", "n3"):
            for node in cluster.nodes:
                restart(cluster, node, pure=node in pure)
            told = {
                node["node"]: node["native"] for node in cli.ok("status", "--json").json["nodes"]
            }
            assert told == {
                node: None if node in pure else kernels.VERSION for node in cluster.nodes
            }
            for node in cluster.nodes:
                server = [
                    line["server"]
                    for line in log_events(cluster, node)
                    if line["event"] == "client port open"
                ][-1]
                assert server == ("GrpcServer" if node in pure else "NativeServer")
                exchange(cluster, node, tmp_path / "home", f"{'+'.join(pure)} through {node}")
        nodes = [str(cluster.data(node)) for node in cluster.nodes]
    status = run(["audit", *nodes, "--engine", "local", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (status, told["verdict"]) == (0, "PASS"), (told["reasons"], told["findings"][:5])


def restart(cluster: LocalCluster, node: str, *, pure: bool) -> None:
    assert cluster.terminate(node) == 0
    cluster.environment = {"LEDGERMQ_PURE": "1"} if pure else {}
    cluster.start(node)
    cluster.wait_ready()


def exchange(cluster: LocalCluster, node: str, home: Path, what: str) -> None:
    """Send messages with this node as the access point, and receive and acknowledge all of them."""
    with official(cluster, home, nodes=[node]) as client:
        client.do("producer", name="p", topics=["t"])
        sent = {f"{what}: {number}" for number in range(20)}
        for body in sorted(sent):
            send(client, "t", body)
        simple(client, "t")
        found: set[str] = set()

        def all_received() -> bool:
            for got in receive(client):
                client.do("ack", name="c", id=got["id"])
                found.add(text(got))
            return found >= sent

        wait_for(lambda: all_received() or None, 60, "all messages")
        assert found == sent
