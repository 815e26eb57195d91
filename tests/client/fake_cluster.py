"""An in-process gRPC server with scripted answers, for tests of the client's reaction to each
answer.

Each method has a script: a queue of answers, the last of which is repeated. An answer is a response
message, a list of them (for a stream), a gRPC status code (the call fails with it), or a function
of the request. Requests are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from ledgermq.client.api.service import ADMIN, LOG, MESSAGING
from ledgermq.proto import admin_pb2, log_pb2, messaging_pb2

SERVICES = {
    ADMIN: admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    LOG: log_pb2.DESCRIPTOR.services_by_name["Log"],
    MESSAGING: messaging_pb2.DESCRIPTOR.services_by_name["MessagingService"],
}
MODULES = {ADMIN: admin_pb2, LOG: log_pb2, MESSAGING: messaging_pb2}


class FakeNode(grpc.GenericRpcHandler):
    """One node on a free loopback port."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[Any]] = {}
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.trailing: tuple[tuple[str, str], ...] = ()
        self.metadata: list[tuple[str, str]] = []
        self.peer = ""
        """The connection of the last request."""
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{self.port}"
        self._server.start()

    def answers(self, method: str, *script: Any) -> None:
        """Set the answers to the next calls of the method; the last answer is repeated."""
        self.scripts[method] = list(script)

    def stop(self) -> None:
        self._server.stop(None).wait()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        path = details.method
        prefix = next(known for known in SERVICES if path.startswith(known))
        name = path.removeprefix(prefix)
        method = SERVICES[prefix].methods_by_name[name]
        request = getattr(MODULES[prefix], method.input_type.name)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(name), request.FromString, _serialise
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(name), request.FromString, _serialise
        )

    def _next(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests[name].append(request)
        self.peer = context.peer()
        self.metadata = [(key, str(value)) for key, value in context.invocation_metadata()]
        script = self.scripts.get(name)
        if not script:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the fake has no answer for {name}")
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "scripted error")
        context.set_trailing_metadata(self.trailing)
        return answer(request) if callable(answer) else answer

    def _unary(self, name: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        return lambda request, context: self._next(name, request, context)

    def _stream(self, name: str) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            for part in self._next(name, request, context):
                if isinstance(part, grpc.StatusCode):
                    context.abort(part, "scripted error")
                yield part

        return stream


def _serialise(message: Any) -> bytes:
    found: bytes = message.SerializeToString()
    return found


@contextmanager
def fake_nodes(count: int = 1) -> Iterator[list[FakeNode]]:
    nodes = [FakeNode() for _ in range(count)]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def endpoints(nodes: list[FakeNode]) -> str:
    return ";".join(node.endpoint for node in nodes)


def admin_status(code: int = 20000, message: str = "") -> admin_pb2.Status:
    return admin_pb2.Status(code=code, message=message)


def status(code: int = 20000, message: str = "") -> messaging_pb2.Status:
    return messaging_pb2.Status(code=code, message=message)


def route(
    topic: str = "t", brokers: tuple[str, ...] = ("g1",), queues: int = 2
) -> messaging_pb2.QueryRouteResponse:
    """A route whose queues lie on the given brokers."""
    answer = messaging_pb2.QueryRouteResponse(status=status())
    for broker in brokers:
        for number in range(queues):
            queue = answer.message_queues.add(id=number)
            queue.topic.name, queue.broker.name = topic, broker
    return answer


def delivered(
    body: bytes, number: int = 0, topic: str = "t"
) -> messaging_pb2.ReceiveMessageResponse:
    """One message of a receive stream."""
    answer = messaging_pb2.ReceiveMessageResponse()
    message = answer.message
    message.topic.name, message.body = topic, body
    message.system_properties.message_id = f"id-{number}"
    message.system_properties.receipt_handle = f"handle-{number}"
    message.system_properties.queue_id = 1
    return answer


def verdict(code: int = 20000, message: str = "") -> messaging_pb2.ReceiveMessageResponse:
    """The status part of a receive stream."""
    return messaging_pb2.ReceiveMessageResponse(status=status(code, message))


def acked(request: messaging_pb2.AckMessageRequest) -> messaging_pb2.AckMessageResponse:
    """Every entry acknowledged."""
    answer = messaging_pb2.AckMessageResponse(status=status())
    for entry in request.entries:
        answer.entries.add(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status()
        )
    return answer


def sent(request: messaging_pb2.SendMessageRequest) -> messaging_pb2.SendMessageResponse:
    """Every message acknowledged."""
    answer = messaging_pb2.SendMessageResponse(status=status())
    for message in request.messages:
        answer.entries.add(message_id=message.system_properties.message_id, status=status())
    return answer
