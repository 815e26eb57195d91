"""Resolves host names for the quorum's thread, which must never wait for a name server.

A connection attempt uses the result of the last look-up and starts the next look-up, so a changed
name takes effect with the attempt after this one. A failed look-up keeps the last result: a node
stays reachable while the name server is down. `wire` decides who connects to whom.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ledgermq.proto.host_port import is_address

Lookup = Callable[[str, None], Sequence[Any]]
"""Signature of `socket.getaddrinfo`."""


class Resolver:
    """Caches the addresses of host names. `resolve` never blocks and may be called from any
    thread."""

    def __init__(self, lookup: Lookup = socket.getaddrinfo) -> None:
        self._lookup = lookup
        self._found: dict[str, tuple[str, ...]] = {}
        self._under_way: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def resolve(self, host: str) -> tuple[str, ...]:
        """The known addresses of a host, the IPv4 ones first; empty until its first look-up
        succeeds."""
        if is_address(host):
            return (host,)
        with self._lock:
            if host not in self._under_way:
                thread = threading.Thread(
                    target=self._look, args=(host,), name=f"look-up-{host}", daemon=True
                )
                self._under_way[host] = thread
                thread.start()
            return self._found.get(host, ())

    def settle(self) -> None:
        """Wait until no look-up is in progress."""
        for thread in list(self._under_way.values()):
            thread.join()

    def _look(self, host: str) -> None:
        try:
            told = self._lookup(host, None)
        except (OSError, UnicodeError):
            told = ()
        found = {(entry[0] != socket.AF_INET, str(entry[4][0])) for entry in told}
        addresses = [address for _, address in sorted(found)]
        with self._lock:
            del self._under_way[host]
            if addresses:
                self._found[host] = tuple(addresses)
