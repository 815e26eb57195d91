"""Passes a call to the worker of this node that it is meant for, if the connection reached another
worker.

The workers of a node share its one public port, and the system distributes the connections among
them. Most calls need no particular worker: they go to the leader of their broker group over the
streams between nodes. But a stream of the native service stays where it was opened, and an audit of
a replica needs that replica's disk; these callers name the worker in the metadata of the call.
Another worker then passes the call on, as bytes, over a Unix socket. The name of another node has
no effect: to reach another node, clients use its endpoint. Nor has a name in a call of the client
contract: the worker that has the client's connection serves it. Only that worker learns that a
client has left without the messages of a Receive, and releases their leases; one that answered
through another worker would not.

The named worker authenticates the caller. It sees the caller's signature unchanged, and takes the
common name of the certificate from the passing worker (`common_name`): only workers of this node
can connect to that socket, and only they have no name there.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio

from ledgermq.node.frontend.ports import (
    CallAborted,
    CallGone,
    CallMetadata,
    ServerCall,
    StatusCode,
    StreamMethod,
)
from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry
from ledgermq.node.runtime.answer_budget import SIBLING
from ledgermq.proto.workers import MEMBER_METADATA, PASSED_BY

COMMON_NAME = "x-ledgermq-common-name"
_CONTRACT = "/apache.rocketmq.v2."
_OWN_OF_TRANSPORT = ("grpc-", "user-agent", ":")
OPTIONS = (
    # The named worker refuses what is too large.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A worker may recover for minutes before it listens; then it must be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # By default it is the path of the socket, which is no authority in the sense of HTTP/2: the
    # native server resets such calls.
    ("grpc.default_authority", "localhost"),
)


class WorkerProxy:
    """Takes the calls for another worker, before the services of this one see them."""

    def __init__(self, workers: WorkerRegistry) -> None:
        self._workers = workers
        self._channels: dict[str, grpc.aio.Channel] = {}

    def divert(self, path: str, metadata: CallMetadata) -> StreamMethod | None:
        """What serves a call for another worker; None for a call that stays here."""
        if path.startswith(_CONTRACT):
            return None
        for key, value in metadata:
            if key == MEMBER_METADATA:
                if value == self._workers.own or value not in self._workers.names:
                    return None
                return StreamMethod(
                    _ProxiedCall(self._workers.own, self._channel(value), path).serve
                )
        return None

    def _channel(self, worker: str) -> grpc.aio.Channel:
        if worker not in self._channels:
            self._channels[worker] = grpc.aio.insecure_channel(
                f"unix:{self._workers.calls(worker)}", OPTIONS
            )
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

    async def serve(self, context: ServerCall) -> None:
        """Pass both directions concurrently, with backpressure, until the other worker has ended
        the call."""
        call: Any = self._channel.stream_stream(self._method)(
            metadata=_metadata_of(context), timeout=context.time_remaining()
        )
        sender = asyncio.create_task(_send(context, call))
        try:
            await context.send_initial_metadata(((PASSED_BY, self._own),))
            while (data := await call.read()) is not grpc.aio.EOF:
                await context.write(data)
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
            code = StatusCode[(await call.code()).name]
            if code is not StatusCode.OK:
                raise CallAborted(code, await call.details() or "")
        except grpc.aio.AioRpcError as error:
            raise CallAborted(
                StatusCode[error.code().name],
                error.details() or "",
                tuple(error.trailing_metadata()),
            ) from None
        finally:
            call.cancel()
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)


async def _send(context: ServerCall, call: Any) -> None:
    # A peer that has finished its answer takes no more; the other direction reports how the call
    # ended.
    with contextlib.suppress(
        CallGone, asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.UsageError
    ):
        while (data := await context.read()) is not None:
            await call.write(data)
        await call.done_writing()


def _metadata_of(context: ServerCall) -> tuple[tuple[str, str | bytes], ...]:
    """The caller's metadata, plus the common name of its certificate. A common name in the caller's
    own metadata is dropped."""
    kept = [
        (key, value)
        for key, value in context.invocation_metadata()
        if key != COMMON_NAME and not key.startswith(_OWN_OF_TRANSPORT)
    ]
    names = context.auth_context().get("x509_common_name", ())
    return (*kept, *((COMMON_NAME, name.decode("utf-8", "replace")) for name in names[:1]))


def common_name(context: ServerCall) -> str:
    """The common name that another worker saw for the caller of a call it passed on; empty for
    every other call."""
    if context.peer() != SIBLING:
        return ""
    return next(
        (str(value) for key, value in context.invocation_metadata() if key == COMMON_NAME), ""
    )
