"""Passes a call to the worker of this node that it is meant for, if the connection reached another worker.

The workers of a node share its one public port, and the system distributes the connections among them. Most calls need no particular
worker: they go to the leader of their broker group over the streams between nodes. But a stream of the native service stays where it was
opened, and an audit of a replica needs that replica's disk; these callers name the worker in the metadata of the call. Another worker then
passes the call on, as bytes, over a Unix socket. The name of another node has no effect: to reach another node, clients use its endpoint.

The named worker authenticates the caller. It sees the caller's signature unchanged, and takes the common name of the certificate from the
passing worker (`common_name`): only workers of this node can connect to that socket, and only they have no name there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry
from ledgermq.proto.workers import MEMBER_METADATA, PASSED_BY

COMMON_NAME = "x-ledgermq-common-name"
_OWN_OF_TRANSPORT = ("grpc-", "user-agent", ":")
OPTIONS = (
    # The named worker refuses what is too large.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A worker may recover for minutes before it listens; then it must be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
SIBLING = "unix:"
"""gRPC's name for a peer that came over a Unix socket without a name. A peer that came through the front has a name."""


class WorkerProxy(grpc.GenericRpcHandler):
    """The first handler of a worker's server: takes the calls for another worker and leaves all others to the next handlers."""

    def __init__(self, workers: WorkerRegistry) -> None:
        self._workers = workers
        self._channels: dict[str, grpc.aio.Channel] = {}

    def service(self, handler_call_details: Any) -> Any:
        for key, value in handler_call_details.invocation_metadata or ():
            if key == MEMBER_METADATA:
                if value == self._workers.own or value not in self._workers.names:
                    return None
                passage = _ProxiedCall(self._workers.own, self._channel(value), handler_call_details.method)
                return grpc.stream_stream_rpc_method_handler(passage.serve)
        return None

    def _channel(self, worker: str) -> grpc.aio.Channel:
        if worker not in self._channels:
            self._channels[worker] = grpc.aio.insecure_channel(f"unix:{self._workers.calls(worker)}", OPTIONS)
        return self._channels[worker]

    async def close(self) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()


class _ProxiedCall:
    """Passes calls of one method to one other worker."""

    def __init__(self, own: str, channel: grpc.aio.Channel, method: str) -> None:
        self._own = own
        self._channel = channel
        self._method = method

    async def serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Pass both directions concurrently, with backpressure, until the other worker has ended the call."""
        call: Any = self._channel.stream_stream(self._method)(metadata=_metadata_of(context), timeout=context.time_remaining())
        sender = asyncio.create_task(_send(requests, call))
        try:
            await context.send_initial_metadata(((PASSED_BY, self._own),))
            while (data := await call.read()) is not grpc.aio.EOF:
                await context.write(data)
            context.set_code(await call.code())
            context.set_details(await call.details())
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(tuple(error.trailing_metadata()))
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)


async def _send(requests: AsyncIterator[bytes], call: Any) -> None:
    # A peer that has finished its answer takes no more; the other direction reports how the call ended.
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.UsageError):
        async for data in requests:
            await call.write(data)
        await call.done_writing()


def _metadata_of(context: Any) -> tuple[tuple[str, str | bytes], ...]:
    """The caller's metadata, plus the common name of its certificate. A common name in the caller's own metadata is dropped."""
    kept = [(key, value) for key, value in context.invocation_metadata() if key != COMMON_NAME and not key.startswith(_OWN_OF_TRANSPORT)]
    names = context.auth_context().get("x509_common_name", ())
    return (*kept, *((COMMON_NAME, name.decode("utf-8", "replace")) for name in names[:1]))


def common_name(context: Any) -> str:
    """The common name that another worker saw for the caller of a call it passed on; empty for every other call."""
    if context.peer() != SIBLING:
        return ""
    return next((str(value) for key, value in context.invocation_metadata() if key == COMMON_NAME), "")
