"""OpenTelemetry spans: off by default; parents and links as the callers and messages say; nothing of a body."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic import ValidationError

from ledgermq.node.frontend.ports import Listening
from ledgermq.node.process.client_port import call_server
from ledgermq.node.process.tracing import Spans, spans_of
from ledgermq.node.runtime.config_sections import Tracing
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import CLIENT_ID, Backend, Raw, contract, message

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{SPAN}-01"
STORY = "00-11111111111111111111111111111111-2222222222222222-01"


class Traced:
    """The backend's service behind a port whose calls make spans."""

    def __init__(self, server: Backend) -> None:
        self._service = server.service
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    async def __aenter__(self) -> Traced:
        self._server = call_server()
        self._server.add_service("apache.rocketmq.v2.MessagingService", Spans(self._provider).traced(self._service.methods()))
        self.raw = Raw(await self._server.listen(Listening("127.0.0.1", 0)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.raw.close()
        await self._server.stop(0)

    def spans(self) -> list[ReadableSpan]:
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found


@contract()
async def test_a_message_from_its_send_to_its_acknowledgement(server: Backend) -> None:
    """One span for each call: under the caller's, linked with the message's own trace, which arrives unchanged."""
    async with Traced(server) as traced:
        sent = message(b"secret", trace_context=STORY)
        await traced.raw.send(sent, metadata=(*CLIENT_ID, ("traceparent", CALLER)))
        (span,) = traced.spans()
        assert (span.name, span.parent and f"{span.parent.span_id:016x}") == ("send T", SPAN)
        assert f"{span.context.trace_id:032x}" == TRACE
        assert [f"{link.context.span_id:016x}" for link in span.links] == ["2" * 16]
        wanted = {"messaging.system": "rocketmq", "messaging.destination.name": "T", "messaging.rocketmq.status": 20000}
        assert wanted.items() <= dict(span.attributes or {}).items()
        assert (span.attributes or {})["messaging.message.id"] == sent.system_properties.message_id
        assert "secret" not in span.to_json()

        got = await traced.raw.receive()
        assert got.messages[0].system_properties.trace_context == STORY
        (span,) = traced.spans()
        assert (span.name, span.parent) == ("receive T", None)
        assert [f"{link.context.trace_id:032x}" for link in span.links] == ["1" * 32]
        assert (span.attributes or {})["messaging.consumer.group.name"] == "G"

        assert await traced.raw.ack(got.messages[0]) == pb.OK
        (span,) = traced.spans()
        assert span.name == "settle T" and span.status.status_code is StatusCode.UNSET


@contract()
async def test_refusals_and_garbage(server: Backend) -> None:
    """A refusal is an error of the span, an empty poll is not; invalid trace contexts are ignored; invalid requests are answered as without
    tracing."""
    async with Traced(server) as traced:
        await traced.raw.send(message(topic="nowhere"))
        (span,) = traced.spans()
        assert span.status.status_code is StatusCode.ERROR and (span.attributes or {})["messaging.rocketmq.status"] == 40402
        assert (await traced.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND
        (span,) = traced.spans()
        assert span.status.status_code is StatusCode.UNSET
        await traced.raw.send(message(trace_context="no trace at all"), metadata=(*CLIENT_ID, ("traceparent", "nor this")))
        (span,) = traced.spans()
        assert (span.parent, list(span.links)) == (None, [])
        assert (await traced.raw.unary("SendMessage", b"\xff\xff")).status.code != pb.OK
        assert traced.spans() == []


def test_off_by_default_and_never_half_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint no package is touched; with one and without the packages the node says what to do; endpoints are checked."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert spans_of(Tracing(), "n1") is None
    with pytest.raises(ConfigError, match="not installed"):
        spans_of(Tracing(otlp_endpoint="http://127.0.0.1:4317"), "n1")
    for endpoint in ("127.0.0.1:4317", "http://", "http://a b"):
        with pytest.raises(ValidationError):
            Tracing(otlp_endpoint=endpoint)


def test_a_node_with_an_endpoint_stops_without_its_collector() -> None:
    """The endpoint does not answer: the stop of the node waits at most for the timeout of one export."""
    spans = spans_of(Tracing(otlp_endpoint="http://127.0.0.1:9"), "n1")
    assert spans is not None
    spans.close()
