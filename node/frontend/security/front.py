"""The client port in front of gRPC: accepts TLS and plaintext on one port, and limits connections.

gRPC binds a port for only one of the two. This front therefore accepts every connection, looks at
its first bytes, and joins it to one of gRPC's own sockets: a TLS record goes to the TLS socket, the
HTTP/2 preface to the plaintext socket; any other connection is counted and closed. After that the
front only copies bytes in both directions, with backpressure; it decrypts and parses nothing. A
client may close its direction alone; when gRPC closes the connection, both directions end.

The inner sockets lie in a directory that only this process's user can enter, under names made for
this process, so they are reachable only through the front. Each connection to gRPC has a name of
its own, by which logs find the client's address. A client that does not send its first bytes within
a few seconds is disconnected; gRPC limits the handshake after that. New connections are admitted at
a limited rate: their calls share one queue in gRPC with those of the old ones, and must not fill
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import cast

from ledgermq.node.runtime import metrics, sockets
from ledgermq.node.runtime.errors import FatalError
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.status import ExitCode
from ledgermq.proto.token_bucket import TokenBucket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TLS_RECORD = b"\x16\x03"
FIRST_BYTES_S = 5.0
LAST_WORDS_S = 10.0
TURN_WITHIN_S = 15.0
"""Less than the twenty seconds after which clients give up a silent connection."""
SAY_EVERY_S = 10.0
BACKLOG = 4096
PEER_PREFIX = "unix-abstract:"

log = get_logger()


class Front:
    """One public port. Belongs to the loop's thread. For every limit, 0 means no limit."""

    def __init__(
        self,
        *,
        plain: bool,
        tls: bool,
        connections: int = 0,
        connections_per_address: int = 0,
        new_per_s: float = 0,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ledgermq-"))
        if stat.S_IMODE(self.directory.stat().st_mode) & 0o077:
            problem = f"the directory {self.directory} is open to other users"
            raise FatalError(
                ExitCode.UNSAFE, problem, "set TMPDIR to a file system with permissions"
            )
        self.plain = str(self.directory / "plain") if plain else None
        self.tls = str(self.directory / "tls") if tls else None
        self._connections = connections
        self._per_address = connections_per_address
        # Burst: a tenth of a second's worth, but at least one connection.
        self._new_connections = (
            TokenBucket(new_per_s, max(0.1 * new_per_s, 1.0)) if new_per_s else None
        )
        self._addresses: dict[str, int] = {}
        self._open: dict[str, _Outer] = {}
        self._next_word: dict[str, float] = {}
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int, *, shared: bool = False) -> int:
        """Open the port, after gRPC listens inside. Returns the port. `shared`: other processes
        listen on the same port. Raises OSError."""
        loop = asyncio.get_running_loop()
        for place in await asyncio.to_thread(sockets.places, host, port):
            listener = sockets.listener(place, BACKLOG, shared=shared)
            self._servers.append(await loop.create_server(lambda: _Outer(self), sock=listener))
        return int(self._servers[0].sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections; open ones continue until gRPC ends them."""
        for server in self._servers:
            server.close()

    def stop(self) -> None:
        """Abort the remaining connections."""
        self.close()
        for outer in list(self._open.values()):
            outer.abort()
        shutil.rmtree(self.directory, ignore_errors=True)

    def address_of(self, peer: str) -> str:
        """The client address of a connection, from gRPC's name of its peer."""
        outer = self._open.get(peer.removeprefix(PEER_PREFIX))
        return peer if outer is None else outer.address

    @property
    def open_connections(self) -> int:
        return len(self._open)

    # -- reports of connections

    def entered(self, outer: _Outer) -> str | None:
        """Count a connection and give it a name; None if a limit is reached."""
        if self._connections and len(self._open) >= self._connections:
            self.refused(
                "connections",
                outer.address,
                f"this node has reached its limit of {self._connections} connections",
            )
            return None
        host = outer.host
        if self._per_address and self._addresses.get(host, 0) >= self._per_address:
            self.refused(
                "address",
                outer.address,
                f"that address has reached its limit of {self._per_address} connections",
            )
            return None
        # Abstract names are visible to every user of this machine, who could bind a predictable one
        # first.
        name = f"ledgermq-{os.getpid()}-{secrets.token_hex(12)}"
        self._open[name] = outer
        self._addresses[host] = self._addresses.get(host, 0) + 1
        metrics.FRONT_CONNECTIONS.set(self.open_connections)
        return name

    def turn(self, address: str, now: float) -> float | None:
        """How many seconds a connection has to wait before its first bytes are read; None if the
        wait would be too long."""
        if self._new_connections is None:
            return 0.0
        wait_s = self._new_connections.wait(now, 1)
        if wait_s > TURN_WITHIN_S:
            self.refused(
                "crowd",
                address,
                f"too many arrive at once: its turn would come in more than {TURN_WITHIN_S:g} s",
            )
            return None
        self._new_connections.take(1, now)
        return wait_s

    def left(self, name: str, host: str) -> None:
        del self._open[name]
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]
        metrics.FRONT_CONNECTIONS.set(self.open_connections)

    def refused(self, reason: str, address: str, words: str) -> None:
        """Count a refused connection, and log it at most every SAY_EVERY_S for each reason."""
        metrics.CONNECTIONS_REFUSED.labels(reason).inc()
        now = time.monotonic()
        if now >= self._next_word.get(reason, 0.0):
            self._next_word[reason] = now + SAY_EVERY_S
            log.warning("connection refused", caller=address, reason=words)

    def choose(self, first: bytes) -> str | tuple[str, str] | None:
        """The inner socket for a connection with these first bytes; None if more bytes are needed;
        (reason, words) if it is refused."""
        if first[: len(TLS_RECORD)] == TLS_RECORD[: len(first)]:
            if len(first) < len(TLS_RECORD):
                return None
            words = (
                "TLS handshake on a plaintext port: set tls on this node, or switch TLS off in the"
                " client"
            )
            return self.tls or ("tls-on-plaintext", words)
        if first[: len(PREFACE)] == PREFACE[: len(first)]:
            if len(first) < len(PREFACE):
                return None
            return self.plain or (
                "plaintext-on-tls",
                "plaintext on a TLS port: switch TLS on in the client, or set tls.mode to both",
            )
        return (
            "garbage",
            "it is neither TLS nor HTTP/2: the client may have meant another program's port",
        )


