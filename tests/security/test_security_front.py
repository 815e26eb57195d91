"""The front of the clients' port and the certificates behind it, with real gRPC inside and raw
sockets outside."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import pytest
import structlog.testing
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.frontend.rocketmq.access_control import common_name_of
from ledgermq.node.frontend.security import front, minting
from ledgermq.node.frontend.security.front import PREFACE, Front
from ledgermq.node.process.grpc_server import server_credentials
from ledgermq.node.replica.peers.peer_wire import PeerWire
from ledgermq.node.runtime import certificates, metrics
from ledgermq.node.runtime.certificates import CertificateFiles
from ledgermq.node.runtime.errors import ConfigError, FatalError
from tests.contract.backend import run

LIFTED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


class _Echo(grpc.GenericRpcHandler):
    """Answers with what came, after the name of the peer; and streams back what is streamed."""

    def service(self, details: Any) -> Any:
        async def unary(request: bytes, context: Any) -> bytes:
            first = common_name_of(context) if details.method == "/echo/name" else context.peer()
            return f"{first}\n".encode() + request

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request

        if details.method == "/echo/stream":
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


def files(directory: Path, name: str = "n1", *, authority: bool = False) -> CertificateFiles:
    minting.ensure(directory, {name: ("localhost", "127.0.0.1")})
    return CertificateFiles(
        directory / f"{name}.pem",
        directory / f"{name}.key",
        directory / "ca.pem" if authority else None,
    )


@asynccontextmanager
async def serving(
    tls: CertificateFiles | None = None, *, plain: bool = True, **limits: Any
) -> AsyncIterator[tuple[Front, int]]:
    """A front with gRPC behind it, and its port."""
    found = Front(plain=plain, tls=tls is not None, **limits)
    server = grpc.aio.server(options=LIFTED[:2])
    server.add_generic_rpc_handlers((_Echo(),))
    if found.plain is not None:
        server.add_insecure_port(f"unix:{found.plain}")
    if found.tls is not None and tls is not None:
        server.add_secure_port(f"unix:{found.tls}", server_credentials(tls))
    await server.start()
    port = await found.listen("127.0.0.1", 0)
    try:
        yield found, port
    finally:
        found.close()
        await server.stop(0)
        found.stop()
        assert not found.directory.exists()


def channel(port: int, ca: Path | None = None) -> grpc.aio.Channel:
    if ca is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=LIFTED)
    return grpc.aio.secure_channel(
        f"localhost:{port}", grpc.ssl_channel_credentials(ca.read_bytes()), options=LIFTED
    )


async def echoed(to: grpc.aio.Channel, request: bytes = b"x") -> tuple[str, bytes]:
    peer, _, answer = (
        await to.unary_unary("/echo/unary")(request, timeout=10, wait_for_ready=True)
    ).partition(b"\n")
    return peer.decode(), answer


async def said(port: int, data: bytes, *, eof: bool = False) -> bytes:
    """What a connection that says this gets before it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if eof:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def left(found: Front) -> bool:
    """Wait until the loop has ended every connection, and none is counted any more."""
    async with asyncio.timeout(10):
        while found.open_connections:
            await asyncio.sleep(0)
    return not found._addresses


def refused(reason: str) -> float:
    return metrics.CONNECTIONS_REFUSED.labels(reason)._value.get()


