"""What the benchmark of Spark over a store reads from Spark's event log, and that its store is one that the audit accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.stored_spark import fill, tasks_in
from ledgermq.audit.spark.source import LedgermqSource
from tests.tiered.fake_store import FakeStore
from tests.tiered.stored_objects import URL, serve


def event(stage: int, executor: str, launch: int, finish: int, ran: int) -> str:
    info = {"Launch Time": launch, "Finish Time": finish, "Executor ID": executor}
    return json.dumps({"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Info": info, "Task Metrics": {"Executor Run Time": ran}})


def test_work_is_told_from_what_scheduling_adds(tmp_path: Path) -> None:
    """Of the last stage with that number of tasks; the first query, which starts the workers, and other events do not count."""
    lines = [event(0, "0", 0, 90_000, 80_000), event(0, "1", 0, 90_000, 80_000), json.dumps({"Event": "SparkListenerJobEnd"})]
    lines += [event(1, "0", 100, 400, 200), event(1, "1", 100, 700, 500)]
    (tmp_path / "log").write_text("\n".join(lines))
    found = tasks_in(tmp_path / "log", 2)
    assert (found["tasks"], found["executors"], found["fewest_of_an_executor"]) == (2, 2, 1)
    assert (found["work_ms_per_task"], found["added_ms_per_task"], found["stage_s"], found["cores_in_use"]) == (350, 100, 0.6, 1.17)


def test_every_stored_file_of_every_group_is_a_task_of_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: tasks are files, each reads its file, and nothing in it is wrong."""
    store = FakeStore()
    filled = fill(store, tmp_path / "n1", files=2, groups=2, file_bytes=256 << 10)
    serve(monkeypatch, store)
    source = LedgermqSource({"view": "segments", "store": URL})
    reader = source.reader(source.schema())
    shares = reader.partitions()
    rows = [row for share in shares for batch in reader.read(share) for row in batch.to_pylist()]
    assert len(shares) == len(rows) == filled["tasks"] == 4
    assert {row["bytes"] for row in rows} == {256 << 10} and sum(row["entries"] for row in rows) == filled["entries"]
    assert [row["flaws"] for row in rows] == [0] * 4 and {row["kind"] for row in rows} == {"stored"}
