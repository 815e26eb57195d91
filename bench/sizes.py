"""What things cost that `ledgermq doctor --plan` counts: the memory and the disk of a node for each
topic, queue, consumer group and idle connection, and the bytes of log for each stored and each
delivered message.

Memory is RssAnon, as the mean of the nodes; each figure is the growth divided by the number of
things that were added. Bytes of log are the sum of the leader's group commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.connections import Crowd
from bench.tools import cluster as cl
from bench.tools import report
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2 as pb

NAME, RUNS, DURABLE = "sizes", 1, True
TOPICS, QUEUES, GROUPS, CONNECTIONS = 200, 1_000, 300, 3_000
MESSAGES = 20_000
BODY_BYTES = 1_024
SETTLE_S = 6.0


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        leads = cl.leader(cluster)
        cl.create_topic(cluster, "bench", queues=1)
        found: dict[str, Any] = {
            "node_mib": round(_memory(cluster) / 1024, 1),
            **_messages(cluster, leads),
        }
        steps: tuple[tuple[str, int, Callable[[], None]], ...] = (
            ("topic_kib", TOPICS, lambda: _topics(cluster, leads)),
            ("queue_kib", QUEUES, lambda: _queues(cluster, leads)),
            ("group_kib", GROUPS, lambda: _groups(cluster, leads)),
        )
        for name, count, add in steps:
            report.say(f"sizes: {name}")
            before = _memory(cluster)
            add()
            found[name] = round((_memory(cluster) - before) / count, 2)
        found["connection_kib"] = _connections(cluster)
        return {**found, "settings": cl.defaults(cluster)}


def _memory(cluster: LocalCluster) -> float:
    """KiB, as the mean of the nodes, some time after the last change."""
    time.sleep(SETTLE_S)
    sizes = [cl.status_kib(pid, "RssAnon") for pid in cl.pids(cluster).values()]
    return sum(sizes) / len(sizes)


def _messages(cluster: LocalCluster, leads: str) -> dict[str, float]:
    """Bytes of log of a native message, of a unary one, and for one that is received and
    acknowledged alone."""
    target = cl.address(cluster, leads)

    def grown(how: Callable[[], int]) -> float:
        before = cl.metric_sums(cluster, leads, "ledgermq_sync_batch_bytes")[1]
        count = how()
        return round(
            (cl.metric_sums(cluster, leads, "ledgermq_sync_batch_bytes")[1] - before) / count, 1
        )

    def native() -> int:
        size = {"body_bytes": BODY_BYTES, "batch": 500, "limit": MESSAGES}
        return int(
            cl.native_load("produce", target, "bench", **size, queues=1, seconds=60)["total"]
        )

    def unary() -> int:
        size = (
            "--limit",
            str(MESSAGES),
            "--batch",
            "500",
            "--window",
            "4",
            "--body-bytes",
            str(BODY_BYTES),
        )
        cl.load("fill", target, "bench", *size)
        return MESSAGES

    def received() -> int:
        window = ("--window", "8", "--batch", "1", "--seconds", "5")
        return int(cl.load("receive", target, "bench", "--group", "readers", *window)["total"])

    return {
        "native_message_bytes": grown(native),
        "unary_message_bytes": grown(unary),
        "delivered_bytes": grown(received),
    }


def _topics(cluster: LocalCluster, leads: str) -> None:
    for number in range(TOPICS):
        request = pb.CreateTopicRequest(
            topic=pb.Name(name=f"topic-{number}"), kind="normal", queues=1, permission="rw"
        )
        _accepted(cl.admin(cluster, leads, "CreateTopic", request, 30))


def _queues(cluster: LocalCluster, leads: str) -> None:
    """All queues hold messages: an empty one costs less than can be told."""
    cl.create_topic(cluster, "wide", QUEUES)
    size = {"body_bytes": 100, "limit": MESSAGES, "queues": QUEUES, "spread": "message"}
    cl.native_load("produce", cl.address(cluster, leads), "wide", **size, seconds=60)


def _groups(cluster: LocalCluster, leads: str) -> None:
    for number in range(GROUPS):
        _accepted(
            cl.admin(
                cluster,
                leads,
                "CreateGroup",
                pb.CreateGroupRequest(group=pb.Name(name=f"group-{number}")),
                30,
            )
        )


def _accepted(answer: Any) -> None:
    if answer.status.code != 20000:
        raise RuntimeError(answer.status.message)


def _connections(cluster: LocalCluster) -> float:
    """KiB of one connection for the node that has it."""
    before = _memory(cluster)
    crowd = Crowd([cl.address(cluster, node) for node in cluster.nodes], CONNECTIONS)
    try:
        crowd.come()
        return round((_memory(cluster) - before) * len(cluster.nodes) / crowd.held(), 2)
    finally:
        crowd.end()
