"""The official Java client's push consumer on a backlog: it receives in batches and acknowledges
every message in a call of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peers import common, rocketmq
from bench.tools import cluster as cl

NAME, RUNS, DURABLE = "push_consumer", 1, True
TOPIC, GROUP = "bench-push", "push"
BACKLOG, SECONDS, WARM_UP_S = 400_000, 10.0, 20.0
SHORT = {"backlog": 20_000, "seconds": 1.0, "warm_up_s": 2.0}


def run(
    directory: Path, backlog: int = BACKLOG, seconds: float = SECONDS, warm_up_s: float = WARM_UP_S
) -> dict[str, Any]:
    """Messages consumed and acknowledged a second, over `seconds` after the warm-up, within which
    the backlog must last. Raises common.Skip if the client cannot be had."""
    official = common.jars("rocketmq-client-java", [rocketmq.OFFICIAL_CLIENT])
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC)
        cl.fill(cluster, TOPIC, backlog)
        leads, before = cl.leader(cluster), sum(cl.all_cpu_s(cluster).values())
        arguments = (cl.address(cluster, leads), TOPIC, GROUP, seconds, warm_up_s)
        found = common.java_client(
            "ClientConsume.java", official, arguments, seconds + warm_up_s + 120
        )
        used = sum(cl.all_cpu_s(cluster).values()) - before
        if found["total"] >= backlog:
            raise RuntimeError(
                f"the backlog of {backlog:,} messages was consumed before the end of the"
                " measurement"
            )
        return {
            "client": f"rocketmq-client-java {rocketmq.CLIENT_VERSION}",
            "backlog": backlog,
            "seconds": seconds,
            "warm_up_s": warm_up_s,
            "messages_per_s": round(found["messages_per_s"]),
            "nodes_cpu_us_a_message": round(used / found["total"] * 1e6),
            "settings": cl.defaults(cluster),
        }
