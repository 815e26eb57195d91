"""The gRPC server of a node on the `grpc.aio` library, for nodes that do not use ledgermq-native.

This module and the clients of other nodes and workers are the only ones that know the library. It
gives the services a `ServerCall` for each call and translates what the library raises. gRPC binds
the port alone, without extra cost, if the port speaks only plaintext or only TLS and connections
are not limited; otherwise the front (`security/front.py`) binds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from ledgermq.node.frontend.ports import (
    CallAborted,
    CallGone,
    CallMetadata,
    Diversion,
    Listening,
    Method,
    ServerCall,
    ServerStreamMethod,
    StatusCode,
    StreamMethod,
    UnaryMethod,
)
from ledgermq.node.frontend.rocketmq.messaging import REQUEST_BYTES
from ledgermq.node.frontend.security.front import Front
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.answer_budget import ANSWERS, CONNECTION, connection_of
from ledgermq.node.runtime.certificates import CertificateFiles, Pems
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.proto.host_port import joined

OPTIONS = (
    ("grpc.max_receive_message_length", REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    # Detects clients whose machine vanished: they must not keep their leases.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Calls wait until the loop gets to them: by default gRPC cancels random calls from the
    # thousandth waiting one on, as when many clients reconnect at once. A waiting call costs a few
    # kilobytes.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 40_000),
    # A connection without a complete TLS handshake or HTTP/2 preface is closed.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Clients ping without calls: Java every five minutes, others every minute.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)
CALL_BYTES = 18 << 10
"""What an open call costs besides its messages."""
FULL = "the open calls of this node hold all the memory that they may (limits.buffered_bytes)"
_GONE = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""What the library raises from a stream whose client has gone."""
_CODES = {code: grpc.StatusCode[code.name] for code in StatusCode}