class _Half(asyncio.Protocol):
    """One end of a joined pair: received bytes are written to the other end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        self._reading(go_on=False)

    def resume_writing(self) -> None:
        self._reading(go_on=True)

    def _reading(self, *, go_on: bool) -> None:
        """Pause or resume reading at the other end, as this end's write buffer fills or drains."""
        transport = None if self.other is None else self.other.transport
        if transport is not None and not transport.is_closing():
            if go_on:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        other, self.other = self.other, None
        if other is not None:
            other.end(error)

    def end(self, error: Exception | None) -> None:
        """The other end is closed: send what is still buffered and close this end, or abort it if
        the other end failed."""
        if self.transport is not None:
            if error is None:
                self.transport.close()
            else:
                self.transport.abort()


class _Outer(_Half):
    """The client's end: its first bytes must show the protocol."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front
        self._name: str | None = None
        self._first = bytearray()
        self._chosen = False
        self._waits = False
        """Its turn has not come yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None
        self.host = self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.host, self.address = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self._name = self._front.entered(self)
        loop = asyncio.get_running_loop()
        wait_s = None if self._name is None else self._front.turn(self.address, loop.time())
        if wait_s is None:
            transport.close()
        elif wait_s:
            self._waits = True
            self._timer = loop.call_later(wait_s, self._begin)
        else:
            self._timer = loop.call_later(FIRST_BYTES_S, self._too_slow)

    def _begin(self) -> None:
        """Its turn has come: read the first bytes."""
        self._waits = False
        if self.transport is not None and not self.transport.is_closing():
            self._timer = asyncio.get_running_loop().call_later(FIRST_BYTES_S, self._too_slow)
            self.transport.resume_reading()
            self._choose()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._first += data
        if self._waits and self.transport is not None:
            # Here and not in connection_made, because uvloop starts reading after that even if
            # paused.
            self.transport.pause_reading()
        elif not self._chosen:
            self._choose()

    def _choose(self) -> None:
        transport = self.transport
        if self._name is None or transport is None or transport.is_closing() or not self._first:
            return
        chosen = self._front.choose(bytes(self._first[: len(PREFACE)]))
        if chosen is None:
            return
        self._stop_timer()
        self._chosen = True
        if isinstance(chosen, tuple):
            self._front.refused(chosen[0], self.address, chosen[1])
            transport.close()
            return
        transport.pause_reading()
        self._joining = asyncio.get_running_loop().create_task(self._join(chosen, self._name))

    async def _join(self, path: str, name: str) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(
                lambda: _Inner(self), sock=_connected(path, name)
            )
        except OSError as error:
            self._front.refused(
                "busy", self.address, f"gRPC could not accept it ({error.strerror or error})"
            )
            self.abort()

    def joined(self, inner: _Half) -> None:
        """The inner end is connected: send it the bytes received so far, and start copying."""
        assert inner.transport is not None, "its connection was just made"
        if self.transport is None:
            inner.transport.abort()
            return
        self.other = inner
        first, self._first = bytes(self._first), bytearray()
        inner.transport.write(first)
        self.transport.resume_reading()

    def eof_received(self) -> bool:
        """A client that has sent everything may still read: only its direction ends, and gRPC ends
        the other. A client that closes before it showed its protocol gets no answer."""
        inner = None if self.other is None else self.other.transport
        if inner is None or inner.is_closing():
            return False
        inner.write_eof()
        return True

    def end(self, error: Exception | None) -> None:
        super().end(error)
        if self.transport is not None and error is None:
            # A client that does not read the last bytes must not hold the connection.
            self._timer = asyncio.get_running_loop().call_later(LAST_WORDS_S, self.abort)

    def _too_slow(self) -> None:
        self._front.refused(
            "slow", self.address, f"it sent no protocol preface within {FIRST_BYTES_S:g} s"
        )
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        if self._name is not None:
            self._front.left(self._name, self.host)
            self._name = None
        super().connection_lost(error)


class _Inner(_Half):
    """gRPC's end. gRPC writes first and at once, so this end must know the other one before it is
    connected."""

    def __init__(self, outer: _Outer) -> None:
        super().__init__()
        self.other = self._outer = outer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._outer.joined(self)


def _connected(path: str, name: str) -> socket.socket:
    """A connection to one of gRPC's sockets, bound to a name of its own. Never blocks: a full
    accept queue raises OSError."""
    with contextlib.ExitStack() as closing:
        inner = closing.enter_context(
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        )
        inner.bind(b"\x00" + name.encode())
        inner.connect(path)
        closing.pop_all()
    return inner
