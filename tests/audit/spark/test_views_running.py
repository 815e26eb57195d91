"""Views and the stream over nodes that run, without Spark: what they show is what the directories
hold, up to the marker or the offset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ledgermq.audit.spark.running_source import EntryStreamReader
from ledgermq.audit.spark.source import LedgermqSource, RunningReader
from tests.audit.damage_cases import history, write_cluster
from tests.audit.running_nodes import FakeCluster

MARKER = 70


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster.of(write_cluster(tmp_path, history(9, 80)), MARKER)


def source(cluster: FakeCluster, view: str = "entries", **options: str) -> LedgermqSource:
    return LedgermqSource({"endpoints": cluster.nodes["n1"].address, "view": view, **options})


def rows_of(cluster: FakeCluster, view: str = "entries", **options: str) -> list[dict[str, Any]]:
    made = source(cluster, view, **options)
    reader = made.reader(made.schema())
    assert isinstance(reader, RunningReader)
    return [
        row
        for share in reader.partitions()
        for batch in reader.read(share)
        for row in batch.to_pylist()
    ]


def on_disk(
    cluster: FakeCluster, node: str, view: str = "entries", **options: str
) -> list[dict[str, Any]]:
    made = LedgermqSource({"path": str(cluster.nodes[node].directory), "view": view, **options})
    reader = made.reader(made.schema())
    return [
        row
        for share in reader.partitions()
        for batch in reader.read(share)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("view", ["entries", "records", "index", "consumequeue", "state"])
def test_tables_end_at_the_marker(cluster: FakeCluster, view: str) -> None:
    """All replicas, each as its directory has it up to the marker, and nothing behind."""
    end = cluster.nodes["n1"].writer.entries[MARKER + 1].pos
    with cluster.serving():
        rows = rows_of(cluster, view)
        expected = [
            row
            for node in cluster.nodes
            for row in on_disk(cluster, node, view)
            if row.get("pos", 0) < end
        ]
        expected = [row for row in expected if row.get("index") is None or row["index"] <= MARKER]
    assert rows == expected != []


def test_a_replica_that_cannot_be_asked_is_not_left_out_silently(cluster: FakeCluster) -> None:
    """An error that names it; the others can be had by name."""
    cluster.nodes["n2"].up = False
    with cluster.serving():
        with pytest.raises(ValueError, match="replica n2 of g1"):
            rows_of(cluster)
        assert {row["replica"] for row in rows_of(cluster, replicas="n1,n3")} == {"n1", "n3"}


def stream_of(cluster: FakeCluster, **options: str) -> EntryStreamReader:
    made = source(cluster, **{"replicas": "n2", **options})
    reader = made.streamReader(made.schema())
    assert isinstance(reader, EntryStreamReader)
    return reader


def batch(
    reader: EntryStreamReader, start: dict[str, int], end: dict[str, int]
) -> list[dict[str, Any]]:
    return [
        row
        for part in reader.partitions(start, end)
        for rows in reader.read(part)
        for row in rows.to_pylist()
    ]


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_stream_gives_every_entry_once(cluster: FakeCluster, most: int) -> None:
    """Batch after batch, while the log grows; each is the same when it is computed again, by
    another process, later."""
    node = cluster.nodes["n2"]
    whole = on_disk(cluster, "n2")
    seen: list[dict[str, Any]] = []
    with cluster.serving():
        reader = stream_of(cluster)
        offset = reader.initialOffset()
        planned = []
        for node.applied in (10, 10, 60, len(whole) - 1):
            while (end := reader.latestOffset(offset, ReadMaxRows(most))) != offset:
                planned.append((offset, end))
                if most > 1 or len(planned) % 9 == 0:
                    assert batch(reader, offset, end) == whole[offset["index"] : end["index"]]
                seen += whole[offset["index"] : end["index"]]
                offset = end
        assert seen == whole and offset == {"index": len(whole)}
        first = planned[len(planned) // 2]
        assert batch(stream_of(cluster), *first) == whole[first[0]["index"] : first[1]["index"]]
        assert reader.partitions(offset, offset) == []


def test_a_stream_begins_and_stops_where_it_is_told(cluster: FakeCluster) -> None:
    """It starts at the given index; with a trigger for available data, it stops at the current
    end."""
    with cluster.serving():
        reader = stream_of(cluster, from_index="20", to_index="50")
        assert reader.initialOffset() == {"index": 20}
        assert reader.latestOffset({"index": 20}, ReadAllAvailable()) == {"index": 51}
        reader = stream_of(cluster)
        cluster.nodes["n2"].applied = 30
        reader.prepareForTriggerAvailableNow()
        cluster.nodes["n2"].applied = 40
        assert reader.latestOffset({"index": 0}, ReadAllAvailable()) == {"index": 31}


def test_wrong_streams_are_one_sentence(cluster: FakeCluster) -> None:
    """No replica, an unknown one, one that does not run, another view."""
    with cluster.serving():
        made = source(cluster)
        with pytest.raises(ValueError, match="a stream reads one replica"):
            made.streamReader(made.schema())
        with pytest.raises(
            ValueError, match="name one replica of the cluster; nodes are n1, n2, n3"
        ):
            stream_of(cluster, replicas="n9").initialOffset()
        cluster.nodes["n2"].state = "repairing"
        with pytest.raises(ValueError, match="is repairing: entry 5 is damaged"):
            stream_of(cluster).initialOffset()
        made = source(cluster, "state", replicas="n2")
        with pytest.raises(ValueError, match="view state cannot be streamed"):
            made.streamReader(made.schema())
