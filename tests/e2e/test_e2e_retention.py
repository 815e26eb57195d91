"""Retention in a real cluster: small files are sealed and removed on every replica, a created group
keeps its unread messages, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_topic, running, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

FILE_BYTES = 64 << 10
BODY = 2000


def bodies(first: int, count: int) -> list[str]:
    return [f"{number:06d}".ljust(BODY, ".") for number in range(first, first + count)]


def files_of(cluster: LocalCluster, node: str) -> list[str]:
    return sorted(
        path.name
        for path in (cluster.data(node) / "g1" / f"dledger-{node}" / "data").iterdir()
        if path.name.isdigit()
    )


def has_file(cluster: LocalCluster, base: int) -> set[str]:
    """The nodes that have a file of the log on their disk."""
    return {node for node in cluster.nodes if f"{base:020d}" in files_of(cluster, node)}


def reason(cli: CommandLine, base: int) -> str:
    return str(cli.ok("why-kept", f"g1/{base}", "--json").json["reason"])


def test_log_files_are_sealed_and_removed_once_unpinned(tmp_path: Path) -> None:
    """The whole life of log files on three replicas, across restarts, to a final audit."""
    slow = {"retention": {"hours": 72, "check_ms": 200, "reserve_bytes": "1MiB"}}
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=slow) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        cli.ok("group", "create", "g")
        cli.send_lines("t", bodies(0, 160))
        wait_for(
            lambda: "sealed with digest" in cli.ok("why-kept", f"g1/{FILE_BYTES}").out, 30, "a seal"
        )
        assert reason(cli, 0) == "young" and reason(cli, 1 << 40) == "missing"
        read = cli.ok("consume", "--topic", "t", "--group", "g", "--max", "60").out.splitlines()
        assert len(read) == 60

        cluster.stop()
        cluster.settings = ["retention.hours=0.0003"]
        cluster.start_all()
        cluster.wait_ready()
        wait_for(lambda: reason(cli, 0) == "trimmed", 30, "the first trim")
        wait_for(lambda: not has_file(cluster, 0), 30, "the first file to go on every replica")
        path = cluster.data("n2") / "g1" / "dledger-n2" / "data" / f"{0:020d}"
        # A replica removes one file after the other, and says so when all trimmed files are gone.
        wait_for(
            lambda: "replica n2 has removed its copy" in cli.ok("why-kept", path).out,
            30,
            "all trimmed files to go on n2",
        )

        def first_kept() -> int | None:
            """The first file on n1 once it is one that the consumer keeps: n1 may still have to
            remove trimmed ones."""
            base = min(int(name) for name in files_of(cluster, "n1"))
            return base if reason(cli, base) == "consumer" else None

        kept = wait_for(first_kept, 30, "the consumer to be named")
        assert "consumer group g" in cli.ok("why-kept", f"g1/{kept}").out

        read += cli.consume_all("t", "g")
        assert set(read) == set(bodies(0, 160)), "the created group got every message"
        wait_for(lambda: not has_file(cluster, kept), 30, "what it had kept to go")

        cluster.kill("n3")
        cli.send_lines("t", bodies(160, 40))
        cluster.start("n3")
        assert cli.ok("status", "--wait", "60s", "--strict").out.count("log") > 0
        assert sorted(cli.consume_all("t", "g")) == bodies(160, 40)
        assert {
            message["body"]
            for message in cli.ok("peek", "--topic", "t", "--max", "1000", "--json").lines
        } <= set(bodies(0, 200))
    outcome = cli.run(
        "audit", "--engine", "local", *(cluster.data(node) for node in cluster.nodes), timeout_s=300
    )
    assert outcome.status == 0 and "audit: PASS" in outcome.out, outcome.out + outcome.err