class GrpcServer:
    """One server. Belongs to the loop's thread."""

    def __init__(self, divert: Diversion | None = None) -> None:
        self._divert = divert
        self._services: dict[str, Mapping[str, Method]] = {}
        self._front: Front | None = None
        self._server: grpc.aio.Server | None = None
        self._bounds = _Bounds()

    def add_service(self, name: str, methods: Mapping[str, Method]) -> None:
        """Before `listen`."""
        self._services[name] = methods

    async def listen(self, where: Listening) -> int:
        """Open the port, and return it. Raises RuntimeError or OSError if it is taken."""
        server = grpc.aio.server(options=(("grpc.so_reuseport", int(where.shared)), *OPTIONS))
        self._bounds.limit_bytes = where.memory.buffered_bytes
        if self._divert is not None:
            server.add_generic_rpc_handlers((_Diverting(self._divert, self._bounds),))
        for name, methods in self._services.items():
            # Generic handlers and not the library's table of registered methods: for every call of
            # any service, grpc.aio 1.85 awaits a future for each method in that table.
            handlers = {method: _handler(how, self._bounds) for method, how in methods.items()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        port = self._bind(server, where)
        if where.unix is not None:
            server.add_insecure_port(f"unix:{where.unix}")
        await server.start()
        self._server = server
        if self._front is not None:
            port = await self._front.listen(where.host, where.port, shared=where.shared)
        return port

    def _bind(self, server: grpc.aio.Server, where: Listening) -> int:
        files, limits = where.tls, where.limits
        if limits.limit_connections or (where.plain and files is not None):
            self._front = Front(
                plain=where.plain,
                tls=files is not None,
                connections=limits.connections,
                connections_per_address=limits.connections_per_address,
                new_per_s=limits.new_connections_per_s,
            )
            if self._front.plain is not None:
                server.add_insecure_port(f"unix:{self._front.plain}")
            if self._front.tls is not None and files is not None:
                server.add_secure_port(f"unix:{self._front.tls}", server_credentials(files))
            return where.port
        address = joined(where.host, where.port)
        return (
            server.add_insecure_port(address)
            if files is None
            else server.add_secure_port(address, server_credentials(files))
        )

    def address_of(self, peer: str) -> str:
        """The client address of a connection, from gRPC's name of its peer."""
        return peer if self._front is None else self._front.address_of(peer)

    def connections(self) -> int | None:
        """Only the front counts connections, and it is needed only for limits, and for TLS beside
        plaintext."""
        return None if self._front is None else self._front.open_connections

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections and no more calls; cancel what has not ended within the grace
        time."""
        if self._front is not None:
            self._front.close()
        if self._server is not None:
            await self._server.stop(grace_s)
        if self._front is not None:
            self._front.stop()


class _Diverting(grpc.GenericRpcHandler):
    """The first handler of the server: takes the calls that something else than the registered
    method serves."""

    def __init__(self, divert: Diversion, bounds: _Bounds) -> None:
        self._divert = divert
        self._bounds = bounds

    def service(self, handler_call_details: Any) -> Any:
        method = self._divert(
            handler_call_details.method, handler_call_details.invocation_metadata or ()
        )
        return None if method is None else _handler(method, self._bounds)


class _Bounds:
    """What the open calls of this server hold beside the messages of their answers.

    The library tells neither how much its sockets have not taken, nor the size of a request before
    it has read it. So a call counts from the moment when its request is read until its task ends,
    which is when the library has sent the answer. A call whose client takes nothing is not ended:
    the library has no way to end it on its side, and would keep the answer that no longer counts.
    It pings such a client and closes the connection if no answer comes.
    """

    def __init__(self) -> None:
        self._held = 0
        self.limit_bytes = Limits().buffered_bytes

    async def enter(self, context: Any, size: int) -> None:
        """The current task serves a call whose request has this size. Ends it with
        RESOURCE_EXHAUSTED if there is no room for it."""
        CONNECTION.set(connection_of(context.peer()))
        size += CALL_BYTES
        if self._held + size + ANSWERS.held_bytes > self.limit_bytes:
            metrics.CALLS_REFUSED.labels("requests").inc()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, FULL)
        self._held += size
        task = asyncio.current_task()
        assert task is not None, "the library serves each call in a task"
        task.add_done_callback(lambda _: self._leave(size))

    def _leave(self, size: int) -> None:
        self._held -= size


class _GrpcCall:
    """A call of the library as a `ServerCall`. What needs no translation is the library's own
    method."""

    __slots__ = (
        "_context",
        "auth_context",
        "invocation_metadata",
        "peer",
        "set_trailing_metadata",
        "time_remaining",
    )

    def __init__(self, context: Any) -> None:
        self._context = context
        self.auth_context = context.auth_context
        self.invocation_metadata = context.invocation_metadata
        self.peer = context.peer
        self.set_trailing_metadata = context.set_trailing_metadata
        self.time_remaining = context.time_remaining

    async def send_initial_metadata(self, metadata: CallMetadata) -> None:
        try:
            await self._context.send_initial_metadata(metadata)
        except _GONE as error:
            raise CallGone(str(error)) from error

    async def read(self) -> bytes | None:
        try:
            message = await self._context.read()
        except _GONE as error:
            raise CallGone(str(error)) from error
        return None if message is grpc.aio.EOF else message

    async def write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except _GONE as error:
            raise CallGone(str(error)) from error

    async def finish(self, *, taken: bool = False) -> None:
        """Each `write` has waited until the socket had taken its message, and the library ends the
        call when the handler returns. It does not tell what the client took."""


def _handler(method: Method, bounds: _Bounds) -> Any:
    if isinstance(method, UnaryMethod):
        return grpc.unary_unary_rpc_method_handler(_with_request(method.serve, bounds))
    if isinstance(method, ServerStreamMethod):
        return grpc.unary_stream_rpc_method_handler(_with_request(method.serve, bounds))
    return grpc.stream_stream_rpc_method_handler(_without_request(method, bounds))


def _with_request(serve: Callable[[bytes, ServerCall], Awaitable[Any]], bounds: _Bounds) -> Any:
    async def served(data: bytes, context: Any) -> Any:
        await bounds.enter(context, len(data))
        try:
            return await serve(data, _GrpcCall(context))
        except CallAborted as error:
            await context.abort(_CODES[error.code], error.details, error.trailing_metadata)
        except CallGone as gone:
            # The library's own error, which `logs` counts.
            raise (gone.__cause__ or gone) from None

    return served


def _without_request(method: StreamMethod, bounds: _Bounds) -> Any:
    async def served(_: Any, context: Any) -> None:
        await bounds.enter(context, 0)
        try:
            await method.serve(_GrpcCall(context))
        except CallAborted as error:
            await context.abort(_CODES[error.code], error.details, error.trailing_metadata)
        except CallGone as gone:
            # The library's own error, which `logs` counts.
            raise (gone.__cause__ or gone) from None

    return served


def server_credentials(files: CertificateFiles) -> grpc.ServerCredentials:
    """Credentials of a listening port. Callers must show a certificate signed by the CA if one is
    configured. Every handshake uses the newest files."""
    served = files.current()

    def newest() -> Any:
        nonlocal served
        current = files.current()
        if current is served:
            return None
        served = current
        return _configuration(current)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served), newest, require_client_authentication=served.authority is not None
    )


def _configuration(pems: Pems) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(pems.key, pems.certificate)], root_certificates=pems.authority
    )
