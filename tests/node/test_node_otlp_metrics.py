"""The export of metrics by OTLP to a real receiver: everything that `/metrics` shows, and nothing
that a bad collector could cost."""

from __future__ import annotations

import asyncio
import builtins
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from ledgermq.node.broker.queries.backlog import Backlog
from ledgermq.node.broker.queries.traffic import HandedOut, Stored
from ledgermq.node.frontend.rocketmq.wire.meters import Meters
from ledgermq.node.process.telemetry import otlp_metrics
from ledgermq.node.process.telemetry.http import StateCollector
from ledgermq.node.process.telemetry.otlp_metrics import (
    LOG_EVERY_S,
    Failures,
    MetricsExporter,
    Requests,
    exporter_of,
    unit_of,
)
from ledgermq.node.process.telemetry.topic_figures import GroupFigures, TopicFigures
from ledgermq.node.runtime import metrics, mirrored
from ledgermq.node.runtime.config_sections import Metrics
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto.types import PeerProgress, ReplicaStatus, Role
from tests.call_counts import calls_of
from tests.collector import Collector, Series, collecting, samples

ENDPOINT = "http://127.0.0.1:9"
PLACEHOLDER = "otlp-test"
PAIR_CALLS = (38, 23)
"""Python calls for a further topic with a consumer group: of a page, and of an export."""


class State(StateCollector):
    """A collector whose numbers the test sets; a refresh reads nothing."""

    def __init__(self) -> None:
        engine: Any = SimpleNamespace(open_calls=3, groups=())
        self.meters = Meters()
        self.figures = TopicFigures("c", "n1", engine, lambda: 0, 100)
        super().__init__("n1", engine, lambda: {"n2": 5}, self.figures, self.meters.families)

    async def refresh(self, health: Any) -> None:
        pass


@pytest.fixture
def state() -> Iterator[State]:
    """A state in which every declared family has a series."""
    # Scrubs that other tests did not stop would report ages, which grow between two looks.
    metrics.UNVERIFIED_SECONDS.clear()
    state = State()
    follower = PeerProgress(
        "n2",
        Role.FOLLOWER,
        4,
        4,
        state="catching-up",
        behind_entries=5,
        behind_bytes=6,
        bytes_per_s=7,
        seconds_left=8,
    )
    labelled = {
        "restarted-from-compare": ":n2",
        "needs-snapshot": ":n2",
        "refused": "-term",
        "dropped": "-shape",
    }
    extra = {
        key + labelled.get(key, ""): number for number, key in enumerate(mirrored.STATISTICS, 1)
    }
    state.statuses = {
        "g1": ReplicaStatus(
            "g1", "n1", Role.LEADER, 3, "n1", 0, 9, 9, 8, 7, extra=extra, peers=(follower,)
        )
    }
    state.meters.of("SendMessage").count_code(20000, 0.002)
    out = HandedOut(11, 12, 13, 14)
    state.figures.groups = {
        "g1": GroupFigures(
            {"t": ("normal", Stored(9, 10))},
            {("g", "t"): out},
            {("g", "t"): Backlog(1, 2, 3, 4, 5)},
        )
    }
    metrics.REGISTRY.register(state)
    made = []
    for family in vars(metrics).values():
        names = getattr(family, "_labelnames", ())
        if names:
            values = [PLACEHOLDER] * len(names)
            child = family.labels(*values)
            getattr(child, "observe", getattr(child, "inc", None))(0.003)
            made.append((family, values))
    yield state
    metrics.REGISTRY.unregister(state)
    for family, values in made:
        family.remove(*values)


def exporter(state: State, endpoint: str, **labels: str) -> MetricsExporter:
    found = exporter_of(Metrics(otlp_endpoint=endpoint), "n1", state, None, labels)  # type: ignore[arg-type]
    assert found is not None
    return found


def export(state: State, collector: Collector, **labels: str) -> dict[Series, float]:
    """What one export sends."""
    collector.requests.clear()
    sent = exporter(state, collector.endpoint, **labels)
    asyncio.run(sent.export())
    sent.close()
    return {
        series: value for metric in collector.metrics() for series, value, *_ in samples(metric)
    }


def page(state: State) -> dict[Series, float]:
    """What `/metrics` shows."""
    found = {}
    for family in text_string_to_metric_families(state.page().decode()):
        for one in family.samples:
            bound = (
                {"le": str(float(one.labels["le"])).replace("inf", "+Inf")}
                if "le" in one.labels
                else {}
            )
            found[one.name, frozenset({**one.labels, **bound}.items())] = one.value
    return found


