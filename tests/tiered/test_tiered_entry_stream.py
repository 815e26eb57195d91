"""The stream of a replica's entries with option `store`, without Spark: each entry once, whenever
its file moves to the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from ledgermq.audit.spark.running_source import EntryStreamReader
from ledgermq.audit.spark.source import LedgermqSource
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered import begins
from ledgermq.storage.tiered.begins import begin_key, snapshot_key
from tests.audit.client_cases import write_clients
from tests.audit.running_nodes import FakeCluster
from tests.tiered.stored_objects import URL
from tests.tiered.test_tiered_clients import FILES, Case


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(write_clients(tmp_path))


def stream_of(cluster: FakeCluster, **options: str) -> EntryStreamReader:
    made = LedgermqSource(
        {"endpoints": cluster.nodes["n1"].address, "view": "entries", "replicas": "n2", **options}
    )
    reader = made.streamReader(made.schema())
    assert isinstance(reader, EntryStreamReader)
    return reader


def batch(reader: EntryStreamReader, start: int, end: int) -> list[dict[str, Any]]:
    """The rows of a batch, without where they were read."""
    rows = [
        row
        for part in reader.partitions({"index": start}, {"index": end})
        for rows in reader.read(part)
        for row in rows.to_pylist()
    ]
    return [
        {name: value for name, value in row.items() if name not in ("replica", "file")}
        for row in rows
    ]


def test_each_entry_once_while_files_move_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches before the move, after it, and across the begin of the disk; each is the same when it
    is computed again from the store."""
    clients = write_clients(tmp_path)
    cluster = FakeCluster.of(clients.writers, last := len(clients.writers[0].entries) - 1)
    node = cluster.nodes["n2"]
    with cluster.serving():
        before = batch(stream_of(cluster), 0, last + 1)
        assert [row["index"] for row in before] == list(range(last + 1))
        case = Case(clients)
        node.begin = case.files[FILES].first
        case.access(monkeypatch)
        reader, seen, at = stream_of(cluster, store=URL), before[:5], 5
        assert reader.initialOffset() == {"index": 0}
        while (end := reader.latestOffset({"index": at}, ReadMaxRows(40))["index"]) != at:
            found = batch(reader, at, end)
            assert found == before[at:end] == batch(stream_of(cluster, store=URL), at, end)
            seen, at = seen + found, end
        assert seen == before
        assert batch(reader, node.begin - 2, node.begin) == before[node.begin - 2 : node.begin]
        assert batch(reader, node.begin, node.begin + 2) == before[node.begin : node.begin + 2]


def test_entries_without_store_or_in_its_gap_are_an_error(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store, before its begin, and where it has a gap: a stream never leaves entries out
    silently."""
    cluster = FakeCluster.of(case.clients.writers, len(case.clients.writers[0].entries) - 1)
    cluster.nodes["n2"].begin = begin = case.files[FILES].first
    with cluster.serving():
        with pytest.raises(
            ValueError, match=f"entries 3 to {begin - 1} of n2 were trimmed before they were read"
        ):
            batch(stream_of(cluster), 3, 9)
        assert stream_of(cluster).initialOffset() == {"index": begin}
        second = case.files[1]
        case.store.objects[begin_key(case.where, second.base)] = begins.encode(
            Begin(second.first, second.base, second.term, second.chain)
        )
        case.store.objects[snapshot_key(case.where, second.first)] = b"?"
        case.access(monkeypatch)
        reader = stream_of(cluster, store=URL)
        assert reader.initialOffset() == {"index": second.first}
        with pytest.raises(
            ValueError,
            match=(
                f"entries 3 to {second.first - 1} of the object store were trimmed before they were"
                " read"
            ),
        ):
            batch(reader, 3, 9)
        del case.store.objects[
            next(key for key in case.store.keys(".json") if f"{second.base:020d}" in key)
        ]
        case.access(monkeypatch)
        with pytest.raises(ValueError, match="are missing; see: ledgermq audit --store"):
            batch(stream_of(cluster, store=URL), second.first, second.first + 4)


def test_a_topic_is_streamed_through_the_nodes() -> None:
    """They read the store; the option would do nothing."""
    made = LedgermqSource({"endpoints": "127.0.0.1:1", "topic": "t", "store": URL})
    for reading in (made.reader, made.streamReader):
        with pytest.raises(
            ValueError,
            match=(
                "option store: a topic of a running cluster is read through its nodes, which read"
                " the store"
            ),
        ):
            reading(made.schema())
