"""Spark tables over a store and a node, without Spark: every entry once, a partition per stored
file, nothing silently left out."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

from ledgermq.audit.checks.scan import Scan, scan
from ledgermq.audit.reading import objects
from ledgermq.audit.reading.native import KERNEL
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.reading.trees import EntriesTree
from ledgermq.audit.run import works
from ledgermq.audit.spark.source import LedgermqSource, PushingReader, ViewReader
from tests.audit.both_scans import Counting, built
from tests.tiered.stored_objects import URL, Case, Stored, copied, serve
from tests.tiered.test_tiered_carrying import SIZE


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(tmp_path_factory.mktemp("stored"))


@pytest.fixture
def case(made: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(made, tmp_path, monkeypatch)
    serve(monkeypatch, case.store)
    return case


def reader_of(
    case: Case, view: str, filters: Any = (), local: bool = True, **options: str
) -> ViewReader:
    where = {"path": str(case.directory)} if local else {}
    source = LedgermqSource(
        {"view": view, "store": URL, "pushdown": "true" if filters else "false", **where, **options}
    )
    reader = source.reader(source.schema())
    assert isinstance(reader, ViewReader)
    if isinstance(reader, PushingReader):
        reader.pushFilters(filters)
    return reader


def rows_of(
    case: Case, view: str, filters: Any = (), local: bool = True, **options: str
) -> list[dict[str, Any]]:
    reader = reader_of(case, view, filters, local, **options)
    return [
        row
        for share in reader.partitions()
        for batch in reader.read(share)
        for row in batch.to_pylist()
    ]


def test_every_entry_is_there_once(case: Case) -> None:
    """From entry 0 to the last one of the node, in order; the store gives what the node no longer
    has, and all are intact."""
    rows = rows_of(case, "entries")
    assert [row["index"] for row in rows] == list(range(len(rows))) and all(
        row["intact"] for row in rows
    )
    there = [row["pos"] for row in rows if row["replica"] == "store"]
    assert (
        there
        and max(there) < case.begin
        and min(row["pos"] for row in rows if row["replica"] == "n1") == case.begin
    )


def test_every_message_is_there_once(case: Case) -> None:
    """Queue offsets from 0 without a gap, although the node begins later."""
    offsets = [row["offset"] for row in rows_of(case, "messages") if row["topic"] == "t"]
    assert offsets == list(range(len(offsets))) and len(offsets) > 40
    local = LedgermqSource({"view": "messages", "path": str(case.directory)})
    reader = local.reader(local.schema())
    first = next(
        row["offset"]
        for share in reader.partitions()
        for batch in reader.read(share)
        for row in batch.to_pylist()
    )
    assert 0 < first < len(offsets)


def test_the_store_alone_is_a_table_too(case: Case) -> None:
    rows = rows_of(case, "entries", local=False)
    assert [row["index"] for row in rows] == list(range(len(rows))) and {
        row["replica"] for row in rows
    } == {"store"}
    assert max(row["pos"] for row in rows) < case.end


def test_stored_files_are_partitions_planned_without_reads(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges of indexes and positions leave out files by their manifests, and of times where a
    replica's snapshot shows no time epoch."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a log file was read")

    monkeypatch.setattr(obstore, "get_range", refused)
    everything = reader_of(case, "entries", local=False).partitions()
    assert [share.task.base for share in everything] == list(range(0, case.end, SIZE))

    def plan(*filters: Any, **options: str) -> list[int]:
        return [
            share.task.base
            for share in reader_of(case, "entries", filters, False, **options).partitions()
        ]

    assert plan(GreaterThanOrEqual(("pos",), SIZE), LessThan(("pos",), 2 * SIZE)) == [SIZE]
    last_ms = max(file["last_store_ms"] for file in _manifests(case))
    last = next(file for file in _manifests(case) if file["base"] == SIZE)["last"]
    assert plan(from_index=str(last + 1)) == list(range(2 * SIZE, case.end, SIZE))
    assert plan(to_index=str(last)) == [0, SIZE]
    assert plan(from_ms=str(last_ms + 1)) == plan(to_ms=str(last_ms)) == plan()
    beside = reader_of(case, "entries", from_ms=str(last_ms + 1)).partitions()
    assert beside and not any(share.task.key for share in beside), "none in the store"
    assert plan(EqualTo(("replica",), "n1")) == []


@built
def test_the_work_of_python_for_a_stored_file_does_not_grow_with_its_entries(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the compiled scan, of a file in order: one call for each part that is fetched and each
    window, and nothing for an entry."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("Python went through the entries")

    monkeypatch.setattr(EntriesTree, "_grow", refused)
    monkeypatch.setattr(Scan, "_check", refused)
    counting = Counting(KERNEL)
    monkeypatch.setattr(works, "scan", partial(scan, kernel=counting))
    share = reader_of(case, "segments", local=False).partitions()[0]
    report = works.run_work(works.Work(share.directory, share.task, works.STORED)).log
    assert report is not None and report.root and report.entries > 10 and not report.flaws
    assert (counting.asked, counting.grown) == (1, 1)


def test_filters_do_not_choose_another_replica(case: Case) -> None:
    """With two replicas the table has the rows of one; a filter for the other one gives none,
    pushed or not."""
    other = case.directory.parent / "n2"
    case.directory.rename(other)

    shutil.copytree(other, case.directory, copy_function=copied)
    where = {"dirs": f'["{case.directory}", "{other}"]'}
    plain = rows_of(case, "entries", local=False, **where)
    assert [row["index"] for row in plain] == list(range(len(plain)))
    assert rows_of(case, "entries", [EqualTo(("replica",), "n7")], local=False, **where) == []


def test_partition_of_a_lacking_object_is_an_error(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = case.key(".json", SIZE)
    kept = case.store.objects.pop(manifest)
    serve(monkeypatch, case.store)
    with pytest.raises(
        ValueError, match=rf"files of g1/.* at positions \({SIZE}, {2 * SIZE}\) are missing"
    ):
        reader_of(case, "entries").partitions()
    case.store.objects[manifest] = kept[:-2]
    serve(monkeypatch, case.store)
    with pytest.raises(ValueError, match="is damaged"):
        reader_of(case, "entries").partitions()
    case.store.objects.clear()
    serve(monkeypatch, case.store)
    with pytest.raises(ValueError, match="holds no log"):
        reader_of(case, "entries").partitions()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "state", "store": URL}, "view state is not of the log"),
        (
            {"view": "entries", "path": "x", "storeEndpoint": "http://x"},
            "option storeEndpoint: it is for option store",
        ),
        (
            {"view": "messages", "endpoints": "x:1", "topic": "t", "store": URL},
            "read through its nodes",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], said: str) -> None:
    source = LedgermqSource(options)
    with pytest.raises(ValueError, match=said):
        source.reader(source.schema())


def test_keys_travel_with_the_tasks_and_are_not_shown(case: Case, tmp_path: Path) -> None:
    """Workers may have no credentials file; no text form of the reader tells the secret."""
    file = tmp_path / "keys"
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = hidden\n")
    reader = reader_of(case, "entries", storeCredentials=str(file))
    carried = pickle.loads(pickle.dumps(reader))._store  # noqa: S301
    assert dict(carried.keys)["secret_access_key"] == "hidden" and "hidden" not in repr(carried)


def test_access_crosses_into_processes_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret stays in its file."""
    for name in objects.ENVIRONMENT.values():
        monkeypatch.setenv(name, "")
    access = StoreAccess(
        "s3://b/p", "http://h:1", "eu", "/file", (("secret_access_key", "hidden"),)
    )
    access.announce()

    assert objects.access_of(os.environ) == StoreAccess("s3://b/p", "http://h:1", "eu", "/file")
    assert objects.access_of({}) is None


def _manifests(case: Case) -> list[Any]:

    return [
        json.loads(data)
        for key, data in case.store.objects.items()
        if key.endswith(".json") and "/0" in key
    ]
