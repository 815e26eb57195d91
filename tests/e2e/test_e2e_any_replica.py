"""Native readers served by a follower, on real clusters: under load, when the leader is killed, and
when the follower is paused."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_topic, leader, running, target
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MESSAGES = 3000


def test_a_follower_serves_a_reader_through_load_a_leader_kill_and_its_own_pause(
    tmp_path: Path,
) -> None:
    """By offset, no message is repeated or missing, whichever node serves; the follower serves as
    long as it can, and again later."""

    async def work(cluster: LocalCluster) -> None:
        first = await asyncio.to_thread(leader, cluster)
        near, third = sorted(set(cluster.nodes) - {first})
        endpoints = ";".join(
            [target(cluster, near), target(cluster, third), target(cluster, first)]
        )
        cli = CommandLine(endpoints)
        offsets: dict[int, list[int]] = {queue: [] for queue in range(2)}
        bodies: list[bytes] = []
        served: set[str] = set()
        async with AsyncConsumer(endpoints, "t", read_from="nearest") as consumer:

            async def read(until: int) -> None:
                while len(bodies) < until:
                    batch = await consumer.next_batch(60)
                    assert batch is not None, f"only {len(bodies)} came"
                    offsets[batch.queue] += batch.offsets.tolist()
                    bodies.extend(batch.bodies())
                    served.update(found.replica for found in consumer.statistics().served_by)

            sending = asyncio.create_task(
                asyncio.to_thread(
                    cli.send_lines, "t", [f"m{k}" for k in range(MESSAGES)], "--timeout", "60s"
                )
            )
            await read(300)
            assert served == {near}, "the endpoint that was named first"
            cluster.kill(first)
            assert (await sending)["acknowledged"] == MESSAGES
            await read(MESSAGES)
            cluster.children[near].signal(signal.SIGSTOP)
            try:
                there = CommandLine(target(cluster, third))
                # Two of three are gone for a moment: nothing is committed before the follower goes
                # on, and nothing is read twice.
                more = asyncio.create_task(
                    asyncio.to_thread(there.send_lines, "t", ["after"], "--timeout", "60s")
                )
                await asyncio.sleep(8)
            finally:
                cluster.children[near].signal(signal.SIGCONT)
            assert (await more)["acknowledged"] == 1
            # What a send stored twice counts twice above: the end is when each body has come.
            expected = {b"after", *(f"m{k}".encode() for k in range(MESSAGES))}
            while not expected <= {*bodies}:
                await read(len(bodies) + 1)
            assert consumer.statistics().skipped == 0
        # A send whose answer was lost with the leader may be stored twice: each under an offset of
        # its own.
        assert all(found == list(range(len(found))) for found in offsets.values())
        del cluster.children[first]

    with running(tmp_path, groups=[{"name": "g1", "follower_reads": True}]) as cluster:
        create_topic(cluster, "t", queues=2)
        asyncio.run(work(cluster))
