"""Agreement and its cost: how long a comparison of three replicas of 100 sealed files takes, how
soon a running cluster reports that a sealed file differs, and what the background comparison costs
producers.

The cost is measured in pairs of new clusters, one with the loop and one without
(`agreement.check_ms` of an hour), in alternating order, so that other load on the machine affects
both. To make a file differ, some of its bytes are changed on one follower while it is being
written. The time runs from the store time of the first entry of the next file, which seals it, to
the event in that follower's log.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.audit_scan import BATCH, CREATED_MS, NODES, StoredReplica, batch_of, term_start
from bench.streams import native
from bench.tools import cluster as cl
from ledgermq.audit.run.jobs import Engine, audit, local_engine
from ledgermq.node.process.local import LocalCluster

NAME, RUNS, DURABLE = "agreement", 1, True
FILES = 100
FILE_BYTES = 1 << 20
TIMES = 5
PAIRS = 6
RATE = 30_000.0
"""Messages of 100 bytes per second while files are damaged: about 10 MB/s of log."""
HARMED_AT = 300 << 10
HARM_BEHIND = 4 << 20
STORE_MS_AT = 104
WITHOUT = {"agreement": {"check_ms": 3_600_000}}
ALARM = "log file differs from what a majority sealed"
FOUND = "damage found"
"""Found by the other loop, which reads a log again after a repair: the damage preceded the seal, so
nothing is timed."""
CHANGED = "broker group changed state"


def run(directory: Path) -> dict[str, Any]:
    return {
        "compared": compared(directory / "files"),
        "told_after_s": sorted(told(directory / "told")),
        "cost": cost(directory / "cost", PAIRS),
    }


# -- directories


def compared(directory: Path) -> dict[str, Any]:
    """`ledgermq audit --agreement` over 100 sealed files on three replicas, in this process and on
    Spark beyond its start."""
    from ledgermq.audit.spark.engine import SparkEngine
    from ledgermq.audit.spark.java import spark_session

    for name in NODES:
        replica, number = StoredReplica(directory / name, FILE_BYTES), 0
        replica.append(1, term_start(1), CREATED_MS)
        while replica.store.log.end_pos < FILES * FILE_BYTES + 1000:
            replica.append(1, batch_of(number, BATCH, 100), CREATED_MS + number)
            number += BATCH
        replica.sync()
        replica.stop()
    found = {"files": FILES, "replicas": len(NODES), "local_s": _timed(directory, local_engine)}
    session = spark_session()
    try:
        engine = SparkEngine(session)
        _timed(directory, engine)
        return {**found, "spark_s": _timed(directory, engine)}
    finally:
        session.stop()


def _timed(directory: Path, engine: Engine) -> float:
    began = time.perf_counter()
    result = audit([str(directory / name) for name in NODES], engine, agreement=True)
    assert result.verdict == "PASS", result.reasons
    return round(time.perf_counter() - began, 3)


# -- a running cluster


def told(directory: Path) -> Iterator[float]:
    """Yield the seconds from sealing a file that differs on one follower to that follower's report,
    repeatedly."""
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, "t")
        node = cl.follower(cluster)
        ended = threading.Event()
        load = threading.Thread(target=_load, args=(cluster, ended), daemon=True)
        load.start()
        try:
            times = (_one(cluster, node) for _ in itertools.count())
            yield from itertools.islice(
                (seconds for seconds in times if seconds is not None), TIMES
            )
        finally:
            ended.set()
            load.join()


def _load(cluster: LocalCluster, ended: threading.Event) -> None:
    """Restart a load that ends because the leader changed."""
    while not ended.is_set():
        with contextlib.suppress(RuntimeError):
            cl.native_load(
                "produce",
                cl.address(cluster, cl.leader(cluster)),
                "t",
                seconds=5,
                warm_up_s=0,
                rate=RATE,
                batch=500,
            )


def _one(cluster: LocalCluster, node: str) -> float | None:
    data = cluster.data(node) / cl.GROUP / f"dledger-{node}" / "data"
    base = max(base for base, _ in _begun(data)) if _begun(data) else 0
    base += _size(data) if _written(data / f"{base:020d}", HARM_BEHIND) else 0
    path, following = data / f"{base:020d}", data / f"{base + _size(data):020d}"
    _wait(lambda: _written(path, HARM_BEHIND), "the file to be written")
    with path.open("r+b") as file:
        old = os.pread(file.fileno(), 8, HARMED_AT)
        os.pwrite(file.fileno(), bytes(byte ^ 0x55 for byte in old), HARMED_AT)
    _wait(lambda: _written(following, 0), "the file to be sealed")
    sealed_ms = int.from_bytes(following.open("rb").read(STORE_MS_AT + 8)[STORE_MS_AT:], "big")
    alarm = _wait(lambda: _word_of(cluster, node, path), "the alarm")
    # The repair that follows also restores differences in the next file, so wait for its end before
    # the next damage.
    _wait(
        lambda: any(
            e["state"] == "running" and e["ts"] > alarm["ts"]
            for e in _events(cluster, node, CHANGED)
        ),
        "the end of the repair",
    )
    return (
        None
        if alarm["event"] == FOUND
        else round(datetime.fromisoformat(alarm["ts"]).timestamp() - sealed_ms / 1000, 3)
    )


def _word_of(cluster: LocalCluster, node: str, path: Path) -> dict[str, Any] | None:
    """The node's first report about this file."""
    words = [
        event
        for word in (FOUND, ALARM)
        for event in _events(cluster, node, word)
        if path.name in str(event)
    ]
    return min(words, key=lambda event: str(event["ts"]), default=None)


def _size(data: Path) -> int:
    return next(path.stat().st_size for path in sorted(data.iterdir()) if path.name.isdigit())


def _begun(data: Path) -> list[tuple[int, Path]]:
    return [
        (int(path.name), path)
        for path in sorted(data.iterdir())
        if path.name.isdigit() and _written(path, 0)
    ]


def _written(path: Path, offset: int) -> bool:
    """Whether this place of a file was written already."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return any(os.pread(file.fileno(), 4096, offset))


def _events(cluster: LocalCluster, node: str, event: str) -> list[dict[str, Any]]:
    lines = cluster.log_file(node).read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if event in line]


def _wait(condition: Any, what: str, timeout_s: float = 120) -> Any:
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() >= end:
            raise RuntimeError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.02)
    return found


# -- the price


def cost(directory: Path, pairs: int, seconds: float = 8.0) -> dict[str, Any]:
    """Throughput of one native producer with the loop and without it; the median of the pairs'
    ratios counts."""
    plan = native.Plan(seconds=seconds, warm_up_s=2.0)
    rows = []
    for pair in range(pairs):
        row = {}
        for kind in ("with", "without") if pair % 2 else ("without", "with"):
            with cl.running(
                directory / f"{pair}-{kind}", WITHOUT if kind == "without" else None
            ) as cluster:
                row[kind] = round(native.Target(cluster, "durable", 3).load(plan)["messages_per_s"])
        rows.append(row)
    ratios = sorted(row["with"] / row["without"] for row in rows)
    return {"pairs": rows, "median_cost_percent": round(100 * (1 - statistics.median(ratios)), 2)}
