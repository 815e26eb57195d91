"""Holds the client port of a node with several workers, in the supervisor.

Several processes can listen on one port only with SO_REUSEPORT; with that alone, any program of the
same user could join them by accident: two clusters on one port, each with a part of the other's
clients. No process may therefore listen before the port is held, and it is held as follows, without
a moment in which it is free:

1. Bind and listen without SO_REUSEPORT: this fails (exit 72) if another process has the port,
   shared or not.
2. Allow sharing on that socket, bind a second one that shares, and close the first.
3. Forbid SO_REUSEADDR on the second: from now on only a process with SO_REUSEPORT can bind the
   port, and step 1 of another supervisor has none.

The held socket never listens, so no connection ever waits there. A node with one worker never asks
to share (`client_port.py`).
"""

from __future__ import annotations

import contextlib
import errno
import socket

from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.host_port import joined
from ledgermq.proto.status import ExitCode

WILDCARDS = ("0.0.0.0", "::")
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class PortHold:
    """One port on all addresses of a host name. `release` closes it, at the latest when the process
    ends."""

    def __init__(self, host: str, port: int) -> None:
        """Raises FatalError if the port is taken, or the host is not an address of this machine."""
        self._sockets: list[socket.socket] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.release)
            absent: OSError | None = None
            try:
                for family, address in _places(host, port):
                    try:
                        self._sockets.append(_held(family, address))
                    except OSError as error:
                        if error.errno not in _ABSENT:
                            raise
                        absent = error
                    if self._sockets and host in WILDCARDS:
                        # An IPv6 wildcard socket covers IPv4 too.
                        break
                if not self._sockets:
                    raise absent or OSError(errno.EADDRNOTAVAIL, "no address")
            except OSError as error:
                what = (
                    f"client_port {joined(host, port)} cannot be opened: it is taken, or not an"
                    " address of this machine"
                )
                raise FatalError(
                    ExitCode.PORT_TAKEN,
                    what,
                    "stop what uses it, or set the node's client_port to another port",
                ) from error
            undo.pop_all()

    def release(self) -> None:
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def _places(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """The addresses on which gRPC would listen. Raises OSError for an unknown host name."""
    if host in WILDCARDS:
        return [(socket.AF_INET6, ("::", port)), (socket.AF_INET, ("0.0.0.0", port))]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(
        dict.fromkeys((family, (str(address[0]), port)) for family, _, _, _, address in found)
    )


def _held(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    with contextlib.ExitStack() as closing:
        gate = closing.enter_context(_socket(family))
        gate.bind(address)
        gate.listen(1)
        gate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with contextlib.ExitStack() as undo:
            hold = undo.enter_context(_socket(family))
            hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            hold.bind(address)
            hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            undo.pop_all()
    return hold


def _socket(family: socket.AddressFamily) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    # Closing connections of the node's former process must not block the port.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made
