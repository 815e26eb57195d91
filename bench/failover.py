"""From SIGKILL of the leader to the first acknowledgement of a send started after it, sent through the surviving nodes: 20 kills."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import grpc.aio

from bench import cluster as cl
from bench import report
from bench.load import METADATA, SERVICE, message
from ledgermq.node.local import LocalCluster
from ledgermq.proto import admin_pb2
from ledgermq.proto import messaging_pb2 as pb

NAME, RUNS, DURABLE = "failover", 1, True
TOPIC = "bench-failover"
KILLS = 20
EVERY_S = 0.02


def run(directory: Path) -> dict[str, Any]:
    times: list[float] = []
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC)
        settings = cl.defaults(cluster)
        for number in range(KILLS):
            victim = cl.leader(cluster)
            times.append(asyncio.run(one(cluster, victim, number)))
            cluster.start(victim)
            cluster.wait_ready()
            cl.wait_until(lambda: caught_up(cluster), 30, "the restarted node")
            report.say(f"failover: kill {number + 1} of {KILLS}: {times[-1]:.3f} s")
    return {
        "kills": KILLS,
        "median_s": round(statistics.median(times), 3),
        "min_s": round(min(times), 3),
        "max_s": round(max(times), 3),
        "sorted_s": sorted(round(value, 3) for value in times),
        "settings": settings,
    }


async def one(cluster: LocalCluster, victim: str, number: int) -> float:
    """Sends start every 20 ms through both survivors, the first at the moment of the kill; the first acknowledgement counts."""
    survivors = [node for node in cluster.nodes if node != victim]
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(cl.address(cluster, node), options=options) for node in survivors]
    acknowledged = asyncio.Event()
    at = 0.0

    async def send(channel: grpc.aio.Channel, serial: int) -> None:
        nonlocal at
        data = pb.SendMessageRequest(messages=[message(TOPIC, number << 32 | serial, b"x" * 100)]).SerializeToString()
        call: Any = channel.unary_unary(SERVICE + "SendMessage")
        try:
            answer = pb.SendMessageResponse.FromString(await call(data, metadata=METADATA, timeout=10))
        except grpc.RpcError:
            return
        if answer.status.code == pb.OK and not acknowledged.is_set():
            at = time.monotonic()
            acknowledged.set()

    tasks: list[asyncio.Task[None]] = []
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        for index, channel in enumerate(channels):
            await send(channel, index)
        acknowledged.clear()
        killed = time.monotonic()
        cluster.kill(victim)
        while not acknowledged.is_set():
            tasks += [asyncio.create_task(send(channel, len(tasks) + 2)) for channel in channels]
            await asyncio.wait([asyncio.create_task(acknowledged.wait())], timeout=EVERY_S)
            if time.monotonic() > killed + 60:
                raise RuntimeError("no acknowledgement within 60 s")
        return at - killed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in channels:
            await channel.close()


def caught_up(cluster: LocalCluster) -> bool:
    """Every node is a voter with the leader's log: the next kill must not meet a cluster that is still recovering."""
    leads = cl.leader(cluster)
    info = next(g for g in cl.admin(cluster, leads, "ClusterStatus", admin_pb2.ClusterStatusRequest()).groups if g.group == cl.GROUP)
    return len(info.replicas) == len(cluster.nodes) and len({replica.end_index for replica in info.replicas}) == 1
