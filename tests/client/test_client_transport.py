"""What a command says about an address where no node answers clients."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from ledgermq.client.api.admin import Admin
from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import Refused, Unreachable
from ledgermq.client.native.log_connection import LogConnection
from ledgermq.node.frontend.security import minting
from tests.client.fake_cluster import fake_nodes


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where every connection is answered by this function."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def http(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def failure(port: int, **options: object) -> Unreachable:
    with (
        Connection(f"127.0.0.1:{port}", timeout_s=0.5, **options) as connection,
        pytest.raises(Unreachable) as caught,
    ):  # type: ignore[arg-type]
        Admin(connection).status()
    return caught.value


def test_an_address_without_a_listener() -> None:
    """Says so; the remedy is to start the node."""
    with closing(socket.socket()) as reserved:
        reserved.bind(("127.0.0.1", 0))
        found = failure(reserved.getsockname()[1])
    assert "nothing listens at 127.0.0.1:" in found.what and "start the node" in found.remedy


def test_an_http_port() -> None:
    """The port is right there on the node's page; it is not the one for clients."""
    with listening(http) as port:
        found = failure(port)
    assert "is an HTTP port" in found.what and "client_port" in found.remedy


def native_failure(port: int, **options: object) -> Unreachable:
    async def locate() -> Unreachable:
        async with LogConnection(f"127.0.0.1:{port}", timeout_s=0.5, **options) as connection:  # type: ignore[arg-type]
            with pytest.raises(Unreachable) as caught:
                await connection.locate("t")
        return caught.value

    return asyncio.run(locate())


@pytest.mark.parametrize("fail", [failure, native_failure])
@pytest.mark.parametrize("words", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_tls_against_a_port_without_it(words: bytes, fail: Callable[..., Unreachable]) -> None:
    """The advice is to omit TLS, not to use it: whether the node answers the first bytes, or closes
    the connection at them."""

    def answer(connection: socket.socket) -> None:
        connection.recv(10)  # what is not read makes the end a reset
        connection.sendall(words)

    with listening(answer) as port:
        found = fail(port, tls=True)
    assert "TLS" in found.what and "without TLS" in found.remedy and "require" not in found.remedy


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_another_protocol(words: bytes) -> None:
    """A port of another program, or a node's port for other nodes, which closes the connection."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(words)

    with listening(answer) as port:
        found = failure(port)
    assert (
        "closes the connection" in found.what or "speaks another protocol" in found.what
    ) and "client_port" in found.remedy


def test_tls_against_plaintext() -> None:
    """The error line names the cause."""
    with fake_nodes() as (node,):
        found = failure(node.port, tls=True)
    assert "does not speak TLS" in found.what and "without TLS" in found.remedy


@pytest.mark.parametrize("reset", [False, True])
def test_tls_against_a_port_that_hangs_up(reset: bool) -> None:
    """A client port without TLS of a node with ledgermq-native: what it was greeted with is not
    HTTP/2."""

    def answer(connection: socket.socket) -> None:
        if not reset:
            connection.recv(4096)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))

    with listening(answer) as port:
        found = failure(port, tls=True)
    assert "TLS handshake" in found.what or (reset and "closes the connection" in found.what), found
    assert "without" in found.remedy


def test_tls_with_a_certificate_that_is_not_accepted(tmp_path: Path) -> None:
    """Of an unknown authority, or for another name; and a caller without TLS is told about TLS."""
    minting.ensure(tmp_path, {"n1": ("127.0.0.1",), "n2": ("elsewhere.example",)})
    ca = (tmp_path / "ca.pem").read_bytes()
    for node, options, said in (
        ("n1", {"tls": True}, "--ca"),
        ("n2", {"tls": True, "ca": ca}, "names"),
        ("n1", {}, "--tls"),
    ):
        server = grpc.server(ThreadPoolExecutor(1))
        pair = ((tmp_path / f"{node}.key").read_bytes(), (tmp_path / f"{node}.pem").read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        server.start()
        try:
            assert said in failure(port, **options).remedy
        finally:
            server.stop(None).wait()


def test_a_name_that_does_not_exist() -> None:
    """The name is the mistake, not the node."""
    with (
        Connection("no-such-host.invalid:8081", timeout_s=0.5) as connection,
        pytest.raises(Unreachable) as caught,
    ):
        Admin(connection).status()
    assert "no-such-host.invalid" in caught.value.what


def test_a_service_that_does_not_know_the_call() -> None:
    """Another gRPC service, or an older node: repeating does not help."""
    with (
        fake_nodes() as (node,),
        Connection(node.endpoint, timeout_s=5) as connection,
        pytest.raises(Refused, match="does not offer"),
    ):
        Admin(connection).status()


def test_failed_handshake_prints_one_error_line() -> None:
    """Handshakes that failed wrote twenty lines before the one error line."""
    with fake_nodes() as (node,):
        arguments = [
            sys.executable,
            "-m",
            "ledgermq",
            "status",
            "--tls",
            "--endpoints",
            node.endpoint,
            "--timeout",
            "1s",
        ]
        found = subprocess.run(arguments, capture_output=True, text=True)
    assert found.returncode == 3 and len(found.stderr.splitlines()) == 1, found.stderr
