"""What clients may expect of the gRPC server of a node, on both transports: grpc.aio, and the front
of ledgermq-native where it is built.

A small service of all three kinds of methods stands behind a real port; the client is gRPC's own,
or a raw socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog

from ledgermq.node.frontend.ports import (
    CallAborted,
    CallGone,
    CallServer,
    Diversion,
    Listening,
    Method,
    ServerCall,
    ServerStreamMethod,
    StatusCode,
    StreamMethod,
    UnaryMethod,
)
from ledgermq.node.frontend.rocketmq.access_control import common_name_of
from ledgermq.node.frontend.rocketmq.messaging import REQUEST_BYTES
from ledgermq.node.frontend.routing.worker_proxy import OPTIONS as WORKER_OPTIONS
from ledgermq.node.frontend.security import minting
from ledgermq.node.process.client_port import call_server
from ledgermq.node.process.grpc_server import GrpcServer
from ledgermq.node.runtime import certificates, metrics
from ledgermq.node.runtime.certificates import CertificateFiles
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.node.runtime.security_sections import Quotas
from ledgermq.proto import kernels
from tests.contract.backend import run
from tests.mounted_secret import MountedSecret

SERVICE = "test.Calls"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
MAX_CONCURRENT_STREAMS = 3
ACK = END_STREAM = 1
END_HEADERS = 4
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
)
SMALL_WINDOWS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16))
"""By default, gRPC's client enlarges its windows to many MiB if the server is fast."""
LOCAL = Listening("127.0.0.1", 0)
Make = Callable[..., Any]


def _grpc_aio(divert: Diversion | None = None) -> CallServer:
    return GrpcServer(divert)


def _native(divert: Diversion | None = None) -> CallServer:
    from ledgermq.node.process.native_server import NativeServer

    return NativeServer(divert)


def _not_built() -> str:
    try:
        importlib.import_module("ledgermq_native")
    except ImportError as error:
        return str(error)
    return ""


SERVERS: dict[str, Make] = {"grpc.aio": _grpc_aio, "native": _native}
FRONTS = [
    pytest.param(_grpc_aio, id="grpc.aio"),
    pytest.param(
        _native,
        id="native",
        marks=pytest.mark.skipif(bool(_not_built()), reason=f"ledgermq-native: {_not_built()}"),
    ),
]


