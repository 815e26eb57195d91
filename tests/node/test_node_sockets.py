"""What a host means to a listening port, without the network: which families and addresses, in
which order, and with which socket."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ledgermq.node.runtime import sockets

V4, V6 = socket.AF_INET, socket.AF_INET6


def found(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[dict[str, Any]]:
    """Let the resolver find these addresses; what it is asked for."""
    asked: list[dict[str, Any]] = []

    def resolve(host: str, port: int, **how: int) -> list[Any]:
        asked.append({"host": host, "port": port, **how})
        return [
            (V6 if ":" in one else V4, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


def test_a_name_is_each_of_its_addresses_once_and_those_of_ipv4_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = found(monkeypatch, "fd00::1", "10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1")
    assert sockets.places("n1", 7) == [
        (V4, ("10.0.0.2", 7)),
        (V4, ("10.0.0.1", 7)),
        (V6, ("fd00::1", 7)),
    ]
    assert asked == [
        {"host": "n1", "port": 7, "type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}
    ]


@pytest.mark.parametrize(("both", "asks_for"), [(True, "::"), (False, "0.0.0.0")])
def test_all_addresses_are_those_of_ipv4_on_a_machine_without_ipv6(
    monkeypatch: pytest.MonkeyPatch, both: bool, asks_for: str
) -> None:
    """Whatever the machine has, `0.0.0.0` and single addresses mean themselves."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: both)
    asked = found(monkeypatch, "10.0.0.1")
    for host in ("::", "0.0.0.0", "::1"):
        sockets.places(host, 7)
    assert [one["host"] for one in asked] == [asks_for, "0.0.0.0", "::1"]


def test_unencodable_host_name_is_an_os_error() -> None:
    """Python refuses to encode it for the resolver, by an error that is no OSError."""
    with pytest.raises(OSError, match="is not a valid host name"):
        sockets.places("a" * 64 + ".example", 7)


def test_port_is_shared_only_by_sharing_listeners() -> None:
    place = (V4, ("127.0.0.1", 0))
    with sockets.listener(place, 1, shared=True) as one:
        taken = (V4, one.getsockname())
        assert not one.getblocking()
        sockets.listener(taken, 1, shared=True).close()
        with pytest.raises(OSError, match="in use"):
            sockets.listener(taken, 1)
    with sockets.listener(place, 1) as alone, pytest.raises(OSError, match="in use"):
        sockets.listener((V4, alone.getsockname()), 1, shared=True)


@pytest.mark.parametrize(
    ("host", "both"),
    [("::", True), ("::1", False), ("fd00::1", False), ("0.0.0.0", False), ("127.0.0.1", False)],
)
def test_only_all_addresses_are_both_families(
    host: str, both: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the system makes of `::` by itself. Asked of the library, because the machine may
    have no IPv6."""
    asked: list[dict[str, Any]] = []

    def create(address: tuple[str, int], **how: Any) -> socket.socket:
        asked.append({"address": address, **how})
        return socket.socket()

    monkeypatch.setattr(socket, "create_server", create)
    family = V6 if ":" in host else V4
    sockets.listener((family, (host, 7)), 9).close()
    assert asked == [
        {
            "address": (host, 7),
            "family": family,
            "backlog": 9,
            "reuse_port": False,
            "dualstack_ipv6": both,
        }
    ]