def test_otlp_export_has_every_family_and_series(state: State) -> None:
    """Every declared family with its type, help and unit, and every series with the value of the
    page."""
    with collecting() as collector:
        sent, shown = export(state, collector), page(state)
        assert sent.keys() == shown.keys()
        assert {
            series: value for series, value in sent.items() if not series[0].startswith("process_")
        } == {
            series: value for series, value in shown.items() if not series[0].startswith("process_")
        }
        arrived = {metric.name: metric for metric in collector.metrics()}
    kinds = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}
    assert {
        name: (metric.WhichOneof("data"), metric.description) for name, metric in arrived.items()
    } == {one.name: (kinds[one.kind], one.help) for one in metrics.DECLARED}
    assert all(metric.sum.is_monotonic for metric in arrived.values() if metric.HasField("sum"))
    units = {
        name: arrived[name].unit
        for name in ("ledgermq_sync_seconds", "ledgermq_disk_bytes", "rocketmq_messages_in_total")
    }
    assert units == {
        "ledgermq_sync_seconds": "s",
        "ledgermq_disk_bytes": "By",
        "rocketmq_messages_in_total": "",
    }
    resource = collector.requests[0].resource_metrics[0].resource
    assert {("service.name", "ledgermq"), ("service.instance.id", "n1")} <= {
        (a.key, a.value.string_value) for a in resource.attributes
    }


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("process_cpu_seconds_total", "s"),
        ("rocketmq_consumer_lag_latency_milliseconds", "ms"),
        ("ledgermq_follower_bytes_per_second", "By/s"),
        ("ledgermq_fetched_bytes_total", "By"),
        ("ledgermq_key_index_lag_entries", "{entry}"),
        ("ledgermq_role", ""),
    ],
)
def test_the_unit_is_the_end_of_the_name(name: str, unit: str) -> None:
    """Before `_total`; a name without a unit has none."""
    assert unit_of(name) == unit


def test_a_worker_adds_its_label(state: State) -> None:
    """As the page of a node with several workers does."""
    with collecting() as collector:
        sent = export(state, collector, worker="n1.2")
    assert sent.keys() == {(name, labels | {("worker", "n1.2")}) for name, labels in page(state)}


