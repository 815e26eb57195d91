"""The proxy does what its rules say, and nothing else: a fault suite on a wire that loses bytes by
itself would prove nothing."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.cluster import wait_for
from tests.faults.proxy import HELD_BYTES, Network, holder

HOST = "127.0.0.99"
"""Where b is known; it listens on another address."""


class Echo:
    """Sends all bytes back; takes the place of the dialled node."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def network(echo: Echo) -> Iterator[Network]:
    network = Network(
        {"a": [], "b": [((HOST, echo.port), ("127.0.0.1", echo.port))]}, lambda *_: "a", seed=1
    )
    yield network
    network.close()


@pytest.fixture
def connection(network: Network, echo: Echo) -> Iterator[socket.socket]:
    """From a to b, through the proxy."""
    with dial(echo) as connection:
        yield connection


def dial(echo: Echo) -> socket.socket:
    return socket.create_connection((HOST, echo.port), timeout=10)


def receive(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        data = connection.recv(size - len(got))
        assert data, "the connection ended"
        got += data
    return got


def silent(connection: socket.socket, for_s: float = 0.3) -> bool:
    connection.settimeout(for_s)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)


def test_bytes_come_through_whole_and_in_order(network: Network, connection: socket.socket) -> None:
    """Also with delay, jitter, loss and a cap, which change when bytes come and nothing else."""
    sent = bytes(range(256)) * 4096
    network.shape(network.ways, delay_s=0.005, jitter_s=0.02, loss=0.05, bytes_per_s=20e6)
    sender = threading.Thread(target=connection.sendall, args=(sent,), daemon=True)
    sender.start()
    assert receive(connection, len(sent)) == sent
    sender.join(10)
    assert network.carried_bytes("a", "b") == network.carried_bytes("b", "a") == len(sent)


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
def test_blocked_direction_holds_bytes_until_healed(
    network: Network, connection: socket.socket, way: tuple[str, str]
) -> None:
    """The other direction stays open, which makes a one-way partition."""
    connection.sendall(b"before")
    assert receive(connection, 6) == b"before"
    network.block([way])
    connection.sendall(b"during")
    assert silent(connection)
    assert network.carried_bytes("a", "b") == (12 if way == ("b", "a") else 6)
    network.heal()
    assert receive(connection, 6) == b"during"


def test_a_connection_made_into_a_blocked_way_stays_silent(network: Network, echo: Echo) -> None:
    """It is accepted, as by a kernel that is cut off afterwards, and comes to life with the way."""
    network.isolate("b")
    with dial(echo) as connection:
        connection.sendall(b"x")
        assert silent(connection)
        network.heal()
        assert receive(connection, 1) == b"x"


def test_a_reset_ends_connections_and_later_ones_work(
    network: Network, connection: socket.socket, echo: Echo
) -> None:
    """Both ends see the reset and do not wait for a timeout."""
    connection.sendall(b"x")
    receive(connection, 1)
    network.reset()
    with pytest.raises(OSError):
        for _ in range(100):
            connection.sendall(b"x")
            if connection.recv(1) == b"":
                raise ConnectionResetError
    with dial(echo) as another:
        another.sendall(b"y")
        assert receive(another, 1) == b"y"


def test_delay_and_cap_take_their_time(network: Network, connection: socket.socket) -> None:
    """A lower bound only: a machine may be slower than the wire."""
    network.shape([("a", "b")], delay_s=0.1)
    began = time.monotonic()
    connection.sendall(b"x")
    receive(connection, 1)
    assert time.monotonic() - began >= 0.1
    network.heal()
    network.shape([("a", "b")], bytes_per_s=1e6)
    began = time.monotonic()
    connection.sendall(bytes(300_000))
    receive(connection, 300_000)
    assert time.monotonic() - began >= 0.25


def test_the_end_of_a_stream_is_carried_like_its_bytes(
    network: Network, connection: socket.socket
) -> None:
    """Held on a blocked way, delivered after it."""
    connection.sendall(b"x")
    receive(connection, 1)
    network.block([("b", "a")])
    connection.shutdown(socket.SHUT_WR)
    assert silent(connection)
    network.heal()
    assert connection.recv(1) == b""


def test_a_direction_holds_a_bounded_number_of_bytes(
    network: Network, connection: socket.socket
) -> None:
    """A blocked direction stops its sender, as a full window does; what was held comes in order
    once the direction is open."""
    network.block([("b", "a")])
    sent = os.urandom(4 * HELD_BYTES)
    sender = threading.Thread(target=connection.sendall, args=(sent,), daemon=True)
    sender.start()
    (flow,) = wait_for(lambda: network._ways["b", "a"].flows, 10, "the connection")
    wait_for(
        lambda: flow._held_bytes >= HELD_BYTES and not flow._source.transport.is_reading(),
        10,
        "a direction that is full",
    )
    network.heal()
    assert receive(connection, len(sent)) == sent
    sender.join(10)


def test_proxy_forgets_a_connection_closed_in_both_directions(
    network: Network, connection: socket.socket
) -> None:
    """Its last bytes are carried before."""
    connection.sendall(bytes(1 << 20))
    connection.shutdown(socket.SHUT_WR)
    assert receive(connection, 1 << 20) == bytes(1 << 20)
    assert connection.recv(1) == b""
    wait_for(lambda: not network._connections, 10, "the end of the connection")
    assert not any(way.flows for way in network._ways.values())


def test_the_holder_of_a_connection_is_found(echo: Echo) -> None:
    """It is found by the port of its end among the given processes; no other process matches."""
    with dial_directly(echo) as connection:
        ends = connection.getsockname(), connection.getpeername()
        assert holder(*ends, {"me": os.getpid()}) == "me"
        assert holder(*ends, {"init": 1}) is None
        assert holder(*ends, {"gone": 1 << 22}) is None
    assert holder(("127.0.0.1", 1), ("127.0.0.1", 2), {"me": os.getpid()}) is None


def dial_directly(echo: Echo) -> socket.socket:
    return socket.create_connection(("127.0.0.1", echo.port), timeout=10)
