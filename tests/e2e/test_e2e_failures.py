"""Acknowledged messages survive SIGKILL of one or all nodes, and a paused leader."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_topic, leader, running, status, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

TOPIC = "t"
TOTAL = 3000


def others(cluster: LocalCluster, node: str) -> list[str]:
    return [name for name in cluster.nodes if name != node]


def stored(cluster: LocalCluster, node: str) -> int:
    """How many messages of the topic `node` says are stored."""
    return next(t.messages for t in status(cluster, node).topics if t.topic.name == TOPIC)


def bodies_in_log(cli: CommandLine) -> set[str]:
    """Every stored body."""
    return {m["body"] for m in cli.ok("peek", "--topic", TOPIC, "--max", "100000", "--json").lines}


def send_through(cli: CommandLine, cluster: LocalCluster, event: Callable[[], object]) -> list[str]:
    """`send --file -` of TOTAL messages; `event` happens after a part of them is stored and before
    the rest is given.

    Every message must be acknowledged.
    """
    bodies = [f"m{k}" for k in range(TOTAL)]
    sender = cli.start("send", "--topic", TOPIC, "--file", "-", "--json", "--timeout", "60s")
    assert sender.stdin is not None and sender.stdout is not None
    with sender:
        sender.stdin.write("".join(f"{b}\n" for b in bodies[: TOTAL // 2]).encode())
        sender.stdin.flush()
        node = next(iter(cluster.nodes))
        wait_for(lambda: stored(cluster, node) > TOTAL // 10, 60, "the first messages")
        event()
        sender.stdin.write("".join(f"{b}\n" for b in bodies[TOTAL // 2 :]).encode())
        sender.stdin.close()
        summary = json.loads(sender.stdout.read())
        assert sender.wait(90) == 0, summary
    assert (summary["sent"], summary["acknowledged"], summary["failed"]) == (TOTAL, TOTAL, 0)
    return bodies


def test_leader_kill_under_load_keeps_acknowledged_messages(tmp_path: Path) -> None:
    """Every message that `send` says was acknowledged is stored and consumed; the killed node comes
    back and catches up."""
    with running(tmp_path) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC)
        first = leader(cluster)
        bodies = send_through(cli, cluster, lambda: cluster.kill(first))
        assert leader(cluster) != first
        assert bodies_in_log(cli) == set(bodies)
        cluster.start(first)
        assert cli.ok("status", "--wait", "60s", "--strict")
        assert set(cli.consume_all(TOPIC, "g")) == set(bodies)


@pytest.mark.verify
def test_cluster_state_survives_a_kill_of_all_nodes(tmp_path: Path) -> None:
    """Topics, messages, consumer groups and acknowledgements are there after SIGKILL of every
    node."""
    with running(tmp_path) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC)
        cli.ok("group", "create", "g", "--max-attempts", "9")
        bodies = [f"m{k}" for k in range(500)]
        assert cli.send_lines(TOPIC, bodies)["acknowledged"] == 500
        before = cli.ok(
            "consume", "--topic", TOPIC, "--group", "g", "--max", "200"
        ).out.splitlines()
        assert len(before) == 200
        for node in cluster.nodes:
            cluster.kill(node)
        assert cli.run("status", "--timeout", "1s").status == 3
        cluster.start_all()
        cluster.wait_ready()
        assert cli.ok("status", "--wait", "30s", "--strict")
        assert cli.ok("group", "describe", "g", "--json").json["max_attempts"] == 9
        assert bodies_in_log(cli) == set(bodies)
        assert sorted(cli.consume_all(TOPIC, "g") + before) == sorted(bodies)


@pytest.mark.verify
def test_leader_that_stands_still_is_replaced_and_takes_part_again(tmp_path: Path) -> None:
    """SIGSTOP of the leader under load: another one takes over; after SIGCONT the old one follows
    and nothing is lost."""
    with running(tmp_path) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC)
        first = leader(cluster)
        watcher = others(cluster, first)[0]

        def stand_still() -> None:
            cluster.children[first].signal(signal.SIGSTOP)
            wait_for(
                lambda: any(g.leader not in ("", first) for g in status(cluster, watcher).groups),
                30,
                "another leader",
            )

        try:
            bodies = send_through(cli, cluster, stand_still)
        finally:
            cluster.children[first].signal(signal.SIGCONT)
        assert cli.ok("status", "--wait", "60s", "--strict")
        assert bodies_in_log(cli) == set(bodies)
        assert set(cli.consume_all(TOPIC, "g")) == set(bodies)
