"""LedgerMQ's own rows, measured like those of the others: three nodes as started by `ledgermq up`, durable and memory, native and unary."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import cluster as cl
from bench.peers import common
from bench.peers.common import Load, Row
from ledgermq.node.process.local import LocalCluster

TOPIC = "bench-peers"
BATCH, PRODUCERS, UNARY_WINDOW = 1000, 2, 64
CLASSES = (
    ("durable", common.DURABLE, "fdatasync before acknowledge, majority of 3 (default)"),
    ("memory", common.MEMORY, "page cache of a majority of 3 (flush policy memory)"),
)


def rows(directory: Path, load: Load) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="peer-", dir=directory) as work:
        for policy, durability_class, durability in CLASSES:
            with cl.running(Path(work) / policy, {"flush": {"policy": policy}}) as cluster:
                cl.create_topic(cluster, TOPIC)
                for client, batching, command in clients(policy):
                    try:
                        result, cpu = measured(cluster, command, load)
                    except RuntimeError:
                        # Most likely the leader changed, which stderr shows. A second failure is final.
                        result, cpu = measured(cluster, command, load)
                    system = f"LedgerMQ, {client[0]}"
                    yield Row(system, version("ledgermq"), durability_class, durability, client[1], batching, result, load.body_bytes, cpu)


def clients(policy: str) -> Iterator[tuple[tuple[str, str], str, list[str]]]:
    """((kind, client), batching, arguments of a load generator)."""
    native = ["native_load", "produce", "--batch", str(BATCH), "--producers", str(PRODUCERS)]
    memory = ["--memory"] if policy == "memory" else []
    batching = f"frames of {BATCH:,}, {PRODUCERS} producers with 5 frames in flight"
    yield ("native stream", "our lean load generator"), batching, [*native, *memory]
    yield ("native stream", "AsyncProducer of ledgermq.client"), "single messages, batched by the client", ["client_load", *memory]
    batching = f"single messages, {UNARY_WINDOW} in flight"
    yield ("unary sends", "our lean load generator of the official protocol"), batching, ["load", "send", "--window", str(UNARY_WINDOW)]


def measured(cluster: LocalCluster, command: list[str], load: Load) -> tuple[dict[str, Any], float]:
    """A load generator's result, and the processor time of all nodes per message."""
    before = sum(cl.all_cpu_s(cluster).values())
    module, *arguments = command
    target = ["--target", cl.address(cluster, cl.leader(cluster)), "--topic", TOPIC, "--body-bytes", str(load.body_bytes)]
    times = ["--seconds", str(load.seconds), "--warm-up-s", str(load.warm_up_s)]
    result = common.client(cl.program(module, *arguments, *target, *times), load.seconds + load.warm_up_s + 120)
    used = sum(cl.all_cpu_s(cluster).values()) - before
    return result, round(used / max(result["total"], 1) * 1e6, 1)


if __name__ == "__main__":
    common.main("LedgerMQ", rows)
