"""The service `grpc.health.v1.Health` on the client port: whether the node and each of its services
take calls.

`Check` answers once, `Watch` answers again after every change until the client ends the call.
"""

from __future__ import annotations

import asyncio

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]

from ledgermq.node.frontend.ports import (
    CallAborted,
    Method,
    ServerCall,
    ServerStreamMethod,
    StatusCode,
    UnaryMethod,
)

SERVICE = "grpc.health.v1.Health"


class HealthService:
    """The health of the given services; the empty name stands for the whole node. Nothing is served
    before the first `publish`."""

    def __init__(self, *services: str) -> None:
        self._services = frozenset(("", *services))
        self._serving = self._draining = False
        self._changed = asyncio.Event()

    def methods(self) -> dict[str, Method]:
        return {"Check": UnaryMethod(self._check), "Watch": ServerStreamMethod(self._watch)}

    def publish(self, *, serving: bool) -> None:
        """Report this from now on, unless the node stops."""
        if serving != self._serving and not self._draining:
            self._serving = serving
            self._changed.set()
            self._changed = asyncio.Event()

    def drain(self) -> None:
        """The node stops: report once and for all that nothing is served."""
        self.publish(serving=False)
        self._draining = True

    def _status(self, service: str) -> int:
        found = health_pb2.HealthCheckResponse
        known: int = found.SERVING if self._serving else found.NOT_SERVING
        return known if service in self._services else int(found.SERVICE_UNKNOWN)

    async def _check(self, data: bytes, call: ServerCall) -> bytes:
        service = _service_of(data)
        if service not in self._services:
            raise CallAborted(StatusCode.NOT_FOUND, f"there is no service {service}")
        return _response(self._status(service))

    async def _watch(self, data: bytes, call: ServerCall) -> None:
        service, former = _service_of(data), None
        while True:
            changed, status = self._changed, self._status(service)
            if status != former:
                await call.write(_response(status))
                former = status
            await changed.wait()


def _service_of(data: bytes) -> str:
    try:
        name: str = health_pb2.HealthCheckRequest.FromString(data).service
    except DecodeError:
        raise CallAborted(
            StatusCode.INVALID_ARGUMENT, "the request is not a valid HealthCheckRequest"
        ) from None
    return name


def _response(status: int) -> bytes:
    data: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
    return data
