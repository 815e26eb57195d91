"""The cost of an idle cluster: processor time and wake-ups of each node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl

NAME, RUNS, DURABLE = "idle", 3, True
SETTLE_S = 3.0
SECONDS = 20.0


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        leads = cl.leader(cluster)
        time.sleep(SETTLE_S)
        nodes = cl.pids(cluster)
        cpu, wakes = cl.all_cpu_s(cluster), {node: cl.wake_ups(pid) for node, pid in nodes.items()}
        time.sleep(SECONDS)
        used, woken = cl.all_cpu_s(cluster), {node: cl.wake_ups(pid) for node, pid in nodes.items()}
        names = {
            node: "leader" if node == leads else f"follower_{i}"
            for i, node in enumerate(sorted(nodes, key=lambda n: n != leads))
        }
        return {
            "seconds": SECONDS,
            "cpu_percent_of_a_core": {
                names[n]: round((used[n] - cpu[n]) / SECONDS * 100, 2) for n in nodes
            },
            "wake_ups_per_s": {names[n]: round((woken[n] - wakes[n]) / SECONDS, 1) for n in nodes},
            "settings": cl.defaults(cluster),
        }
