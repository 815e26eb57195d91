"""Runs the console's server until a signal: the sockets, TLS, the log of changes, and the `ready`
line."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# First, so that a missing extra is named by the module that only it has.
import jinja2  # noqa: F401
from aiohttp import web

from ledgermq.client.api.connection import AsyncConnection, Connection
from ledgermq.client.console.application import SERVED, make_application
from ledgermq.client.console.auditing import Audits
from ledgermq.client.console.sessions import Cluster, Limits
from ledgermq.client.errors import BadArgument
from ledgermq.proto import host_port


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pages are served. `names`: the hosts that browsers may name, besides those of the
    loopback address."""

    host: str
    port: int
    certificate: Path | None
    key: Path | None
    names: tuple[str, ...]

    def tls(self) -> ssl.SSLContext | None:
        """None: plain HTTP. Raises BadArgument."""
        if self.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise BadArgument(
                f"the certificate {self.certificate} cannot be used ({error})",
                "give PEM files that belong together",
            ) from error
        return context


def record(fields: Mapping[str, Any]) -> None:
    """One line of JSON on stderr."""
    print(
        json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}),
        file=sys.stderr,
        flush=True,
    )


def serve(
    connection: Connection, place: Place, wire: Sequence[str], *, idle_s: float, absolute_s: float
) -> None:
    """Serve the pages in the foreground. `wire`: the TLS options of the connection, for the
    processes of audits. Raises BadArgument if the address cannot be used."""

    def connect(credentials: Any) -> AsyncConnection:
        return AsyncConnection(
            **{**connection.options, "credentials": credentials}, timeout_s=connection.timeout_s
        )

    asyncio.run(
        _serve(Cluster(connect, record, Audits(record, wire)), place, Limits(idle_s, absolute_s))
    )


async def _serve(cluster: Cluster, place: Place, limits: Limits) -> None:
    tls = place.tls()
    application = make_application(cluster, limits, place.names, secure=tls is not None)
    runner = web.AppRunner(application, **SERVED)
    await runner.setup()
    try:
        # An open page holds a connection for its events, which ends with the process.
        try:
            await _site(runner, place, tls).start()
        except OSError as error:
            problem = (
                f"{host_port.joined(place.host, place.port)} cannot be listened on"
                f" ({error.strerror})"
            )
            raise BadArgument(problem, "choose another --listen") from error
        shown = host_port.joined(*runner.addresses[0][:2])
        print(f"ready: console={'http' if tls is None else 'https'}://{shown}/", flush=True)
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        with suppress(asyncio.CancelledError):
            await ended.wait()
    finally:
        await runner.cleanup()


def _site(runner: web.AppRunner, place: Place, tls: ssl.SSLContext | None) -> web.BaseSite:
    """Raises OSError."""
    if place.host == "::" and socket.has_dualstack_ipv6():
        # The loop would take IPv6 alone.
        both = socket.create_server(
            (place.host, place.port), family=socket.AF_INET6, dualstack_ipv6=True
        )
        return web.SockSite(runner, both, ssl_context=tls, shutdown_timeout=1.0)
    return web.TCPSite(runner, place.host, place.port, ssl_context=tls, shutdown_timeout=1.0)
