"""The metrics of `/metrics`, sent to an OpenTelemetry collector by OTLP over gRPC. Off unless the
configuration names an endpoint.

At each interval the loop reads the metrics as for a scrape; a thread encodes them and waits for the
collector. Values are cumulative, so a failed export loses one point in time and nothing else: it is
not repeated, and the first failure of a request ends the export. At most one export is under way,
with one request of bounded size. The packages are optional: without an endpoint they are not
needed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from prometheus_client.core import Metric

from ledgermq import __version__
from ledgermq.node.process.telemetry.http import Health, StateCollector
from ledgermq.node.runtime import logs, metrics
from ledgermq.node.runtime.config_sections import Metrics
from ledgermq.node.runtime.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp

EXPORT_TIMEOUT_S = 10.0
"""How long an export waits for the answer to a request."""
POINTS_A_REQUEST = 500
"""Some 150 KiB: collectors refuse more than 4 MiB by default, and the thread holds the interpreter
for a few milliseconds at a time."""
LOG_EVERY_S = 600.0
"""Failed exports are logged at most once in this time."""
UNITS = (
    ("_bytes_per_second", "By/s"),
    ("_milliseconds", "ms"),
    ("_seconds", "s"),
    ("_bytes", "By"),
    ("_entries", "{entry}"),
)
"""The end of a name → the unit. Other names state none: a collector that writes Prometheus' names
would add `_ratio` for the unit 1."""

log = logs.get_logger()


def exporter_of(
    config: Metrics, node: str, collector: StateCollector, health: Health, labels: Mapping[str, str]
) -> MetricsExporter | None:
    """The exporter that the configuration asks for; None without an endpoint. `labels` are added to
    every series. Raises ConfigError."""
    if not config.otlp_endpoint:
        return None
    try:
        return MetricsExporter(config, node, collector, health, labels)
    except ImportError as error:
        what = "metrics.otlp_endpoint is set, but OpenTelemetry is not installed"
        raise ConfigError(
            what, "pip install 'ledgermq[otlp]', or leave the endpoint out"
        ) from error


class MetricsExporter:
    """Exports the metrics of one node, or of one worker of a node. `run` and `close` belong to the
    loop."""

    def __init__(
        self,
        config: Metrics,
        node: str,
        collector: StateCollector,
        health: Health,
        labels: Mapping[str, str],
    ) -> None:
        """Raises ImportError without OpenTelemetry, and ConfigError."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
            MetricsServiceStub,
        )

        self._collector = collector
        self._health = health
        self._interval_s = config.otlp_interval_ms / 1000
        self._headers = _headers()
        self._requests = Requests(
            {
                "service.name": "ledgermq",
                "service.instance.id": node,
                "service.version": __version__,
            },
            labels,
        )
        self._channel = _channel(config.otlp_endpoint)
        self._export = MetricsServiceStub(self._channel).Export  # type: ignore[no-untyped-call]  # the stubs of gRPC have no types
        self._closed = threading.Event()
        self._failures = Failures(config.otlp_endpoint, time.monotonic)

    async def run(self) -> None:
        """Export at each interval until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.export()

    async def export(self) -> None:
        """Read the metrics and send them. A failure is logged, never raised."""
        try:
            await self._collector.refresh(self._health)
            families = list(metrics.REGISTRY.collect())
            refused = await asyncio.to_thread(self._send, families, time.time_ns())
        except Exception as error:  # whatever it is, the next export is tried
            refused = _reason(error)
        if self._closed.is_set():
            return
        if refused is None:
            self._failures.succeeded()
        else:
            self._failures.failed(refused)

    def close(self) -> None:
        """End a running export; does not wait for it."""
        self._closed.set()
        self._channel.close()

    def _send(self, families: Iterable[Metric], now_ns: int) -> str | None:
        """In a thread. Returns why the collector did not take some of the points. Raises RpcError,
        and ValueError once the channel is closed."""
        rejected, reason = 0, ""
        for request in self._requests.of(families, self._collector.series(), now_ns):
            partial = self._export(
                request, timeout=EXPORT_TIMEOUT_S, metadata=self._headers
            ).partial_success
            rejected, reason = (
                rejected + partial.rejected_data_points,
                partial.error_message or reason,
            )
        return f"the collector rejected {rejected} points: {reason}" if rejected else None


class Failures:
    """Logs failed exports, the first one at once and then at most one line in `LOG_EVERY_S`, and
    the end of the failures."""

    def __init__(self, endpoint: str, now_s: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._now_s = now_s
        self._logged_s: float | None = None
        """When the last line was written; None while exports succeed."""
        self._count = 0

    def failed(self, reason: str) -> None:
        self._count += 1
        now_s = self._now_s()
        if self._logged_s is None or now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            log.warning(
                "metrics were not exported",
                endpoint=self._endpoint,
                reason=reason,
                failures=self._count,
            )

    def succeeded(self) -> None:
        if self._logged_s is not None:
            log.info("metrics are exported again", endpoint=self._endpoint, failures=self._count)
        self._logged_s, self._count = None, 0


class Requests:
    """Encodes metrics as requests of OTLP with at most `POINTS_A_REQUEST` points. Counters and
    histograms count from the start of the process."""

    def __init__(self, resource: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """`labels` are added to every point."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )
        from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
        from opentelemetry.proto.metrics.v1 import metrics_pb2

        self._otlp = metrics_pb2
        self._key_value, self._any_value = KeyValue, AnyValue
        self._labels = list(labels.items())
        self._empty = ExportMetricsServiceRequest()
        scope = self._empty.resource_metrics.add(
            resource={"attributes": self._attributes(resource.items())}
        ).scope_metrics.add()
        scope.scope.name, scope.scope.version = "ledgermq", __version__
        self._start_ns = time.time_ns()
        self._declared = {one.name: one for one in metrics.DECLARED}

    def of(
        self,
        families: Iterable[Metric],
        series: Iterable[tuple[Sequence[metrics.Declared], Sequence[str], Sequence[int]]],
        now_ns: int,
    ) -> Iterator[ExportMetricsServiceRequest]:
        """The requests, each made when it is asked for. `series`: metrics that share labels, with
        their values."""
        request = _Request(self._empty)
        for family in families:
            for declared, point in self._points(family, now_ns):
                if request.count == POINTS_A_REQUEST:
                    yield request.message
                    request = _Request(self._empty)
                request.points(self._otlp, declared).append(point)
        for together, values, numbers in series:
            if request.count + len(together) > POINTS_A_REQUEST:
                yield request.message
                request = _Request(self._empty)
            encoded = self._number(
                zip(together[0].labels, values, strict=True), now_ns
            ).SerializeToString()
            for declared, number in zip(together, numbers, strict=True):
                point = request.points(self._otlp, declared).add()
                point.MergeFromString(encoded)
                point.as_int = number
        yield request.message

    def _points(self, family: Metric, now_ns: int) -> Iterator[tuple[metrics.Declared, Any]]:
        if family.type == "histogram":
            declared = self._declared[family.name]
            for labels, buckets in _histograms(family):
                yield declared, self._histogram(labels, buckets, now_ns)
            return
        for sample in family.samples:
            point = self._number(sample.labels.items(), now_ns)
            point.as_double = sample.value
            yield self._declared[sample.name], point

    def _number(self, labels: Iterable[tuple[str, str]], now_ns: int) -> otlp.NumberDataPoint:
        return self._otlp.NumberDataPoint(
            attributes=self._attributes([*self._labels, *labels]),
            start_time_unix_nano=self._start_ns,
            time_unix_nano=now_ns,
        )

    def _histogram(
        self, labels: Mapping[str, str], values: Mapping[str, float], now_ns: int
    ) -> otlp.HistogramDataPoint:
        """`values`: by upper bound the number of observations up to it, and the sum under the key
        `""`."""
        bounds = [bound for bound in values if bound]
        totals = [int(values[bound]) for bound in bounds]
        return self._otlp.HistogramDataPoint(
            attributes=self._attributes([*self._labels, *labels.items()]),
            start_time_unix_nano=self._start_ns,
            time_unix_nano=now_ns,
            count=totals[-1],
            sum=values[""],
            explicit_bounds=[float(bound) for bound in bounds[:-1]],
            bucket_counts=[
                total - former for former, total in zip([0, *totals], totals, strict=False)
            ],
        )

    def _attributes(self, labels: Iterable[tuple[str, str]]) -> list[Any]:
        return [
            self._key_value(key=key, value=self._any_value(string_value=value))
            for key, value in labels
        ]


