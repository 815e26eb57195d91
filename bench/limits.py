"""The limits of this machine, measured in the same run as the figures compared with them: memory,
checksums, disk, loopback, gRPC.

Uses no code of LedgerMQ: plain memory copies, CRC32C, writes into an allocated file, `fdatasync`, a
TCP round trip between two processes, and a bare `grpc.aio` echo whose messages are unparsed bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import crc32c
import grpc.aio
import numpy as np
import uvloop

from bench.tools import report

NAME, RUNS, DURABLE = "limits", 3, True
MIB = 1 << 20
FILE_BYTES, WRITE_BYTES = 256 * MIB, MIB
SYNCS, SYNCED_BYTES = 200, 4096
ROUND_TRIPS = 5000
UNARY_S, STREAM_S = 2.0, 3.0
STREAM_BYTES = 256 << 10
ECHO = "/bench.Echo/"
OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


def run(directory: Path, seconds: float = 1.0) -> dict[str, Any]:
    """All limits; `seconds` scales the duration of each measurement."""
    found = {**memory(seconds), **disk(directory, seconds), **loopback(seconds)}
    return {**found, **echo(seconds)}


def memory(seconds: float) -> dict[str, float]:
    """Copies and checksums of 64 MiB, which exceeds every cache."""
    source, target = np.ones(64 * MIB, np.uint8), np.empty(64 * MIB, np.uint8)
    np.copyto(target, source)
    view = memoryview(source)
    return {
        "memory_copy_mib_per_s": _rate(lambda: np.copyto(target, source), 64, seconds / 2),
        "crc32c_mib_per_s": _rate(lambda: crc32c.crc32c(view), 64, seconds / 2),
    }


def _rate(work: Any, mib: int, seconds: float) -> float:
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        work()
        times += 1
    return round(mib * times / (time.perf_counter() - began), 1)


def disk(directory: Path, seconds: float = 1.0) -> dict[str, float]:
    """Mebibyte writes into a file with allocated blocks, with one sync at the end; then small
    writes, each synced."""
    path = directory / "limits.bin"
    block = os.urandom(WRITE_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for at in range(0, FILE_BYTES, WRITE_BYTES):
            os.pwrite(descriptor, bytes(WRITE_BYTES), at)
        os.fdatasync(descriptor)
        began = time.perf_counter()
        for at in range(0, FILE_BYTES, WRITE_BYTES):
            os.pwrite(descriptor, block, at)
        os.fdatasync(descriptor)
        write_s = time.perf_counter() - began
        syncs = []
        for number in range(max(20, round(SYNCS * seconds))):
            os.pwrite(descriptor, block[:SYNCED_BYTES], number * SYNCED_BYTES)
            began = time.perf_counter()
            os.fdatasync(descriptor)
            syncs.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    ordered = sorted(syncs)
    return {
        "sequential_write_mib_per_s": round(FILE_BYTES / MIB / write_s, 1),
        "fdatasync_p50_ms": round(report.percentile(ordered, 0.5), 3),
        "fdatasync_p99_ms": round(report.percentile(ordered, 0.99), 3),
    }


def loopback(seconds: float = 1.0) -> dict[str, float]:
    """100 bytes to another process and back, blocking sockets."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_reflect, args=(theirs,))
    process.start()
    theirs.close()
    times = []
    with socket.create_connection(("127.0.0.1", ours.recv())) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(max(500, round(ROUND_TRIPS * seconds))):
            began = time.perf_counter()
            one.sendall(bytes(100))
            left = 100
            while left:
                left -= len(one.recv(left))
            times.append((time.perf_counter() - began) * 1000)
    process.join()
    return {"loopback_round_trip_p50_ms": round(statistics.median(times), 4)}


def _reflect(where: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where.send(server.getsockname()[1])
        one, _ = server.accept()
        with one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := one.recv(4096):
                one.sendall(data)


def echo(seconds: float = 1.0) -> dict[str, float]:
    """A `grpc.aio` echo server in its own process, with single calls and with a stream of 256 KiB
    messages."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_echo_server, args=(theirs,))
    process.start()
    theirs.close()
    try:
        uvloop.install()
        return asyncio.run(_echo_client(ours.recv(), seconds))
    finally:
        ours.send("end")
        process.join()


def _echo_server(where: Connection) -> None:
    uvloop.install()
    asyncio.run(_serve_echo(where))


async def _serve_echo(where: Connection) -> None:
    async def unary(request: bytes, _: Any) -> bytes:
        return request

    async def sink(requests: Any, _: Any) -> Any:
        """Answers each message of a stream with 8 bytes, as an acknowledgement would be."""
        async for request in requests:
            yield request[:8]

    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Sink": grpc.stream_stream_rpc_method_handler(sink),
    }
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    where.send(port)
    await asyncio.to_thread(where.recv)
    await server.stop(0)


async def _echo_client(port: int, seconds: float) -> dict[str, float]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        await channel.channel_ready()
        call: Any = channel.unary_unary(ECHO + "Unary")
        times, end = [], time.perf_counter() + UNARY_S * seconds
        while (began := time.perf_counter()) < end:
            await call(bytes(100))
            times.append((time.perf_counter() - began) * 1000)
        stream: Any = channel.stream_stream(ECHO + "Sink")()
        block, sent, received, room = os.urandom(STREAM_BYTES), 0, 0, asyncio.Semaphore(16)

        async def read() -> None:
            nonlocal received
            async for _ in stream:
                received += 1
                room.release()

        reading = asyncio.create_task(read())
        began = time.perf_counter()
        while time.perf_counter() - began < STREAM_S * seconds:
            await room.acquire()
            await stream.write(block)
            sent += 1
        await stream.done_writing()
        await reading
        took = time.perf_counter() - began
    if received != sent:
        raise RuntimeError(f"{received} of {sent} messages were answered")
    return {
        "grpc_unary_p50_ms": round(statistics.median(times), 3),
        "grpc_stream_mib_per_s": round(sent * STREAM_BYTES / MIB / took, 1),
    }


UNITS = {
    "memory_copy_mib_per_s": "copy in memory, MiB/s",
    "crc32c_mib_per_s": "CRC32C, MiB/s",
    "sequential_write_mib_per_s": "writes of 1 MiB into an allocated file and one fdatasync, MiB/s",
    "fdatasync_p50_ms": "fdatasync of 4 KiB, p50, ms",
    "fdatasync_p99_ms": "… p99, ms",
    "loopback_round_trip_p50_ms": "100 bytes over loopback and back, p50, ms",
    "grpc_unary_p50_ms": "bare grpc.aio call of 100 bytes, p50, ms",
    "grpc_stream_mib_per_s": "bare grpc.aio stream of 256 KiB messages, one way, MiB/s",
}


def table(found: dict[str, Any]) -> str:
    lines = ["| limit of this machine | |", "|---|---|"]
    return "\n".join(lines + [f"| {title} | {found[key]:,.4g} |" for key, title in UNITS.items()])


def main() -> None:
    """`python -m bench.limits DIR`: one quick manual measurement."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    report.say(json.dumps(run(parser.parse_args().directory), indent=1))


if __name__ == "__main__":
    main()
