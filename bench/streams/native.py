"""Native streams: throughput and latency curves, scaling, readers, delay between nodes; with the
machine's limits in the same run.

`run(directory, plan)` takes a `Plan`: the full one, or a quick one that runs every scenario in a
few minutes. A failed scenario is reported with its reason, and the others continue. Loads are
processes of `bench.streams.native_load`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import limits
from bench.streams import native_faults
from bench.streams.native_gauges import gauged
from bench.tools import cluster as cl
from bench.tools import report
from ledgermq.node.process.local import LocalCluster

NAME, RUNS, DURABLE = "native", 1, True
SIZES = (100, 1024, 10_240)
FRAME_BYTES = 900_000
ENTRY_OVER_BYTES = 184
"""About the bytes of an entry besides its body: frames stay below the node's limit."""
CLASSES = ("durable", "memory")
ATTEMPTS = 3
COLD_TOPIC = "bench-cold"


@dataclass(frozen=True)
class Plan:
    """The size of each measurement. Times in seconds."""

    seconds: float = 10.0
    warm_up_s: float = 3.0
    latency_parts: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
    """The rates of the latency curves, as parts of the measured throughput."""
    latency_sizes: tuple[int, ...] = SIZES
    sizes_elsewhere: tuple[int, ...] = SIZES
    """Duration of throughput loads on anything but three durable replicas."""
    batches: tuple[int, ...] = (1, 10, 100, 1000, 3000)
    producers: tuple[int, ...] = (1, 2, 4)
    queues: tuple[int, ...] = (1, 10, 100, 1000)
    backlog_bytes: int = 1 << 30
    limits_scale: float = 1.0
    replicas: tuple[int, ...] = (3, 1)
    kills: int = 5


FULL = Plan()
QUICK = Plan(
    seconds=2.0,
    warm_up_s=0.5,
    latency_parts=(0.25, 0.75),
    latency_sizes=(100,),
    sizes_elsewhere=(100,),
    batches=(1, 100, 1000),
    producers=(1, 2),
    queues=(1, 1000),
    backlog_bytes=64 << 20,
    limits_scale=0.25,
    replicas=(3, 1),
    kills=1,
)


def run(directory: Path, plan: Plan = FULL) -> dict[str, Any]:
    found: dict[str, Any] = {
        "plan": vars(plan),
        "limits": limits.run(directory, plan.limits_scale),
        "throughput": [],
        "failed": {},
    }
    with noted(found, "ceiling", None):
        found["ceiling"] = ceiling(plan)
    run_curves(found, directory, plan)
    for replicas in plan.replicas:
        for policy in CLASSES:
            place = directory / f"{policy}-{replicas}"
            with (
                noted(found, f"{policy}, {replicas} replicas", place),
                cl.running(place, flush(policy), nodes=replicas) as cluster,
            ):
                on_one_cluster(found, Target(cluster, policy, replicas), plan)
                found["settings"] = found.get("settings") or cl.defaults(cluster)
    place = directory / "readers"
    with noted(found, "readers", place), cl.running(place) as cluster:
        found["readers"] = readers(cluster, plan)
    place = directory / "delay"
    with noted(found, "delay between nodes", place):
        found["delay"] = native_faults.delayed(place, plan.seconds, plan.warm_up_s)
    place = directory / "kill"
    with noted(found, "leader kill", place):
        found["leader_kill"] = native_faults.killed(place, plan.kills)
    return found


def run_curves(found: dict[str, Any], directory: Path, plan: Plan = FULL) -> None:
    """By batch, producers and queues, on three durable replicas; into `found`."""
    place = directory / "curves"
    with noted(found, "curves", place), cl.running(place, flush("durable")) as cluster:
        curves(found, Target(cluster, "durable", 3), plan)


@contextmanager
def noted(found: dict[str, Any], scenario: str, place: Path | None) -> Iterator[None]:
    """A failed scenario is recorded in `failed`, and the suite continues. `place`, its data, is
    removed: all scenarios together would fill a disk of a hundred gigabytes."""
    report.say(f"native: {scenario}")
    began = time.monotonic()
    try:
        yield
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        found["failed"][scenario] = str(error)[-300:]
        report.say(f"native: {scenario} failed: {error}")
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
    report.say(f"native: {scenario} took {time.monotonic() - began:.0f} s")


def flush(policy: str) -> dict[str, Any]:
    return {"flush": {"policy": policy}}


