"""Reads that must miss nothing acknowledged before them, one at a time and 64 at once: each waits
for a round of messages that a majority answers, which it shares with the reads beside it.

Asked are an idle cluster and one that stores 500 messages a second. `switches` counts how often
threads of the nodes gave up the processor for one read; an idle cluster's own are subtracted.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from bench.tools.load import ADMIN_OK, READS
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2

NAME, RUNS, DURABLE = "reads", 3, True
TOPIC = "bench-reads"
WINDOWS = (1, 64)
SECONDS = 3
RATE = 500


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC, queues=1)
        cl.fill(cluster, TOPIC, 1000)
        leads = cl.leader(cluster)
        request = admin_pb2.CreateGroupRequest(group=admin_pb2.Name(name="bench"))
        answer = cl.admin(cluster, leads, "CreateGroup", request)
        assert answer.status.code == ADMIN_OK, answer
        idle = switches_of(cluster, idle_s=SECONDS)
        found: dict[str, Any] = {"idle_switches_per_s": round(idle / SECONDS)}
        for call in READS:
            for window in WINDOWS:
                before, cpu = switches_of(cluster), sum(cl.all_cpu_s(cluster).values())
                began = time.monotonic()
                told = cl.load(
                    "read", cl.address(cluster, leads), TOPIC, "--call", call, *loaded(window)
                )
                took_s = time.monotonic() - began
                switches = switches_of(cluster) - before - idle / SECONDS * took_s
                cost_s = sum(cl.all_cpu_s(cluster).values()) - cpu
                found[f"{call} {window}"] = {
                    **{name: told[name] for name in ("messages_per_s", "p50_ms", "p99_ms")},
                    "switches": round(switches / told["total"], 2),
                    "cpu_ms": round(cost_s * 1000 / told["total"], 3),
                }
        found["beside sends"] = beside_sends(cluster, leads)
        return {**found, "settings": cl.defaults(cluster)}


def beside_sends(cluster: LocalCluster, leads: str) -> dict[str, Any]:
    """One read at a time while messages are stored."""
    at = ("--target", cl.address(cluster, leads), "--topic", TOPIC)
    sends = (*at, "--rate", str(RATE), "--seconds", "3600", "--limit", "3000000")
    load = subprocess.Popen(
        cl.program("tools.load", "send", *sends), cwd=cl.ROOT, stdout=subprocess.DEVNULL
    )
    try:
        time.sleep(1)
        told = cl.load("read", cl.address(cluster, leads), TOPIC, *loaded(1))
        assert load.poll() is None, "the sends ended early"
    finally:
        load.kill()
        load.wait()
    return {name: told[name] for name in ("messages_per_s", "p50_ms", "p99_ms")}


def loaded(window: int) -> tuple[str, ...]:
    return "--window", str(window), "--seconds", str(SECONDS), "--warm-up-s", "0.5"


def switches_of(cluster: LocalCluster, idle_s: float = 0) -> int:
    """Voluntary switches of all threads of all nodes so far; with `idle_s`, those within so many
    seconds from now."""
    found = sum(cl.wake_ups(pid) for pid in cl.pids(cluster).values())
    if not idle_s:
        return found
    time.sleep(idle_s)
    return switches_of(cluster) - found
