"""Repairing a damaged MiB in the middle of a running leader's log while it leads; compared with
repairing the whole log.

Zeros are written over entries in the middle of the log files. Both ways are timed from the call to
the answer that the range exists, durable and read again. The time of the first way should not
depend on the size of the log; that of the second does.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from bench.tools import report
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2

NAME, RUNS, DURABLE = "repair", 1, True
TOPIC, BULK = "bench-repair", "bench-repair-bulk"
LOG_BYTES = 1 << 30
BODY_BYTES, BATCH = 4096, 128
DAMAGED_BYTES = 1 << 20
TIMES = 10
WITHIN_S = 120.0


def run(directory: Path) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        for topic in (TOPIC, BULK):
            cl.create_topic(cluster, topic)
        report.say(f"repair: storing {LOG_BYTES >> 20} MiB")
        size = (
            "--limit",
            str(LOG_BYTES // BODY_BYTES),
            "--batch",
            str(BATCH),
            "--window",
            "4",
            "--body-bytes",
            str(BODY_BYTES),
        )
        cl.load("fill", cl.address(cluster, cl.leader(cluster)), BULK, *size, timeout_s=900)
        ranges = [timed(cluster, number, whole_log=False) for number in range(TIMES)]
        report.say("repair: the whole log instead")
        whole = timed(cluster, TIMES, whole_log=True)
        return {
            "log_mib": LOG_BYTES >> 20,
            "damaged_bytes": DAMAGED_BYTES,
            "times": TIMES,
            "median_s": round(statistics.median(one["seconds"] for one in ranges), 3),
            "max_s": max(one["seconds"] for one in ranges),
            "whole_log_s": whole["seconds"],
            "settings": cl.defaults(cluster),
        }


def table(result: dict[str, Any]) -> str:
    """The result as text lines."""
    return (
        f"{result['damaged_bytes'] >> 20} MiB of a log of {result['log_mib']} MiB put back while it"
        f" leads, {result['times']} times: median {result['median_s']} s, at most {result['max_s']}"
        f" s (budget 2); the whole log instead: {result['whole_log_s']} s"
    )


def timed(cluster: LocalCluster, number: int, *, whole_log: bool) -> dict[str, Any]:
    """Damage a MiB and have it repaired; with `whole_log` the file is also removed, so that only a
    repair of the whole log helps."""
    node = cl.leader(cluster)
    root = cluster.data(node) / cl.GROUP
    identity = json.loads((root / "identity.json").read_text())
    files = sorted((root / f"dledger-{node}" / "data").glob("0*"))
    path = files[1 + number % (len(files) - 3)]
    first, last = damage(path, 1 << 20)
    if whole_log:
        path.unlink()
    request = admin_pb2.RepairRangeRequest(
        broker_group=cl.GROUP,
        log_id=identity["log_id"],
        incarnation=identity["incarnation"],
        first_index=first,
        last_index=last,
        whole_log=whole_log,
    )
    began = time.monotonic()
    while True:
        answer = cl.admin(cluster, node, "RepairRange", request)
        assert answer.status.code == 20000, answer.status.message
        if answer.done:
            break
        assert time.monotonic() < began + WITHIN_S, answer.waits_for
        time.sleep(0.02)
    seconds = round(time.monotonic() - began, 3)
    assert whole_log or (answer.written_bytes >= DAMAGED_BYTES and answer.repaired), answer
    report.say(f"repair: entries {first} to {last} of {node}: {seconds} s")
    return {"seconds": seconds, "entries": last - first + 1}


def damage(path: Path, start: int) -> tuple[int, int]:
    """Write zeros over whole entries of a log file, from the first one behind `start` on. Returns
    the first and the last of them."""
    raw = path.read_bytes()
    at = 0
    while at < start:
        at += int.from_bytes(raw[at + 4 : at + 8], "big")
    begin, first = at, int.from_bytes(raw[at + 8 : at + 16], "big")
    last = first
    while at < begin + DAMAGED_BYTES:
        last = int.from_bytes(raw[at + 8 : at + 16], "big")
        at += int.from_bytes(raw[at + 4 : at + 8], "big")
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(at - begin))
    return first, last
