"""Native streams under faults: two milliseconds between the nodes, and leaders killed under
load."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from bench.tools import report

DELAY_S = 0.002
"""One way, so a round trip takes 4 ms more."""
TOPIC = "bench-faults"
RATE = 10_000
BEFORE_S, EVERY_S = 2.0, 6.0


def delayed(
    directory: Path, seconds: float, warm_up_s: float, group: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The same load through the same proxy with and without the delay, so that both include the
    cost of the proxy."""
    from tests.faults.faulty import FaultyCluster

    with cl.running(directory, kind=FaultyCluster, group=group) as cluster:
        assert isinstance(cluster, FaultyCluster)
        try:
            cl.create_topic(cluster, TOPIC)
            found = {}
            for name, delay_s in (("without", 0.0), ("with", DELAY_S)):
                cluster.network.shape(cluster.network.ways, delay_s=delay_s)
                found[name] = cl.led_load(
                    cluster, "produce", TOPIC, producers=4, seconds=seconds, warm_up_s=warm_up_s
                )
        finally:
            cluster.network.heal()
            cluster.network.close()
    ratio = round(found["with"]["messages_per_s"] / found["without"]["messages_per_s"], 3)
    return {**found, "delay_each_way_ms": DELAY_S * 1000, "rate_ratio": ratio}


def killed(
    directory: Path, kills: int, group: Mapping[str, Any] | None = None, rate: int = RATE
) -> dict[str, Any]:
    """A producer at a steady rate while leaders are killed and restarted one after the other; then
    every message is read back.

    `silence_s`: the longest time without an acknowledgement around each kill. Every message must be
    acknowledged and stored once; this does not apply to groups whose master acknowledges alone.
    """
    seconds = BEFORE_S + kills * EVERY_S
    with cl.running(directory, group=group) as cluster:
        cl.create_topic(cluster, TOPIC)
        endpoints = ",".join(cl.address(cluster, node) for node in cluster.nodes)
        command = cl.program(
            "streams.native_survivor",
            "--endpoints",
            endpoints,
            "--topic",
            TOPIC,
            "--seconds",
            str(seconds),
        )
        load = subprocess.Popen(
            [*command, "--rate", str(rate)], stdout=subprocess.PIPE, text=True, cwd=cl.ROOT
        )
        assert load.stdout is not None
        load.stdout.readline()
        time.sleep(BEFORE_S)
        at = []
        for _ in range(kills):
            began = time.monotonic()
            victim = cl.leader(cluster)
            at.append(time.monotonic_ns())
            cluster.kill(victim)
            cluster.start(victim)
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))
        output, _ = load.communicate(timeout=180)
        if load.returncode:
            raise RuntimeError(f"the producer ended with {load.returncode}")
        result = report.parsed(output)
        times = result.pop("acknowledged_ns")
        cluster.wait_ready()
        read = cl.native_load(
            "consume", cl.address(cluster, cl.leader(cluster)), TOPIC, limit=result["messages"]
        )
    if read["messages"] != result["messages"]:
        raise RuntimeError(
            f"{result['messages']} messages were sent, {read['messages']} are stored"
        )
    silences = [silence(times, kill, kill + round(EVERY_S * 1e9)) for kill in at]
    found = {
        "rate": rate,
        "kills": kills,
        "silence_s": {"median": statistics.median(silences), "all": sorted(silences)},
    }
    return {**found, **result, "stored": read["messages"]}


def silence(times: list[int], begin: int, end: int) -> float:
    """The longest time without an acknowledgement that started between two moments."""
    edges = [
        begin,
        *(time for time in times if begin <= time < end),
        next((time for time in times if time >= end), end),
    ]
    return max(late - early for early, late in itertools.pairwise(edges)) / 1e9
