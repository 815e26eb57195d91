"""Puts generated gRPC services on a port. The admin methods answer undecodable requests with a status, and check the caller where required.

The methods themselves are in `service.py`; who may call them is decided in `security/admin_guard.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq.node.frontend.rocketmq.access_control import common_name_of
from ledgermq.node.frontend.security.admin_guard import guarded
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import Code


class AdminPort:
    """The server object that generated code registers the admin service with. It installs the methods as wrapped generic handlers."""

    def __init__(self, server: grpc.aio.Server, authority: Authority) -> None:
        self._server = server
        self._authority = authority

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: the registered method table holds the same methods."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        methods = guarded(handlers, self._authority, common_name_of) if self._authority.required else handlers
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, tolerant(methods)),))


class GenericOnly:
    """The server object that generated code registers with, without the library's table of registered methods.

    For every call of any service, grpc.aio 1.85 awaits a future for each method in that table: the fourteen methods of the two small
    services here cost every send a third of the event loop's time. Generic handlers serve the same methods without that cost.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Does nothing: the generic handlers hold the same methods."""


def tolerant(handlers: Mapping[str, Any]) -> dict[str, Any]:
    """The same methods, but bytes that do not decode are answered with a status; the library would log a traceback."""
    return {method: _tolerant(method, handler) for method, handler in handlers.items()}


def _tolerant(method: str, handler: Any) -> Any:
    response = getattr(admin_pb2, f"{method}Response")

    async def serve(data: bytes, context: Any) -> Any:
        try:
            request = handler.request_deserializer(data)
        except DecodeError:
            text = f"the request is not a valid {method}Request"
            return response(status=admin_pb2.Status(code=int(Code.BAD_REQUEST), message=text))
        return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(serve, None, handler.response_serializer)
