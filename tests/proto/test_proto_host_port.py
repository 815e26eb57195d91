"""The one reader and writer of `host:port`."""

from __future__ import annotations

import pytest

from ledgermq.proto import host_port


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("n1:8081", "n1", 8081),
        ("a_b-c.example.:0", "a_b-c.example.", 0),
        ("127.0.0.1:65535", "127.0.0.1", 65535),
        ("[::1]:8081", "::1", 8081),
        ("[2001:db8::7]:1", "2001:db8::7", 1),
        ("[::ffff:10.0.0.1]:9", "::ffff:10.0.0.1", 9),
    ],
)
def test_host_port_text_survives_split_and_join(text: str, host: str, port: int) -> None:
    """A value has no brackets; the text has them where a port follows an IPv6 address."""
    assert host_port.split(text) == (host, port)
    assert host_port.joined(host, port) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":",
            "h",
            "h:",
            ":1",
            "h:x",
            "h:+1",
            "h:-1",
            "h:65536",
            "h:123456",
            "h:1:2",
            "h h:1",
            "h/:1",
            "u@h:1",
            "a;b:1",
        ),
        *(
            "::1",
            "::1:8081",
            "[::1]",
            "[::1]8081",
            "[::1",
            "::1]:1",
            "[",
            "[]:1",
            "[n1]:1",
            "[127.0.0.1]:1",
            "[:::1]:1",
            "[::1%lo]:1",
        ),
        *("h:\u0661", "a,b:1", "h:1\n"),
    ],
)
def test_malformed_host_port_is_refused(text: str) -> None:
    """Among it an IPv6 address without brackets, whose last group could be a port, and one with a
    zone."""
    with pytest.raises(ValueError):
        host_port.split(text)


def test_a_port_may_be_understood() -> None:
    """As in the header Host of HTTP."""
    assert (
        host_port.split("h", 80) == ("h", 80)
        and host_port.split("[::1]", 0) == ("::1", 0)
        and host_port.split("h:1", 80) == ("h", 1)
    )
    for text in ("[", "", "h:", "::1", "a b"):
        with pytest.raises(ValueError):
            host_port.split(text, 80)


def test_a_host_alone() -> None:
    """IPv6 with or without brackets is the same host; what has a port is none."""
    assert [host_port.host_of(text) for text in ("n1", "10.0.0.1", "::", "[::]", "[fd00::1]")] == [
        "n1",
        "10.0.0.1",
        "::",
        "::",
        "fd00::1",
    ]
    for text in (
        "",
        "n1:8081",
        "[n1]",
        "[::1]:1",
        "fd00::1::2",
        "fe80::1%eth0",
        "a b",
        "[[::1]]",
        "[::1x",
        "x::1]",
    ):
        with pytest.raises(ValueError):
            host_port.host_of(text)


def test_kinds_of_hosts() -> None:
    """Loopback also as an IPv4 address in IPv6; of names only localhost, as others are not
    resolved."""
    local = ("localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")
    others = ("n1", "", "10.0.0.1", "::", "0.0.0.0", "::ffff:10.0.0.1", "localhost.example")
    assert all(map(host_port.is_loopback, local)) and not any(map(host_port.is_loopback, others))
    assert [host_port.is_address(host) for host in ("n1", "1.2.3.4", "::")] == [False, True, True]
    assert [host_port.is_ipv6(host) for host in ("n1", "1.2.3.4", "::")] == [False, False, True]