class Calls:
    """The service. It notes what happened to its handlers."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        """A handler that waits was cancelled, or its call was gone."""
        self.go_on = asyncio.Event()
        self.taken = asyncio.Event()
        self.written = self.read = 0

    def methods(self) -> dict[str, Method]:
        unary = [
            self.Echo,
            self.Metadata,
            self.Aborts,
            self.Breaks,
            self.Wrong,
            self.Waits,
            self.GoesOn,
        ]
        unary += [self.Size, self.Name, self.TimeLeft]
        return {
            **{method.__name__: UnaryMethod(method) for method in unary},
            **{
                method.__name__: ServerStreamMethod(method)
                for method in (self.Count, self.Flood, self.Early, self.Whole)
            },
            **{
                method.__name__: StreamMethod(method)
                for method in (self.Chat, self.Collect, self.Sluggish, self.Refuses)
            },
        }

    async def Echo(self, data: bytes, call: ServerCall) -> bytes:
        return data

    async def Metadata(self, data: bytes, call: ServerCall) -> bytes:
        """Sends back what was sent under these names."""
        await call.send_initial_metadata((("first", "now"),))
        call.set_trailing_metadata(
            tuple(
                (key, value) for key, value in call.invocation_metadata() if key.startswith("say")
            )
        )
        return b"".join(name.encode() + b"\n" for name, _ in call.invocation_metadata())

    async def Aborts(self, data: bytes, call: ServerCall) -> bytes:
        raise CallAborted(
            StatusCode.FAILED_PRECONDITION, "not like this: 100 % größer\n", (("why", "because"),)
        )

    async def Breaks(self, data: bytes, call: ServerCall) -> bytes:
        raise ZeroDivisionError("a secret")

    async def Waits(self, data: bytes, call: ServerCall) -> bytes:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return b""

    async def GoesOn(self, data: bytes, call: ServerCall) -> bytes:
        self.begun.set()
        await self.go_on.wait()
        return b"done"

    async def Wrong(self, data: bytes, call: ServerCall) -> bytes:
        await self.go_on.wait()
        wrong: Any = 7
        found: bytes = wrong
        return found

    async def Size(self, data: bytes, call: ServerCall) -> bytes:
        return str(len(data)).encode()

    async def Name(self, data: bytes, call: ServerCall) -> bytes:
        return f"{call.peer()}\n{common_name_of(call)}".encode()

    async def TimeLeft(self, data: bytes, call: ServerCall) -> bytes:
        return repr(call.time_remaining()).encode()

    async def Count(self, data: bytes, call: ServerCall) -> None:
        for number in range(int(data)):
            await call.write(str(number).encode())
        call.set_trailing_metadata((("counted", data.decode()),))

    async def Early(self, data: bytes, call: ServerCall) -> None:
        await call.send_initial_metadata((("first", "now"),))
        await self.go_on.wait()

    async def Flood(self, data: bytes, call: ServerCall) -> None:
        self.begun.set()
        try:
            for _ in range(int(data)):
                await call.write(bytes(1 << 16))
                self.written += 1
        finally:
            self.ended.set()

    async def Whole(self, data: bytes, call: ServerCall) -> None:
        """Sends one large answer, and notes whether the client took it."""
        call.set_trailing_metadata((("sent", data.decode()),))
        try:
            await call.write(bytes(int(data)))
            self.begun.set()
            await call.finish()
            self.taken.set()
        except BaseException:
            self.ended.set()
            raise

    async def Chat(self, call: ServerCall) -> None:
        while (message := await call.read()) is not None:
            await call.write(message)

    async def Collect(self, call: ServerCall) -> None:
        found = 0
        while (message := await call.read()) is not None:
            found += len(message)
        await call.write(str(found).encode())

    async def Sluggish(self, call: ServerCall) -> None:
        """Reads one message, and the others once it may."""
        while await call.read() is not None:
            self.read += 1
            self.begun.set()
            await self.go_on.wait()

    async def Refuses(self, call: ServerCall) -> None:
        await call.read()
        raise CallAborted(StatusCode.INVALID_ARGUMENT, "no")


class Served:
    """A server of the service, and a client."""

    def __init__(self, make: Make, divert: Diversion | None = None) -> None:
        self.calls = Calls()
        self.server: CallServer = make(divert)
        self.server.add_service(SERVICE, self.calls.methods())
        self.port = 0

    def unary(self, channel: grpc.aio.Channel, method: str) -> Any:
        return channel.unary_unary(f"/{SERVICE}/{method}")


@asynccontextmanager
async def serving(
    make: Make, where: Listening = LOCAL, divert: Diversion | None = None
) -> AsyncIterator[tuple[Served, grpc.aio.Channel]]:
    served = Served(make, divert)
    served.port = await served.server.listen(where)
    try:
        async with channel_to(served.port) as channel:
            yield served, channel
    finally:
        await served.server.stop(0)


def channel_to(
    port: int,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, Any]] = (),
    **more: Any,
) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(*OPTIONS, *options), **more)
    return grpc.aio.secure_channel(
        f"localhost:{port}", credentials, options=(*OPTIONS, *options), **more
    )


async def failed(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def on_both(scenario: Callable[..., Awaitable[None]]) -> Any:
    """The scenario as a test of each server; it may ask for a directory."""
    wants = len(inspect.signature(scenario).parameters) == 2

    @pytest.mark.parametrize("make", FRONTS)
    def test(make: Make, tmp_path: Path) -> None:
        run(lambda: scenario(make, tmp_path) if wants else scenario(make))

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


# -- one request, one answer


@on_both
async def test_unary_calls_have_their_metadata_both_ways(make: Make) -> None:
    """Text and bytes, repeated names in order, initial metadata and trailers; the fields of the
    transport are not the handler's, except the client's name."""
    async with serving(make) as (served, channel):
        sent = (("say", "one"), ("say", "two"), ("say-bin", b"\x00\xff\n,"), ("other", "x"))
        call = served.unary(channel, "Metadata")(b"x", metadata=sent, timeout=10)
        names = (await call).decode().split()
        assert tuple(await call.trailing_metadata()) == sent[:3]
        assert dict(await call.initial_metadata())["first"] == "now"
        assert "user-agent" in names and not {"te", "content-type", "grpc-timeout", ":path"} & set(
            names
        )


@on_both
async def test_empty_messages_are_messages(make: Make) -> None:
    async with serving(make) as (served, channel):
        assert await served.unary(channel, "Echo")(b"", timeout=10) == b""
        chat = channel.stream_stream(f"/{SERVICE}/Chat")(timeout=10)
        await chat.write(b"")
        assert await chat.read() == b""
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF


@on_both
async def test_unknown_methods_and_services(make: Make) -> None:
    async with serving(make) as (served, channel):
        assert (
            await failed(served.unary(channel, "None")(b"", timeout=10))
        ).code() is grpc.StatusCode.UNIMPLEMENTED
        assert (
            await failed(channel.unary_unary("/other.Service/Echo")(b"", timeout=10))
        ).code() is grpc.StatusCode.UNIMPLEMENTED


@on_both
async def test_a_handler_ends_its_call_with_a_status(make: Make) -> None:
    """Code, text beyond ASCII and trailers arrive as they are."""
    async with serving(make) as (served, channel):
        error = await failed(served.unary(channel, "Aborts")(b"", timeout=10))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "not like this: 100 % größer\n",
        )
        assert ("why", "because") in tuple(error.trailing_metadata())
        stream = channel.stream_stream(f"/{SERVICE}/Refuses")(timeout=10)
        await stream.write(b"x")
        assert (await failed(stream.read())).code() is grpc.StatusCode.INVALID_ARGUMENT


@on_both
async def test_a_broken_handler_ends_its_own_call_only(make: Make) -> None:
    async with serving(make) as (served, channel):
        assert (
            await failed(served.unary(channel, "Breaks")(b"", timeout=10))
        ).code() is grpc.StatusCode.UNKNOWN
        assert await served.unary(channel, "Echo")(b"x", timeout=10) == b"x"


@on_both
async def test_deadlines_are_known_and_kept(make: Make) -> None:
    """The handler knows the time left; when it is over, the handler is cancelled and the client
    told."""
    async with serving(make) as (served, channel):
        # The client's library rounds the time up.
        assert 50 < float(await served.unary(channel, "TimeLeft")(b"", timeout=60)) < 62
        assert await served.unary(channel, "TimeLeft")(b"") == b"None"
        assert (
            await failed(served.unary(channel, "Waits")(b"", timeout=0.5))
        ).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await served.calls.ended.wait()


@on_both
async def test_a_cancelled_call_cancels_its_handler(make: Make) -> None:
    async with serving(make) as (served, channel):
        call = served.unary(channel, "Waits")(b"")
        await served.calls.begun.wait()
        call.cancel()
        await served.calls.ended.wait()
        assert await served.unary(channel, "Echo")(b"x", timeout=10) == b"x"


@on_both
async def test_a_lost_connection_cancels_its_handlers(make: Make) -> None:
    async with serving(make) as (served, _):
        async with channel_to(served.port) as channel:
            call = served.unary(channel, "Waits")(b"")
            await served.calls.begun.wait()
        await served.calls.ended.wait()
        assert call.done()


@on_both
async def test_five_hundred_calls_at_once(make: Make) -> None:
    async with serving(make) as (served, channel):
        echo = served.unary(channel, "Echo")
        found = await asyncio.gather(
            *(echo(str(number).encode(), timeout=30) for number in range(500))
        )
        assert [int(data) for data in found] == list(range(500))


@on_both
async def test_large_requests(make: Make) -> None:
    """10 MB pass in both directions; what is over the limit ends only its call."""
    async with serving(make) as (served, channel):
        large = os.urandom(10_000_000)
        assert await served.unary(channel, "Echo")(large, timeout=30) == large
        assert (
            await served.unary(channel, "Size")(bytes(REQUEST_BYTES), timeout=30)
            == str(REQUEST_BYTES).encode()
        )
        error = await failed(served.unary(channel, "Size")(bytes(REQUEST_BYTES + 1), timeout=30))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await served.unary(channel, "Echo")(b"x", timeout=10) == b"x"


@on_both
async def test_compressed_requests(make: Make) -> None:
    """With gzip and deflate, in unary calls and in streams. A compressed request counts by its true
    size."""
    async with serving(make) as (served, _):
        for how in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            async with channel_to(served.port, compression=how) as channel:
                assert (
                    await served.unary(channel, "Echo")(b"abc" * 100_000, timeout=10)
                    == b"abc" * 100_000
                )
                chat = channel.stream_stream(f"/{SERVICE}/Chat")(timeout=10)
                await chat.write(b"x" * 50_000)
                assert await chat.read() == b"x" * 50_000
                error = await failed(
                    served.unary(channel, "Size")(bytes(REQUEST_BYTES + 1), timeout=30)
                )
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# -- streams


@on_both
async def test_a_stream_of_answers(make: Make) -> None:
    async with serving(make) as (_, channel):
        count = channel.unary_stream(f"/{SERVICE}/Count")
        call = count(b"1000", timeout=30)
        assert [int(data) async for data in call] == list(range(1000))
        assert dict(await call.trailing_metadata())["counted"] == "1000"
        assert [data async for data in count(b"0", timeout=10)] == []


@on_both
async def test_initial_metadata_comes_before_any_answer(make: Make) -> None:
    async with serving(make) as (served, channel):
        call = channel.unary_stream(f"/{SERVICE}/Early")(b"", timeout=10)
        assert dict(await call.initial_metadata())["first"] == "now"
        served.calls.go_on.set()
        assert await call.code() is grpc.StatusCode.OK


@on_both
async def test_streams_in_both_directions(make: Make) -> None:
    """Answers come between the requests, and after the client has closed its side."""
    async with serving(make) as (_, channel):
        chat = channel.stream_stream(f"/{SERVICE}/Chat")(timeout=30)
        for number in range(200):
            await chat.write(str(number).encode())
            assert await chat.read() == str(number).encode()
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF
        assert await chat.code() is grpc.StatusCode.OK
        collect = channel.stream_stream(f"/{SERVICE}/Collect")(timeout=30)
        for _ in range(300):
            await collect.write(bytes(1000))
        await collect.done_writing()
        assert await collect.read() == b"300000"


@on_both
async def test_a_slow_reader_holds_its_writer_only(make: Make) -> None:
    """Of 64 MiB, few are written while the client does not read; other calls of the connection go
    on, and in the end everything arrives."""
    async with (
        serving(make) as (served, _),
        channel_to(served.port, options=SMALL_WINDOWS) as channel,
    ):
        call = channel.unary_stream(f"/{SERVICE}/Flood")(b"1024", timeout=50)
        await call.read()
        echo, before = served.unary(channel, "Echo"), -1
        while served.calls.written != before:
            before = served.calls.written
            for _ in range(20):
                assert await echo(b"x", timeout=10) == b"x"
        assert before < 64, "more than 4 MiB wait for a client that does not read"
        rest = 0
        while (data := await call.read()) is not grpc.aio.EOF:
            assert len(data) == 1 << 16
            rest += 1
        assert rest == 1023 and served.calls.written == 1024


@on_both
async def test_a_slow_handler_holds_its_client_only(make: Make) -> None:
    """A client that sends more than the handler reads is stopped; other calls go on."""
    async with serving(make) as (served, channel):
        call = channel.stream_stream(f"/{SERVICE}/Sluggish")(timeout=50)
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(1024):
                await call.write(bytes(1 << 16))
                sent += 1
            await call.done_writing()

        sender = asyncio.create_task(send())
        await served.calls.begun.wait()
        echo, before = served.unary(channel, "Echo"), -1
        while sent != before:
            before = sent
            for _ in range(20):
                assert await echo(b"x", timeout=10) == b"x"
        assert not sender.done() and served.calls.read == 1
        served.calls.go_on.set()
        await sender
        assert await call.read() is grpc.aio.EOF
        assert served.calls.read == 1024


@on_both
async def test_open_calls_and_their_requests_are_bounded(make: Make) -> None:
    """Beyond the bound calls are refused, and those that are open go on."""
    async with serving(
        make, replace(LOCAL, memory=Limits.model_construct(buffered_bytes=400_000))
    ) as (served, channel):
        goes_on, size = served.unary(channel, "GoesOn"), served.unary(channel, "Size")
        waiting = [asyncio.ensure_future(goes_on(b"x" * 60_000, timeout=50)) for _ in range(2)]
        await served.calls.begun.wait()
        error = await failed(size(b"x" * 300_000, timeout=50))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await size(b"x" * 1000, timeout=50) == b"1000"
        served.calls.go_on.set()
        assert await asyncio.gather(*waiting) == [b"done"] * 2
        assert await size(b"x" * 150_000, timeout=50) == b"150000"


@on_both
async def test_writer_ends_when_its_client_cancels(make: Make) -> None:
    """While it waits for a slow reader that cancels the call."""
    async with serving(make) as (served, channel):
        call = channel.unary_stream(f"/{SERVICE}/Flood")(b"1024")
        await served.calls.begun.wait()
        await call.read()
        call.cancel()
        await served.calls.ended.wait()
        assert served.calls.written < 1024
        with contextlib.suppress(asyncio.CancelledError):
            await call.code()


@on_both
async def test_a_handler_learns_whether_its_answer_left(make: Make) -> None:
    """`finish` returns once the client has read enough, and not if the client cancels the call or
    the connection ends before."""
    for how in ("reads", "cancels", "closes"):
        async with (
            serving(make) as (served, _),
            channel_to(served.port, options=SMALL_WINDOWS) as channel,
        ):
            call = channel.unary_stream(f"/{SERVICE}/Whole")(b"600000", timeout=30)
            # The client asks for the message at once, but its window is smaller than the message
            # until it reads.
            await call.initial_metadata()
            if how == "reads":
                assert await call.read() == bytes(600_000)
                await served.calls.taken.wait()
                assert dict(await call.trailing_metadata())["sent"] == "600000"
                assert await call.code() is grpc.StatusCode.OK
                continue
            if how == "cancels":
                call.cancel()
            else:
                await channel.close()
            await served.calls.ended.wait()
            assert not served.calls.taken.is_set()


@on_both
async def test_ended_call_refuses_reads_and_writes(make: Make) -> None:
    """What a task of a handler writes or reads after the end raises CallGone."""
    kept: list[ServerCall] = []
    served = Served(make)

    async def keep(call: ServerCall) -> None:
        kept.append(call)

    served.server.add_service("test.Kept", {"Keep": StreamMethod(keep)})
    port = await served.server.listen(LOCAL)
    try:
        async with channel_to(port) as channel:
            call = channel.stream_stream("/test.Kept/Keep")(timeout=10)
            assert await call.code() is grpc.StatusCode.OK
            with pytest.raises(CallGone):
                await kept[0].write(b"x")
            with pytest.raises(CallGone):
                await kept[0].read()
    finally:
        await served.server.stop(0)


# -- connections


async def frame_from(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """The next HTTP/2 frame: type, flags and payload."""
    head = await reader.readexactly(9)
    size = int.from_bytes(head[:3], "big")
    return head[3], head[4], await reader.readexactly(size)


def frame(kind: int, flags: int, payload: bytes = b"", stream: int = 0) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload
    )


def head(method: str) -> bytes:
    """The header fields of a call, in HPACK: literals without indexing, whose lengths all fit into
    a byte."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{SERVICE}/{method}",
        ":authority": "x",
    }
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    return b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields.items()
    )


