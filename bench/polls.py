"""The cost of 10,000 idle long polls on the leader: growth of anonymous memory, and processor time
while no message arrives.

`LEDGERMQ_BENCH_POLLS` sets another number. Each poll waits 20 s. Measured twice: before the first
one ends, when all only wait; and later, when they end empty and are repeated, a twentieth of them
every second.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.memory import resident
from bench.tools import cluster as cl
from ledgermq.node.process.local import LocalCluster

NAME, RUNS, DURABLE = "polls", 1, True
TOPIC = "bench-polls"
POLLS = int(os.environ.get("LEDGERMQ_BENCH_POLLS", 10_000))
OPENING_S = 8.0
"""The polls are opened evenly over this time."""
SECONDS = 8.0
WAITS_S = 20.0


def run(directory: Path) -> dict[str, Any]:
    limits = {"limits": {"max_calls": max(20_000, 2 * POLLS)}}
    with cl.running(directory, limits) as cluster:
        cl.create_topic(cluster, TOPIC)
        leads = cl.leader(cluster)
        time.sleep(3)
        before = resident(cluster)
        at = (
            "--target",
            cl.address(cluster, leads),
            "--topic",
            TOPIC,
            "--window",
            str(POLLS),
            "--rate",
            str(POLLS / OPENING_S),
        )
        command = cl.program("tools.load", "poll", *at)
        load = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cl.ROOT, text=True
        )
        try:
            assert load.stdout is not None and load.stdout.readline() == "open\n", (
                "the polls did not open"
            )
            time.sleep(1)
            waiting = share_of_a_core(cluster)
            after = resident(cluster)
            time.sleep(WAITS_S - OPENING_S - SECONDS)
            coming = share_of_a_core(cluster)
            said, _ = load.communicate("stop\n", timeout=60)
        finally:
            load.kill()
        return {
            "polls": POLLS,
            "growth_mib": round(after[leads] - before[leads], 1),
            "rss_anon_mib": after[leads],
            "leader_percent_of_a_core_waiting": waiting[leads],
            "leader_percent_of_a_core_coming_again": coming[leads],
            "other_nodes_percent_of_a_core_waiting": round(
                (sum(waiting.values()) - waiting[leads]) / 2, 1
            ),
            "answers": json.loads(said)["answered"],
            "settings": cl.defaults(cluster),
        }


def share_of_a_core(cluster: LocalCluster) -> dict[str, float]:
    """Processor time of each node over `SECONDS`, in hundredths of a core."""
    before, began = cl.all_cpu_s(cluster), time.monotonic()
    time.sleep(SECONDS)
    seconds = time.monotonic() - began
    return {
        node: round((used - before[node]) / seconds * 100, 1)
        for node, used in cl.all_cpu_s(cluster).items()
    }
