"""Receive and acknowledge with our own stubs: 16 receivers of 32 messages, acknowledged together
and one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from ledgermq.node.process.local import LocalCluster

NAME, RUNS, DURABLE = "receive", 3, True
TOPIC = "bench-receive"
BACKLOG = 200_000


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC)
        leads = cl.leader(cluster)
        filled = cl.fill(cluster, TOPIC, BACKLOG)
        return {
            "receivers": 16,
            "backlog": BACKLOG,
            "fill_messages_per_s": filled["messages_per_s"],
            "acknowledged_32_in_a_call": one(cluster, leads, "together", "32"),
            "acknowledged_one_in_a_call": one(cluster, leads, "singly", "1"),
            "one_in_a_call_through_a_follower": one(cluster, cl.follower(cluster), "other", "1"),
            "settings": cl.defaults(cluster),
        }


def one(cluster: LocalCluster, node: str, group: str, batch: str) -> dict[str, Any]:
    """One consumer group reading the whole backlog."""
    cpu = sum(cl.all_cpu_s(cluster).values())
    window = ("--window", "16", "--batch", batch, "--seconds", "8")
    result = cl.load("receive", cl.address(cluster, node), TOPIC, "--group", group, *window)
    total = result.pop("total")
    result["nodes_cpu_us_a_message"] = round(
        (sum(cl.all_cpu_s(cluster).values()) - cpu) / total * 1e6
    )
    result["client_cpu_us_a_message"] = round(result.pop("client_cpu_s") / total * 1e6)
    return result
