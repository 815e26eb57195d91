"""A follower that was down while 1 GiB was stored: how fast it catches up under half load, and what
that costs the leader's producers.

The load is unary sends of 100 bytes at fixed intervals; half load is half of what 64 senders in
flight reach on the two remaining nodes. The same load is measured twice: without the follower, and
from the follower's start until it has everything that the leader has. The catch-up rate counts only
the bodies of the missed messages, from the first one that the follower receives to the last.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from bench.tools import report
from ledgermq.node.process.local import LocalCluster

NAME, RUNS, DURABLE = "catch_up", 1, True
TOPIC, BULK = "bench-catch-up", "bench-catch-up-bulk"
BEHIND_BYTES = 1 << 30
BODY_BYTES, BATCH = 4096, 128
SECONDS_WITHOUT = 10.0
WITHIN_S = 120.0
EVERY_S = 0.25
MIB = 1e6
"""The budget is in decimal megabytes a second."""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        for topic in (TOPIC, BULK):
            cl.create_topic(cluster, topic)
        late = cl.follower(cluster)
        cluster.terminate(late)
        held = end_index(cluster, cl.leader(cluster))
        messages = BEHIND_BYTES // BODY_BYTES
        report.say(f"catch_up: storing {BEHIND_BYTES >> 20} MiB while {late} is down")
        size = (
            "--limit",
            str(messages),
            "--batch",
            str(BATCH),
            "--window",
            "4",
            "--body-bytes",
            str(BODY_BYTES),
        )
        cl.load("fill", cl.address(cluster, cl.leader(cluster)), BULK, *size, timeout_s=900)
        missed = end_index(cluster, cl.leader(cluster))
        report.say("catch_up: the producers' maximum, then half of it without the follower")
        most = cl.load("send", cl.address(cluster, cl.leader(cluster)), TOPIC)["messages_per_s"]
        half = round(most / 2)
        without = cl.load(
            "send",
            cl.address(cluster, cl.leader(cluster)),
            TOPIC,
            *at_rate(half),
            "--seconds",
            str(SECONDS_WITHOUT),
        )
        report.say("catch_up: the follower starts")
        caught = catch_up(cluster, late, held, missed, half)
        with_it = caught.pop("producers")
        return {
            "behind_mib": BEHIND_BYTES >> 20,
            "most_messages_per_s": most,
            "half_load_messages_per_s": half,
            **caught,
            "producers_without": without,
            "producers_with": with_it,
            "producers_rate_ratio": round(with_it["messages_per_s"] / without["messages_per_s"], 3),
            "producers_p50_ratio": round(with_it["p50_ms"] / without["p50_ms"], 2),
            "settings": cl.defaults(cluster),
        }


def table(result: dict[str, Any]) -> str:
    """The result as text lines."""
    without, with_it = result["producers_without"], result["producers_with"]
    return "\n".join(
        [
            (
                f"caught up {result['behind_mib']} MiB in {result['seconds']} s:"
                f" {result['mb_per_s']} MB/s (budget 200)"
            ),
            (
                f"producers at half load: {without['messages_per_s']} messages/s without,"
                f" {with_it['messages_per_s']} with it: {(1 - result['producers_rate_ratio']):.1%}"
                " less (budget 20 %)"
            ),
            (
                f"their p50 / p99: {without['p50_ms']} / {without['p99_ms']} ms without,"
                f" {with_it['p50_ms']} / {with_it['p99_ms']} ms with it"
            ),
        ]
    )


def at_rate(rate: float) -> tuple[str, ...]:
    return ("--rate", str(rate), "--window", "64")


def catch_up(
    cluster: LocalCluster, late: str, held: int, missed: int, rate: float
) -> dict[str, Any]:
    """Start the follower under load, watch its log grow, and end the load when it has everything it
    missed."""
    target = cl.address(cluster, cl.leader(cluster))
    arguments = (
        "--target",
        target,
        "--topic",
        TOPIC,
        *at_rate(rate),
        "--limit",
        str(round(rate * 2 * WITHIN_S)),
        "--steered",
    )
    command = cl.program("tools.load", "send", *arguments)
    load = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cl.ROOT, text=True
    )
    try:
        assert load.stdin is not None and load.stdout is not None
        cluster.start(late)
        wait_for_entry(cluster, late, held + 1)
        began, first, cpu = time.monotonic(), end_index(cluster, late), cl.all_cpu_s(cluster)
        load.stdin.write("begin\n")
        load.stdin.flush()
        wait_for_entry(cluster, late, missed)
        seconds = time.monotonic() - began
        used = {node: round(spent - cpu[node], 2) for node, spent in cl.all_cpu_s(cluster).items()}
        load.stdin.write("end\n")
        load.stdin.flush()
        producers = json.loads(load.stdout.read())
    finally:
        load.kill()
        load.wait()
    share = (missed - first) / (missed - held)
    return {
        "seconds": round(seconds, 2),
        "mb_per_s": round(BEHIND_BYTES * share / seconds / MIB, 1),
        "cpu_s": {"follower": used[late], "others": [used[node] for node in used if node != late]},
        "producers": producers,
    }


def wait_for_entry(cluster: LocalCluster, node: str, index: int) -> None:
    """Each request costs the node a few milliseconds, so the interval is long."""
    give_up_at = time.monotonic() + WITHIN_S
    while end_index(cluster, node) < index:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{node} did not reach entry {index} within {WITHIN_S:g} s")
        time.sleep(EVERY_S)


def end_index(cluster: LocalCluster, node: str) -> int:
    """The last entry of a node's log according to its metrics; −1 while it does not answer."""
    where = cluster.nodes[node]
    try:
        with _OPENER.open(f"http://{where.host}:{where.http_port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
    except OSError:
        return -1
    return next(
        (
            int(float(line.rpartition(" ")[2]))
            for line in lines
            if line.startswith("ledgermq_end_index{")
        ),
        -1,
    )
