"""What the benchmark of Spark over a store reads from Spark's event log, and that its store is one
that the audit accepts."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.stored_spark import alter, fill, judged, limited, linked, tasks_in, why_unlimited
from ledgermq.audit.spark.source import LedgermqSource
from tests.tiered.fake_store import FakeStore
from tests.tiered.stored_objects import URL, serve


def event(stage: int, executor: str, launch: int, finish: int, ran: int) -> str:
    info = {"Launch Time": launch, "Finish Time": finish, "Executor ID": executor}
    return json.dumps(
        {
            "Event": "SparkListenerTaskEnd",
            "Stage ID": stage,
            "Task Info": info,
            "Task Metrics": {"Executor Run Time": ran},
        }
    )


def test_work_of_spark_is_separated_from_scheduling(tmp_path: Path) -> None:
    """Of the last stage with that number of tasks; the first query, which starts the workers, and
    other events do not count."""
    lines = [
        event(0, "0", 0, 90_000, 80_000),
        event(0, "1", 0, 90_000, 80_000),
        json.dumps({"Event": "SparkListenerJobEnd"}),
    ]
    lines += [event(1, "0", 100, 400, 200), event(1, "1", 100, 700, 500)]
    (tmp_path / "log").write_text("\n".join(lines))
    found = tasks_in(tmp_path / "log", 2)
    assert (found["tasks"], found["executors"], found["fewest_of_an_executor"]) == (2, 2, 1)
    assert (found["work_ms_per_task"], found["added_ms_per_task"], found["stage_s"]) == (
        350,
        100,
        0.6,
    )


def rows_of(monkeypatch: pytest.MonkeyPatch, store: FakeStore) -> list[dict[str, Any]]:
    """The table `segments` of the store: one row of each task."""
    serve(monkeypatch, store)
    source = LedgermqSource({"view": "segments", "store": URL})
    reader = source.reader(source.schema())
    found = [
        [row for batch in reader.read(share) for row in batch.to_pylist()]
        for share in reader.partitions()
    ]
    assert {len(rows) for rows in found} == {1}
    return [rows[0] for rows in found]


def test_every_stored_file_of_every_group_is_a_task_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: tasks are files, each reads its file and nothing in it is wrong; then one
    byte of one object changes, and that object is named. The groups after the first one upload no
    file."""
    store = FakeStore()

    def repeat(key: str, of: str) -> None:
        store.objects[key] = store.objects[of]

    filled = fill(store, tmp_path / "n1", 2, 3, 128 << 10, repeat)
    assert store.requests == {"put": 2 + 3, "put_parts": 2, "complete": 2}
    found = judged(rows_of(monkeypatch, store))
    assert found == {**filled, "bytes": 6 * (128 << 10), "wrong": []} and filled["tasks"] == 6
    [name] = [
        key
        for key in store.keys(".log")
        if key.startswith("g1/") and "/00000000000000131072-" in key
    ]
    data = store.objects[name]
    for at in (5, 60_000, len(data) - 1):
        store.objects[name] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert judged(rows_of(monkeypatch, store)) == {**found, "wrong": [name]}


def test_a_file_that_could_not_be_read_is_no_result() -> None:
    row = {"file": None, "report": json.dumps({"log": None, "lost": "the store did not answer"})}
    with pytest.raises(RuntimeError, match="the store did not answer"):
        judged([row])


def test_a_flaw_or_another_digest_is_wrong() -> None:
    row = {"bytes": 1, "entries": 1, "report": '{"log": {"sha256": "aa"}}'}
    cases = (("0-aa", 0), ("1-bb", 0), ("2-aa", 1))
    assert judged([{**row, "file": f"{name}.log", "flaws": flaws} for name, flaws in cases])[
        "wrong"
    ] == ["1-bb.log", "2-aa.log"]


def test_objects_of_the_same_bytes_share_them_until_one_is_altered(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"abc")
    linked(tmp_path)("two", "one")
    linked(tmp_path)("three", "one")
    assert (tmp_path / "one").stat().st_nlink == 3
    alter(tmp_path / "two", 1, tmp_path / "copy")
    assert [(tmp_path / name).read_bytes() for name in ("one", "two", "three")] == [
        b"abc",
        b"acc",
        b"abc",
    ]
    assert not (tmp_path / "copy").exists()


def test_processes_end_with_the_group_that_limits_them(tmp_path: Path) -> None:
    """Where this machine cannot limit them, it says so: a benchmark tells the reason instead of a
    share."""
    reason = why_unlimited()
    if reason:
        assert "ledgermq-bench" in reason
        return
    with limited("test", 0.5) as group:
        command = [
            "sh",
            "-c",
            'echo $$ > "$0" && echo joined && exec sleep 60',
            str(group / "cgroup.procs"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "joined\n"
        assert (group / "cgroup.procs").read_text().split() == [str(process.pid)]
        limits = [group / name for name in ("cpu.cfs_quota_us", "cpu.max")]
        assert [limit.read_text().split()[0] for limit in limits if limit.exists()] == ["50000"]
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not group.exists()
