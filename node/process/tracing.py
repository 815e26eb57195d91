"""OpenTelemetry spans of sends, receives and acknowledgements. Off unless the configuration names an endpoint.

A span covers a call of the client contract, at the node that the client called, or a frame of a native stream, at the leader. Its parent is
the `traceparent` of the call's metadata. The trace contexts of messages are only linked, because a call has many messages, each with its
own trace. Of a message, only its id, topic and trace context leave the node. The packages are optional: without tracing they are not
needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.message import DecodeError

from ledgermq.node.frontend.ports import Method, ServerCall, ServerStreamMethod, UnaryMethod
from ledgermq.node.frontend.rocketmq import acknowledging, receiving, sending
from ledgermq.node.runtime.config_sections import Tracing
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto import messaging_pb2 as pb

if TYPE_CHECKING:
    from opentelemetry.context import Context as Parent
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span

IDS_MAX = 32
"""The most message ids, and links, of one span."""
EXPORT_TIMEOUT_S = 2
"""A collector that does not answer must not keep a node from stopping."""
_GOOD = frozenset({pb.OK, pb.MESSAGE_NOT_FOUND})
Handler = Callable[[bytes, ServerCall], Awaitable[Any]]


def spans_of(config: Tracing, node: str) -> Spans | None:
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
        raise ConfigError(what, "pip install 'ledgermq[otlp]', or leave the endpoint out") from error
    resource = Resource.create({"service.name": "ledgermq", "service.instance.id": node})
    # At exit the node stops the exporter itself, within its own time limit.
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)), resource=resource, shutdown_on_exit=False)
    insecure = config.otlp_endpoint.startswith("http://")
    exporter = OTLPSpanExporter(endpoint=config.otlp_endpoint, insecure=insecure, timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Spans(provider)


class Spans:
    """Creates the spans of one node."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("ledgermq")
        self._extract = TraceContextTextMapPropagator().extract

    def close(self) -> None:
        """Send the remaining spans; may wait for the collector."""
        self._provider.shutdown()

    def traced(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """The same methods, with spans around those that concern messages."""
        out = dict(methods)
        send, ack, receive = (out[name] for name in (sending.METHOD, acknowledging.ACK, receiving.METHOD))
        assert isinstance(send, UnaryMethod) and isinstance(ack, UnaryMethod) and isinstance(receive, ServerStreamMethod)
        out[sending.METHOD] = UnaryMethod(self._sent(send.serve))
        out[acknowledging.ACK] = UnaryMethod(self._acknowledged(ack.serve))
        out[receiving.METHOD] = ServerStreamMethod(self._received(receive.serve))
        return out

    def frames_of(self, context: ServerCall) -> Callable[[str, int, int], FrameSpan]:
        """A function that begins the span of a frame of a native stream: (topic, messages, first sequence number)."""
        from opentelemetry.trace import SpanKind

        parent = self._parent(dict(context.invocation_metadata()))

        def frame(topic: str, messages: int, first_sequence: int) -> FrameSpan:
            attributes: dict[str, Any] = {
                "messaging.system": "rocketmq",
                "messaging.operation.name": "send",
                "messaging.destination.name": topic,
                "messaging.batch.message_count": messages,
                "ledgermq.first_sequence": first_sequence,
            }
            return FrameSpan(self._tracer.start_span(f"send {topic}", parent, SpanKind.SERVER, attributes))

        return frame

    def _sent(self, serve: Handler) -> Handler:
        async def traced(data: bytes, context: ServerCall) -> Any:
            try:
                messages = pb.SendMessageRequest.FromString(data).messages
            except DecodeError:
                return await serve(data, context)
            systems = [message.system_properties for message in messages]
            topic = messages[0].topic.name if messages else ""
            links = self._links(system.trace_context for system in systems)
            with self._span("send", topic, context, links, [system.message_id for system in systems]) as span:
                response = await serve(data, context)
                _judge(span, pb.SendMessageResponse.FromString(response).status)
            return response

        return traced

    def _acknowledged(self, serve: Handler) -> Handler:
        async def traced(data: bytes, context: ServerCall) -> Any:
            try:
                request = pb.AckMessageRequest.FromString(data)
            except DecodeError:
                return await serve(data, context)
            ids = [entry.message_id for entry in request.entries]
            with self._span("settle", request.topic.name, context, [], ids, request.group.name) as span:
                response = await serve(data, context)
                _judge(span, pb.AckMessageResponse.FromString(response).status)
            return response

        return traced

    def _received(self, serve: Handler) -> Handler:
        async def traced(data: bytes, context: ServerCall) -> Any:
            try:
                request = pb.ReceiveMessageRequest.FromString(data)
            except DecodeError:
                return await serve(data, context)
            with self._span("receive", request.message_queue.topic.name, context, [], [], request.group.name) as span:
                return await serve(data, cast(ServerCall, _Watched(context, span, self)))

        return traced

    def _span(self, what: str, topic: str, context: ServerCall, links: list[Link], ids: list[str], group: str = "") -> Any:
        from opentelemetry.trace import SpanKind

        attributes: dict[str, Any] = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": what,
            "messaging.destination.name": topic,
            "messaging.batch.message_count": len(ids),
        }
        if ids:
            attributes["messaging.message.id"] = ids[0]
            attributes["ledgermq.message.ids"] = ids[:IDS_MAX]
        if group:
            attributes["messaging.consumer.group.name"] = group
        parent = self._parent(dict(context.invocation_metadata()))
        return self._tracer.start_as_current_span(f"{what} {topic}", parent, SpanKind.SERVER, attributes, links)

    def _parent(self, metadata: Mapping[str, Any]) -> Parent:
        return self._extract({key: value for key, value in metadata.items() if isinstance(value, str)})

    def _links(self, trace_contexts: Iterable[str]) -> list[Link]:
        from opentelemetry.trace import Link, get_current_span

        spans = [get_current_span(self._extract({"traceparent": text})) for text in trace_contexts if text]
        return [Link(span.get_span_context()) for span in spans[:IDS_MAX] if span.get_span_context().is_valid]


class FrameSpan:
    """The span of one native frame, until the frame is answered."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, code: int, message: str) -> None:
        """End the span. `code`: OK for a stored frame."""
        _judge(self._span, pb.Status(code=code, message=message))  # type: ignore[arg-type]  # proto3 enums are open
        self._span.end()


class _Watched:
    """The context of a Receive; it records in the span which messages are written to the stream."""

    def __init__(self, context: ServerCall, span: Span, spans: Spans) -> None:
        self._context = context
        self._span = span
        self._spans = spans
        self._ids: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, data: bytes) -> None:
        await self._context.write(data)
        response = pb.ReceiveMessageResponse.FromString(data)
        if response.HasField("status"):
            _judge(self._span, response.status)
        elif response.HasField("message"):
            system = response.message.system_properties
            self._ids.append(system.message_id)
            self._span.set_attribute("ledgermq.message.ids", self._ids[:IDS_MAX])
            self._span.set_attribute("messaging.batch.message_count", len(self._ids))
            for link in self._spans._links([system.trace_context]) if len(self._ids) <= IDS_MAX else ():
                self._span.add_link(link.context)


def _judge(span: Span, status: pb.Status) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("messaging.rocketmq.status", int(status.code))
    if status.code not in _GOOD:
        span.set_status(StatusCode.ERROR, status.message)
