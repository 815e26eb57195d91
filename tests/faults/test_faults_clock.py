"""The wall clock of the leader is wrong (the preloaded library of test_faults_disk.py): nothing of
it gets into the log, and it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import create_topic, leader, log_lines, wait_for
from tests.e2e.command_line import CommandLine
from tests.faults.faulty import faulty
from tests.faults.test_faults_disk import BadDisks, bad_disk, bad_disks

__all__ = ["bad_disk", "bad_disks"]

pytestmark = pytest.mark.slow

DAY_S = 86_400
TOPIC = "later"


def test_leader_with_a_clock_ahead_is_replaced_and_named(
    tmp_path: Path, bad_disks: type[BadDisks]
) -> None:
    """While it is 400 days ahead, store times and delayed messages stay right, `check` and `status`
    name the node, and another one leads. When it is right again, nothing is left of it."""
    with faulty(tmp_path, kind=bad_disks) as cluster:
        assert isinstance(cluster, BadDisks)
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC, kind="delay")
        node = leader(cluster)
        wait_for(lambda: cli.run("check").status == 0, 60, "clocks that agree")
        cluster.set_clock(node, 400 * DAY_S)
        cli.ok("send", "--topic", TOPIC, "--body", "while it is ahead", "--delay", "2s")
        said = wait_for(lambda: told(cli), 60, "a word about the clock")
        assert f"the clock of node {node} is 400 d ahead" in said
        clocks = {
            found["node"]: found["clock"] for found in cli.ok("status", "--json").json["nodes"]
        }
        assert clocks == {**dict.fromkeys(cluster.nodes, "agreed"), node: "off"}
        wait_for(lambda: leader(cluster) != node, 60, "another leader")
        assert [
            line
            for line in log_lines(cluster, node)
            if "the clock of this node is not followed" in line
        ]
        cluster.set_clock(node, 0)
        wait_for(lambda: cli.run("check").status == 0, 60, "clocks that agree again")
        cli.ok("send", "--topic", TOPIC, "--body", "afterwards", "--delay", "2s")
        bodies: list[str] = []

        def arrived() -> bool:
            bodies.extend(body for body in cli.consume_all(TOPIC, "group"))
            return {"while it is ahead", "afterwards"} <= set(bodies)

        wait_for(arrived, 60, "both delayed messages")
        shown = cli.ok("peek", "--topic", TOPIC, "--from", "earliest", "--json").lines
        assert len(shown) == 2 and all(
            abs(message["store_ms"] - message["born_ms"]) < 60_000 for message in shown
        )


def told(cli: CommandLine) -> str:
    said = cli.run("check").out
    return said if "the clock of node" in said else ""
