"""Replicas that the log alone cannot bring back: below a trim, or with their directory lost. Files
and a snapshot come from a peer."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import (
    create_topic,
    full_files_sealed,
    leader,
    log_events,
    log_file_bases,
    running,
    wait_for,
)
from tests.e2e.audit.test_e2e_repair import metric, passes, replica, states
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

FILE_BYTES = 64 << 10
TRIMMING = {
    "retention": {"hours": 0.0003, "follower_hours": 0.0003, "check_ms": 200, "reserve_bytes": 0}
}


def bodies(first: int, count: int) -> list[str]:
    return [f"{number:06d}".ljust(2000, ".") for number in range(first, first + count)]


def begins(cluster: LocalCluster, node: str) -> int:
    """Where the files of a node's log begin."""
    return log_file_bases(cluster, node)[0]


def test_a_follower_below_the_trim_is_installed(tmp_path: Path) -> None:
    """What it lacks is gone from every log: it gets begin, snapshot and files, keeps its promises,
    and is a voter as before."""
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=TRIMMING) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        cli.send_lines("t", bodies(0, 40))
        node = next(name for name in cluster.nodes if name != leader(cluster))
        others = [name for name in cluster.nodes if name != node]
        assert cli.ok("status", "--wait", "30s", "--strict")
        assert cluster.terminate(node) == 0
        end = log_file_bases(cluster, node)[-1]
        sent = bodies(40, 200)
        cli.send_lines("t", sent)
        wait_for(
            lambda: all(begins(cluster, other) > end + FILE_BYTES for other in others),
            90,
            "a trim beyond the follower",
        )
        before = len(states(cluster, node))
        cluster.start(node)
        wait_for(
            lambda: states(cluster, node)[before:][-2:] == ["installing", "running"],
            40,
            "the installation",
        )
        assert cli.ok("status", "--wait", "40s", "--strict")
        assert metric(cluster, node, "ledgermq_rebuilds_total") >= 1
        assert begins(cluster, node) >= end and replica(cli, node)["role"] == "follower"
        cli.send_lines("t", bodies(240, 20))
        wait_for(lambda: full_files_sealed(cluster), 30, "the seals of the full log files")
        assert cli.ok("status", "--wait", "40s", "--strict")
    passes(cli, cluster)


def test_a_wiped_node_comes_back_as_a_learner_and_votes_again(tmp_path: Path) -> None:
    """rm -rf of one node's data under load: the same node with the same configuration is a learner,
    and a voter once it has caught up."""
    with running(tmp_path, log_file_bytes=256 << 10) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        sent = bodies(0, 200)
        cli.send_lines("t", sent)
        node = next(name for name in cluster.nodes if name != leader(cluster))
        cluster.kill(node)
        wipe(cluster, node)
        more = bodies(200, 400)
        load = threading.Thread(target=cli.send_lines, args=("t", more))
        load.start()
        cluster.start(node)
        load.join(120)
        roles: list[str | None] = []

        def votes_again() -> bool:
            roles.append(replica(cli, node)["role"])
            return roles[-1] == "follower" and bool(cli.run("status", "--strict").status == 0)

        wait_for(votes_again, 60, "the promotion")
        assert "leader" not in roles[:-1]
        found = cli.ok("peek", "--topic", "t", "--max", "10000", "--json").lines
        assert sorted(message["body"] for message in found) == sorted(sent + more)
        told = [
            event
            for event in log_events(cluster, node)
            if event.get("event") == "broker group opened"
        ]
        assert told[-1]["admitted"] is False
        # It counts: with another voter down the group goes on.
        other = next(name for name in cluster.nodes if name not in (node, leader(cluster)))
        cluster.kill(other)
        assert cli.send_lines("t", bodies(600, 1), "--timeout", "30s")["acknowledged"] == 1
        cluster.start(other)
        wait_for(lambda: full_files_sealed(cluster), 30, "the seals of the full log files")
        assert cli.ok("status", "--wait", "40s", "--strict")
    passes(cli, cluster)


def wipe(cluster: LocalCluster, node: str) -> None:
    """Everything but its log lines, which the test still reads."""
    for path in cluster.data(node).iterdir():
        if path.name != "node.log":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
