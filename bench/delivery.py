"""The time from a send to its message at a waiting receiver: 500 messages per second, receivers
connected to the leader.

Producer and receivers are one process with one clock. Every message is acknowledged. A message that
finds a waiting receiver arrives with the commit of its send.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.tools import cluster as cl

NAME, RUNS, DURABLE = "delivery", 3, True
TOPIC = "bench-delivery"
RATE = 500


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC)
        leads = cl.leader(cluster)
        cpu = cl.all_cpu_s(cluster)
        result = cl.load(
            "deliver",
            cl.address(cluster, leads),
            TOPIC,
            "--rate",
            str(RATE),
            "--window",
            "8",
            "--warm-up-s",
            "2",
        )
        total = result.pop("total")
        used = {node: seconds - cpu[node] for node, seconds in cl.all_cpu_s(cluster).items()}
        return {
            "rate": RATE,
            "end_to_end": result,
            "leader_cpu_us_a_message": round(used.pop(leads) / total * 1e6),
            "other_nodes_cpu_us_a_message": round(sum(used.values()) / len(used) / total * 1e6),
            "settings": cl.defaults(cluster),
        }
