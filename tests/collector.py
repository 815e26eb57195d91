"""An OpenTelemetry collector for tests: a real OTLP server over gRPC that keeps the metrics it is
sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

Series = tuple[str, frozenset[tuple[str, str]]]
"""A sample as Prometheus names it, and its labels."""


class Collector(MetricsServiceServicer):
    """Answers as it is told. `arrived` is set by each request; a collector that `hangs` answers no
    request before `released` is set."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.refuses: grpc.StatusCode | None = None
        self.rejects = 0
        self.hangs = False
        self.arrived, self.released = threading.Event(), threading.Event()
        self.endpoint = ""

    def Export(
        self, request: ExportMetricsServiceRequest, context: Any
    ) -> ExportMetricsServiceResponse:
        """The call of OTLP."""
        self.headers.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        self.arrived.set()
        if self.hangs:
            self.released.wait()
        if self.refuses is not None:
            context.abort(self.refuses, "as the test wants it")
        answer = ExportMetricsServiceResponse()
        if self.rejects:
            answer.partial_success.rejected_data_points, answer.partial_success.error_message = (
                self.rejects,
                "too old",
            )
        return answer

    def metrics(self) -> Iterator[Metric]:
        """All metrics in the order of their arrival."""
        for request in list(self.requests):
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    yield from scope.metrics


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free loopback port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        collector.released.set()
        server.stop(0).wait()


def samples(metric: Metric) -> Iterator[tuple[Series, float, int, int]]:
    """The points of a metric as Prometheus would show them: series, value, and the times of start
    and of the value."""
    kind = metric.WhichOneof("data")
    assert kind is not None, metric.name
    if kind != "gauge":
        assert getattr(metric, kind).aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    for point in getattr(metric, kind).data_points:
        labels = [(one.key, one.value.string_value) for one in point.attributes]
        assert len(set(labels)) == len(labels)
        times = point.start_time_unix_nano, point.time_unix_nano
        if kind != "histogram":
            value = float(
                point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            )
            yield (metric.name, frozenset(labels)), value, *times
            continue
        total = 0
        for bound, count in zip(
            [*map(float, point.explicit_bounds), float("inf")], point.bucket_counts, strict=True
        ):
            total += count
            le = "+Inf" if bound == float("inf") else str(bound)
            yield (f"{metric.name}_bucket", frozenset([*labels, ("le", le)])), float(total), *times
        assert total == point.count
        yield (f"{metric.name}_count", frozenset(labels)), float(point.count), *times
        yield (f"{metric.name}_sum", frozenset(labels)), point.sum, *times
