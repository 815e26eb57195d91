"""Backup and restore of a real cluster: taken while it runs, brought back into new directories, refused beside intact peers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import end_all, http, prepare, status, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

BODIES = [f"{number:06d}".ljust(2000, ".") for number in range(160)]


@contextmanager
def cluster_of(directory: Path, **options: Any) -> Iterator[LocalCluster]:
    """Three nodes that hold BODIES in a topic of two queues, of which the group g has read the first; ended whatever the test did."""
    cluster = prepare(directory, **options)
    cluster.start_all()
    try:
        cluster.wait_ready()
        cli = CommandLine.of(cluster)
        cli.ok("topic", "create", "t", "--queues", "2")
        cli.ok("group", "create", "g")
        # A group that has read from a topic keeps what it has not read from being trimmed.
        cli.send_lines("t", BODIES[:1])
        assert cli.ok("consume", "--topic", "t", "--group", "g", "--max", "1").out.splitlines() == BODIES[:1]
        assert cli.send_lines("t", BODIES[1:])["acknowledged"] == len(BODIES) - 1
        yield cluster
    finally:
        end_all(cluster)


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


def stop_and_audit(cluster: LocalCluster) -> None:
    assert set(cluster.stop().values()) <= {0}
    audited = CommandLine.of(cluster).ok("audit", *(cluster.data(node) for node in cluster.nodes), "--engine", "local")
    assert audited.out.splitlines()[-1] == "audit: PASS"


def test_every_replica_from_its_own_backup(tmp_path: Path) -> None:
    """Each node is backed up while messages are sent; restored together, they have all messages acknowledged before, and continue."""
    with cluster_of(tmp_path) as cluster:
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
        assert min(points) >= len(BODIES)
        put_away(cluster, tmp_path)
        for node in cluster.nodes:
            cli.ok("restore", "--from", tmp_path / f"b-{node}", "--data", cluster.data(node))
        cluster.start_all()
        cluster.wait_ready()
        found = cli.consume_all("t", "afterwards")
        assert sorted(body for body in found if not body.startswith("meanwhile-")) == BODIES
        assert cli.send_lines("t", ["after"])["acknowledged"] == 1
        stop_and_audit(cluster)


@pytest.mark.verify
def test_one_backup_for_every_node_and_none_beside_intact_peers(tmp_path: Path) -> None:
    """Of a trimmed log. A single replica restored beside peers that remember its predecessor takes no part; restored for all nodes the same
    backup is the cluster again, with its topics, its consumer group's progress and every message that was kept."""
    eager = {"retention": {"hours": 0.0003, "check_ms": 200, "reserve_bytes": "1MiB"}}
    with cluster_of(tmp_path, log_file_bytes=64 << 10, extra=eager) as cluster:
        cli = CommandLine.of(cluster)
        read = cli.ok("consume", "--topic", "t", "--group", "g", "--max", "99").out.splitlines()
        wait_for(lambda: not any(first_file(cluster, node) for node in cluster.nodes), 60, "the first trim")
        wait_until_noted(cluster)
        told = cli.ok("backup", "--data", cluster.data("n2"), "--to", tmp_path / "b", "--json").json
        assert told["groups"][0]["begin_index"] > 0
        assert cluster.terminate("n2") == 0
        cluster.data("n2").rename(tmp_path / "n2")
        cli.ok("restore", "--from", tmp_path / "b", "--data", cluster.data("n2"))
        cluster.settings = ["retention.hours=72"]
        cluster.start("n2")
        wait_for(lambda: "data directory" in readiness(cluster, "n2"), 30, "the peers' refusal")
        assert cli.send_lines("t", ["while n2 is refused"])["acknowledged"] == 1
        put_away(cluster, tmp_path)
        for node in cluster.nodes:
            cli.ok("restore", "--from", tmp_path / "b", "--data", cluster.data(node), "--node", node)
        cluster.start_all()
        cluster.wait_ready()
        rest = cli.consume_all("t", "g")
        assert len(read) == 99 and sorted(BODIES[:1] + read + rest) == BODIES
        assert cli.send_lines("t", ["after"])["acknowledged"] == 1
        stop_and_audit(cluster)


def first_file(cluster: LocalCluster, node: str) -> bool:
    return (cluster.data(node) / f"g1/dledger-{node}/data/{0:020d}").exists()


def readiness(cluster: LocalCluster, node: str) -> str:
    try:
        return http(cluster, node, "/readyz")[1]
    except OSError:
        return ""
