"""Clients that misuse HTTP/2, against both gRPC servers of a node: the server's memory stays bounded, and it serves others meanwhile.

A server may close the connection of such a client, or let it go on; tests/native/test_front.py has what the compiled one does in each case.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.node.test_node_call_servers import (
    DATA,
    END_HEADERS,
    FRONTS,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SERVERS,
    SERVICE,
    SETTINGS,
    frame,
    head,
    opening,
)

pytestmark = [pytest.mark.slow, pytest.mark.verify]
PRIORITY, WINDOW_UPDATE, CONTINUATION = 2, 8, 9
ROOT = Path(__file__).parents[2]
PART = 500
"""So many frames are sent at a time."""
GROWN_MAX_MIB = 100
WITHIN_S = 60
"""For a call of another client. A slow machine needs it; a server that stopped serving others would not answer at all."""


@dataclass(frozen=True)
class Flood:
    """`count` times what `of` makes of a number; `begin` comes first."""

    of: Callable[[int], bytes]
    count: int
    begin: bytes = b""


_OPEN = frame(HEADERS, END_HEADERS, head("Collect"), 1)
_FIELD = b"\0\x01x\x7f\xe9\x06" + b"y" * 1000
"""A header field of HPACK with a value of 1,000 bytes."""
_NO_WINDOW = frame(SETTINGS, 0, b"\0\4\0\0\0\0")
FLOODS = {
    "rapid resets": Flood(lambda at: opening("Waits", 2 * at + 1) + frame(RST_STREAM, 0, b"\0\0\0\x08", 2 * at + 1), 5_000),
    "CONTINUATION": Flood(lambda _: frame(CONTINUATION, 0, _FIELD, 1), 200_000, frame(HEADERS, 0, head("Echo"), 1)),
    "SETTINGS": Flood(lambda _: frame(SETTINGS, 0, b"\0\3\0\0\0\x64"), 200_000),
    "PING": Flood(lambda _: frame(PING, 0, b"12345678"), 200_000),
    "empty DATA": Flood(lambda _: frame(DATA, 0, b"", 1), 200_000, _OPEN),
    "PRIORITY": Flood(lambda _: frame(PRIORITY, 0, b"\0\0\0\x03\0", 1), 200_000, _OPEN),
    "WINDOW_UPDATE": Flood(lambda _: frame(WINDOW_UPDATE, 0, b"\0\0\0\1", 1), 200_000, _OPEN),
    "64 MiB for each of 20 calls without a window": Flood(lambda at: opening("Flood", 2 * at + 1, b"1024"), 20, _NO_WINDOW),
}


@pytest.fixture(params=FRONTS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own, and its port."""
    (name,) = (name for name, make in SERVERS.items() if make is request.param)
    command = [sys.executable, "-m", "tests.node.hostile_server", name]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def memory_mib(process: subprocess.Popen[str]) -> int:
    return int(re.findall(r"^RssAnon:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text(), re.M)[0]) >> 10


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "does not read"])
@pytest.mark.parametrize("name", FLOODS)
def test_a_hostile_client_harms_itself(served: tuple[subprocess.Popen[str], int], name: str, reads: bool) -> None:
    process, port = served
    flood = FLOODS[name]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        echo = channel.unary_unary(f"/{SERVICE}/Echo")
        assert echo(b"x", timeout=WITHIN_S) == b"x"
        before = most = memory_mib(process)
        with socket.create_connection(("127.0.0.1", port)) as hostile:
            # A server that stops reading holds its client, too.
            hostile.settimeout(5)
            reader = threading.Thread(target=_drain, args=(hostile,), daemon=True)
            if reads:
                reader.start()
            with contextlib.suppress(OSError):
                hostile.sendall(PREFACE + frame(SETTINGS, 0) + flood.begin)
                for at in range(0, flood.count, PART):
                    hostile.sendall(b"".join(map(flood.of, range(at, min(at + PART, flood.count)))))
                    if at // PART % 20 == 0:
                        assert echo(b"x", timeout=WITHIN_S) == b"x"
                        most = max(most, memory_mib(process))
            for _ in range(20):
                assert echo(b"x", timeout=WITHIN_S) == b"x"
                most = max(most, memory_mib(process))
        assert echo(b"x", timeout=WITHIN_S) == b"x"
    assert process.poll() is None and most - before < GROWN_MAX_MIB, f"the server grew by {most - before} MiB"


def _drain(hostile: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while hostile.recv(1 << 16):
            pass
