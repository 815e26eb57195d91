"""LedgerMQ's own rows, measured like those of the others: three nodes as started by `ledgermq up`,
durable and memory, native and unary."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from bench.peers import common, rocketmq
from bench.peers.common import Load, Row
from bench.tools import cluster as cl
from ledgermq.node.process.local import LocalCluster

TOPIC = "bench-peers"
BATCH, PRODUCERS, UNARY_WINDOW = 1000, 2, 64
CLASSES = (
    ("durable", common.DURABLE, "fdatasync before acknowledge, majority of 3 (default)"),
    ("memory", common.MEMORY, "page cache of a majority of 3 (flush policy memory)"),
)


def rows(directory: Path, load: Load) -> Iterator[Row]:
    official, missing = "", None
    try:
        official = common.jars("rocketmq-client-java", [rocketmq.OFFICIAL_CLIENT])
    except common.Skip as reason:
        # The other rows need no Java.
        missing = reason
    with tempfile.TemporaryDirectory(prefix="peer-", dir=directory) as work:
        for policy, durability_class, durability in CLASSES:
            with cl.running(Path(work) / policy, {"flush": {"policy": policy}}) as cluster:
                cl.create_topic(cluster, TOPIC)
                for kind, system, client, batching, send in clients(
                    cluster, policy, official, load
                ):
                    try:
                        result, cpu = measured(cluster, send)
                    except RuntimeError:
                        # Most likely the leader changed, which stderr shows. A second failure is
                        # final.
                        result, cpu = measured(cluster, send)
                    of_client = (client, batching, result, load.body_bytes, cpu)
                    yield Row(
                        f"LedgerMQ, {system}",
                        version("ledgermq"),
                        durability_class,
                        durability,
                        *of_client,
                        kind=kind,
                    )
    if missing is not None:
        raise missing


def clients(
    cluster: LocalCluster, policy: str, official: str, load: Load
) -> Iterator[tuple[str, str, str, str, Callable[[], dict[str, float]]]]:
    """(kind, system, client, batching, measurement)."""
    times = ("--seconds", str(load.seconds), "--warm-up-s", str(load.warm_up_s))
    within_s = load.seconds + load.warm_up_s + 120

    def ours(module: str, *arguments: str) -> Callable[[], dict[str, float]]:
        memory = ["--memory"] if policy == "memory" and module != "tools.load" else []

        def send() -> dict[str, float]:
            target = [
                "--target",
                cl.address(cluster, cl.leader(cluster)),
                "--topic",
                TOPIC,
                "--body-bytes",
                str(load.body_bytes),
            ]
            return common.client(cl.program(module, *arguments, *memory, *target, *times), within_s)

        return send

    batching = f"frames of {BATCH:,}, {PRODUCERS} producers with 5 frames in flight"
    produce = ours(
        "streams.native_load", "produce", "--batch", str(BATCH), "--producers", str(PRODUCERS)
    )
    yield common.BATCHES, "native stream", "our lean load generator", batching, produce
    batching = "single messages, batched by the client"
    yield (
        common.SINGLES,
        "native stream",
        "AsyncProducer of ledgermq.client",
        batching,
        ours("tools.client_load"),
    )
    batching = f"single messages, {UNARY_WINDOW} in flight"
    client = "our lean load generator of the official protocol"
    yield (
        common.SINGLES,
        "unary sends",
        client,
        batching,
        ours("tools.load", "send", "--window", str(UNARY_WINDOW)),
    )
    if official:

        def send() -> dict[str, float]:
            arguments = (
                cl.address(cluster, cl.leader(cluster)),
                TOPIC,
                load.body_bytes,
                rocketmq.WINDOW,
                load.seconds,
                load.warm_up_s,
            )
            # It waits 150 s for the first acknowledgement.
            return common.java_client("ClientPublish.java", official, arguments, within_s + 150)

        client = f"rocketmq-client-java {rocketmq.CLIENT_VERSION}, asynchronous"
        yield (
            common.OFFICIAL,
            "unary sends",
            client,
            f"single messages, {rocketmq.WINDOW:,} in flight",
            send,
        )


def measured(
    cluster: LocalCluster, send: Callable[[], dict[str, float]]
) -> tuple[dict[str, float], float]:
    """A load generator's result, and the processor time of all nodes per message."""
    before = sum(cl.all_cpu_s(cluster).values())
    result = send()
    used = sum(cl.all_cpu_s(cluster).values()) - before
    return result, round(used / max(result["total"], 1) * 1e6, 1)


if __name__ == "__main__":
    common.main("LedgerMQ", rows)
