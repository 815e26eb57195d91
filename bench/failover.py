"""From SIGKILL of the leader to the first acknowledgement of a send started after it, sent through
the surviving nodes: 100 kills."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from bench.tools import cluster as cl
from bench.tools import report
from bench.tools.load import METADATA, SERVICE, message
from bench.tools.report import percentile
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from ledgermq.proto import messaging_pb2 as pb

NAME, RUNS, DURABLE = "failover", 1, True
TOPIC = "bench-failover"
KILLS = 100
EVERY_S = 0.02
WITHIN_S = 60.0


def run(directory: Path) -> dict[str, Any]:
    times: list[float] = []
    # One event loop for all kills, because the gRPC library does not support a second one.
    with cl.running(directory) as cluster, asyncio.Runner() as runner:
        cl.create_topic(cluster, TOPIC)
        settings = cl.defaults(cluster)
        for number in range(KILLS):
            victim = cl.leader(cluster)
            times.append(runner.run(one(cluster, victim, number)))
            cluster.start(victim)
            cluster.wait_ready()
            cl.wait_until(lambda: caught_up(cluster), 30, "the restarted node")
            report.say(f"failover: kill {number + 1} of {KILLS}: {times[-1]:.3f} s")
    ordered = sorted(round(value, 3) for value in times)
    return {
        "kills": KILLS,
        "median_s": round(statistics.median(ordered), 3),
        "p99_s": percentile(ordered, 0.99),
        "min_s": ordered[0],
        "max_s": ordered[-1],
        "sorted_s": ordered,
        "settings": settings,
    }


def table(result: dict[str, Any]) -> str:
    """The result as text lines."""
    return (
        f"first acknowledgement after SIGKILL of the leader, {result['kills']} times: median"
        f" {result['median_s']} s (budget 1.0), p99 {result['p99_s']} s (budget 1.5),"
        f" {result['min_s']} to {result['max_s']} s"
    )


class Sends:
    """Starts sends at fixed intervals through each of some nodes, independent of earlier ones;
    records when they are acknowledged."""

    def __init__(
        self, cluster: LocalCluster, nodes: Sequence[str], topic: str, series: int, every_s: float
    ) -> None:
        self.times: list[float] = []
        """Times of acknowledgements of sends that were started since `restart`."""
        self._channels = [
            grpc.aio.insecure_channel(cl.address(cluster, node), options=cl.CHANNEL)
            for node in nodes
        ]
        self._topic = topic
        self._series = series
        self._every_s = every_s
        self._started = 0
        self._counts_from = 0
        self._arrived = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._pace: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Sends:
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        self._pace = asyncio.create_task(self._keep_pace())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._pace is not None
        for task in (self._pace, *self._open):
            task.cancel()
        await asyncio.gather(self._pace, *self._open, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    def restart(self) -> None:
        """From now on count only newly started sends."""
        self._counts_from = self._started
        self.times.clear()
        self._arrived.clear()

    async def first(self) -> float:
        """The time of the first acknowledgement."""
        async with asyncio.timeout(WITHIN_S):
            await self._arrived.wait()
        return self.times[0]

    async def _keep_pace(self) -> None:
        began = asyncio.get_running_loop().time()
        for turn in range(1 << 40):
            for channel in self._channels:
                task = asyncio.create_task(self._send(channel, self._started))
                self._started += 1
                self._open.add(task)
                task.add_done_callback(self._open.discard)
            await asyncio.sleep(
                max(0.0, began + (turn + 1) * self._every_s - asyncio.get_running_loop().time())
            )

    async def _send(self, channel: grpc.aio.Channel, serial: int) -> None:
        data = pb.SendMessageRequest(
            messages=[message(self._topic, self._series << 32 | serial, b"x" * 100)]
        ).SerializeToString()
        call: Any = channel.unary_unary(SERVICE + "SendMessage")
        try:
            answer = pb.SendMessageResponse.FromString(
                await call(data, metadata=METADATA, timeout=10)
            )
        except grpc.RpcError:
            return
        if answer.status.code == pb.OK and serial >= self._counts_from:
            self.times.append(time.monotonic())
            self._arrived.set()


async def one(cluster: LocalCluster, victim: str, number: int) -> float:
    """Sends start every 20 ms through both survivors; those started after the kill count, and the
    first acknowledgement ends the run."""
    async with Sends(
        cluster, [node for node in cluster.nodes if node != victim], TOPIC, number, EVERY_S
    ) as sends:
        await sends.first()
        killed = time.monotonic()
        cluster.kill(victim)
        sends.restart()
        return await sends.first() - killed


def caught_up(cluster: LocalCluster) -> bool:
    """Whether every node is a voter with the leader's log: the next kill must not hit a cluster
    that is still recovering."""
    leads = cl.leader(cluster)
    info = next(
        g
        for g in cl.admin(cluster, leads, "ClusterStatus", admin_pb2.ClusterStatusRequest()).groups
        if g.group == cl.GROUP
    )
    return (
        len(info.replicas) == len(cluster.nodes)
        and len({replica.end_index for replica in info.replicas}) == 1
    )
