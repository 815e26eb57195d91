"""OpenTelemetry spans of sends, receives and acknowledgements. Off unless the configuration names
an endpoint.

A span covers a call of the client contract, at the node that the client called, or a frame or batch
of a native stream. Its parent is the `traceparent` of the call's metadata. The trace contexts of
messages are only linked, because a call has many messages, each with its own trace. A message has
its context in its system properties, or in the user property `traceparent`, where OpenTelemetry's
instrumentations of RocketMQ put it. Names follow the semantic conventions for RocketMQ. Of a
message, only its id, topic, type, delivery time and trace context leave the node: keys, tags and
message groups may be about persons. The packages are optional: without tracing they are not needed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from google.protobuf.message import DecodeError

from ledgermq import __version__
from ledgermq.node.frontend.ports import (
    BatchTrace,
    Method,
    ServerCall,
    ServerStreamMethod,
    Trace,
    UnaryMethod,
)
from ledgermq.node.frontend.rocketmq import acknowledging, forwarding, pulling, receiving, sending
from ledgermq.node.frontend.rocketmq.wire.validation import CLIENT_ID
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.config_cluster import NodeAddress
from ledgermq.node.runtime.config_sections import Tracing
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.layout import Buffer
from ledgermq.proto.entries.properties import TRACE_CONTEXT, TRACEPARENT
from ledgermq.proto.status import code_name

if TYPE_CHECKING:
    from opentelemetry.context import Context as Parent
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span

IDS_MAX = 32
"""The most message ids, and links, of one span."""
EXPORT_TIMEOUT_S = 2
CLOSE_WITHIN_S = 2.0
"""A collector that does not answer must not keep a node from stopping: the spans that were not sent
by then are dropped."""
_GOOD = frozenset({pb.OK, pb.MESSAGE_NOT_FOUND})
_TYPES = {pb.NORMAL: "normal", pb.FIFO: "fifo", pb.DELAY: "delay", pb.TRANSACTION: "transaction"}
"""The types of messages that the conventions know."""
Handler = Callable[[bytes, ServerCall], Awaitable[Any]]
_CONTEXTS = re.compile(
    b"(?:%b|%b)\x01([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})"
    % (TRACEPARENT.encode(), TRACE_CONTEXT.encode())
)
"""The trace contexts in the properties of stored messages. A search, because reading all entries of
a frame would cost more than storing them; a body that contains such a text adds a link, as its
sender could have done with a property."""


class Operation(NamedTuple):
    """What the spans of a method are called: the name of the operation here, and its type in the
    conventions."""

    name: str
    type: str
    request: Any
    response: Any


SEND = Operation("send", "send", pb.SendMessageRequest, pb.SendMessageResponse)
FETCH = Operation("fetch", "receive", None, None)
SETTLE = {
    acknowledging.ACK: Operation("ack", "settle", pb.AckMessageRequest, pb.AckMessageResponse),
    acknowledging.CHANGE: Operation(
        "change_invisible_duration",
        "settle",
        pb.ChangeInvisibleDurationRequest,
        pb.ChangeInvisibleDurationResponse,
    ),
    forwarding.METHOD: Operation(
        "dead_letter",
        "settle",
        pb.ForwardMessageToDeadLetterQueueRequest,
        pb.ForwardMessageToDeadLetterQueueResponse,
    ),
}
RECEIVE = {
    receiving.METHOD: Operation(
        "receive", "receive", pb.ReceiveMessageRequest, pb.ReceiveMessageResponse
    ),
    pulling.METHOD: Operation("pull", "receive", pb.PullMessageRequest, pb.PullMessageResponse),
}


def spans_of(config: Tracing, node: str, address: NodeAddress) -> Spans | None:
    """The spans that the configuration asks for; None without tracing. Raises ConfigError."""
    if not config.otlp_endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        what = "tracing.otlp_endpoint is set, but OpenTelemetry is not installed"
        raise ConfigError(
            what, "pip install 'ledgermq[otlp]', or leave the endpoint out"
        ) from error
    resource = Resource.create(
        {"service.name": "ledgermq", "service.instance.id": node, "service.version": __version__}
    )
    # At exit the node stops the exporter itself, within its own time limit.
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)),
        resource=resource,
        shutdown_on_exit=False,
    )
    insecure = config.otlp_endpoint.startswith("http://")
    exporter = OTLPSpanExporter(
        endpoint=config.otlp_endpoint, insecure=insecure, timeout=EXPORT_TIMEOUT_S
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    logs.add_ids(_current_ids)
    return Spans(provider, address.host, address.client_port, exporter.shutdown)


def _current_ids() -> Mapping[str, str]:
    """The trace and span of the call that is being served in this context, as fields of a log
    line."""
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    found = get_current_span().get_span_context()
    return (
        {"trace_id": format_trace_id(found.trace_id), "span_id": format_span_id(found.span_id)}
        if found.is_valid
        else {}
    )


class Spans:
    """Creates the spans of one node."""

    def __init__(
        self,
        provider: TracerProvider,
        host: str,
        port: int,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`host`, `port`: where clients reach this node. `give_up` ends a running export; from any
        thread."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._give_up = give_up
        self._tracer = provider.get_tracer("ledgermq", __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._server: dict[str, Any] = {
            "messaging.system": "rocketmq",
            "server.address": host,
            "server.port": port,
        }

    def close(self) -> None:
        """Send the remaining spans; waits at most `CLOSE_WITHIN_S` for the collector."""
        logs.add_ids(None)
        limit = threading.Timer(CLOSE_WITHIN_S, self._give_up)
        limit.start()
        self._provider.shutdown()
        limit.cancel()

    def traced(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """The same methods, with spans around those that concern messages."""
        out = dict(methods)
        for name in (sending.METHOD, *SETTLE):
            unary = out[name]
            assert isinstance(unary, UnaryMethod)
            out[name] = UnaryMethod(
                self._sent(unary.serve)
                if name == sending.METHOD
                else self._settled(unary.serve, SETTLE[name])
            )
        for name, operation in RECEIVE.items():
            stream = out[name]
            assert isinstance(stream, ServerStreamMethod)
            out[name] = ServerStreamMethod(self._received(stream.serve, operation))
        return out

    def frames_of(self, context: ServerCall, client_id: str) -> Trace:
        """A function that begins the span of a frame of a native stream: (topic, messages, first
        sequence number, entries)."""
        from opentelemetry.trace import SpanKind

        parent = self._parent(dict(context.invocation_metadata()))

        def frame(
            topic: pb.Resource, messages: int, first_sequence: int, entries: Buffer
        ) -> FrameSpan:
            attributes = {
                **self._attributes(SEND, topic, client_id),
                "messaging.batch.message_count": messages,
                "ledgermq.first_sequence": first_sequence,
            }
            links = self._links_in(entries)
            return FrameSpan(
                self._tracer.start_span(
                    f"send {topic.name}", parent, SpanKind.SERVER, attributes, links
                )
            )

        return frame

    def batches_of(
        self, context: ServerCall, client_id: str, topic: pb.Resource, consumer_group: str
    ) -> BatchTrace:
        """A function for the span of a batch that is written to a native reader: (messages, bytes
        that hold their entries)."""
        from opentelemetry.trace import SpanKind

        parent = self._parent(dict(context.invocation_metadata()))
        common = self._attributes(FETCH, topic, client_id)
        if consumer_group:
            common["messaging.consumer.group.name"] = consumer_group

        @contextmanager
        def batch(messages: int, data: bytes) -> Iterator[None]:
            attributes = {**common, "messaging.batch.message_count": messages}
            name, links = f"{FETCH.name} {topic.name}", self._links_in(data)
            with self._tracer.start_as_current_span(
                name, parent, SpanKind.SERVER, attributes, links
            ):
                yield

        return batch

    def _sent(self, serve: Handler) -> Handler:
        async def traced(data: bytes, context: ServerCall) -> Any:
            try:
                messages = pb.SendMessageRequest.FromString(data).messages
            except DecodeError:
                return await serve(data, context)
            topic = messages[0].topic if messages else pb.Resource()
            more = _ids([message.system_properties.message_id for message in messages])
            if len(messages) == 1:
                more |= _of_message(messages[0].system_properties)
            with self._span(SEND, topic, context, more, self._links(messages)) as span:
                response = await serve(data, context)
                _judge(span, pb.SendMessageResponse.FromString(response).status)
            return response

        return traced

    def _settled(self, serve: Handler, operation: Operation) -> Handler:
        async def traced(data: bytes, context: ServerCall) -> Any:
            try:
                request = operation.request.FromString(data)
            except DecodeError:
                return await serve(data, context)
            settled = request.entries if isinstance(request, pb.AckMessageRequest) else [request]
            more = _consumer(request.group) | _ids([one.message_id for one in settled])
            with self._span(operation, request.topic, context, more) as span:
                response = await serve(data, context)
                _judge(span, operation.response.FromString(response).status)
            return response

        return traced

    def _received(self, serve: Handler, operation: Operation) -> Handler:
        async def traced(data: bytes, context: ServerCall) -> Any:
            try:
                request = operation.request.FromString(data)
            except DecodeError:
                return await serve(data, context)
            more = {**_consumer(request.group), "messaging.batch.message_count": 0}
            with self._span(operation, request.message_queue.topic, context, more) as span:
                return await serve(data, cast(ServerCall, _Watched(context, span, self, operation)))

        return traced

    def _attributes(
        self, operation: Operation, topic: pb.Resource, client_id: str
    ) -> dict[str, Any]:
        return {
            **self._server,
            "messaging.operation.name": operation.name,
            "messaging.operation.type": operation.type,
            "messaging.destination.name": topic.name,
            "messaging.rocketmq.namespace": topic.resource_namespace,
            "messaging.client.id": client_id,
        }

    @contextmanager
    def _span(
        self,
        operation: Operation,
        topic: pb.Resource,
        context: ServerCall,
        more: Mapping[str, Any],
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind

        metadata = dict(context.invocation_metadata())
        attributes = {
            **self._attributes(operation, topic, str(metadata.get(CLIENT_ID, ""))),
            **more,
        }
        name, parent = f"{operation.name} {topic.name}", self._parent(metadata)
        with self._tracer.start_as_current_span(
            name, parent, SpanKind.SERVER, attributes, links
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    def _parent(self, metadata: Mapping[str, Any]) -> Parent:
        return self._extract(
            {key: value for key, value in metadata.items() if isinstance(value, str)}
        )

    def _links_in(self, entries: Buffer) -> list[Link]:
        """Links to the first distinct trace contexts of stored messages."""
        found = dict.fromkeys(match[1] for match in _CONTEXTS.finditer(entries))
        return self._linked([text.decode() for text in islice(found, IDS_MAX)])

    def _links(self, messages: Iterable[pb.Message]) -> list[Link]:
        return self._linked(
            [
                message.system_properties.trace_context
                or message.user_properties.get(TRACEPARENT, "")
                for message in messages
            ]
        )

    def _linked(self, texts: Iterable[str]) -> list[Link]:
        from opentelemetry.trace import Link, get_current_span

        spans = [get_current_span(self._extract({TRACEPARENT: text})) for text in texts if text]
        return [
            Link(span.get_span_context())
            for span in spans[:IDS_MAX]
            if span.get_span_context().is_valid
        ]


class FrameSpan:
    """The span of one native frame, until the frame is answered."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def current(self) -> AbstractContextManager[None]:
        """Log lines that are written meanwhile name this span."""
        from opentelemetry.trace import use_span

        return cast(
            AbstractContextManager[None],
            use_span(self._span, record_exception=False, set_status_on_exception=False),
        )

    def end(self, code: int, message: str) -> None:
        """End the span. `code`: OK for a stored frame."""
        _judge(self._span, pb.Status(code=code, message=message))  # type: ignore[arg-type]  # proto3 enums are open
        self._span.end()