def test_requests_are_bounded_and_complete(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the bound, the same series arrive, none twice."""
    with collecting() as collector:
        whole = export(state, collector)
        monkeypatch.setattr(otlp_metrics, "POINTS_A_REQUEST", 7)
        parts = export(state, collector)
        assert len(collector.requests) > 10
        names = [
            (metric.name, series)
            for metric in collector.metrics()
            for series, *_ in samples(metric)
        ]
    assert parts.keys() == whole.keys() and len(set(names)) == len(names)
    scopes = [
        request.resource_metrics[0].scope_metrics[0].metrics for request in collector.requests
    ]
    sizes = [
        sum(len(getattr(metric, metric.WhichOneof("data")).data_points) for metric in scope)
        for scope in scopes
    ]
    assert min(sizes) >= 1 and max(sizes) == 7


def test_counters_never_fall_and_start_once(state: State) -> None:
    """All points of a series have one start, and each export is later."""
    with collecting() as collector:
        sent = exporter(state, collector.endpoint)
        ends = []
        for number in range(3):
            state.meters.of("SendMessage").count_code(20000, 0.002 * number)
            asyncio.run(sent.export())
            ends.append(len(collector.requests))
        sent.close()
        values: dict[Series, list[tuple[float, int, int]]] = {}
        for metric in collector.metrics():
            for series, *point in samples(metric):
                if not metric.HasField("gauge"):
                    values.setdefault(series, []).append(tuple(point))  # type: ignore[arg-type]
    assert ends == [ends[0], 2 * ends[0], 3 * ends[0]]
    for points in values.values():
        assert len(points) == 3 and points == sorted(points, key=lambda point: point[2])
        assert [point[0] for point in points] == sorted(point[0] for point in points)
        assert (
            len({point[1] for point in points}) == 1
            and points[0][1] <= points[0][2] < points[1][2] < points[2][2]
        )
    calls = next(points for (name, _), points in values.items() if name == "ledgermq_calls_total")
    assert [value for value, *_ in calls] == [2, 3, 4]


def test_a_collector_that_refuses_costs_a_line(state: State) -> None:
    """The first failure ends the export and is logged once; the end of the failures is logged
    too."""
    with collecting() as collector, capture_logs() as lines:
        sent = exporter(state, collector.endpoint)
        collector.refuses = grpc.StatusCode.RESOURCE_EXHAUSTED
        for _ in range(3):
            asyncio.run(sent.export())
        assert len(collector.requests) == 3
        collector.refuses = None
        asyncio.run(sent.export())
        collector.rejects = 4
        asyncio.run(sent.export())
        sent.close()
    refused, again, rejected = lines
    assert (refused["event"], refused["log_level"]) == ("metrics were not exported", "warning")
    assert refused["reason"] == "RESOURCE_EXHAUSTED: as the test wants it"
    assert (again["event"], again["failures"]) == ("metrics are exported again", 3)
    assert "rejected" in rejected["reason"] and rejected["reason"].endswith("points: too old")


def test_an_absent_collector_and_a_fault_of_the_reading_cost_a_line(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither raises, so that the next export is tried."""

    async def broken(_: object) -> None:
        raise KeyError("a statistic without a declaration")

    with capture_logs() as lines:
        sent = exporter(state, ENDPOINT)
        asyncio.run(sent.export())
        sent.close()
        sent = exporter(state, ENDPOINT)
        monkeypatch.setattr(state, "refresh", broken)
        asyncio.run(sent.export())
        sent.close()
    absent, fault = [line["reason"] for line in lines]
    assert absent.startswith("UNAVAILABLE: ") and fault.startswith("KeyError: ")


def test_failures_are_logged_now_and_then() -> None:
    """At once, and then once in `LOG_EVERY_S` with their number."""
    now = [0.0]
    failures = Failures(ENDPOINT, lambda: now[0])
    with capture_logs() as lines:
        for second in (0, 1, LOG_EVERY_S - 1, LOG_EVERY_S, LOG_EVERY_S + 1):
            now[0] = second
            failures.failed("gone")
        failures.succeeded()
        failures.succeeded()
        failures.failed("gone again")
    assert [line["failures"] for line in lines] == [1, 4, 5, 1]


def test_a_stop_does_not_wait_for_a_collector_that_hangs(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export has no deadline here, and would wait for ever; the loop works meanwhile, and
    nothing is logged."""
    monkeypatch.setattr(otlp_metrics, "EXPORT_TIMEOUT_S", None)

    async def stop(sent: MetricsExporter, collector: Collector) -> None:
        running = asyncio.create_task(sent.run())
        await asyncio.to_thread(collector.arrived.wait)
        running.cancel()
        sent.close()

    with collecting() as collector, capture_logs() as lines:
        collector.hangs = True
        sent = exporter(state, collector.endpoint)
        monkeypatch.setattr(sent, "_interval_s", 0.0)
        # Returns once the thread of the export has ended.
        asyncio.run(stop(sent, collector))
        assert not collector.released.is_set()
    assert lines == []


def test_headers_come_from_the_environment(
    state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As for every exporter of OpenTelemetry; a certificate that cannot be read is an error of the
    configuration."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret%20one,tenant=a")
    with collecting() as collector:
        export(state, collector)
        assert {"api-key": "secret one", "tenant": "a"}.items() <= collector.headers[0].items()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"none\.pem"):
        exporter(state, "https://127.0.0.1:9")
    (tmp_path / "none.pem").write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    exporter(state, "https://127.0.0.1:9").close()


def test_otlp_packages_are_needed_only_with_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint no package is touched; with one and without the packages the node says
    what to do."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert exporter_of(Metrics(), "n1", State(), None, {}) is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not installed"):
        exporter(State(), ENDPOINT)


def test_reading_cost_is_linear_in_topics_and_groups() -> None:
    """Python calls, not times, for the eleven series of a further topic with a consumer group: on
    the loop for a page, and in the thread of an export. Both grow with the number of series and
    with nothing else."""
    state = State()
    requests = Requests({"service.name": "ledgermq"}, {})

    def costs(pairs: int) -> tuple[int, int]:
        names = [f"t{number}" for number in range(pairs)]
        figures = GroupFigures(
            {name: ("normal", Stored(9, 10)) for name in names},
            {("g", name): HandedOut(11, 12, 13, 14) for name in names},
            {("g", name): Backlog(1, 2, 3, 4, 5) for name in names},
        )
        state.figures.groups = {"g1": figures}
        return calls_of(state.figures.page), calls_of(
            lambda: list(requests.of([], state.series(), 1))
        )

    few, more, many = costs(1), costs(2), costs(41)
    page, exported = more[0] - few[0], more[1] - few[1]
    assert (page, exported) == PAIR_CALLS
    assert many[0] - more[0] == 39 * page and many[1] - more[1] == 39 * exported
