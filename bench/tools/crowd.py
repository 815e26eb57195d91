"""The two processes of `bench.connections`: many bare HTTP/2 connections, and one client that sends
at a steady rate.

A connection implements just enough of HTTP/2: preface, settings, one request with literal headers,
and waiting for the end of its answer. That costs a hundredth of a gRPC channel, so one process is
enough and the nodes' work is what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import cast

import grpc.aio
import uvloop

from bench.tools.load import METADATA, SERVICE, requests
from bench.tools.report import percentile
from ledgermq.proto import messaging_pb2 as pb

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, ACK, END_HEADERS = 1, 1, 4
OPENING_AT_ONCE = 2_000
"""Connections that a process opens before it waits for some of them, so that the kernel's backlog
does not decide."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def header(name: str, value: str) -> bytes:
    """A literal without indexing; texts shorter than 127 bytes."""
    return b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def call(number: int) -> bytes:
    """A connection's first bytes: a Heartbeat of its own client."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", SERVICE + "Heartbeat"),
        (":authority", "bench"),
    )
    fields += (
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("x-mq-client-id", f"crowd-{number}"),
    )
    block = b"".join(header(name, value) for name, value in fields)
    request = pb.HeartbeatRequest(client_type=pb.PRODUCER).SerializeToString()
    body = b"\x00" + len(request).to_bytes(4, "big") + request
    return (
        PREFACE
        + frame(SETTINGS, 0, 0)
        + frame(HEADERS, END_HEADERS, 1, block)
        + frame(DATA, END_STREAM, 1, body)
    )


class Connection(asyncio.Protocol):
    """One of the connections. `answered` is called once, when the call's answer has ended."""

    def __init__(
        self, number: int, answered: Callable[[], None], lost: Callable[[Connection], None]
    ) -> None:
        self._number = number
        self._answered: Callable[[], None] | None = answered
        self._lost = lost
        self._rest = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(call(self._number))

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while len(data) - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at < 9 + size:
                break
            self._take(data[at + 3], data[at + 4], data[at + 9 : at + 9 + size])
            at += 9 + size
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        assert self.transport is not None
        if kind == SETTINGS and not flags & ACK:
            self.transport.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind == HEADERS and flags & END_STREAM and self._answered is not None:
            answered, self._answered = self._answered, None
            answered()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self)


class Crowd:
    """All connections of this process."""

    def __init__(self, targets: list[str], count: int) -> None:
        self._targets = [
            (host, int(port)) for host, _, port in (target.rpartition(":") for target in targets)
        ]
        self._count = count
        self.open: set[Connection] = set()

    async def come(self) -> None:
        """Connect and call on every connection, repeating refused ones, until each has its
        answer."""
        room = asyncio.Semaphore(OPENING_AT_ONCE)
        await asyncio.gather(*(self._one(number, room) for number in range(self._count)))

    async def _one(self, number: int, room: asyncio.Semaphore) -> None:
        host, port = self._targets[number % len(self._targets)]
        loop = asyncio.get_running_loop()
        async with room:
            while True:
                done: asyncio.Future[bool] = loop.create_future()

                def settle(answered: bool, done: asyncio.Future[bool] = done) -> None:
                    if not done.done():
                        done.set_result(answered)

                def lost(connection: Connection, settle: Callable[[bool], None] = settle) -> None:
                    self.open.discard(connection)
                    settle(False)

                one = Connection(number, lambda settle=settle: settle(True), lost)  # type: ignore[misc]
                try:
                    await loop.create_connection(lambda one=one: one, host, port)  # type: ignore[misc]
                except OSError:
                    await asyncio.sleep(0.1)
                    continue
                self.open.add(one)
                if await done:
                    return
                await asyncio.sleep(0.1)

    def cut(self) -> None:
        """Drop all connections at once, without closing them properly."""
        for one in list(self.open):
            assert one.transport is not None
            one.transport.abort()


async def crowd(targets: list[str], count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    everybody = Crowd(targets, count)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while word := (await lines.readline()).decode().strip():
        began = time.monotonic()
        if word == "again":
            everybody.cut()
            await asyncio.sleep(0)
        if word == "count":
            print(len(everybody.open), flush=True)
            continue
        await everybody.come()
        print(round(time.monotonic() - began, 3), flush=True)


async def steady(target: str, topic: str, per_second: float, seconds: float) -> None:
    """Send at fixed times, independent of earlier sends; latency counts from those times, so that a
    stall is fully visible."""
    data = requests(topic, 1, 100, 1)[0]
    took: list[float] = []
    async with grpc.aio.insecure_channel(
        target, options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        send = channel.unary_unary(
            SERVICE + "SendMessage", response_deserializer=pb.SendMessageResponse.FromString
        )

        async def one(at: float) -> None:
            answer = await send(data, metadata=METADATA, timeout=30)
            if answer.status.code != pb.OK:
                raise RuntimeError(f"a send was refused: {answer.status.message}")
            took.append(time.monotonic() - at)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(per_second * seconds)):
                at = began + number / per_second
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                group.create_task(one(at))
    ordered = sorted(took)
    print(
        json.dumps(
            {
                f"p{part}_ms": round(percentile(ordered, part / 100) * 1000, 3)
                for part in (50, 90, 99)
            }
            | {"calls": len(took)}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    which = parser.add_subparsers(dest="which", required=True)
    many = which.add_parser("crowd")
    many.add_argument("--connections", type=int, required=True)
    many.add_argument("--targets", nargs="+", required=True)
    one = which.add_parser("steady")
    one.add_argument("--target", required=True)
    one.add_argument("--topic", required=True)
    one.add_argument("--per-second", type=float, required=True)
    one.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    if options.which == "crowd":
        uvloop.run(crowd(options.targets, options.connections))
    else:
        uvloop.run(steady(options.target, options.topic, options.per_second, options.seconds))


if __name__ == "__main__":
    main()
