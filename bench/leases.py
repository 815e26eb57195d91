"""The cost of 1,000,000 leased messages on the leader and the followers: growth of anonymous
memory, before and after a snapshot contains them.

`LEDGERMQ_BENCH_LEASES` sets another number.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bench.memory import resident
from bench.tools import cluster as cl

NAME, RUNS, DURABLE = "leases", 1, True
TOPIC = "bench-leases"
MESSAGES = int(os.environ.get("LEDGERMQ_BENCH_LEASES", 1_000_000))
QUEUES = 32
"""A consumer group has at most 65,536 messages of a queue in flight."""
REST_S = 10.0
SNAPSHOT_S = 70.0
"""A snapshot is written every minute."""


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC, QUEUES)
        leads = cl.leader(cluster)
        cl.fill(cluster, TOPIC, MESSAGES + 10_000)
        time.sleep(REST_S)
        before = resident(cluster)
        size = ("--limit", str(MESSAGES), "--window", "32")
        leased = cl.load("lease", cl.address(cluster, leads), TOPIC, *size, timeout_s=1800)
        time.sleep(REST_S)
        after = resident(cluster)
        time.sleep(SNAPSHOT_S)
        kept = resident(cluster)
        growth = {
            ("leader" if node == leads else node): round(after[node] - before[node], 1)
            for node in before
        }
        return {
            "messages": leased["messages"],
            "leased_per_s": leased["messages_per_s"],
            "growth_mib": growth,
            "growth_mib_with_snapshot": {
                ("leader" if node == leads else node): round(kept[node] - before[node], 1)
                for node in before
            },
            "rss_anon_mib": kept,
            "rss_anon_mib_before": before,
            "settings": cl.defaults(cluster),
        }
