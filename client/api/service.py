"""The RPC methods that a node offers to clients, by path, with typed messages.

Only the mapping from methods to paths and types lives here. Our `.proto` of the client contract has
its own package name, so that it can be loaded in one process with the official client; the service
name on the wire is RocketMQ's.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message

from ledgermq.proto import messaging_pb2 as pb

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
ADMIN = "/ledgermq.v1.Admin/"
LOG = "/ledgermq.v1.Log/"
Metadata = tuple[tuple[str, str], ...]
R = TypeVar("R", bound=Message)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt at the end of the block instead of inside it.

    The library starts a call in several steps. If KeyboardInterrupt cut them short, it would count
    a call that never ends, and closing the channel would wait for that call for ever. A handler of
    the application's own is left alone.
    """
    mine = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not mine:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def unary(
    channel: grpc.Channel,
    path: str,
    request: Message,
    response: type[R],
    timeout: float,
    metadata: Metadata = (),
) -> R:
    """One unary call. Raises grpc.RpcError."""
    call: Any = channel.unary_unary(path, type(request).SerializeToString, response.FromString)
    return cast(R, call(request, metadata=metadata, timeout=timeout))


def send_message(
    channel: grpc.Channel, request: pb.SendMessageRequest, metadata: Metadata, timeout: float
) -> Any:
    """A send in flight: a `grpc.Future` that is also a `grpc.Call`."""
    call: Any = channel.unary_unary(
        MESSAGING + "SendMessage",
        pb.SendMessageRequest.SerializeToString,
        pb.SendMessageResponse.FromString,
    )
    with uninterrupted():
        return call.future(request, metadata=metadata, timeout=timeout)


def receive_message(
    channel: grpc.Channel, request: pb.ReceiveMessageRequest, metadata: Metadata, timeout: float
) -> Any:
    """A poll under way: an iterator of `ReceiveMessageResponse` that is also a `grpc.Call`."""
    path, read = MESSAGING + "ReceiveMessage", pb.ReceiveMessageResponse.FromString
    call: Any = channel.unary_stream(path, pb.ReceiveMessageRequest.SerializeToString, read)
    with uninterrupted():
        return call(request, metadata=metadata, timeout=timeout)


def ack_message(
    channel: grpc.Channel, request: pb.AckMessageRequest, metadata: Metadata, timeout: float
) -> pb.AckMessageResponse:
    return unary(
        channel,
        path=MESSAGING + "AckMessage",
        request=request,
        response=pb.AckMessageResponse,
        timeout=timeout,
        metadata=metadata,
    )
