"""Three nodes that get too little processor time, without any other fault: how often the leader
changes, and what clients notice.

`SPINNERS` processes do nothing but compute, at the priority of the nodes, on all cores. Where the
system allows it, the sending process has a higher priority, so that the results describe the
cluster and not a load generator that is itself short of processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from bench.tools import cluster as cl
from bench.tools import report
from bench.tools.load import METADATA, SERVICE, message
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb

NAME, RUNS, DURABLE = "starved", 1, True
TOPIC = "bench-starved"
SPINNERS = 80
SECONDS = 180
SETTLE_S = 10
SENDERS = 8
"""The number of sends kept open at each node; each one is followed by the next, so the nodes always
need more than their share of the processors."""
TIMEOUT_S = 10
AGAIN_S = 0.1
GAP_S = 1.0
"""A client counts this time without an acknowledgement from any node as a time without a leader."""
AHEAD = -10
"""The priority of the sending process, relative to that of the nodes."""


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Run `count` processes that use all the processor time they can get. Each has its own session,
    as the nodes have, because the kernel divides processor time among sessions first
    (`sched_autogroup`)."""
    children = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def run(directory: Path, seconds: int = SECONDS, spinners: int = SPINNERS) -> dict[str, Any]:
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC)
        with spinning(spinners):
            with contextlib.suppress(PermissionError):
                os.nice(AHEAD)
            time.sleep(SETTLE_S)
            before = changes(cluster)
            found = asyncio.run(sent(cluster, seconds))
            after = changes(cluster)
            load = os.getloadavg()[0]
        new = [change for key, change in after.items() if key not in before]
    return {
        "spinners": spinners,
        "seconds": seconds,
        "load": round(load, 1),
        "leaders": sum(1 for change in new if change["leader"] is not None),
        "steps_down": sum(1 for change in new if change["leader"] is None),
        "reasons": [
            f"{change['former']} to {change['leader']}: {change['reason']}" for change in new
        ],
        **found,
    }


def changes(cluster: LocalCluster) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The leaders that were elected and replaced, by term and leader, each as reported by the node
    that became leader or stepped down."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for node in cluster.nodes:
        for line in cluster.log_file(node).read_text().splitlines():
            if "leadership changed" in line and line.startswith("{"):
                event = json.loads(line)
                if event["leader"] in (None, node):
                    found[event["term"], event["leader"], event["former"]] = event
    return found


async def sent(cluster: LocalCluster, seconds: int) -> dict[str, Any]:
    """Send through every node; each sender sends its messages one after another."""
    outcomes: Counter[str] = Counter()
    acknowledged: list[float] = []
    took: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(cl.address(cluster, node), options=cl.CHANNEL)
            )
            for node in cluster.nodes
        ]

        async def sender(channel: grpc.aio.Channel, first: int) -> None:
            call: Any = channel.unary_unary(SERVICE + "SendMessage")
            for serial in itertools.count(first << 32):
                data = pb.SendMessageRequest(
                    messages=[message(TOPIC, serial, b"x" * 100)]
                ).SerializeToString()
                if (started := time.monotonic()) >= until:
                    return
                try:
                    status = pb.SendMessageResponse.FromString(
                        await call(data, metadata=METADATA, timeout=TIMEOUT_S)
                    ).status
                except grpc.RpcError as error:
                    outcomes[f"rpc {error.code().name}"] += 1  # type: ignore[attr-defined]
                    continue
                if status.code == pb.OK:
                    acknowledged.append(time.monotonic())
                    took.append(acknowledged[-1] - started)
                else:
                    outcomes[f"{status.code} {status.message.partition(';')[0][:80]}"] += 1
                    await asyncio.sleep(AGAIN_S)

        began = time.monotonic()
        until = began + seconds
        await asyncio.gather(*(sender(channel, k) for k, channel in enumerate(channels * SENDERS)))
    took.sort()
    gaps = [
        later - sooner for sooner, later in zip([began, *acknowledged], acknowledged, strict=False)
    ]
    return {
        "sends": len(took) + outcomes.total(),
        "acknowledged": len(took),
        "failed": dict(outcomes),
        "gaps_s": sorted((round(gap, 2) for gap in gaps if gap >= GAP_S), reverse=True),
        "p50_s": round(report.percentile(took, 0.5), 3),
        "p99_s": round(report.percentile(took, 0.99), 3),
        "max_s": round(took[-1], 3),
    }


def table(result: dict[str, Any]) -> str:
    """The result as lines of text."""
    failed = result["sends"] - result["acknowledged"]
    return (
        f"{result['seconds']} s beside {result['spinners']} processes that compute:"
        f" {result['leaders']} new leaders, {failed} of {result['sends']} sends failed, without any"
        f" acknowledgement for {sum(result['gaps_s']):.1f} s; p99 {result['p99_s']} s"
    )