def opening(method: str, stream: int, request: bytes = b"") -> bytes:
    """The frames of a call."""
    message = b"\0" + len(request).to_bytes(4, "big") + request
    return frame(HEADERS, END_HEADERS, head(method), stream) + frame(
        DATA, END_STREAM, message, stream
    )


@on_both
async def test_open_calls_do_not_hold_up_others_of_their_connection(make: Make) -> None:
    """A client with thousands of long polls on a connection sends on it as well: a setting of the
    server that made it wait with further calls would hold its sends up for as long as the polls."""
    async with serving(make) as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(PREFACE + frame(SETTINGS, 0))
        async with asyncio.timeout(30):
            kind, _, settings = await frame_from(reader)
            assert kind == SETTINGS
            most = dict(struct.iter_unpack(">HI", settings)).get(MAX_CONCURRENT_STREAMS)
            assert most is None or most >= 20_000
            polls = 1200
            writer.write(
                b"".join(opening("Waits", 2 * number + 1) for number in range(polls))
                + opening("Echo", 2 * polls + 1)
            )
            while (await frame_from(reader))[0] != DATA:
                pass
        writer.close()


@on_both
async def test_pings_are_answered(make: Make) -> None:
    """A connection without calls stays open as long as its client pings."""
    async with serving(make) as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            PREFACE + frame(SETTINGS, 0) + frame(PING, 0, b"12345678") + frame(PING, 0, b"87654321")
        )
        answers: list[bytes] = []
        async with asyncio.timeout(10):
            while len(answers) < 2:
                kind, flags, payload = await frame_from(reader)
                if kind == PING and flags & ACK:
                    answers.append(payload)
        assert answers == [b"12345678", b"87654321"]
        writer.close()


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.parametrize("make", FRONTS)
def test_vanished_client_is_disconnected_after_a_ping_timeout(make: Make) -> None:
    """It answers no ping and ends nothing. The server pings after half a minute, and waits 20 s for
    the answer."""

    async def scenario() -> None:
        async with serving(make) as (served, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(
                PREFACE
                + frame(SETTINGS, 0)
                + frame(SETTINGS, ACK)
                + frame(HEADERS, END_HEADERS, head("Chat"), 1)
            )
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.close()

    run(scenario, within_s=200)


@on_both
async def test_a_stop_lets_running_calls_end(make: Make) -> None:
    """Clients are told to go elsewhere, new connections are not accepted, and a running call gets
    its answer."""
    async with serving(make) as (served, channel):
        running = served.unary(channel, "GoesOn")(b"", timeout=30)
        await served.calls.begun.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(PREFACE + frame(SETTINGS, 0))
        while (await frame_from(reader))[0] != SETTINGS:
            pass
        stopping = asyncio.create_task(served.server.stop(30))
        async with asyncio.timeout(10):
            while (await frame_from(reader))[0] != GOAWAY:
                pass
        assert not running.done() and not stopping.done()
        served.calls.go_on.set()
        assert await running == b"done"
        writer.close()
        await stopping
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", served.port)


@on_both
async def test_stop_cancels_calls_beyond_its_grace(make: Make) -> None:
    async with serving(make) as (served, channel):
        running = served.unary(channel, "Waits")(b"", timeout=30)
        await served.calls.begun.wait()
        await served.server.stop(0.1)
        await served.calls.ended.wait()
        assert (await failed(running)).code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        )


