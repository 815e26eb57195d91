"""The client port of a node with workers: which processes the supervisor's hold admits, and which
it excludes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from ledgermq.node.process.port_hold import PortHold
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode

HOST = "127.0.0.1"


def listener(port: int, *, shared: bool, host: str = HOST) -> socket.socket:
    """As a worker listens (shared), or as a plain node does. Raises OSError."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind((host, port))
        made.listen(8)
    except OSError:
        made.close()
        raise
    return made


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def held(port: int, host: str = HOST) -> Iterator[None]:
    hold = PortHold(host, port)
    try:
        yield
    finally:
        hold.release()


@pytest.mark.parametrize("host", [HOST, "localhost", "0.0.0.0"])
def test_workers_share_a_held_port_and_every_connection_reaches_one_of_them(
    host: str, port: int
) -> None:
    with held(port, host), contextlib.ExitStack() as closing:
        workers = [closing.enter_context(listener(port, shared=True)) for _ in range(2)]
        for worker in workers:
            worker.setblocking(False)
        taken = 0
        for _ in range(40):
            with socket.create_connection((HOST, port), timeout=5):
                for worker in workers:
                    with contextlib.suppress(BlockingIOError):
                        worker.accept()[0].close()
                        taken += 1
        assert taken == 40, "the socket that holds the port takes no connection"


def test_held_port_is_refused_to_others_before_and_after_workers_listen(port: int) -> None:
    """The gap of a second in which workers start is where two clusters would meet."""
    with held(port):
        for _ in range(2):
            with pytest.raises(OSError):
                listener(port, shared=False)
            with pytest.raises(FatalError) as caught:
                PortHold(HOST, port)
            assert caught.value.exit_code == ExitCode.PORT_TAKEN
            with listener(port, shared=True):
                pass
    listener(port, shared=False).close()


@pytest.mark.parametrize("shared", [False, True])
def test_port_in_use_is_not_held(port: int, shared: bool) -> None:
    """Also when that program would share it with anybody."""
    with listener(port, shared=shared), pytest.raises(FatalError) as caught:
        PortHold(HOST, port)
    assert caught.value.exit_code == ExitCode.PORT_TAKEN and str(port) in caught.value.what
    with held(port):
        pass


def test_connections_of_the_last_life_that_are_still_closing_do_not_take_the_port(
    port: int,
) -> None:
    with listener(port, shared=False) as former, socket.create_connection((HOST, port)) as client:
        former.accept()[0].close()
        client.recv(1)
    with held(port), listener(port, shared=True):
        pass


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_foreign_address_is_not_held(host: str, port: int) -> None:
    with pytest.raises(FatalError) as caught:
        PortHold(host, port)
    assert caught.value.exit_code == ExitCode.PORT_TAKEN
