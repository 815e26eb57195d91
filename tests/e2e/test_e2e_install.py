"""A replica that the log alone cannot bring back, because it is below a trim: files and a snapshot
come from a peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import (
    create_topic,
    full_files_sealed,
    leader,
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