class _Request:
    """A request that is being filled. `count`: its points so far."""

    def __init__(self, empty: ExportMetricsServiceRequest) -> None:
        self.message = type(empty)()
        self.message.CopyFrom(empty)
        self.count = 0
        self._points: dict[str, Any] = {}

    def points(self, otlp: Any, declared: metrics.Declared) -> Any:
        """The points of a family, for one more."""
        self.count += 1
        found = self._points.get(declared.name)
        if found is None:
            metric = self.message.resource_metrics[0].scope_metrics[0].metrics.add()
            metric.name, metric.description, metric.unit = (
                declared.name,
                declared.help,
                unit_of(declared.name),
            )
            if declared.kind == "gauge":
                found = metric.gauge.data_points
            else:
                data = metric.sum if declared.kind == "counter" else metric.histogram
                data.aggregation_temporality = otlp.AGGREGATION_TEMPORALITY_CUMULATIVE
                if declared.kind == "counter":
                    metric.sum.is_monotonic = True
                found = data.data_points
            self._points[declared.name] = found
        return found


def unit_of(name: str) -> str:
    """The unit that the name of a metric ends in, as UCUM writes it; empty if the name states
    none."""
    return next(
        (unit for ending, unit in UNITS if name.removesuffix("_total").endswith(ending)), ""
    )


def _histograms(family: Metric) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """The histograms of a family: the labels, and the values as `Requests._histogram` takes
    them."""
    found: dict[tuple[str, ...], tuple[dict[str, str], dict[str, float]]] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", "")
        if not sample.name.endswith("_count"):
            found.setdefault(tuple(labels.values()), (labels, {}))[1][bound] = sample.value
    yield from found.values()


def _channel(endpoint: str) -> grpc.Channel:
    """Raises ConfigError if the certificate that the environment names cannot be read."""
    scheme, _, target = endpoint.partition("://")
    if scheme == "http":
        return grpc.insecure_channel(target)
    path = _environment("CERTIFICATE")
    try:
        roots = None
        if path:
            with open(path, "rb") as file:
                roots = file.read()
    except OSError as error:
        what = f"the certificate {path} of the collector cannot be read: {error.strerror}"
        raise ConfigError(
            what, "set OTEL_EXPORTER_OTLP_CERTIFICATE to a file with certificates in PEM"
        ) from error
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(roots))


def _headers() -> list[tuple[str, str]]:
    """The headers of every request, as collectors with access control need them."""
    from opentelemetry.util.re import parse_env_headers

    return list(parse_env_headers(_environment("HEADERS"), liberal=True).items())


def _environment(what: str) -> str:
    """A setting of OTLP from the environment, as all exporters of OpenTelemetry read it."""
    return (
        os.environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{what}")
        or os.environ.get(f"OTEL_EXPORTER_OTLP_{what}")
        or ""
    )


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
