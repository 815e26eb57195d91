"""A TCP proxy between peers that applies network faults to the streams of a running cluster, per direction.

The other nodes know a node only by an address of the proxy. The proxy identifies the dialling node by asking the kernel which process holds
the other end. Rules belong to a direction, not to a connection: bytes from n1 to n2 follow the same rule on streams opened by n1, by n2 and
by the controller. A blocked direction behaves like an unplugged cable: bytes and stream ends are held, because TCP would retransmit them
later, and new connections are accepted but carry nothing. A reset loses the bytes in flight.

One thread with its own event loop carries all connections; the public methods may be called from any other thread. The proxy does not
interpret the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Address = tuple[str, int]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PIECE_BYTES = 64 << 10
HELD_BYTES = 256 << 10
"""The bytes in flight that a delayed direction holds per connection."""
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
NETLINK_HEADER_BYTES = 16
ANY_STATE = ANY_COOKIE = 0xFFFFFFFF
INODE_AT = 84
"""The offset of the inode: header, family and state (4), both addresses (48), four words."""
REPEAT_S = 0.2
"""The delay after a lost segment on a quiet connection: the minimal retransmission timeout of Linux."""


@dataclass(slots=True)
class Way:
    """The rules for bytes in one direction between two nodes."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    """The share of pieces that are delayed by REPEAT_S together with the following ones, as after a lost segment."""
    bytes_per_s: float = 0.0
    """0: unlimited."""
    carried_bytes: int = 0
    free_at: float = 0.0
    """When all accepted bytes will have been carried."""
    opened: asyncio.Event = field(default_factory=asyncio.Event)


class Network:
    """Proxies in front of all nodes. `doors`: node → (public address, real address) of each of its ports. `who`: the node that holds the
    connection from one address to another; None: a stranger, which is disconnected."""

    def __init__(
        self, doors: Mapping[str, Sequence[tuple[Address, Address]]], who: Callable[[Address, Address], str | None], seed: int = 0
    ) -> None:
        self._doors = {node: list(of_node) for node, of_node in doors.items()}
        self._who = who
        self._chance = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._ways: dict[tuple[str, str], Way] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._run(self._listen())

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # -- faults

    def block(self, ways: Iterable[tuple[str, str]]) -> None:
        """Block the direction from the first to the second node of each pair until `heal`."""
        self._run(self._set_open(ways, False))

    def isolate(self, node: str) -> None:
        """Block all directions to and from a node."""
        others = [other for other in self._doors if other != node]
        self.block([(node, other) for other in others] + [(other, node) for other in others])

    def shape(self, ways: Iterable[tuple[str, str]], **rules: float) -> None:
        """Set `delay_s`, `jitter_s`, `loss` or `bytes_per_s` of each way."""
        for way in ways:
            for name, value in rules.items():
                setattr(self._ways[way], name, value)

    def reset(self) -> None:
        """Abort every connection: both ends see a reset, and bytes in flight are lost."""
        self._run(self._abort())

    def heal(self) -> None:
        """Open all directions and remove all rules."""
        self.shape(self.ways, delay_s=0.0, jitter_s=0.0, loss=0.0, bytes_per_s=0.0)
        self._run(self._set_open(self.ways, True))

    @property
    def ways(self) -> list[tuple[str, str]]:
        """All directions."""
        return [(a, b) for a in self._doors for b in self._doors if a != b]

    def carried_bytes(self, source: str, target: str) -> int:
        """The bytes that have left the proxy in this direction so far."""
        return self._ways[source, target].carried_bytes

    # -- on the loop

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        for pair in self.ways:
            self._ways[pair] = Way()
            self._ways[pair].opened.set()
        for node, doors in self._doors.items():
            for (host, port), behind in doors:
                self._servers.append(await asyncio.start_server(self._accepting(node, behind), host, port))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        await self._abort()

    async def _set_open(self, ways: Iterable[tuple[str, str]], is_open: bool) -> None:
        for way in ways:
            opened = self._ways[way].opened
            opened.set() if is_open else opened.clear()

    async def _abort(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accepting(self, dialled: str, behind: Address) -> Any:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                # First, because it is cheap: connection attempts to a stopped node are frequent and need not be identified.
                far = await asyncio.open_connection(*behind)
                try:
                    dialler = self._who(writer.get_extra_info("peername")[:2], writer.get_extra_info("sockname")[:2])
                    if dialler is not None and dialler != dialled:
                        await self._carry(self._ways[dialler, dialled], self._ways[dialled, dialler], (reader, writer), far)
                finally:
                    far[1].transport.abort()
            except (OSError, asyncio.CancelledError):
                pass  # one side is gone, or `reset`: the other side is closed as well
            finally:
                self._connections.discard(task)
                writer.transport.abort()

        return accept

    async def _carry(self, there: Way, back: Way, near: Ends, far: Ends) -> None:
        """Carry one connection until both directions have ended or one fails."""
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pump(near[0], far[1], there))
                directions.create_task(self._pump(far[0], near[1], back))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        """Carry one direction of one connection; the order of bytes never changes."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_BYTES // PIECE_BYTES)
        loop = asyncio.get_running_loop()

        async def deliver() -> None:
            due = 0.0
            while True:
                at, data = await held.get()
                due = max(due, at)
                await asyncio.sleep(max(0.0, due - loop.time()))
                await way.opened.wait()
                if not data:
                    writer.write_eof()
                    return
                # Counted first, because the receiver may read the counter at once.
                way.carried_bytes += len(data)
                writer.write(data)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while True:
                data = await reader.read(PIECE_BYTES)
                await held.put((self._due(way, len(data), loop.time()), data))
                if not data:
                    await delivering
                    return
                if delivering.done():
                    delivering.result()
        finally:
            delivering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await delivering

    def _due(self, way: Way, size: int, now: float) -> float:
        """The arrival time of a piece that is accepted now."""
        late = way.delay_s + self._chance.uniform(0.0, way.jitter_s) + (REPEAT_S if self._chance.random() < way.loss else 0.0)
        if way.bytes_per_s:
            way.free_at = max(way.free_at, now) + size / way.bytes_per_s
            now = way.free_at
        return now + late


def holder(own: Address, other: Address, pids: Mapping[str, int]) -> str | None:
    """The process that has the TCP connection (IPv4) from its `own` address to the `other`."""
    name = f"socket:[{_inode(own, other)}]"
    for node, pid in pids.items():
        with contextlib.suppress(OSError):  # the process may be ending, its files may be closing
            descriptors = f"/proc/{pid}/fd"
            if any(os.readlink(f"{descriptors}/{number}") == name for number in os.listdir(descriptors)):
                return node
    return None


def _inode(own: Address, other: Address) -> int | None:
    """The inode of one socket, from the kernel (sock_diag(7)), because reading /proc/net/tcp takes milliseconds."""
    ends = struct.pack("!HH4s12x4s12x", own[1], other[1], socket.inet_aton(own[0]), socket.inet_aton(other[0]))
    request = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, ANY_STATE) + ends + struct.pack("=4xII", ANY_COOKIE, ANY_COOKIE)
    header = struct.pack("=IHHII", NETLINK_HEADER_BYTES + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(header + request)
        answer = kernel.recv(4096)
    _, kind = struct.unpack_from("=IH", answer)
    return struct.unpack_from("=I", answer, INODE_AT)[0] if kind == SOCK_DIAG_BY_FAMILY else None
