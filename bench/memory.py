"""Anonymous memory of each node at rest with 1,000,000 stored messages of 100 bytes, as written and
after a restart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from ledgermq.node.process.local import LocalCluster

NAME, RUNS, DURABLE = "memory", 1, True
TOPIC = "bench-memory"
MESSAGES = 1_000_000
REST_S = 10.0


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC)
        empty = resident(cluster)
        filled = cl.fill(cluster, TOPIC, MESSAGES)
        time.sleep(REST_S)
        at_rest = resident(cluster)
        cluster.stop()
        cluster.start_all()
        cluster.wait_ready()
        time.sleep(REST_S)
        return {
            "messages": MESSAGES,
            "body_bytes": 100,
            "fill_messages_per_s": filled["messages_per_s"],
            "rss_anon_mib": at_rest,
            "rss_anon_mib_most": max(at_rest.values()),
            "rss_anon_mib_empty": empty,
            "rss_anon_mib_after_restart": resident(cluster),
            "settings": cl.defaults(cluster),
        }


def resident(cluster: LocalCluster) -> dict[str, float]:
    return {
        node: round(cl.status_kib(pid, "RssAnon") / 1024, 1)
        for node, pid in cl.pids(cluster).items()
    }
