"""Backup and restore of a real cluster: taken while it runs, brought back into new directories, refused beside intact peers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.node.local import LocalCluster
from tests.cluster import end_all, http, prepare, status, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

FIRST = [f"before-{k}" for k in range(300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes with a topic, a consumer group that has taken a part, and the rest of FIRST unread."""
    found = prepare(tmp_path, nodes=3)
    found.start_all()
    try:
        found.wait_ready()
        cli = CommandLine.of(found)
        cli.ok("topic", "create", "t")
        cli.ok("group", "create", "g")
        assert cli.send_lines("t", FIRST)["acknowledged"] == len(FIRST)
        yield found
    finally:
        end_all(found)


def noted(cluster: LocalCluster, node: str) -> int:
    """What the node's checkpoint calls committed; -1 for no file yet."""
    path = cluster.data(node) / f"g1/dledger-{node}/checkpoint"
    return int(path.read_text().partition("committedIndex=")[2]) if path.exists() else -1


def wait_until_noted(cluster: LocalCluster) -> None:
    """Every node has noted what is committed now: at most a few seconds."""
    (group,) = status(cluster, "n1").groups
    for node in cluster.nodes:
        wait_for(lambda node=node: noted(cluster, node) >= group.commit_index, 20, f"the checkpoint of {node}")


def put_away(cluster: LocalCluster, tmp_path: Path) -> None:
    """Stop every node and move its directory away."""
    assert set(cluster.stop().values()) <= {0}
    (tmp_path / "old").mkdir()
    for node in cluster.nodes:
        cluster.data(node).rename(tmp_path / "old" / node)


def start_and_read(cluster: LocalCluster) -> list[str]:
    """Start what was restored, and everything that a new consumer group gets."""
    cluster.start_all()
    cluster.wait_ready()
    return sorted(CommandLine.of(cluster).consume_all("t", "afterwards"))


def stop_and_audit(cluster: LocalCluster) -> None:
    assert set(cluster.stop().values()) <= {0}
    audited = CommandLine.of(cluster).ok("audit", *(cluster.data(node) for node in cluster.nodes), "--engine", "local")
    assert audited.out.splitlines()[-1] == "audit: PASS"


def test_every_replica_from_its_own_backup(cluster: LocalCluster, tmp_path: Path) -> None:
    """Each node backed up while messages are being sent; restored together they hold everything acknowledged before, and go on."""
    wait_until_noted(cluster)
    cli = CommandLine.of(cluster)
    ended = threading.Event()

    def send_on() -> None:
        while not ended.is_set():
            cli.send_lines("t", [f"meanwhile-{k}" for k in range(50)])

    sender = threading.Thread(target=send_on)
    sender.start()
    try:
        points = []
        for node in cluster.nodes:
            told = cli.ok("backup", "--data", cluster.data(node), "--to", tmp_path / f"b-{node}", "--json").json
            points.append(told["groups"][0]["index"])
    finally:
        ended.set()
        sender.join()
    assert min(points) >= len(FIRST)
    put_away(cluster, tmp_path)
    for node in cluster.nodes:
        cli.ok("restore", "--from", tmp_path / f"b-{node}", "--data", cluster.data(node))
    found = start_and_read(cluster)
    assert {body for body in found if body.startswith("before-")} == set(FIRST)
    assert len(found) == len(FIRST) + sum(body.startswith("meanwhile-") for body in found)
    assert cli.send_lines("t", ["after"])["acknowledged"] == 1
    stop_and_audit(cluster)


def test_one_backup_for_every_node_and_none_beside_intact_peers(cluster: LocalCluster, tmp_path: Path) -> None:
    """A single replica restored beside peers that remember its predecessor takes no part; restored for all nodes the same backup is the
    cluster again, with its topics, its consumer group's progress and all messages."""
    cli = CommandLine.of(cluster)
    assert len(cli.ok("consume", "--topic", "t", "--group", "g", "--max", "100").out.splitlines()) == 100
    wait_until_noted(cluster)
    cli.ok("backup", "--data", cluster.data("n2"), "--to", tmp_path / "b")
    assert cluster.terminate("n2") == 0
    cluster.data("n2").rename(tmp_path / "n2")
    cli.ok("restore", "--from", tmp_path / "b", "--data", cluster.data("n2"))
    cluster.start("n2")
    wait_for(lambda: cluster.children["n2"].exit_code is None and "data directory" in readiness(cluster, "n2"), 30, "the peers' refusal")
    assert cli.send_lines("t", ["while n2 is refused"])["acknowledged"] == 1
    put_away(cluster, tmp_path)
    for node in cluster.nodes:
        cli.ok("restore", "--from", tmp_path / "b", "--data", cluster.data(node), "--node", node)
    assert start_and_read(cluster) == sorted(FIRST)
    assert len(cli.consume_all("t", "g")) == 200
    assert [topic["topic"] for topic in cli.ok("status", "--json").json["topics"]] == ["t"]
    stop_and_audit(cluster)


def readiness(cluster: LocalCluster, node: str) -> str:
    try:
        return http(cluster, node, "/readyz")[1]
    except OSError:
        return ""
