"""A real node that exports its metrics by OTLP: what arrives, and a stop beside a collector that
answers nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster import create_topic, http, log_events, running, wait_for
from tests.collector import Collector, Series, collecting, samples
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

MESSAGES = 7


def shown(page: str, name: str) -> dict[Series, float]:
    """The series of a family on `/metrics`."""
    families = text_string_to_metric_families(page)
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in families
        for one in family.samples
        if one.name == name
    }


def last(collector: Collector, name: str) -> dict[Series, float]:
    """The last value of each series of a family that arrived."""
    return {
        series: value
        for metric in collector.metrics()
        if metric.name == name
        for series, value, *_ in samples(metric)
    }


def counted(collector: Collector, name: str) -> dict[Series, list[float]] | None:
    """The values of all series of counters and histograms in the order of their arrival, once the
    family `name` has arrived twice."""
    values: dict[Series, list[float]] = {}
    for metric in collector.metrics():
        for series, value, *_ in samples(metric) if not metric.HasField("gauge") else ():
            values.setdefault(series, []).append(value)
    return (
        values
        if min(len(points) for series, points in values.items() if series[0] == name) > 1
        else None
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_node_exports_its_metrics_and_stops_beside_a_collector_that_hangs(
    tmp_path: Path, workers: int
) -> None:
    """Sends arrive as they are on `/metrics`, from each worker; no counter falls; the cluster stops
    with status 0 in its usual time."""
    with collecting() as collector:
        exported = {"metrics": {"otlp_endpoint": collector.endpoint, "otlp_interval_ms": 1000}}
        with running(
            tmp_path, nodes=1, workers=workers, groups=["g1", "g2"], extra=exported
        ) as cluster:
            node = next(iter(cluster.nodes))
            create_topic(cluster, "t")
            CommandLine.of(cluster).send_lines(
                "t", [f"line {number}" for number in range(MESSAGES)]
            )
            stored = "rocketmq_messages_in_total"
            wait_for(
                lambda: sum(last(collector, stored).values()) == MESSAGES or None,
                30,
                "the messages in the exported metrics",
            )
            assert last(collector, stored) == shown(http(cluster, node, "/metrics")[1], stored)
            values = wait_for(lambda: counted(collector, stored), 30, "a second export")
            assert {
                series: points for series, points in values.items() if points != sorted(points)
            } == {}
            collector.arrived.clear()
            collector.hangs = True
            assert collector.arrived.wait(30)
        assert not collector.released.is_set()
        assert [
            event for event in log_events(cluster, node) if "the stop is slow" in str(event)
        ] == []
