"""Controllers reconnect: after addresses without an answer, silently broken connections, and names
that resolve to another address."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.controller.controller import ControllerConfig
from ledgermq.node.controller.resolving import Resolver
from tests.controller.controller_cluster import SECRET, Cluster

SECONDS = 10.0
"""Far below what the system needs by itself: two minutes for a connection that is not answered,
half a minute for one that died."""


@contextmanager
def silent() -> Iterator[str]:
    """A place where connections are made and nothing is ever said."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(64)
        yield f"127.0.0.1:{door.getsockname()[1]}"


@contextmanager
def deaf() -> Iterator[str]:
    """A place where nothing answers at all, as where a machine was: the kernel drops what does not
    fit into a queue of one."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(door.getsockname())
        yield f"127.0.0.1:{door.getsockname()[1]}"
        for each in waiting:
            each.close()


class Elsewhere(Cluster):
    """Every node's first place is one where it is not."""

    former = ""

    def config(self, name: str, secret: bytes = SECRET) -> ControllerConfig:
        return replace(
            super().config(name, secret),
            addresses={name: (self.former, at) for name, at in self.addresses.items()},
        )


@pytest.mark.parametrize("place", [silent, deaf])
async def test_a_place_that_does_not_greet_is_given_up_for_the_next(
    tmp_path: Path, place: Callable[[], Any]
) -> None:
    """Whether it takes connections or not."""
    cluster = Elsewhere(tmp_path)
    with place() as cluster.former:
        try:
            await cluster.start()
            await cluster.until(
                lambda: all(controller.health.ready for controller in cluster.running.values()),
                SECONDS,
            )
        finally:
            await cluster.stop()


class OverIpv6(Cluster):
    """Nodes at IPv6 addresses. The first listens on everything; every node's first place is one of
    a form that no network knows."""

    def config(self, name: str, secret: bytes = SECRET) -> ControllerConfig:
        ports = {node: at.rpartition(":")[2] for node, at in self.addresses.items()}
        places = {node: ("fe80::1%lo:1", f"[::1]:{port}") for node, port in ports.items()}
        return replace(
            super().config(name, secret),
            addresses=places,
            listen=f"[{'::' if name == 'n1' else '::1'}]:{ports[name]}",
        )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
async def test_a_quorum_over_ipv6(tmp_path: Path) -> None:
    """Brackets in the places and none in the sockets; `::` takes IPv4 too. A place that is none
    costs an attempt, and not the thread."""
    cluster = OverIpv6(tmp_path)
    try:
        await cluster.start()
        await cluster.until(
            lambda: all(controller.health.ready for controller in cluster.running.values()),
            SECONDS,
        )
        socket.create_connection(
            ("127.0.0.1", int(cluster.addresses["n1"].rpartition(":")[2])), SECONDS
        ).close()
    finally:
        await cluster.stop()


class Line:
    """A connection between two nodes: it carries bytes until it is cut, and then keeps both ends
    open without carrying anything."""

    def __init__(self, to: str) -> None:
        self._to = to.rsplit(":", 1)
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        self._open.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._to[0], int(self._to[1]))
        ways = [self._copy(reader, there[1]), self._copy(there[0], writer)]
        self._tasks.update(asyncio.ensure_future(way) for way in ways)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
            await self._open.wait()
        except ConnectionError:
            pass
        writer.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_a_dead_line_between_two_that_do_not_lead_is_noticed_by_both(tmp_path: Path) -> None:
    """They have nothing to say to each other until their leader is gone; they notice before, and
    the dialler goes to the new place."""
    cluster = Cluster(tmp_path)
    lines: list[Line] = []
    try:
        await cluster.start()
        quiet, dials = sorted(set(cluster.running) - {await cluster.leader()})
        await cluster.stop([dials])
        lines.append(Line(cluster.addresses[quiet]))
        before = cluster.config(dials)
        detour = {**before.addresses, quiet: (await lines[0].start(),)}
        cluster.config = lambda name, secret=SECRET: replace(before, addresses=detour)  # type: ignore[method-assign]
        await cluster.start([dials])
        ends = {quiet: dials, dials: quiet}

        def reached(yes: bool) -> bool:
            return all(
                (other in cluster.running[node].health.reached) == yes
                for node, other in ends.items()
            )

        await cluster.until(lambda: reached(True), SECONDS)
        lines[0].cut()
        await cluster.until(lambda: reached(False), SECONDS)
        cluster.running[dials].move(before.addresses)
        await cluster.until(lambda: reached(True), SECONDS)
    finally:
        await cluster.stop()
        for line in lines:
            await line.stop()


