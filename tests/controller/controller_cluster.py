"""Controllers in one process on loopback, for tests: ports, timing, restarts. The assertions are in
the tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ledgermq.node.controller.controller import Controller, ControllerConfig
from ledgermq.node.controller.quorum import Timing
from ledgermq.proto.workers import node_of
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.real_disk import RealDisk

FAST = Timing(
    tick_s=0.02,
    heartbeat_s=0.03,
    election_min_s=0.12,
    election_max_s=0.3,
    reconnect_s=0.05,
    silent_s=1.0,
)
SECRET = b"a secret for tests only, 32 bytes"


def free_ports(count: int) -> list[int]:
    """Ports that were free when this returned."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Cluster:
    """Named controllers with directories below `root`; each can be stopped and restarted."""

    def __init__(
        self,
        root: Path,
        nodes: int = 3,
        timing: Timing = FAST,
        file_bytes: int = 1 << 16,
        disk: Callable[[], Disk] = RealDisk,
    ) -> None:
        self.root = root
        self.timing = timing
        self.file_bytes = file_bytes
        self.disk = disk
        self.addresses = {
            f"n{i + 1}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(nodes))
        }
        self.first = tuple(self.addresses)
        self.running: dict[str, Controller] = {}

    @property
    def places(self) -> dict[str, tuple[str, ...]]:
        """The addresses of each node for a controller: its own, and one at which nothing
        listens."""
        return {name: (address, "127.0.0.1:1") for name, address in self.addresses.items()}

    def config(self, name: str, secret: bytes = SECRET) -> ControllerConfig:
        return ControllerConfig(
            node=name,
            addresses=self.places,
            listen=self.addresses[name],
            directory=str(self.root / name / "controller"),
            cluster_id="6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
            secret=secret,
            timing=self.timing,
            file_bytes=self.file_bytes,
            first_voters=self.first,
            joining=node_of(name) not in self.first,
        )

    def add_node(self, name: str) -> None:
        """Add a node after the quorum was formed; it knows the addresses of the others, but they do
        not know its address."""
        self.addresses = {**self.addresses, name: f"127.0.0.1:{free_ports(1)[0]}"}

    async def start(self, names: Iterable[str] | None = None, secret: bytes = SECRET) -> None:
        for name in self.addresses if names is None else names:
            controller = Controller(self.config(name, secret), self.disk())
            await controller.start()
            self.running[name] = controller

    async def stop(self, names: Iterable[str] | None = None) -> None:
        chosen = list(self.running if names is None else names)
        await asyncio.gather(*(self.running.pop(name).stop() for name in chosen))

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait for a condition that must become true; the limit only ends a broken run."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)

    async def leader(self) -> str:
        """Wait until all running controllers agree on a leader. Returns it."""

        def agreed() -> bool:
            views = {c.health.leader for c in self.running.values() if c.health.ready}
            return (
                len(views) == 1
                and views <= set(self.running)
                and all(c.health.ready for c in self.running.values())
            )

        await self.until(agreed)
        return next(iter(self.running.values())).health.leader or ""

    async def describe(self) -> None:
        """Register the nodes and two broker groups."""
        nodes = {name: {"peer": address} for name, address in self.addresses.items()}
        groups = {"g1": list(self.addresses), "g2": list(self.addresses)}
        await next(iter(self.running.values())).announce(nodes, groups, timeout=20)


@asynccontextmanager
async def running_cluster(
    root: Path, nodes: int = 3, *, workers: int = 1, described: bool = True, **settings: Any
) -> AsyncIterator[Cluster]:
    """A started cluster, in which every node has this many workers."""
    cluster = Cluster(root, nodes, **settings)
    for node in cluster.first:
        for number in range(2, workers + 1):
            cluster.add_node(f"{node}.{number}")
    try:
        await cluster.start()
        await cluster.leader()
        if described:
            await cluster.describe()
        yield cluster
    finally:
        await cluster.stop()
