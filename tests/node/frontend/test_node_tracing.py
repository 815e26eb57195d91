"""OpenTelemetry spans: off by default; parents and links as the callers and messages say; nothing
of a body."""

from __future__ import annotations

import builtins
import json
import logging
import socket
import sys
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    messaging_attributes,
    server_attributes,
)
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import ValidationError

from ledgermq.node.frontend.ports import Listening
from ledgermq.node.process.client_port import call_server
from ledgermq.node.process.telemetry import tracing
from ledgermq.node.process.telemetry.tracing import Spans, spans_of
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.config_cluster import NodeAddress
from ledgermq.node.runtime.config_sections import Tracing
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import CLIENT_ID, Backend, Raw, contract, message
from tests.contract.test_contract_pull import pull

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{SPAN}-01"
ADDRESS = NodeAddress(
    host="node1", client_port=8081, peer_port=9081, controller_port=10081, http_port=11081
)
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
        self._server.add_service(
            "apache.rocketmq.v2.MessagingService",
            Spans(self._provider, "node1", 8081).traced(self._service.methods()),
        )
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
    """One span for each call: under the caller's, linked with the message's own trace, which
    arrives unchanged."""
    async with Traced(server) as traced:
        sent = message(b"secret", trace_context=STORY)
        await traced.raw.send(sent, metadata=(*CLIENT_ID, ("traceparent", CALLER)))
        (span,) = traced.spans()
        assert (span.name, span.parent and f"{span.parent.span_id:016x}") == ("send T", SPAN)
        assert f"{span.context.trace_id:032x}" == TRACE
        assert [f"{link.context.span_id:016x}" for link in span.links] == ["2" * 16]
        common = {
            "messaging.system": "rocketmq",
            "messaging.destination.name": "T",
            "messaging.rocketmq.namespace": "",
        }
        common |= {"server.address": "node1", "server.port": 8081, "messaging.client.id": "t1"}
        of_id = {"messaging.message.id": sent.system_properties.message_id}
        operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
        assert dict(span.attributes or {}) == {
            **common,
            **operation,
            **of_id,
            "messaging.rocketmq.message.type": "normal",
        }
        assert span.kind is SpanKind.SERVER and "secret" not in span.to_json()

        got = await traced.raw.receive()
        assert got.messages[0].system_properties.trace_context == STORY
        (span,) = traced.spans()
        assert (span.name, span.parent) == ("receive T", None)
        assert [f"{link.context.trace_id:032x}" for link in span.links] == ["1" * 32]
        common["messaging.consumer.group.name"] = "G"
        operation = {
            "messaging.operation.name": "receive",
            "messaging.operation.type": "receive",
            "messaging.batch.message_count": 1,
        }
        assert dict(span.attributes or {}) == {
            **common,
            **operation,
            "ledgermq.message.ids": (sent.system_properties.message_id,),
        }

        assert await traced.raw.ack(got.messages[0]) == pb.OK
        (span,) = traced.spans()
        assert span.name == "ack T" and span.status.status_code is StatusCode.UNSET
        assert dict(span.attributes or {}) == {
            **common,
            **of_id,
            "messaging.operation.name": "ack",
            "messaging.operation.type": "settle",
        }