def files(directory: Path, *, authority: bool = False) -> CertificateFiles:
    minting.ensure(directory, {"n1": ("localhost", "127.0.0.1")})
    return CertificateFiles(
        directory / "n1.pem", directory / "n1.key", directory / "ca.pem" if authority else None
    )


def trusting(directory: Path, name: str = "") -> grpc.ChannelCredentials:
    """Credentials that trust the authority of a directory, and show the named certificate."""
    read = [
        (directory / file).read_bytes()
        for file in (("ca.pem", f"{name}.key", f"{name}.pem") if name else ("ca.pem",))
    ]
    return grpc.ssl_channel_credentials(*read)


async def name_of(served: Served, channel: grpc.aio.Channel) -> tuple[str, str]:
    """The peer and the common name of the client, as the handler sees them."""
    peer, _, name = (await served.unary(channel, "Name")(b"", timeout=10)).decode().partition("\n")
    return served.server.address_of(peer), name


@on_both
async def test_tls_alone(make: Make, directory: Path) -> None:
    """A port for TLS takes no plaintext."""
    async with serving(make, replace(LOCAL, plain=False, tls=files(directory))) as (served, plain):
        async with channel_to(served.port, trusting(directory)) as channel:
            address, name = await name_of(served, channel)
            assert "127.0.0.1:" in address and name == ""
        assert (
            await failed(served.unary(plain, "Echo")(b"x", timeout=5))
        ).code() is grpc.StatusCode.UNAVAILABLE