class _Watched:
    """The context of a call that receives; it records in the span which messages are written to the
    stream."""

    def __init__(self, context: ServerCall, span: Span, spans: Spans, operation: Operation) -> None:
        self._context = context
        self._span = span
        self._spans = spans
        self._response = operation.response
        self._ids: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, data: bytes) -> None:
        await self._context.write(data)
        response = self._response.FromString(data)
        if response.HasField("status"):
            _judge(self._span, response.status)
        elif response.HasField("message"):
            self._ids.append(response.message.system_properties.message_id)
            self._span.set_attribute("ledgermq.message.ids", self._ids[:IDS_MAX])
            self._span.set_attribute("messaging.batch.message_count", len(self._ids))
            for link in self._spans._links([response.message]) if len(self._ids) <= IDS_MAX else ():
                self._span.add_link(link.context)


def _ids(ids: list[str]) -> dict[str, Any]:
    """The attributes of the messages of a call: the id of a single one, otherwise their number and
    ids."""
    if len(ids) == 1:
        # A client need not name the message whose lease it changes.
        return {"messaging.message.id": ids[0]} if ids[0] else {}
    return {"messaging.batch.message_count": len(ids), "ledgermq.message.ids": ids[:IDS_MAX]}


def _of_message(system: pb.SystemProperties) -> dict[str, Any]:
    """The attributes of a single message besides its id."""
    found: dict[str, Any] = {}
    if system.message_type in _TYPES:
        found["messaging.rocketmq.message.type"] = _TYPES[system.message_type]
    if system.HasField("delivery_timestamp"):
        found["messaging.rocketmq.message.delivery_timestamp"] = (
            system.delivery_timestamp.ToMilliseconds()
        )
    return found


def _consumer(group: pb.Resource) -> dict[str, Any]:
    return {"messaging.consumer.group.name": group.name}


def _judge(span: Span, status: pb.Status) -> None:
    from opentelemetry.trace import StatusCode

    if status.code not in _GOOD:
        span.set_attribute("error.type", code_name(status.code))
        span.set_status(StatusCode.ERROR, status.message)
