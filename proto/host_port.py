"""The texts `host` and `host:port`: the only place that reads and writes them.

An IPv6 address stands in brackets in front of a port (RFC 3986), and without them where the program
holds it as a value. A zone (`fe80::1%eth0`) is refused: it names an interface of one machine, and
these texts travel between machines.
"""

from __future__ import annotations

import ipaddress
import re

FORM = "host:port, an IPv6 address in brackets: [::1]:8081"
_NAME = r"[^\s:;,/@\[\]]+"
_PLACE = re.compile(rf"(?P<host>\[[0-9A-Fa-f:.]+\]|{_NAME})(?::(?P<port>[0-9]{{1,5}}))?", re.ASCII)
_SIX = re.compile(r"[0-9A-Fa-f:.]+")


def split(text: str, port: int | None = None) -> tuple[str, int]:
    """The host, without brackets, and the port, 0 to 65535. `port`: the port of a text that names
    none. Raises ValueError."""
    found = _PLACE.fullmatch(text)
    given = None if found is None else found["port"] or port
    if found is None or given is None or not 0 <= int(given) < 65536:
        raise ValueError(f"{text!r} is not an address: give {FORM}")
    return host_of(found["host"]), int(given)


def joined(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(text: str) -> str:
    """A host without brackets: a name, an IPv4 address, or an IPv6 address, which may be given in
    brackets. Raises ValueError."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _SIX.fullmatch(host) and ":" in host:
        ipaddress.IPv6Address(host)
    elif host != text or not re.fullmatch(_NAME, host):
        raise ValueError(f"{text!r} is not a host: give a name or an address, without a port")
    return host


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    return _address(host) is not None


def is_ipv6(host: str) -> bool:
    """Whether a host is an IPv6 address."""
    return isinstance(_address(host), ipaddress.IPv6Address)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host. Of names, only `localhost` counts: others are not
    resolved."""
    address = _address(host)
    if address is None:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
