"""Planned leader transfers under load: the longest time without an acknowledgement around each of
30 transfers.

A send of 100 bytes starts every 2 ms, alternating among the nodes that are neither the old nor the
new leader (their forwarder finds the new leader), and the time of every acknowledgement is
recorded. The gap of a transfer is the longest interval between two acknowledgements, from just
before the command until half a second after its response. The longest interval in a quiet half
second before the transfer shows how much the machine itself contributes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc.aio

from bench.failover import Sends, caught_up
from bench.tools import cluster as cl
from bench.tools import report
from bench.tools.report import percentile
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2, admin_pb2_grpc

NAME, RUNS, DURABLE = "transfer", 1, True
TOPIC = "bench-transfer"
TRANSFERS = 30
EVERY_S = 0.002
AROUND_S = 0.5
OK = 20000


def run(directory: Path) -> dict[str, Any]:
    gaps, quiet, took = [], [], []
    # One event loop for all transfers: the gRPC library does not work reliably when its event loop
    # is replaced.
    with cl.running(directory) as cluster, asyncio.Runner() as runner:
        cl.create_topic(cluster, TOPIC)
        settings = cl.defaults(cluster)
        for number in range(TRANSFERS):
            cl.wait_until(lambda: caught_up(cluster), 30, "a whole cluster")
            leads = cl.leader(cluster)
            to = (
                next(node for node in sorted(cluster.nodes) if node != leads)
                if number % 2
                else cl.follower(cluster)
            )
            before, gap, answered = runner.run(one(cluster, leads, to, number))
            gaps.append(gap)
            quiet.append(before)
            took.append(answered)
            report.say(
                f"transfer {number + 1} of {TRANSFERS}: {gap * 1000:.1f} ms without an"
                " acknowledgement"
            )
    return {
        "transfers": TRANSFERS,
        "gap_median_ms": ms(statistics.median(gaps)),
        "gap_p90_ms": ms(percentile(sorted(gaps), 0.9)),
        "gap_max_ms": ms(max(gaps)),
        "quiet_median_ms": ms(statistics.median(quiet)),
        "command_median_ms": ms(statistics.median(took)),
        "sorted_ms": [ms(gap) for gap in sorted(gaps)],
        "settings": settings,
    }


def table(result: dict[str, Any]) -> str:
    """The result as lines of text."""
    return "\n".join(
        [
            (
                f"planned transfer, {result['transfers']} times: {result['gap_median_ms']} ms"
                " without an acknowledgement in the median (budget 50), p90"
                f" {result['gap_p90_ms']}, most {result['gap_max_ms']} ms"
            ),
            (
                f"without a transfer: {result['quiet_median_ms']} ms; the command answers after"
                f" {result['command_median_ms']} ms"
            ),
        ]
    )


def ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


async def one(
    cluster: LocalCluster, leads: str, to: str, number: int
) -> tuple[float, float, float]:
    """Returns the longest interval before the transfer, the longest interval around it, and the
    duration of the command, in seconds."""
    third = next(node for node in cluster.nodes if node not in (leads, to))
    async with Sends(cluster, [third], TOPIC, number, EVERY_S) as sends:
        await sends.first()
        await asyncio.sleep(AROUND_S)
        began = time.monotonic()
        async with grpc.aio.insecure_channel(
            cl.address(cluster, to), options=cl.CHANNEL
        ) as channel:
            stub: Any = admin_pb2_grpc.AdminStub(channel)
            request = admin_pb2.TransferLeadershipRequest(broker_group=cl.GROUP, to=to)
            while not (answer := await stub.TransferLeadership(request, timeout=10)).done:
                if answer.status.code != OK:
                    raise RuntimeError(f"the transfer was refused: {answer.status.message}")
        ended = time.monotonic()
        await asyncio.sleep(AROUND_S)
        return (
            longest(sends.times, began - AROUND_S, began),
            longest(sends.times, began, ended + AROUND_S),
            ended - began,
        )


def longest(times: list[float], begin: float, end: float) -> float:
    """The longest interval between consecutive acknowledgements from `begin` to `end`, including
    the last one before `begin`."""
    inside = [
        max((at for at in times if at < begin), default=begin),
        *(at for at in times if begin <= at <= end),
    ]
    return max((later - earlier for earlier, later in pairwise(inside)), default=end - begin)
