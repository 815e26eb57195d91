"""The two loops of a running cluster: replicas that differ in a sealed file say so within seconds,
and rot of what was sealed long ago is found by reading it again. Both name the damaged entry and
have it repaired while the others serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_topic, full_files_sealed, leader, log_events, running, wait_for
from tests.e2e.audit.test_e2e_repair import flip, log_files, metric, passes, replica, states, stored
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

TOPIC = "t"
FILE_BYTES = 64 << 10


def bodies(first: int, count: int) -> list[str]:
    return [f"body-{number:05d}-{'x' * 500}" for number in range(first, first + count)]


def events(cluster: LocalCluster, node: str, name: str) -> list[dict[str, Any]]:
    return [event for event in log_events(cluster, node) if event.get("event") == name]


@pytest.mark.verify
def test_replicas_that_differ_in_a_file_say_so_when_it_is_sealed(tmp_path: Path) -> None:
    """A byte of the file being written changes on one node: the next seal names that node, the
    file, and then the entry."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC)
        sent = bodies(0, 30)
        cli.send_lines(TOPIC, sent)
        assert cli.ok("status", "--wait", "30s", "--strict")
        node = next(name for name in cluster.nodes if name != leader(cluster))
        assert len(log_files(cluster, node)) <= 2, "the file is not sealed yet"
        flip(cluster, node, sent[10])
        sent += bodies(30, 150)
        cli.send_lines(TOPIC, sent[30:])
        (differs,) = wait_for(
            lambda: events(cluster, node, "log file differs from what a majority sealed"),
            30,
            "the alarm",
        )
        assert (
            differs["replica"] == node
            and differs["file"].endswith(f"{0:020d}")
            and node not in differs["replicas"]
        )
        (damage,) = wait_for(lambda: events(cluster, node, "damage found"), 30, "the damaged entry")
        assert "entry" in damage["reason"] and f"{0:020d}" in damage["reason"]
        wait_for(lambda: states(cluster, node)[-2:] == ["repairing", "running"], 30, "the repair")
        wait_for(
            lambda: metric(cluster, node, "ledgermq_digest_mismatches") == 0,
            30,
            "the replica to agree",
        )
        wait_for(lambda: full_files_sealed(cluster), 30, "the seals")
        assert cli.ok("status", "--wait", "30s", "--strict").out.count("DIFFER") == 0
        assert stored(cli) == sorted(sent)
    passes(cli, cluster)


def test_a_byte_of_a_sealed_file_that_rots_is_found_named_and_repaired(tmp_path: Path) -> None:
    """No client reads it, and its digest was recorded long ago: only a scrub can find the
    damage."""
    again = {"scrub": {"again_hours": 0.0005, "bytes_per_s": "64MiB"}}
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=again) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC)
        sent = bodies(0, 200)
        cli.send_lines(TOPIC, sent)
        wait_for(lambda: full_files_sealed(cluster), 30, "the seals")
        node = leader(cluster)
        flip(cluster, node, sent[20])
        (damage, *_) = wait_for(
            lambda: events(cluster, node, "damage found"), 90, "the damaged entry"
        )
        assert "entry" in damage["reason"] and f"{0:020d}" in damage["reason"]
        wait_for(lambda: states(cluster, node)[-2:] == ["repairing", "running"], 40, "the repair")
        assert cli.ok("status", "--wait", "30s", "--strict")
        found = replica(cli, node)
        assert found["differing_files"] == [] and found["unverified_ms"] is not None
        assert json.loads(cli.ok("status", "--json").out)["groups"][0]["disputed_files"] == []
        assert metric(cluster, node, "ledgermq_scrubbed_log_files_total") > 0
        assert stored(cli) == sorted(sent)
    passes(cli, cluster)
