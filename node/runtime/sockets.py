"""Listening sockets: what a host means to a port of this node, the same for every port.

`::` stands for all addresses of both families, and on a machine without IPv6 for those of IPv4;
`0.0.0.0` for those of IPv4 alone. A name stands for its addresses, the IPv4 ones first.
"""

from __future__ import annotations

import socket

Place = tuple[socket.AddressFamily, tuple[str, int]]


def places(host: str, port: int) -> list[Place]:
    """Where a port of this host listens; at least one place. May ask a name server. Raises
    OSError."""
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        # The resolver is not even called with such a name; for the caller this is a name that does
        # not exist.
        raise OSError(f"{host} is not a valid host name: {error}") from error
    different = dict.fromkeys(
        (family, (str(address[0]), port)) for family, _, _, _, address in found
    )
    return sorted(different, key=lambda place: place[0] != socket.AF_INET)


def listener(place: Place, backlog: int, *, shared: bool = False) -> socket.socket:
    """A socket that listens there, and does not block. `shared`: other processes listen on the same
    port. Raises OSError."""
    family, address = place
    # The loop's own servers, and `bindv6only` of the system, would take IPv6 alone on `::`.
    made = socket.create_server(
        address,
        family=family,
        backlog=backlog,
        reuse_port=shared,
        dualstack_ipv6=address[0] == "::",
    )
    made.setblocking(False)
    return made
