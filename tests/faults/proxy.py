"""A TCP proxy between peers that applies network faults to the streams of a running cluster, per
direction.

The other nodes know a node only by an address of the proxy. The proxy identifies the dialling node
by asking the kernel which process holds the other end. Rules belong to a direction, not to a
connection: bytes from n1 to n2 follow the same rule on streams opened by n1, by n2 and by the
controller. A blocked direction behaves like an unplugged cable: bytes and stream ends are held,
because TCP would retransmit them later, and new connections are accepted but carry nothing. A reset
loses the bytes in flight.

One thread with its own event loop carries all connections; the public methods may be called from
any other thread. The proxy does not interpret the bytes. Most of them travel without a rule, and
these are written to the other side in the callback that read them, because the proxy takes
processor time from the cluster that it stands in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvloop

Address = tuple[str, int]

HELD_BYTES = 256 << 10
"""The bytes in flight that a delayed direction holds per connection."""
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
NETLINK_HEADER_BYTES = 16
ANY_STATE = ANY_COOKIE = 0xFFFFFFFF
INODE_AT = 84
"""The offset of the inode: header, family and state (4), both addresses (48), four words."""
REPEAT_S = 0.2
"""The delay after a lost segment on a quiet connection: the minimal retransmission timeout of
Linux."""


@dataclass(slots=True)
class Way:
    """The rules for bytes in one direction between two nodes."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    """The share of pieces that are delayed by REPEAT_S together with the following ones, as after a
    lost segment."""
    bytes_per_s: float = 0.0
    """0: unlimited."""
    carried_bytes: int = 0
    free_at: float = 0.0
    """When all accepted bytes will have been carried."""
    is_open: bool = True
    flows: set[Flow] = field(default_factory=set)
    """This direction of every connection."""

    @property
    def plain(self) -> bool:
        """Whether bytes need not wait."""
        return self.is_open and not (self.delay_s or self.jitter_s or self.loss or self.bytes_per_s)


class Network:
    """Proxies in front of all nodes. `doors`: node → (public address, real address) of each of its
    ports. `who`: the node that holds the connection from one address to another; None: a stranger,
    which is disconnected."""

    def __init__(
        self,
        doors: Mapping[str, Sequence[tuple[Address, Address]]],
        who: Callable[[Address, Address], str | None],
        seed: int = 0,
    ) -> None:
        self._doors = {node: list(of_node) for node, of_node in doors.items()}
        self._who = who
        self._chance = random.Random(seed)
        self._loop = uvloop.new_event_loop()
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.AbstractServer] = []
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
        self._ways.update((pair, Way()) for pair in self.ways)
        for node, doors in self._doors.items():
            for (host, port), behind in doors:
                self._servers.append(
                    await self._loop.create_server(self._accepting(node, behind), host, port)
                )

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        await self._abort()

    async def _set_open(self, ways: Iterable[tuple[str, str]], is_open: bool) -> None:
        for pair in ways:
            way = self._ways[pair]
            way.is_open = is_open
            for flow in list(way.flows):
                flow.go()

    async def _abort(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    def _accepting(self, dialled: str, behind: Address) -> Callable[[], Side]:
        return lambda: Connection(self, dialled, behind).near

    async def connect(self, connection: Connection, dialled: str, behind: Address) -> None:
        """Dial the other side of a connection that was accepted, and begin to carry its bytes."""
        self._connections.add(connection)
        try:
            # First, because it is cheap: connection attempts to a stopped node are frequent and
            # need not be identified.
            await self._loop.create_connection(lambda: connection.far, *behind)
        except OSError:
            connection.abort()
            return
        near = connection.near.transport
        dialler = self._who(
            near.get_extra_info("peername")[:2], near.get_extra_info("sockname")[:2]
        )
        if connection.ended or dialler is None or dialler == dialled:
            connection.abort()
        else:
            connection.begin(self._ways[dialler, dialled], self._ways[dialled, dialler])

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""
        self._connections.discard(connection)

    def due(self, way: Way, size: int, now: float) -> float:
        """The arrival time of a piece that is accepted now."""
        late = (
            way.delay_s
            + self._chance.uniform(0.0, way.jitter_s)
            + (REPEAT_S if self._chance.random() < way.loss else 0.0)
        )
        if way.bytes_per_s:
            way.free_at = max(way.free_at, now) + size / way.bytes_per_s
            now = way.free_at
        return now + late


class Connection:
    """One connection through the proxy: the side that was accepted and the side that was dialled. A
    failure of one aborts both."""

    def __init__(self, network: Network, dialled: str, behind: Address) -> None:
        self.network = network
        self.near, self.far = Side(self), Side(self)
        self.ended = False
        self._dialled, self._behind = dialled, behind
        self._dialling: asyncio.Task[None] | None = None

    def made(self, side: Side) -> None:
        """One side is connected."""
        if self.ended:
            side.transport.abort()
        elif side is self.near:
            self._dialling = asyncio.get_running_loop().create_task(
                self.network.connect(self, self._dialled, self._behind)
            )

    def begin(self, there: Way, back: Way) -> None:
        """Carry bytes of both directions until both have ended or one fails."""
        for source, target, way in ((self.near, self.far, there), (self.far, self.near, back)):
            source.out = target.into = Flow(self, source, target, way)
        for side in (self.near, self.far):
            side.begin()

    def finished(self) -> None:
        """One direction has ended. After the second one, what was written is still sent."""
        if all(side.out is not None and side.out.has_ended for side in (self.near, self.far)):
            self._end()
            for side in (self.near, self.far):
                side.transport.close()

    def abort(self) -> None:
        """Close both sides; bytes in flight are lost."""
        self._end()
        for side in (self.near, self.far):
            if side.connected:
                side.transport.abort()

    def _end(self) -> None:
        self.ended = True
        self.network.forget(self)
        for side in (self.near, self.far):
            if side.out is not None:
                side.out.end()


class Side(asyncio.Protocol):
    """One of the two TCP connections of a connection."""

    transport: asyncio.Transport

    def __init__(self, connection: Connection) -> None:
        self.connected = False
        self.out: Flow | None = None
        """The bytes that are read here."""
        self.into: Flow | None = None
        """The bytes that are written here."""
        self._early: list[bytes] = []
        """What came before the rules for these bytes were known."""
        self._connection = connection

    def begin(self) -> None:
        """From now on, carry what is read."""
        assert self.out is not None
        for data in self._early:
            self.out.take(data)
        self._early.clear()
        self.out.read_or_not()

    def connection_made(self, transport: Any) -> None:
        self.transport, self.connected = transport, True
        self._connection.made(self)

    def data_received(self, data: bytes) -> None:
        if self.out is not None:
            self.out.take(data)
        else:
            self._early.append(data)
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Returns that the other direction goes on."""
        self.data_received(b"")
        return True

    def connection_lost(self, _: Exception | None) -> None:
        self._connection.abort()

    def pause_writing(self) -> None:
        if self.into is not None:
            self.into.stop()

    def resume_writing(self) -> None:
        if self.into is not None:
            self.into.resume()


