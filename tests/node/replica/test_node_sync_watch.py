"""What the watch of the syncs counts and when it speaks."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from ledgermq.node.broker.ports import SyncTicket
from ledgermq.node.replica.hosting import sync_watch
from ledgermq.node.replica.hosting.sync_watch import QUIET_S, SyncWatch
from ledgermq.node.runtime.metrics import REGISTRY
from ledgermq.storage.files.thresholds import SYNC_ALARM_S, SYNC_WARN_S

_names = count()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **fields: Any) -> None:
            lines.append({"event": event, **fields})

    monkeypatch.setattr(sync_watch, "log", Log())
    return lines


@pytest.fixture
def group() -> str:
    return f"watched-{next(_names)}"


def sample(name: str, group: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"broker_group": group, **labels})


def run(
    watch: SyncWatch, seconds: float, at_s: float = 1000.0, entries: int = 0, size: int = 0
) -> None:
    watch.ran(SyncTicket(1, lambda: None, entries, size), at_s - seconds, at_s)


def test_each_sync_is_counted_with_its_batch(group: str, said: list[dict[str, Any]]) -> None:
    """The latency of every sync, and entries and bytes of non-empty ones; fast syncs are not
    logged."""
    watch = SyncWatch(group)
    run(watch, 0.25 * SYNC_WARN_S, entries=3, size=700)
    run(watch, 0.25 * SYNC_WARN_S)
    assert sample("ledgermq_sync_seconds_count", group) == 2
    assert (
        sample("ledgermq_sync_batch_entries_count", group)
        == sample("ledgermq_sync_batch_bytes_count", group)
        == 1
    )
    assert (
        sample("ledgermq_sync_batch_entries_sum", group),
        sample("ledgermq_sync_batch_bytes_sum", group),
    ) == (3, 700)
    assert said == []


def test_slow_syncs_are_told_with_a_remedy(group: str, said: list[dict[str, Any]]) -> None:
    """Above each threshold a line of its own, with the figures and what to do."""
    watch = SyncWatch(group)
    run(watch, 1.2 * SYNC_WARN_S)
    run(watch, 2 * SYNC_ALARM_S)
    assert [
        (line["event"], line["severity"], line["took_ms"], line["threshold_ms"]) for line in said
    ] == [
        ("slow sync", "warning", 60, 50),
        ("slow sync", "alarm", 200, 100),
    ]
    assert all(line["group"] == group and "ledgermq doctor" in line["remedy"] for line in said)
    assert [
        sample("ledgermq_slow_syncs_total", group, severity=severity)
        for severity in ("warning", "alarm")
    ] == [1, 1]


def test_a_disk_that_stays_slow_is_told_once_a_minute(
    group: str, said: list[dict[str, Any]]
) -> None:
    """The lines in between are only counted, and the next line says how many they were."""
    watch = SyncWatch(group)
    for second in range(5):
        run(watch, 2 * SYNC_ALARM_S, 1000.0 + second)
    run(watch, 2 * SYNC_ALARM_S, 1000.0 + QUIET_S)
    assert [line["others_since_last_line"] for line in said] == [0, 4]
    assert sample("ledgermq_slow_syncs_total", group, severity="alarm") == 6