def scenario(work: Callable[[Path], Any]) -> Callable[[Path], None]:
    def test(tmp_path: Path) -> None:
        run(lambda: work(tmp_path))

    test.__doc__ = work.__doc__
    return test


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_front_under_the_loop_of_a_node(loop: str) -> None:
    """A node runs uvloop, these tests do not, so differing behaviour is tested with both. gRPC is
    not used, because it needs a single loop."""

    async def work() -> None:
        found = Front(plain=True, tls=False, new_per_s=20)
        assert found.plain is not None
        inside = await asyncio.start_unix_server(_settings_first, found.plain)
        port = await found.listen("127.0.0.1", 0)
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(large_echo(port))
        assert asyncio.get_running_loop().time() - began >= (8 - 1) / 20 - 0.1, (
            "never sooner than the pace allows"
        )
        assert await left(found)
        inside.close()
        found.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(work())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_slow_reader_is_not_read_for(loop: str) -> None:
    """What a client does not take stays where it is: the front stops reading inside, holds little,
    and loses nothing."""
    size = 32 << 20

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(size >> 20):
            writer.write(bytes(1 << 20))
            await writer.drain()
        writer.close()

    async def work() -> None:
        found = Front(plain=True, tls=False)
        assert found.plain is not None
        inside = await asyncio.start_unix_server(flood, found.plain)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", await found.listen("127.0.0.1", 0), limit=1 << 16
        )
        writer.write(PREFACE)
        async with asyncio.timeout(20):
            while not (
                halves := [outer.other for outer in found._open.values() if outer.other is not None]
            ) or _reads(halves[0]):
                await asyncio.sleep(0)
        (outer,) = found._open.values()
        assert outer.transport is not None and outer.transport.get_write_buffer_size() < 4 << 20
        got = 0
        while data := await reader.read(1 << 20):
            got += len(data)
        assert got == size and await left(found), (
            "gone, although the client never ended its direction"
        )
        writer.close()
        inside.close()
        found.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(work())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_unreading_client_is_dropped_after_grpc_ended(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC gives a client up; the front does, too, a little later, although what it has for the
    client was never taken."""
    monkeypatch.setattr(front, "LAST_WORDS_S", 0.05)

    async def burst(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(16 << 20))
        writer.close()

    async def work() -> None:
        found = Front(plain=True, tls=False)
        assert found.plain is not None
        inside = await asyncio.start_unix_server(burst, found.plain)
        with socket.create_connection(("127.0.0.1", await found.listen("127.0.0.1", 0))) as silent:
            silent.sendall(PREFACE)
            async with asyncio.timeout(20):
                while not found.open_connections:
                    await asyncio.sleep(0)
            # Nothing is read here, so inside nothing more is taken: as gRPC would, it gives up.
            for outer in found._open.values():
                async with asyncio.timeout(20):
                    while outer.other is None or _reads(outer.other):
                        await asyncio.sleep(0)
                assert outer.other.transport is not None
                outer.other.transport.close()
            assert await left(found)
        inside.close()
        found.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(work())


def _reads(half: Any) -> bool:
    return half.transport is None or half.transport.is_reading()


async def _settings_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What gRPC does: speak at once; then send back what comes, until it ends."""
    writer.write(b"settings.")
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def large_echo(port: int) -> None:
    """Far more than any buffer holds, sent before anything is read, and the end of this direction
    before that of the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = PREFACE + os.urandom(4 << 20)
    writer.write(data)
    writer.write_eof()
    assert await reader.readexactly(9) == b"settings."
    assert await reader.read(-1) == data
    writer.close()


@scenario
async def test_one_port_speaks_both(directory: Path) -> None:
    """Plaintext and TLS on one port, large messages both ways, and the caller's address behind the
    name gRPC has for it."""
    large = os.urandom(5 << 20)
    async with (
        serving(files(directory)) as (found, port),
        channel(port) as plain,
        channel(port, directory / "ca.pem") as encrypted,
    ):
        for one in (plain, encrypted):
            peer, answer = await echoed(one, large)
            assert answer == large
            assert peer.startswith("unix-abstract:") and found.address_of(peer).startswith(
                "127.0.0.1:"
            )
        stream = encrypted.stream_stream("/echo/stream")(timeout=20)
        for _ in range(4):
            await stream.write(large)
            assert await stream.read() == large
        assert found.open_connections == 2
    assert await left(found)


@scenario
async def test_bytes_sent_by_grpc_at_accept_are_forwarded(directory: Path) -> None:
    """gRPC sends its settings the moment it accepts, which may be before the front has joined the
    two ends."""
    async with serving() as (_, port):
        for _ in range(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PREFACE)
            assert (await asyncio.wait_for(reader.read(9), 10))[3:4] == b"\x04"
            writer.close()
    outer = front._Outer(Front(plain=True, tls=False))
    inner = front._Inner(outer)
    outer.transport = written = mock.Mock()
    inner.data_received(b"settings")
    written.write.assert_called_once_with(b"settings")
    outer._front.stop()


@scenario
async def test_unknown_protocol_is_counted_and_closed(directory: Path) -> None:
    """Another protocol, an end before the first byte, the preface byte by byte; the port continues
    to serve."""
    before = refused("garbage")
    async with serving(files(directory)) as (_, port):
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x00" * 64,
            b"PRI * HTTP/1.1\r\n\r\n",
            b"\x15\x03\x01",
        ):
            assert await said(port, data) == b""
        assert refused("garbage") == before + 4
        assert (
            await said(port, b"", eof=True) == b""
            and await said(port, PREFACE[:5], eof=True) == b""
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in PREFACE:
            writer.write(bytes([byte]))
            await writer.drain()
        assert await asyncio.wait_for(reader.read(9), 10), "gRPC answers with its settings"
        writer.close()
        async with channel(port) as plain:
            assert (await echoed(plain))[1] == b"x"


@scenario
async def test_tls_on_a_plaintext_port_is_said_in_words(directory: Path) -> None:
    """The commonest mistake, logged once in a while and counted every time; likewise plaintext on a
    TLS port."""
    minting.ensure(directory, {"n1": ("localhost",)})
    hello = client_hello(directory / "ca.pem")
    before = refused("tls-on-plaintext")
    async with serving() as (_, port):
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                assert await said(port, hello) == b""
    assert refused("tls-on-plaintext") == before + 3
    assert (
        sum("TLS handshake on a plaintext port" in str(entry.get("reason")) for entry in logs) == 1
    )
    before = refused("plaintext-on-tls")
    async with serving(files(directory), plain=False) as (_, port):
        assert await said(port, PREFACE) == b"" and refused("plaintext-on-tls") == before + 1
        async with channel(port, directory / "ca.pem") as encrypted:
            assert (await echoed(encrypted))[1] == b"x"


def client_hello(ca: Path) -> bytes:
    outgoing = ssl.MemoryBIO()
    talk = ssl.create_default_context(cafile=str(ca)).wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="localhost"
    )
    with pytest.raises(ssl.SSLWantReadError):
        talk.do_handshake()
    return outgoing.read()


@scenario
async def test_silent_connection_is_closed_after_its_time(directory: Path) -> None:
    """Silence, and the first half of a preface, hold a connection for a bounded time only."""
    before, patience = refused("slow"), front.FIRST_BYTES_S
    front.FIRST_BYTES_S = 0.05
    try:
        async with serving() as (found, port):
            assert await said(port, b"") == b"" and await said(port, PREFACE[:10]) == b""
            assert refused("slow") == before + 2 and await left(found)
    finally:
        front.FIRST_BYTES_S = patience


@scenario
async def test_silent_connection_is_closed_after_its_turn_came(directory: Path) -> None:
    """What it sent while it waited counts, and its time begins with its turn."""
    before, patience = refused("slow"), front.FIRST_BYTES_S
    front.FIRST_BYTES_S = 0.05
    try:
        async with serving(new_per_s=10) as (found, port):
            silent = [said(port, sent) for sent in (b"", b"", PREFACE[:10])]
            assert await asyncio.gather(*silent) == [b""] * 3
            assert refused("slow") == before + 3 and await left(found)
    finally:
        front.FIRST_BYTES_S = patience


@scenario
async def test_connections_are_limited(directory: Path) -> None:
    """The number of connections is limited in total and per address; an ended connection releases
    its slot."""
    async with serving(connections=2) as (found, port), channel(port) as one:
        await echoed(one)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE)
        assert await reader.read(9)
        before = refused("connections")
        assert await said(port, PREFACE) == b"" and refused("connections") == before + 1
        writer.close()
        async with asyncio.timeout(10):
            while found.open_connections > 1:
                await asyncio.sleep(0)
        async with channel(port) as two:
            assert (await echoed(two))[1] == b"x"
    async with serving(connections_per_address=1) as (found, port), channel(port) as one:
        await echoed(one)
        before = refused("address")
        assert await said(port, PREFACE) == b"" and refused("address") == before + 1
        assert found.open_connections == 1


@given(per_s=st.floats(1, 2000), pauses=st.lists(st.floats(0, 0.05), max_size=200))
def test_connections_are_admitted_in_order_at_the_pace(per_s: float, pauses: list[float]) -> None:
    """In any period, at most the allowed number, plus that of a tenth of a second, plus one, in the
    order of arrival; no client waits too long."""
    door, now, turns = Front(plain=False, tls=False, new_per_s=per_s), 1000.0, [0.0]
    for pause in pauses:
        now += pause
        if (wait := door.turn("a", now)) is None:
            assert turns[-1] - now > front.TURN_WITHIN_S - 1 / per_s - 1e-6
            continue
        assert 0 <= wait <= front.TURN_WITHIN_S and now + wait >= turns[-1] - 1e-9
        turns.append(now + wait)
    door.stop()
    for first in range(1, len(turns), 7):
        for last in range(first, len(turns), 11):
            assert last - first <= (turns[last] - turns[first] + max(0.1, 1 / per_s)) * per_s + 1e-6


@scenario
async def test_a_crowd_waits_for_its_turn(directory: Path) -> None:
    """An early client is read from when its turn comes; if its turn is too far away, its connection
    is closed."""
    before = refused("crowd")
    async with serving(new_per_s=0.01) as (_, port), channel(port) as first:
        assert (await echoed(first))[1] == b"x"
        assert await said(port, PREFACE) == b"" and refused("crowd") == before + 1
        assert (await echoed(first))[1] == b"x"
    async with (
        serving(new_per_s=20) as (_, port),
        asyncio.timeout(10),
        asyncio.TaskGroup() as group,
    ):
        for _ in range(6):
            group.create_task(answered(port))


async def answered(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE)
    assert (await reader.read(9))[3:4] == b"\x04"
    writer.close()


@scenario
async def test_a_direction_may_end_alone(directory: Path) -> None:
    """A client that has sent everything still receives the rest; when gRPC is done, the connection
    ends."""
    async with serving() as (found, port):
        answer = await said(port, PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", eof=True)
        assert answer[3:4] == b"\x04", "a settings frame"
        assert await left(found)


def test_certificates_are_replaced_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files apply from the next connection on; files that do not match are logged, and the old
    ones stay in use."""
    monkeypatch.setattr(certificates, "LOOK_EVERY_S", 0.0)
    run(lambda: replaced(tmp_path))


async def replaced(directory: Path) -> None:
    await asyncio.to_thread(minting.ensure, directory / "new", {"n1": ("localhost",)})
    own = files(directory / "old")
    async with serving(own) as (_, port), channel(port, directory / "old" / "ca.pem") as old:
        await echoed(old)
        (directory / "new" / "n1.pem").replace(directory / "old" / "n1.pem")
        with structlog.testing.capture_logs() as logs:
            assert own.current().certificate != (directory / "old" / "n1.pem").read_bytes()
        assert any("does not belong" in str(entry.get("reason")) for entry in logs)
        (directory / "new" / "n1.key").replace(directory / "old" / "n1.key")
        async with channel(port, directory / "new" / "ca.pem") as new:
            assert (await echoed(new))[1] == b"x"
        assert (await echoed(old))[1] == b"x", "connections that stand are not touched"


@scenario
async def test_clients_show_a_certificate_where_one_is_asked_for(directory: Path) -> None:
    """Clients without a certificate of the authority are refused; the service knows the common
    name."""
    async with serving(files(directory, authority=True)) as (_, port):
        async with channel(port, directory / "ca.pem") as nobody:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await nobody.unary_unary("/echo/unary")(b"", timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        ca, key, own = ((directory / name).read_bytes() for name in ("ca.pem", "n1.key", "n1.pem"))
        credentials = grpc.ssl_channel_credentials(ca, key, own)
        async with grpc.aio.secure_channel(
            f"localhost:{port}", credentials, options=LIFTED
        ) as known:
            assert await known.unary_unary("/echo/name")(b"x", timeout=10) == b"n1\nx"
        async with channel(port) as plain:
            assert await plain.unary_unary("/echo/name")(b"x", timeout=10) == b"\nx", (
                "who shows none has no name"
            )


class Named(asyncio.Protocol):
    """The accepting side: says when there is a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


@scenario
async def test_peers_check_each_others_names(directory: Path) -> None:
    """A node reaches a peer only where a certificate for the peer's name answers, and shows its
    own."""
    minting.ensure(directory, {"n1": ("127.0.0.1",), "n2": ("127.0.0.1",)})
    wires = {name: PeerWire(files(directory, name, authority=True)) for name in ("n1", "n2")}
    listener = await wires["n2"].listen("127.0.0.1:0")
    port = listener.getsockname()[1]

    async def accepted() -> Named:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        return await wires["n2"].accept(connection, Named)

    async def met(wire: PeerWire, peer: str) -> list[Any]:
        return await asyncio.gather(
            accepted(), wire.connect(f"127.0.0.1:{port}", peer, Named), return_exceptions=True
        )

    try:
        there, here = await met(wires["n1"], "n2")
        assert wires["n2"].names(there.transport) == frozenset({"n1", "127.0.0.1", "localhost"})
        here.transport.close()
        there, here = await met(wires["n1"], "n3")
        assert isinstance(here, ssl.SSLCertVerificationError), "the certificate names n2"
        accepting = asyncio.create_task(accepted())
        plain = await PeerWire().connect(f"127.0.0.1:{port}", "n2", Named)
        plain.transport.write(b"plaintext")
        with pytest.raises(OSError):
            await accepting
    finally:
        listener.close()


def test_minted_once_and_renewed_when_names_change(tmp_path: Path) -> None:
    """What is good stays; another host is a new certificate of the same authority; keys are their
    owner's only."""
    assert minting.ensure(tmp_path, {"n1": ("a",), "n2": ("b",)}) == ["n1", "n2"]
    authority = (tmp_path / "ca.pem").read_bytes()
    assert minting.ensure(tmp_path, {"n1": ("a",), "n2": ("b", "10.0.0.2")}) == ["n2"]
    assert minting.ensure(tmp_path, {"n1": (), "n2": ("10.0.0.2",)}) == []
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.key")} == {0o600}
    (tmp_path / "n1.pem").write_text("not a certificate")
    assert minting.ensure(tmp_path, {"n1": ("a",)}) == ["n1"]
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"holds ca\.pem without ca\.key"):
        minting.ensure(tmp_path, {"n1": ("a",)})


def test_files_that_cannot_serve_are_refused_at_the_start(tmp_path: Path) -> None:
    """A key that others can read, a key of another certificate, no file, no PEM: each with what to
    do."""
    minting.ensure(tmp_path, {"n1": (), "n2": ()})
    pem, key = tmp_path / "n1.pem", tmp_path / "n1.key"
    with pytest.raises(ConfigError, match="does not belong"):
        CertificateFiles(pem, tmp_path / "n2.key", None)
    with pytest.raises(ConfigError, match="cannot be read"):
        CertificateFiles(pem, tmp_path / "n3.key", None)
    with pytest.raises(ConfigError, match="not PEM"):
        CertificateFiles(key, key, None)
    key.chmod(0o644)
    with pytest.raises(FatalError, match="open to every user") as caught:
        CertificateFiles(pem, key, None)
    assert caught.value.exit_code == 77


def test_inner_sockets_are_this_users_only(tmp_path: Path) -> None:
    """The directory is closed to other users, and is removed with the front."""
    found = Front(plain=True, tls=False)
    assert (
        found.directory.stat().st_mode & 0o077 == 0
        and found.plain is not None
        and found.tls is None
    )
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(found.plain)
    listener.close()
    found.stop()
    assert not found.directory.exists()