@dataclass
class Target:
    """A cluster under one flush policy."""

    cluster: LocalCluster
    policy: str
    replicas: int
    topics: int = 0

    def load(
        self, plan: Plan, body_bytes: int = 100, queues: int = 8, **options: Any
    ) -> dict[str, Any]:
        """One load into its own topic, and its cost."""
        self.topics += 1
        topic = f"bench-{self.topics}"
        cl.create_topic(self.cluster, topic, queues)
        given = {
            "body_bytes": body_bytes,
            "queues": queues,
            "seconds": plan.seconds,
            "warm_up_s": plan.warm_up_s,
            **options,
        }
        given.setdefault("batch", batch_of(body_bytes))
        if self.policy == "memory":
            given["memory"] = True
        result, cost = self._repeated(topic, body_bytes, given)
        place = {
            "class": self.policy,
            "replicas": self.replicas,
            "body_bytes": body_bytes,
            "queues": queues,
            "batch": given["batch"],
        }
        return {**place, "producers": given.get("producers", 1), **result, **cost}

    def _repeated(
        self, topic: str, body_bytes: int, given: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A load that ends because the leader changed is repeated, and the result contains the
        number of repetitions."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with gauged(self.cluster) as gauges:
                    result = cl.native_load(
                        "produce", cl.address(self.cluster, cl.leader(self.cluster)), topic, **given
                    )
                    return {**result, "attempts": attempt}, gauges.read(result["total"], body_bytes)
            except RuntimeError as error:
                report.say(f"native: attempt {attempt} failed: {error}")
                if attempt == ATTEMPTS or "redirect" not in str(error):
                    raise
        raise AssertionError("the loop returns or raises")


def batch_of(body_bytes: int) -> int:
    """The number of messages in a full frame."""
    return min(1000, FRAME_BYTES // (body_bytes + ENTRY_OVER_BYTES))


def ceiling(plan: Plan) -> dict[str, Any]:
    """The same client with a Log service that stores nothing."""
    port = cl.free_port()
    command = cl.program("tools.empty_log", str(port))
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cl.ROOT
    )
    try:
        assert server.stdout is not None
        server.stdout.readline()
        before = cl.cpu_s(server.pid)
        result = cl.native_load(
            "produce", f"127.0.0.1:{port}", "T", seconds=plan.seconds, warm_up_s=plan.warm_up_s
        )
        used = (cl.cpu_s(server.pid) - before) / max(result["total"], 1) * 1e6
        read = cl.native_load("consume", f"127.0.0.1:{port}", "T", queues=1)
        return {"produce": {**result, "server_cpu_us_a_message": round(used, 3)}, "consume": read}
    finally:
        server.communicate()


def on_one_cluster(found: dict[str, Any], target: Target, plan: Plan) -> None:
    """Throughput by size, and with three replicas also latency by rate."""
    for size in (
        SIZES if target.replicas == 3 and target.policy == "durable" else plan.sizes_elsewhere
    ):
        found["throughput"].append(target.load(plan, size))
    if target.replicas != 3:
        return
    latency = found.setdefault("latency", [])
    for size in plan.latency_sizes:
        # Parts of the throughput with frames of this length: a higher rate would only measure a
        # growing queue.
        most = target.load(plan, size, batch=latency_batch(size))["messages_per_s"]
        for part in plan.latency_parts:
            latency.append(
                {
                    "part": part,
                    **target.load(
                        plan, size, rate=max(1.0, most * part), batch=latency_batch(size)
                    ),
                }
            )


def curves(found: dict[str, Any], target: Target, plan: Plan) -> None:
    found["one_at_a_time"] = target.load(plan, batch=1, window=1)
    found["batches"] = [target.load(plan, batch=batch) for batch in plan.batches]
    found["producers"] = [target.load(plan, producers=producers) for producers in plan.producers]
    found["queues"] = [target.load(plan, queues=queues, spread="message") for queues in plan.queues]


def latency_batch(body_bytes: int) -> int:
    """Smaller frames than for throughput, because a latency-sensitive client does not wait for a
    thousand messages."""
    return max(1, batch_of(body_bytes) // 10)


def readers(cluster: LocalCluster, plan: Plan) -> dict[str, Any]:
    """A backlog read from the page cache and from the disk, tailing, and a producer beside a reader
    of the backlog."""
    leads = cl.leader(cluster)
    target = cl.address(cluster, leads)
    found: dict[str, Any] = {}
    for size in (100, 10_240):
        topic, messages = f"{COLD_TOPIC}-{size}", plan.backlog_bytes // (size + ENTRY_OVER_BYTES)
        cl.create_topic(cluster, topic)
        cl.native_load(
            "produce",
            target,
            topic,
            body_bytes=size,
            batch=batch_of(size),
            limit=messages,
            warm_up_s=0,
            seconds=800,
        )
        rows = found[f"backlog_{size}"] = {"messages": messages}
        rows["page_cache"] = consume(cluster, leads, topic, size, messages)
        rows["page_cache_bodies"] = consume(cluster, leads, topic, size, messages, decode=True)
        forget_pages(cluster.data(leads))
        rows["disk"] = consume(cluster, leads, topic, size, messages)
    found["tailing"] = tailing(cluster, target, plan)
    found["beside_cold"] = beside_cold(cluster, leads, plan)
    return found


def consume(
    cluster: LocalCluster, node: str, topic: str, body_bytes: int, messages: int, **options: Any
) -> dict[str, Any]:
    before = cl.cpu_s(cl.pids(cluster)[node])
    result = cl.native_load(
        "consume",
        cl.address(cluster, node),
        topic,
        body_bytes=body_bytes,
        limit=messages,
        **options,
    )
    used = cl.cpu_s(cl.pids(cluster)[node]) - before
    return {**result, "leader_cpu_us_a_message": round(used / result["messages"] * 1e6, 3)}


def forget_pages(directory: Path) -> None:
    """Drop a node's stored files from the page cache; mapped or dirty pages may stay."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def tailing(cluster: LocalCluster, target: str, plan: Plan) -> dict[str, Any]:
    """From the intended time of a send to its arrival at a reader of the log's end, at half of the
    throughput and at full throughput."""
    times = {"seconds": plan.seconds, "warm_up_s": plan.warm_up_s}
    cl.create_topic(cluster, "bench-tail-all")
    everything = cl.native_load("deliver", target, "bench-tail-all", **times)
    cl.create_topic(cluster, "bench-tail-half")
    rate = (
        cl.native_load("produce", target, "bench-tail-half", **times, batch=latency_batch(100))[
            "messages_per_s"
        ]
        / 2
    )
    half = cl.native_load(
        "deliver", target, "bench-tail-half", **times, rate=max(1.0, rate), batch=latency_batch(100)
    )
    return {"saturated": everything, "half": half}


def beside_cold(cluster: LocalCluster, leads: str, plan: Plan) -> dict[str, Any]:
    """A producer at half load, alone and while the whole backlog is read from the disk
    repeatedly."""
    target = cl.address(cluster, leads)
    topic = "bench-beside"
    cl.create_topic(cluster, topic)
    times = {"seconds": plan.seconds, "warm_up_s": plan.warm_up_s, "batch": latency_batch(100)}
    most = cl.native_load("produce", target, topic, **times)["messages_per_s"]
    options = {**times, "rate": max(1.0, most / 2)}
    alone = cl.native_load("produce", target, topic, **options)
    cold = f"{COLD_TOPIC}-10240"
    reading = Again(
        lambda: cl.program("streams.native_load", "consume", "--target", target, "--topic", cold),
        cluster.data(leads),
    )
    try:
        beside = cl.native_load("produce", target, topic, **options)
    finally:
        read = reading.end()
    ratio = round(beside["p99_ms"] / alone["p99_ms"], 3)
    return {
        "rate": round(most / 2),
        "alone": alone,
        "beside": beside,
        "p99_ratio": ratio,
        "whole_reads": read,
    }


class Again:
    """A reader that starts again whenever it reaches the end, each time with a cold cache."""

    def __init__(self, command: Callable[[], list[str]], directory: Path) -> None:
        self._command, self._directory = command, directory
        self._ended, self._process = False, self._begin()
        self._reads = 0
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _begin(self) -> subprocess.Popen[bytes]:
        forget_pages(self._directory)
        return subprocess.Popen(self._command(), stdout=subprocess.DEVNULL, cwd=cl.ROOT)

    def _follow(self) -> None:
        while not self._process.wait() and not self._ended:
            self._reads += 1
            self._process = self._begin()

    def end(self) -> int:
        """How often it reached the end."""
        self._ended = True
        self._process.terminate()
        self._thread.join()
        self._process.wait()
        return self._reads
