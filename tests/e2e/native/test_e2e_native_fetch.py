"""A native consumer group on real processes while members and their coordinator are killed: each
queue with one owner."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import log_pb2 as pb
from tests.cluster import create_topic, leader, running, target
from tests.e2e.native.test_e2e_native_produce import OPTIONS, SERVICE

pytestmark = pytest.mark.slow

QUEUES = 4
WITHIN_S = 90.0
GONE = (grpc.RpcError, asyncio.InvalidStateError)


class Member:
    """A member as in clients: it reads its assigned queues, stops after a liveness period without
    an answer, and follows the coordinator."""

    def __init__(self, cluster: LocalCluster, name: str, check: Callable[[], None]) -> None:
        self._cluster = cluster
        self.name = name
        self.generation = 0
        self.reads: set[int] = set()
        self._check = check
        self._alive_until = 0.0

    async def live(self) -> None:
        while True:
            for node, child in self._cluster.children.items():
                if child.exit_code is None:
                    async with grpc.aio.insecure_channel(
                        target(self._cluster, node), options=OPTIONS
                    ) as channel:
                        with contextlib.suppress(*GONE):
                            await self._join(channel)
            self.stop_in_time()
            await asyncio.sleep(0.05)

    def stop_in_time(self) -> None:
        if self.reads and time.monotonic() >= self._alive_until:
            self.reads, self.generation = set(), 0

    async def _join(self, channel: grpc.aio.Channel) -> None:
        self.stop_in_time()
        call: Any = channel.stream_stream(
            SERVICE + "Join", response_deserializer=pb.JoinResponse.FromString
        )()
        first = pb.JoinRequest(broker_group="g1", topic="T", consumer_group="G", member=self.name)
        asked = time.monotonic()
        first.generation, first.queues[:] = self.generation, sorted(self.reads)
        await call.write(first.SerializeToString())
        while True:
            found = await call.read()
            if found is grpc.aio.EOF or not found.HasField("assignment"):
                if found is not grpc.aio.EOF and found.HasField("problem"):
                    self.reads, self.generation = set(), 0
                return
            self._alive_until = asked + found.assignment.liveness_ms / 1000
            self.reads, self.generation = set(found.assignment.queues), found.assignment.generation
            self._check()
            await asyncio.sleep(0.1)
            asked = time.monotonic()
            await call.write(pb.JoinRequest(generation=self.generation).SerializeToString())


def test_a_group_of_three_loses_members_and_its_coordinator(tmp_path: Path) -> None:
    """No queue ever has two readers; the remaining members read all queues again."""
    with running(tmp_path) as cluster:
        create_topic(cluster, "T", queues=QUEUES)
        members: list[Member] = []

        def check() -> None:
            # A member whose time is over reads no more, whether or not its task has run since.
            for member in members:
                member.stop_in_time()
            reading = [queue for member in members for queue in member.reads]
            assert len(reading) == len(set(reading)), [
                (member.name, sorted(member.reads)) for member in members
            ]

        async def until(sizes: list[int]) -> None:
            deadline = time.monotonic() + WITHIN_S
            while sorted(len(member.reads) for member in members) != sizes:
                assert time.monotonic() < deadline, [
                    (member.name, sorted(member.reads)) for member in members
                ]
                await asyncio.sleep(0.05)
                check()

        async def play() -> None:
            lives = []
            for name in "abc":
                members.append(Member(cluster, name, check))
                lives.append(asyncio.create_task(members[-1].live()))
            await until([1, 1, 2])
            # Killed: it reads no more and says nothing.
            lives.pop(0).cancel()
            del members[0]
            await until([2, 2])
            killed = leader(cluster)
            cluster.kill(killed)
            await until([2, 2])
            lives.pop().cancel()
            del members[1]
            await until([QUEUES])
            assert all(not life.done() for life in lives)
            lives.pop().cancel()
            cluster.start(killed)
            cluster.wait_ready()

        asyncio.run(play())
