"""The page of the suite: every part is between its marks, every figure is compared with a limit,
failures are reported, and plots are reproducible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import limits
from bench.peers import common
from bench.streams import native_faults, native_page, native_plots

BARE = {
    **dict.fromkeys(limits.UNITS, 2.0),
    "sequential_write_mib_per_s": 900.0,
    "grpc_stream_mib_per_s": 600.0,
}
TIMES = {
    "p50_ms": 4.0,
    "p90_ms": 6.0,
    "p99_ms": 9.0,
    "p99.9_ms": 20.0,
    "p99.99_ms": 40.0,
    "max_ms": 41.0,
}
SUITE: dict[str, Any] = {
    "taken": "2026-11-21T00:00:00Z",
    "quick": True,
    "machine": {"load_average_before": [0.5]},
}


def row(**more: Any) -> dict[str, Any]:
    cost = {
        "leader_cpu_us_a_message": 1.5,
        "follower_cpu_us_a_message": 0.7,
        "client_cpu_us_a_message": 1.2,
    }
    cost |= {"leader_written_per_payload_byte": 4.0, "rss_anon_max_mib": 120.0}
    place = {
        "class": "durable",
        "replicas": 3,
        "body_bytes": 1024,
        "queues": 8,
        "batch": 100,
        "producers": 1,
        "part": 0.5,
    }
    return {
        **place,
        **cost,
        **TIMES,
        "messages_per_s": 153_600.0,
        "payload_mib_per_s": 150.0,
        "entry_bytes_a_message": 1208.0,
        **more,
    }


def read() -> dict[str, Any]:
    return {
        "messages_per_s": 2e6,
        "entries_mb_per_s": 1200.0,
        "leader_cpu_us_a_message": 0.1,
        "client_cpu_us_a_message": 0.2,
    }


def native() -> dict[str, Any]:
    backlog = {"messages": 1000, "page_cache": read(), "page_cache_bodies": read(), "disk": read()}
    return {
        "limits": BARE,
        "throughput": [row(), row(replicas=1, follower_cpu_us_a_message=None)],
        "ceiling": {"produce": row(server_cpu_us_a_message=1.0), "consume": read()},
        "one_at_a_time": row(batch=1),
        "latency": [row(), row(**{"class": "memory"})],
        "batches": [row(batch=1), row(batch=1000)],
        "producers": [row(), row(producers=2)],
        "queues": [row(queues=1), row(queues=1000, messages_per_s=140_000.0)],
        "readers": {
            "backlog_100": backlog,
            "backlog_10240": backlog,
            "tailing": {"half": {"arrived": row()}, "saturated": {"arrived": row()}},
            "beside_cold": {
                "rate": 1000,
                "alone": TIMES,
                "beside": TIMES,
                "p99_ratio": 1.1,
                "whole_reads": 2,
            },
        },
        "delay": {"with": row(), "without": row(), "delay_each_way_ms": 2.0, "rate_ratio": 0.95},
        "leader_kill": {
            "kills": 2,
            "rate": 10_000,
            "silence_s": {"median": 0.6, "all": [0.5, 0.7]},
            "messages": 80_000,
            **TIMES,
        },
        "failed": {"something": "its reason"},
    }


def suite() -> dict[str, Any]:
    ours = common.Row(
        "LedgerMQ, native",
        "v1",
        common.DURABLE,
        "words",
        "client",
        "frames",
        {**TIMES, "messages_per_s": 1e5},
        100,
    )
    other = common.Row(
        "other",
        "v1",
        common.MEMORY,
        "words",
        "client",
        "single",
        {**TIMES, "messages_per_s": 1e4},
        100,
    )
    peers = {
        "seconds": 10.0,
        "warm_up_s": 30.0,
        "rows": [ours.document(), other.document()],
        "skipped": {"third": "no tool"},
    }
    return {**SUITE, "native": native(), "peers": peers}


def page(directory: Path) -> Path:
    path = directory / "page.md"
    marks = [
        f"{mark.format(name)}"
        for name in ("limits", "native", "peers")
        for mark in native_page.MARKS
    ]
    path.write_text("before\n" + "\nold\n".join(marks) + "\nafter\n")
    return path


@pytest.mark.verify
def test_publishing_replaces_every_part_of_the_page(tmp_path: Path) -> None:
    path = page(tmp_path)
    native_page.publish(suite(), path, tmp_path / "plots")
    once = path.read_text()
    native_page.publish(suite(), path, tmp_path / "plots")
    assert path.read_text() == once
    for words in (
        "copy in memory",
        "Not measured: something: its reason",
        "50.0%",
        "third was skipped: no tool.",
        common.DURABLE,
        "0.91",
    ):
        assert words in once, words
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert {plot.name for plot in (tmp_path / "plots").iterdir()} == {
        "native-throughput.svg",
        "native-latency.svg",
        "peers.svg",
    }


def test_a_part_that_was_not_measured_stays(tmp_path: Path) -> None:
    path = page(tmp_path)
    native_page.publish({**SUITE, "peers": suite()["peers"]}, path, tmp_path / "plots")
    assert path.read_text().count("old") == 4
    assert "Throughput" not in path.read_text()


def test_a_page_without_the_place_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("nothing")
    with pytest.raises(ValueError, match="no place for limits"):
        native_page.publish(suite(), path, tmp_path / "plots")
    assert path.read_text() == "nothing"


def test_the_real_page_has_every_place() -> None:
    text = native_page.PAGE.read_text(encoding="utf-8")
    for name in native_page.parts(suite()):
        assert all(text.count(mark.format(name)) == 1 for mark in native_page.MARKS), name


@pytest.mark.verify
def test_plots_of_the_same_figures_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        native_plots.draw(suite(), tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def test_a_silence_is_the_longest_gap_that_began_in_time() -> None:
    second = 1_000_000_000
    times = [0, second, 2 * second, 5 * second, 6 * second]
    assert native_faults.silence(times, second, 6 * second) == 3
    assert native_faults.silence(times, 2 * second, 3 * second) == 3
    assert native_faults.silence([], second, 3 * second) == 2