@on_both
async def test_tls_and_plaintext_on_one_port(make: Make, directory: Path) -> None:
    where = replace(LOCAL, tls=files(directory))
    async with (
        serving(make, where) as (served, plain),
        channel_to(served.port, trusting(directory)) as secure,
    ):
        for channel in (plain, secure):
            assert await served.unary(channel, "Echo")(b"x", timeout=10) == b"x"
            assert "127.0.0.1:" in (await name_of(served, channel))[0]


@on_both
async def test_clients_with_certificates(make: Make, directory: Path) -> None:
    """Where an authority is configured, a client must show a certificate of it, and the handler
    sees its verified name."""
    async with serving(make, replace(LOCAL, plain=False, tls=files(directory, authority=True))) as (
        served,
        _,
    ):
        async with channel_to(served.port, trusting(directory, "n1")) as known:
            assert (await name_of(served, known))[1] == "n1"
        async with channel_to(served.port, trusting(directory)) as stranger:
            assert (
                await failed(served.unary(stranger, "Echo")(b"x", timeout=5))
            ).code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("make", FRONTS)
def test_certificates_are_replaced_without_a_restart(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections see the new certificate, and open connections stay."""
    monkeypatch.setattr(certificates, "LOOK_EVERY_S", 0.0)

    async def scenario() -> None:
        old, new = tmp_path / "old", tmp_path / "new"
        files(new)
        where = replace(LOCAL, plain=False, tls=files(old))
        async with (
            serving(make, where) as (served, _),
            channel_to(served.port, trusting(old)) as first,
        ):
            assert await served.unary(first, "Echo")(b"x", timeout=10) == b"x"
            for name in ("n1.pem", "n1.key"):
                (new / name).replace(old / name)
            async with channel_to(served.port, trusting(new)) as second:
                assert (
                    await served.unary(second, "Echo")(b"x", timeout=20, wait_for_ready=True)
                    == b"x"
                )
            assert await served.unary(first, "Echo")(b"x", timeout=10) == b"x"

    run(scenario)


def minted(directory: Path, *hosts: str) -> dict[str, bytes]:
    """A certificate for these hosts, by the authority of the directory, under the names of a TLS
    Secret of Kubernetes."""
    minting.ensure(directory, {"n1": hosts})
    names = {"tls.crt": "n1.pem", "tls.key": "n1.key", "ca.crt": "ca.pem"}
    return {name: (directory / file).read_bytes() for name, file in names.items()}


async def presented(port: int, authority: Path) -> bytes:
    """The certificate, as DER, that a new connection is shown."""
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    try:
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


@pytest.mark.parametrize("make", FRONTS)
def test_a_certificate_mounted_by_kubernetes_is_replaced_without_a_dropped_call(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files change at once behind `..data`. Streams and connections go on; no call fails
    before, during or after the change."""
    monkeypatch.setattr(certificates, "LOOK_EVERY_S", 0.0)
    authority = tmp_path / "ca"
    volume = MountedSecret(tmp_path / "volume", minted(authority, "localhost", "127.0.0.1"))
    own = CertificateFiles(*(volume.directory / name for name in ("tls.crt", "tls.key", "ca.crt")))
    renewed = minted(authority, "localhost", "127.0.0.1", "mq.example.com")
    wanted = ssl.PEM_cert_to_DER_cert(renewed["tls.crt"].decode())

    async def scenario() -> None:
        where = replace(LOCAL, plain=False, tls=own)
        async with (
            serving(make, where) as (served, _),
            channel_to(served.port, trusting(authority, "n1")) as first,
        ):
            echo, chat = (
                served.unary(first, "Echo"),
                first.stream_stream(f"/{SERVICE}/Chat")(timeout=60),
            )
            await chat.write(b"before")
            assert await chat.read() == b"before" and await echo(b"x", timeout=10) == b"x"
            volume.replace(renewed)
            async with asyncio.timeout(20):
                while await presented(served.port, authority / "ca.pem") != wanted:
                    assert await echo(b"x", timeout=10) == b"x"
            async with channel_to(served.port, trusting(authority, "n1")) as second:
                assert await served.unary(second, "Echo")(b"x", timeout=10) == b"x"
            await chat.write(b"after")
            assert await chat.read() == b"after" and await echo(b"x", timeout=10) == b"x"
            await chat.done_writing()
            assert await chat.code() is grpc.StatusCode.OK

    with structlog.testing.capture_logs() as logs:
        run(scenario)
    assert not [entry for entry in logs if entry["log_level"] == "error"], (
        "at no moment did the files contradict each other"
    )


@on_both
async def test_connections_are_limited(make: Make) -> None:
    """For each address: one more is refused and counted, and accepted once another has ended."""
    refused = metrics.CONNECTIONS_REFUSED.labels("address")
    before = refused._value.get()
    async with serving(make, replace(LOCAL, limits=Quotas(connections_per_address=1))) as (
        served,
        channel,
    ):
        assert await served.unary(channel, "Echo")(b"x", timeout=10) == b"x"
        assert "127.0.0.1:" in (await name_of(served, channel))[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        async with asyncio.timeout(10):
            while refused._value.get() == before:
                await asyncio.sleep(0)
        await channel.close()
        async with channel_to(served.port) as another:
            assert (
                await served.unary(another, "Echo")(b"x", timeout=20, wait_for_ready=True) == b"x"
            )


@on_both
async def test_garbage_does_no_harm(make: Make) -> None:
    async with serving(make, replace(LOCAL, limits=Quotas(connections=100))) as (served, channel):
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(100),
            PREFACE + b"\xff" * 50,
            b"\x16\x03\x01\x00\x05hello",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(data)
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
        assert await served.unary(channel, "Echo")(b"x", timeout=10) == b"x"


@on_both
async def test_a_taken_port_is_an_error(make: Make) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        served = Served(make)
        with pytest.raises((OSError, RuntimeError)):
            await served.server.listen(replace(LOCAL, port=holder.getsockname()[1]))
        await served.server.stop(0)


@on_both
async def test_several_servers_share_a_port(make: Make) -> None:
    """Each serves the connections that the system gives it."""
    with socket.socket() as hold:
        hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        hold.bind(("127.0.0.1", 0))
        where = replace(LOCAL, port=hold.getsockname()[1], shared=True)
        async with serving(make, where) as (first, _), serving(make, where) as (second, _):
            for server in (first, second):
                server.calls.go_on.set()
            reached: set[int] = set()
            async with asyncio.timeout(30):
                while len(reached) < 2:
                    async with channel_to(where.port) as channel:
                        await first.unary(channel, "GoesOn")(b"", timeout=10)
                    reached = {
                        number
                        for number, server in enumerate((first, second))
                        if server.calls.begun.is_set()
                    }


@on_both
async def test_calls_over_a_unix_socket_and_diverted_calls(make: Make, directory: Path) -> None:
    """Workers of a node reach each other over a socket in the file system. A diversion takes calls
    of every kind, as bytes both ways."""

    async def elsewhere(call: ServerCall) -> None:
        call.set_trailing_metadata((("by", "another"),))
        while (message := await call.read()) is not None:
            await call.write(b"diverted " + message)

    def divert(path: str, metadata: Sequence[tuple[str, Any]]) -> StreamMethod | None:
        return StreamMethod(elsewhere) if ("divert", "yes") in tuple(metadata) else None

    path = str(directory / "calls")
    with socket.socket(socket.AF_UNIX) as left_by_a_killed_worker:
        left_by_a_killed_worker.bind(path)
    async with serving(make, replace(LOCAL, unix=path), divert) as (served, channel):
        async with grpc.aio.insecure_channel(f"unix:{path}", options=WORKER_OPTIONS) as sibling:
            assert await name_of(served, sibling) == ("unix:", "")
        marked = (("divert", "yes"),)
        call = served.unary(channel, "Echo")(b"x", metadata=marked, timeout=10)
        assert await call == b"diverted x"
        assert dict(await call.trailing_metadata())["by"] == "another"
        assert await served.unary(channel, "Echo")(b"x", timeout=10) == b"x"
        stream = channel.unary_stream(f"/{SERVICE}/Count")(b"3", metadata=marked, timeout=10)
        assert [data async for data in stream] == [b"diverted 3"]
        chat = channel.stream_stream(f"/{SERVICE}/Chat")(metadata=marked, timeout=10)
        for word in (b"a", b"b"):
            await chat.write(word)
            assert await chat.read() == b"diverted " + word
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF


def test_a_node_without_the_compiled_package_takes_grpc_aio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "NATIVE", False)
    assert isinstance(call_server(), GrpcServer)


@pytest.mark.skipif(bool(_not_built()), reason=f"ledgermq-native: {_not_built()}")
def test_a_node_that_uses_the_compiled_package_takes_its_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "NATIVE", True)
    assert type(call_server()) is type(_native())


