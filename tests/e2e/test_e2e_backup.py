"""Backup and restore of a real cluster: taken while it runs, brought back into new directories,
refused beside intact peers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import end_all, http, prepare, running, status, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

BODIES = [f"{number:06d}".ljust(2000, ".") for number in range(160)]


@contextmanager
def cluster_of(directory: Path, **options: Any) -> Iterator[LocalCluster]:
    """Three nodes that hold BODIES in a topic of two queues, of which the group g has read the
    first; ended whatever the test did."""
    cluster = prepare(directory, **options)
    cluster.start_all()
    try:
        cluster.wait_ready()
        cli = CommandLine.of(cluster)
        cli.ok("topic", "create", "t", "--queues", "2")
        cli.ok("group", "create", "g")
        # A group that has read from a topic keeps what it has not read from being trimmed.
        cli.send_lines("t", BODIES[:1])
        assert (
            cli.ok("consume", "--topic", "t", "--group", "g", "--max", "1").out.splitlines()
            == BODIES[:1]
        )
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
        wait_for(
            lambda node=node: noted(cluster, node) >= group.commit_index,
            20,
            f"the checkpoint of {node}",
        )


def put_away(cluster: LocalCluster, tmp_path: Path) -> None:
    """Stop every node and move its directory away."""
    assert set(cluster.stop().values()) <= {0}
    (tmp_path / "old").mkdir()
    for node in cluster.nodes:
        cluster.data(node).rename(tmp_path / "old" / node)


def stop_and_audit(cluster: LocalCluster) -> None:
    assert set(cluster.stop().values()) <= {0}
    audited = CommandLine.of(cluster).ok(
        "audit", *(cluster.data(node) for node in cluster.nodes), "--engine", "local"
    )
    assert audited.out.splitlines()[-1] == "audit: PASS"


def test_every_replica_from_its_own_backup(tmp_path: Path) -> None:
    """Each node is backed up while messages are sent; restored together, they have all messages
    acknowledged before, and continue."""
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
                told = cli.ok(
                    "backup", "--data", cluster.data(node), "--to", tmp_path / f"b-{node}", "--json"
                ).json
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
def test_backup_restores_all_nodes_and_not_one_beside_intact_peers(tmp_path: Path) -> None:
    """Of a trimmed log. A single replica restored beside peers that remember its predecessor takes
    no part; restored for all nodes the same backup is the cluster again, with its topics, its
    consumer group's progress and every message that was kept."""
    eager = {"retention": {"hours": 0.0003, "check_ms": 200, "reserve_bytes": "1MiB"}}
    with cluster_of(tmp_path, log_file_bytes=64 << 10, extra=eager) as cluster:
        cli = CommandLine.of(cluster)
        read = cli.ok("consume", "--topic", "t", "--group", "g", "--max", "99").out.splitlines()
        wait_for(
            lambda: not any(first_file(cluster, node) for node in cluster.nodes),
            60,
            "the first trim",
        )
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
            cli.ok(
                "restore", "--from", tmp_path / "b", "--data", cluster.data(node), "--node", node
            )
        cluster.start_all()
        cluster.wait_ready()
        rest = cli.consume_all("t", "g")
        assert len(read) == 99 and sorted(BODIES[:1] + read + rest) == BODIES
        assert cli.send_lines("t", ["after"])["acknowledged"] == 1
        stop_and_audit(cluster)


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_a_sink_that_is_ahead_of_a_restored_log_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log is behind the sink's position, and when it has passed it. In another place the
    sink writes everything that the log has, and together with what the former place has from before
    the point of the restore each message is there once."""
    pytest.importorskip("pyarrow")
    rows = rows_of_table(tmp_path, monkeypatch) if kind == "iceberg" else rows_of_files(tmp_path)

    def command(place: str) -> tuple[Any, ...]:
        to = ("--table", f"lake.s.{place}") if kind == "iceberg" else ("--to", tmp_path / place)
        return ("sink", kind, "--topic", "t", *to, "--until-empty", "1s")

    with running(tmp_path / "c", nodes=1) as cluster:
        cli = CommandLine.of(cluster)
        cli.ok("topic", "create", "t", "--queues", "1")
        cli.send_lines("t", [f"kept-{k}" for k in range(50)])
        assert cluster.stop() == {"n1": 0}
        cli.ok("backup", "--data", cluster.data("n1"), "--to", tmp_path / "b")
        cluster.start_all()
        cluster.wait_ready()
        cli.send_lines("t", [f"lost-{k}" for k in range(50)])
        cli.ok(*command("former"))
        assert cluster.stop() == {"n1": 0}
        cluster.data("n1").rename(tmp_path / "old")
        told = cli.ok(
            "restore", "--from", tmp_path / "b", "--data", cluster.data("n1"), "--json"
        ).json
        cluster.start_all()
        cluster.wait_ready()
        new = [f"new-{k}" for k in range(80)]
        for part in (new[:20], new[20:]):
            cli.send_lines("t", part)
            refused = cli.run(*command("former"))
            assert (
                refused.status == 64
                and "has messages that the cluster does not have" in refused.err
            ), refused
            assert len(rows("former")) == 100
        assert "is not in the log: there is entry" in refused.err
        cli.ok(*command("again"))
        log = sorted([f"kept-{k}" for k in range(50)] + new)
        assert sorted(body for _, _, body in rows("again")) == log
        (point,) = (group["store_ms"] for group in told["groups"])
        first = min(offset for offset, _, _ in rows("again"))
        older = [
            body
            for offset, store_ms, body in rows("former")
            if store_ms <= point and offset < first
        ]
        assert not older and {
            body for _, store_ms, body in rows("former") if store_ms <= point
        } == {f"kept-{k}" for k in range(50)}


def rows_of_files(directory: Path) -> Callable[[str], list[tuple[int, int, str]]]:
    """Offset, store time and body of each message."""
    import pyarrow.parquet as pq

    def rows(place: str) -> list[tuple[int, int, str]]:
        paths = (directory / place).rglob("*.parquet")
        tables = [
            pq.read_table(path, columns=["offset", "store_ms", "body"], partitioning=None)
            for path in paths
        ]
        return [
            (row["offset"], row["store_ms"], row["body"].decode())
            for table in tables
            for row in table.to_pylist()
        ]

    return rows


def rows_of_table(
    directory: Path, patch: pytest.MonkeyPatch
) -> Callable[[str], list[tuple[int, int, str]]]:
    """As `rows_of_files`, with a catalog of its own."""
    catalogs = pytest.importorskip("pyiceberg.catalog")
    where = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    for key, value in where.items():
        patch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.upper()}", value)
    catalog = catalogs.load_catalog("lake", **where)
    catalog.create_namespace("s")

    def rows(place: str) -> list[tuple[int, int, str]]:
        found = (
            catalog.load_table(f"s.{place}")
            .scan(selected_fields=("offset", "store_time", "body"))
            .to_arrow()
            .to_pylist()
        )
        return [
            (row["offset"], round(row["store_time"].timestamp() * 1000), row["body"].decode())
            for row in found
        ]

    return rows


def first_file(cluster: LocalCluster, node: str) -> bool:
    return (cluster.data(node) / f"g1/dledger-{node}/data/{0:020d}").exists()


def readiness(cluster: LocalCluster, node: str) -> str:
    try:
        return http(cluster, node, "/readyz")[1]
    except OSError:
        return ""
