"""A real cluster whose store times are in the future: what says so, the command that ends it, and
the audit behind it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster import create_topic, running, wait_for
from tests.e2e.command_line import CommandLine

AHEAD_MS = 3_600_000

pytestmark = pytest.mark.slow


def test_a_time_epoch_of_a_running_cluster(tmp_path: Path) -> None:
    """The first entry of a broker group has the time of its making: here one that a wrong clock
    gave. `check` names the command; behind it store times are right, a message that was sent before
    is found at the begin of the epoch, and both scans of the audit accept the log."""
    created_ms = time.time_ns() // 1_000_000 + AHEAD_MS
    with running(tmp_path, groups=({"name": "g1", "created_ms": created_ms},)) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t")
        cli.ok("send", "--topic", "t", "--body", "before")
        check = cli.run("check")
        assert check.status == 1 and "ledgermq begin-time-epoch g1" in check.out
        asked = cli.run("begin-time-epoch", "g1")
        assert asked.status == 64 and "cannot be undone" in asked.error
        begun = cli.ok("begin-time-epoch", "g1", "--yes", "--json").json
        assert begun["before_ms"] >= created_ms > begun["ms"] + AHEAD_MS // 2
        again = cli.run("begin-time-epoch", "g1", "--yes")
        assert again.status == 4 and "is not ahead of the clock of its leader" in again.error
        cli.ok("send", "--topic", "t", "--body", "behind")
        wait_for(lambda: cli.run("check").status == 0 or None, 30, "a check without findings")
        found = cli.ok("query", "--topic", "t", "--time-range", "-10m..", "--json").lines
        assert sorted(message["body"] for message in found) == ["before", "behind"]
        assert min(message["store_ms"] for message in found) == begun["ms"]
        newest = cli.ok("peek", "--topic", "t", "--from", "latest", "--max", "1", "--json").lines
        assert [message["body"] for message in newest] == ["behind"]
        nodes = [cluster.data(node) for node in cluster.nodes]
    assert cli.ok("audit", *nodes, "--deep").out