async def test_a_line_without_news_is_kept(tmp_path: Path) -> None:
    """Between two nodes that do not lead: their first vote uses the existing connection, however
    long it was idle."""
    cluster = Cluster(tmp_path)
    try:
        await cluster.start()
        first = await cluster.leader()
        quiet, dials = sorted(set(cluster.running) - {first})
        transport: Any = cluster.running[dials]._quorum._SyncObj__transport  # type: ignore[union-attr]
        (line,) = [conn for node, conn in transport._connections.items() if node.id == quiet]
        heard: list[float] = []

        def noted() -> bool:
            heard.append(line._TcpConnection__lastReadTime)
            return heard[-1] > heard[0] + 2 * cluster.timing.silent_s

        # What is read on it is what keeps it.
        await cluster.until(noted, SECONDS)
        fileno = line.fileno()
        await cluster.stop([first])
        await cluster.leader()
        assert line.fileno() == fileno
    finally:
        await cluster.stop()


class Names:
    """A resolver that can be slow."""

    def __init__(self, *found: Sequence[str] | None) -> None:
        self.found = list(found)
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, host: str, port: None) -> list[Any]:
        self.asked += 1
        self.may_answer.wait(SECONDS)
        addresses = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if addresses is None:
            raise socket.gaierror("no such name")
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [
            (family, None, None, "", (address, 0))
            for family, address in zip(families, addresses, strict=True)
        ]


def resolved(resolver: Resolver, host: str) -> tuple[str, ...]:
    """The result of the name resolution at the attempt after the next one."""
    resolver.resolve(host)
    resolver.settle()
    return resolver.resolve(host)


def test_a_name_that_means_another_address_is_heard_of_with_the_next_attempt() -> None:
    """Nothing is kept for longer; a look-up that fails takes nothing away."""
    names = Names(["10.0.0.1"], ["10.0.0.1"], None, ["10.0.0.2"])
    resolver = Resolver(names)
    assert resolved(resolver, "n1") == ("10.0.0.1",)
    resolver.settle()
    assert resolved(resolver, "n1") == ("10.0.0.1",)
    resolver.settle()
    assert resolver.resolve("n1") == ("10.0.0.2",)


def test_addresses_need_no_look_up_and_the_older_kind_goes_first() -> None:
    """The others follow: a node may listen at one kind alone, whatever its name has."""
    names = Names(["::1", "10.0.0.2", "10.0.0.1"])
    resolver = Resolver(names)
    assert (
        resolver.resolve("127.0.0.1") == ("127.0.0.1",)
        and resolver.resolve("::1") == ("::1",)
        and not names.asked
    )
    assert resolved(resolver, "n1") == ("10.0.0.1", "10.0.0.2", "::1")


def test_hanging_name_lookup_does_not_block() -> None:
    """And there is one of each name at most."""
    names = Names(["10.0.0.1"])
    names.may_answer.clear()
    resolver = Resolver(names)
    assert resolver.resolve("n1") == resolver.resolve("n1") == ()
    names.may_answer.set()
    resolver.settle()
    assert resolver.resolve("n1") == ("10.0.0.1",) and names.asked <= 2