@contract()
async def test_refusals_and_garbage(server: Backend) -> None:
    """A refusal is an error of the span, an empty poll is not; invalid trace contexts are ignored;
    invalid requests are answered as without tracing."""
    async with Traced(server) as traced:
        await traced.raw.send(message(topic="nowhere"))
        (span,) = traced.spans()
        assert (
            span.status.status_code is StatusCode.ERROR
            and (span.attributes or {})["error.type"] == "TOPIC_NOT_FOUND"
        )
        assert (await traced.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND
        (span,) = traced.spans()
        assert span.status.status_code is StatusCode.UNSET and "error.type" not in (
            span.attributes or {}
        )
        assert (span.attributes or {})["messaging.batch.message_count"] == 0
        await traced.raw.send(
            message(trace_context="no trace at all"),
            metadata=(*CLIENT_ID, ("traceparent", "nor this")),
        )
        (span,) = traced.spans()
        assert (span.parent, list(span.links)) == (None, [])
        assert (await traced.raw.unary("SendMessage", b"\xff\xff")).status.code != pb.OK
        assert traced.spans() == []


@contract()
async def test_every_name_is_one_of_the_conventions(server: Backend) -> None:
    """Sends of one and of several messages, receives, pulls, and the three ways to settle; our own
    names begin with `ledgermq`."""
    known = {
        text
        for module in (messaging_attributes, server_attributes, error_attributes)
        for text in vars(module).values()
        if isinstance(text, str)
    }
    async with Traced(server) as traced:
        await traced.raw.send(message(b"1"), message(b"2"), message(b"3"))
        got = await traced.raw.receive()
        assert await traced.raw.ack(got.messages[0]) == pb.OK
        await traced.raw.change(got.messages[1], 40)
        assert await traced.raw.forward(got.messages[2]) == pb.OK
        assert len((await pull(traced.raw, 0)).messages) == 3
        delayed = message(message_type=pb.DELAY, topic="nowhere")
        delayed.system_properties.delivery_timestamp.FromMilliseconds(77)
        await traced.raw.send(delayed)
        spans = traced.spans()
    found = {name for span in spans for name in span.attributes or {}}
    assert {name for name in found if not name.startswith("ledgermq.")} <= known
    operations = {
        (span.name, (span.attributes or {})["messaging.operation.type"]) for span in spans
    }
    assert operations == {
        ("send T", "send"), ("receive T", "receive"), ("ack T", "settle"), ("change_invisible_duration T", "settle"),
        ("dead_letter T", "settle"), ("pull T", "receive"), ("send nowhere", "send"),
    }  # fmt: skip
    counts = [(span.attributes or {}).get("messaging.batch.message_count") for span in spans]
    assert counts == [3, 3, None, None, None, 3, None]
    assert (spans[-1].attributes or {})["messaging.rocketmq.message.delivery_timestamp"] == 77


@contract()
async def test_a_context_in_a_user_property_is_a_link(server: Backend) -> None:
    """OpenTelemetry's instrumentations of clients put it there; the context of the contract's own
    field comes first."""
    async with Traced(server) as traced:
        sent, both = message(), message(trace_context=CALLER)
        for one in (sent, both):
            one.user_properties["traceparent"] = STORY
        await traced.raw.send(sent, both)
        got = await traced.raw.receive()
        assert [one.user_properties["traceparent"] for one in got.messages] == [STORY, STORY]
        for span in traced.spans():
            assert [f"{link.context.trace_id:032x}" for link in span.links] == ["1" * 32, TRACE]


def test_a_line_of_a_traced_call_names_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trace and its span; other lines do not, nor does any line once the spans are closed."""
    lines: list[str] = []
    monkeypatch.setattr(logs, "say", lines.append)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    former = structlog.get_config()
    logs.configure("info", "n1")
    try:
        spans = spans_of(Tracing(otlp_endpoint="http://127.0.0.1:9", sample_ratio=0), "n1", ADDRESS)
        assert spans is not None
        log = structlog.get_logger()
        log.info("before")
        with spans._tracer.start_as_current_span("call") as span:
            log.info("during")
            spans.close()
            log.info("after the close")
    finally:
        structlog.configure(**former)
    before, during, after = map(json.loads, lines)
    own = span.get_span_context()
    assert (during["trace_id"], during["span_id"]) == (
        f"{own.trace_id:032x}",
        f"{own.span_id:016x}",
    )
    assert "trace_id" not in before and "trace_id" not in after


def test_off_by_default_and_never_half_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint no package is touched; with one and without the packages the node says
    what to do; endpoints are checked."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert spans_of(Tracing(), "n1", ADDRESS) is None
    with pytest.raises(ConfigError, match="not installed"):
        spans_of(Tracing(otlp_endpoint="http://127.0.0.1:4317"), "n1", ADDRESS)
    for endpoint in ("127.0.0.1:4317", "http://", "http://a b"):
        with pytest.raises(ValidationError):
            Tracing(otlp_endpoint=endpoint)


def test_a_node_stops_beside_a_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many spans are left, and however long one request may take."""
    monkeypatch.setattr(tracing, "EXPORT_TIMEOUT_S", 3600)
    monkeypatch.setattr(tracing, "CLOSE_WITHIN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        spans = spans_of(
            Tracing(otlp_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"), "n1", ADDRESS
        )
        assert spans is not None
        for _ in range(2000):
            spans._tracer.start_span("call").end()
        spans.close()


def test_a_node_with_an_endpoint_stops_without_its_collector() -> None:
    """The endpoint does not answer: the stop of the node waits at most for the timeout of one
    export."""
    spans = spans_of(Tracing(otlp_endpoint="http://127.0.0.1:9"), "n1", ADDRESS)
    assert spans is not None
    spans.close()