class Flow:
    """One direction of one connection; the order of its bytes never changes. Empty bytes are its
    end."""

    def __init__(self, connection: Connection, source: Side, target: Side, way: Way) -> None:
        self.has_ended = False
        self._connection, self._source, self._target, self._way = connection, source, target, way
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._last_due = 0.0
        self._full = False
        """The target takes no more bytes at the moment."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        way.flows.add(self)

    def take(self, data: bytes) -> None:
        """Bytes from the source: carried at once, or held until the rules let them go."""
        if not self._held and not self._full and self._way.plain:
            self._carry(data)
            return
        self._last_due = max(
            self._last_due, self._connection.network.due(self._way, len(data), self._loop.time())
        )
        self._held.append((self._last_due, data))
        self._held_bytes += len(data)
        self.go()

    def stop(self) -> None:
        self._full = True
        self.read_or_not()

    def resume(self) -> None:
        self._full = False
        self.go()

    def go(self) -> None:
        """Carry everything that is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held and self._way.is_open and not self._full and not self.has_ended:
            due_s, data = self._held[0]
            wait_s = due_s - self._loop.time()
            if wait_s > 0:
                self._timer = self._loop.call_later(wait_s, self.go)
                break
            self._held.popleft()
            self._held_bytes -= len(data)
            self._carry(data)
        self.read_or_not()

    def end(self) -> None:
        """Carry nothing more."""
        self.has_ended = True
        self._way.flows.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _carry(self, data: bytes) -> None:
        if not data:
            self.end()
            self._target.transport.write_eof()
            self._connection.finished()
            return
        # Counted first, because the receiver may read the counter at once.
        self._way.carried_bytes += len(data)
        self._target.transport.write(data)

    def read_or_not(self) -> None:
        """Read on unless too much is held here."""
        if not self.has_ended:
            transport = self._source.transport
            (
                transport.pause_reading()
                if self._full or self._held_bytes >= HELD_BYTES
                else transport.resume_reading()
            )


def holder(own: Address, other: Address, pids: Mapping[str, int]) -> str | None:
    """The process that has the TCP connection (IPv4) from its `own` address to the `other`."""
    name = f"socket:[{_inode(own, other)}]"
    for node, pid in pids.items():
        with contextlib.suppress(OSError):  # the process may be ending, its files may be closing
            descriptors = f"/proc/{pid}/fd"
            if any(
                os.readlink(f"{descriptors}/{number}") == name for number in os.listdir(descriptors)
            ):
                return node
    return None


def _inode(own: Address, other: Address) -> int | None:
    """The inode of one socket, from the kernel (sock_diag(7)), because reading /proc/net/tcp takes
    milliseconds."""
    ends = struct.pack(
        "!HH4s12x4s12x", own[1], other[1], socket.inet_aton(own[0]), socket.inet_aton(other[0])
    )
    request = (
        struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, ANY_STATE)
        + ends
        + struct.pack("=4xII", ANY_COOKIE, ANY_COOKIE)
    )
    header = struct.pack(
        "=IHHII", NETLINK_HEADER_BYTES + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(header + request)
        answer = kernel.recv(4096)
    _, kind = struct.unpack_from("=IH", answer)
    return struct.unpack_from("=I", answer, INODE_AT)[0] if kind == SOCK_DIAG_BY_FAMILY else None