@pytest.mark.skipif(bool(_not_built()), reason=f"ledgermq-native: {_not_built()}")
def test_a_cancelled_write_to_a_full_stream_leaves_the_stream_usable() -> None:
    """Another write waits for room as before, and nothing of the stream is lost but the cancelled
    message."""

    async def flood(data: bytes, call: ServerCall) -> None:
        written = 0
        with contextlib.suppress(TimeoutError):
            while True:
                await asyncio.wait_for(call.write(bytes(1 << 16)), 0.1)
                written += 1
        full.set()
        await call.write(str(written).encode())

    async def scenario() -> None:
        served = Served(_native)
        served.server.add_service("test.Full", {"Flood": ServerStreamMethod(flood)})
        port = await served.server.listen(LOCAL)
        try:
            async with channel_to(port, options=SMALL_WINDOWS) as channel:
                call = channel.unary_stream("/test.Full/Flood")(b"", timeout=30)
                await full.wait()
                found = [data async for data in call]
                assert found[:-1] == [bytes(1 << 16)] * int(found[-1])
        finally:
            await served.server.stop(0)

    full = asyncio.Event()
    run(scenario)


@pytest.mark.skipif(bool(_not_built()), reason=f"ledgermq-native: {_not_built()}")
def test_an_answer_of_a_wrong_type_ends_its_own_call_only() -> None:
    """Answers that are given to the front together with it arrive."""

    async def scenario() -> None:
        async with serving(_native) as (served, channel):
            wrong, right = served.unary(channel, "Wrong"), served.unary(channel, "GoesOn")
            calls = [right(b"", timeout=10), wrong(b"", timeout=10), right(b"", timeout=10)]
            waiting = [asyncio.ensure_future(failed_or_answered(call)) for call in calls]
            await served.calls.begun.wait()
            served.calls.go_on.set()
            assert await asyncio.gather(*waiting) == [b"done", grpc.StatusCode.INTERNAL, b"done"]

    run(scenario)


async def failed_or_answered(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error.code()
