"""Where host names lead at the moment, for the thread of the quorum, which must never wait for a name server.

An attempt to connect gets what the last look-up found and starts the next one, so a name that means another address now leads there with
the attempt after. A look-up that fails takes nothing away: a name server that is gone is no reason to forget where a node was. Here live
the look-ups and nothing else; who dials whom is decided in `wire`.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

Lookup = Callable[[str, None], Sequence[Any]]
"""As `socket.getaddrinfo`."""


class Resolver:
    """Any number of names. `resolve` never blocks; from any thread."""

    def __init__(self, lookup: Lookup = socket.getaddrinfo) -> None:
        self._lookup = lookup
        self._found: dict[str, tuple[str, ...]] = {}
        self._under_way: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def resolve(self, host: str) -> tuple[str, ...]:
        """The addresses of a host as far as they are known; empty: not yet."""
        try:
            return (str(ipaddress.ip_address(host)),)
        except ValueError:
            pass
        with self._lock:
            if host not in self._under_way:
                thread = threading.Thread(target=self._look, args=(host,), name=f"look-up-{host}", daemon=True)
                self._under_way[host] = thread
                thread.start()
            return self._found.get(host, ())

    def settle(self) -> None:
        """Wait until no look-up is under way."""
        for thread in list(self._under_way.values()):
            thread.join()

    def _look(self, host: str) -> None:
        try:
            told = self._lookup(host, None)
        except (OSError, UnicodeError):
            told = ()
        addresses = sorted({str(entry[4][0]) for entry in told if entry[0] == socket.AF_INET} or {str(entry[4][0]) for entry in told})
        with self._lock:
            del self._under_way[host]
            if addresses:
                self._found[host] = tuple(addresses)
