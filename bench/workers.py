"""One process per core: the throughput of two broker groups of a one-node cluster in one worker
process, and in two that share a port.

Two producer processes, one per group, run at the same time on the same cores as the node. Two cores
therefore show from what point a second process helps, but not how far the benefit extends. The
kernel decides which worker accepts a producer's connection; streams that are forwarded to the other
worker are counted separately from those that are not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2

NAME, RUNS, DURABLE = "workers", 1, True
GROUPS = ("g1", "g2")
TOPIC = "bench"
SECONDS, WARM_UP_S = 5.0, 1.5
ROUNDS = 6
"""The number of rounds with two workers: enough for connections to be distributed in different
ways."""


def run(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"seconds": SECONDS, "producers": len(GROUPS)}
    for workers in (1, 2):
        with _running(directory / str(workers), workers) as cluster:
            cl.create_topic(cluster, TOPIC, queues=len(GROUPS))
            found[f"workers_{workers}"] = _summary(
                _both(cluster, ROUNDS // 2 if workers == 1 else ROUNDS)
            )
    return found


def table(result: Mapping[str, Any]) -> str:
    """One worker and two workers, each by the number of streams that were forwarded, as a Markdown
    table."""
    columns = [
        "workers",
        "streams passed on",
        "rounds",
        "messages/s, both groups",
        "node, µs of processor a message",
        "cores it used",
    ]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for workers in (1, 2):
        of = result[f"workers_{workers}"]
        for passed, found in of["by_streams_passed_on"].items():
            cells = [
                f"{found['messages_per_s']:,.0f}",
                f"{found['node_cpu_us_a_message']:.2f}",
                f"{found['node_cores']:.2f}",
            ]
            lines.append(
                f"| {workers} | {passed} of {result['producers']} | {found['rounds']} |"
                f" {' | '.join(cells)} |"
            )
    ratio = result["workers_2"]["messages_per_s"] / result["workers_1"]["messages_per_s"]
    return "\n".join([*lines, "", f"two workers to one: {ratio:.2f}"])


@contextmanager
def _running(directory: Path, workers: int) -> Iterator[LocalCluster]:
    """One node with both broker groups, ready for use; all of its processes have ended
    afterwards."""
    cluster = LocalCluster.prepare(directory, nodes=1, workers=workers, groups=GROUPS)
    cluster.start_all()
    try:
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


def _both(cluster: LocalCluster, rounds: int) -> list[dict[str, Any]]:
    status = cl.admin(cluster, "n1", "ClusterStatus", admin_pb2.ClusterStatusRequest())
    leaders = {info.group: info.leader for info in status.groups}
    return [_round(cluster, leaders) for _ in range(rounds)]


def _round(cluster: LocalCluster, leaders: dict[str, str]) -> dict[str, Any]:
    """Run both groups at the same time."""
    target = cl.address(cluster, "n1")
    before, began = _node_cpu_s(cluster), time.monotonic()

    def load(group: str) -> dict[str, Any]:
        given = {
            "group": group,
            "node": leaders[group],
            "queues": 1,
            "seconds": SECONDS,
            "warm_up_s": WARM_UP_S,
        }
        return cl.native_load("produce", target, TOPIC, **given)

    with ThreadPoolExecutor(len(GROUPS)) as pool:
        results = dict(zip(GROUPS, pool.map(load, GROUPS), strict=True))
    used, took = _node_cpu_s(cluster) - before, time.monotonic() - began
    total = sum(result["total"] for result in results.values())
    return {
        "messages_per_s": round(sum(result["messages_per_s"] for result in results.values())),
        "each": {group: round(result["messages_per_s"]) for group, result in results.items()},
        "passed": sum(result["passed_by"] is not None for result in results.values()),
        "node_cpu_us_a_message": round(used / max(total, 1) * 1e6, 3),
        "node_cores": round(used / took, 2),
    }


def _node_cpu_s(cluster: LocalCluster) -> float:
    """Processor time of the node including all of its workers, which are children of the process
    that was started."""
    pid = cluster.children["n1"].process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cl.cpu_s(pid) + sum(cl.cpu_s(int(child)) for child in children)


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of all rounds, and the medians by the number of streams that were forwarded."""
    by_passed: dict[int, list[dict[str, Any]]] = {}
    for each in rounds:
        by_passed.setdefault(each["passed"], []).append(each)
    names = ("messages_per_s", "node_cpu_us_a_message", "node_cores")
    return {
        **{name: statistics.median(each[name] for each in rounds) for name in names},
        "by_streams_passed_on": {
            str(passed): (
                {name: statistics.median(each[name] for each in some) for name in names}
                | {"rounds": len(some)}
            )
            for passed, some in sorted(by_passed.items())
        },
        "rounds": rounds,
    }
