"""The cost of durability for a send: p50 and p99 at half load under the flush policies durable and
memory, and one fdatasync of that disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from bench.tools.report import percentile

NAME, RUNS, DURABLE = "flush_modes", 3, True
TOPIC = "bench-flush"
SATURATE = ("--seconds", "4", "--warm-up-s", "1.5")
PACED = ("--seconds", "8", "--warm-up-s", "2", "--window", "256")
TAX_MAX = 1.5
"""The budget: p99 in `durable` is at most this many times p99 in `memory`, plus one fdatasync."""
SYNCS = 300
SYNC_BYTES = 4096


def run(directory: Path) -> dict[str, Any]:
    fdatasync = one_fdatasync(directory)
    most, durable = paced(directory, "durable", None)
    _, memory = paced(directory, "memory", most / 2)
    limit_ms = TAX_MAX * memory["p99_ms"] + fdatasync["p50_ms"]
    return {
        "body_bytes": 100,
        "durable_at_saturation_per_s": most,
        "offered_per_s": round(most / 2),
        "durable": durable,
        "memory": memory,
        "fdatasync": fdatasync,
        "p99_durable_over_memory": round(durable["p99_ms"] / memory["p99_ms"], 2),
        "p99_durable_over_budget": round(durable["p99_ms"] / limit_ms, 2),
    }


def paced(directory: Path, policy: str, rate: float | None) -> tuple[float, dict[str, Any]]:
    """(sends per second at saturation, figures at a fixed rate: half of that if none is given), on
    its own cluster."""
    with cl.running(directory / policy, {"flush": {"policy": policy}}) as cluster:
        cl.create_topic(cluster, TOPIC)
        leads = cl.leader(cluster)
        target = cl.address(cluster, leads)
        most = float(cl.load("send", target, TOPIC, *SATURATE)["messages_per_s"])
        before = cl.metric_sums(cluster, leads, "ledgermq_sync_seconds")
        result = cl.load(
            "send", target, TOPIC, *PACED, "--rate", str(most / 2 if rate is None else rate)
        )
        after = cl.metric_sums(cluster, leads, "ledgermq_sync_seconds")
        syncs, seconds = (late - early for late, early in zip(after, before, strict=True))
        kept = {key: result[key] for key in ("messages_per_s", "p50_ms", "p99_ms", "max_ms")}
        figures = {
            "group_commits": int(syncs),
            "fdatasync_mean_ms": round(seconds / max(syncs, 1) * 1000, 3),
        }
        return most, {**kept, **figures, "at_saturation_per_s": most}


def one_fdatasync(directory: Path) -> dict[str, float]:
    """Sync one page at a time in an allocated file, without other load."""
    file = os.open(directory / "page", os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(file, 0, SYNCS * SYNC_BYTES)
        os.fsync(file)
        taken = []
        for number in range(SYNCS):
            os.pwrite(file, os.urandom(SYNC_BYTES), number * SYNC_BYTES)
            began = time.perf_counter()
            os.fdatasync(file)
            taken.append(time.perf_counter() - began)
    finally:
        os.close(file)
    ordered = sorted(taken)
    return {f"p{share}_ms": round(percentile(ordered, share / 100) * 1000, 3) for share in (50, 99)}
