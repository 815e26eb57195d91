"""Structured Streaming over a topic while its files move to the store and go from the disks: every
row is delivered, and delivered once.

A batch stops before its first row. Meanwhile its messages, and those of the batches behind it,
leave all disks; only then it goes on. Then the query dies amid a batch, and is started again from
its checkpoint when only the store holds what it had planned to read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ledgermq.audit.spark.cluster.cluster_source import COLUMNS, ClusterStreamReader
from ledgermq.audit.spark.views.view import struct_of
from ledgermq.node.process.local import LocalCluster, free_ports
from tests.audit.spark_session import running_spark
from tests.cluster import create_topic, running, wait_for
from tests.e2e.command_line import CommandLine
from tests.tiered.s3_servers import program, serving, tiered_settings
from tests.tiered.test_tiered_cluster import (
    FILE_BYTES,
    RETENTION,
    bodies,
    nothing_waits,
    small_on_disk,
)

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1800)]

QUEUES, BATCH, FIRST, MORE = 2, 30, 90, 300
"""The first messages fit into the local limit, and the others push them out."""


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with running_spark() as spark:
        yield spark


def stopping(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function through which the rows of a partition go. Sent to Spark's workers."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        from pyspark import TaskContext

        here, number = Path(folder), TaskContext.get().getLocalProperty("streaming.sql.batchId")
        if (here / f"stop-{number}").exists():
            (here / f"at-{number}").touch()
            while not (here / f"go-{number}").exists():
                time.sleep(0.05)
        for batch in batches:
            yield batch
            if (here / f"fail-{number}").exists():
                raise RuntimeError("the query dies here")

    return rows


def gone_from_the_disks(cluster: LocalCluster, offset: int) -> bool:
    """Whether every queue begins above an offset on the disks, and at 0 in the store, which has
    everything that it should."""
    described = CommandLine.of(cluster).ok("topic", "describe", "t", "--json").json["queue_list"]
    begins = all(
        queue["stored_offset"] == 0 and queue["min_offset"] > offset for queue in described
    )
    return begins and nothing_waits(cluster) and small_on_disk(cluster)


@contextmanager
def stored_topic(tmp_path: Path) -> Iterator[LocalCluster]:
    """A node with little room for its log, a store, and a topic with the first messages."""
    home, port = tmp_path / "store", free_ports(1)[0].client_port
    home.mkdir()
    extra = {"retention": RETENTION, "tiered": {**tiered_settings(home, port), "retry_ms": "500ms"}}
    server = serving(program(home), home, port)
    with server, running(tmp_path, nodes=1, log_file_bytes=FILE_BYTES, extra=extra) as cluster:
        create_topic(cluster, "t", queues=QUEUES)
        CommandLine.of(cluster).send_lines("t", bodies(0, FIRST))
        yield cluster


def test_a_planned_batch_is_the_same_after_its_files_moved(tmp_path: Path) -> None:
    """The reader alone, as Spark calls it: batches that were planned, read, or half read before
    their files went, and after a restart."""
    with stored_topic(tmp_path) as cluster:

        def reader() -> Any:
            return ClusterStreamReader(
                struct_of(COLUMNS, ["queue", "offset", "body"]),
                {"endpoints": cluster.endpoints, "topic": "t"},
            )

        def rows(parts: Iterator[Any]) -> list[tuple[int, int, str]]:
            return [
                (row["queue"], row["offset"], row["body"].decode())
                for part in parts
                for row in part.to_pylist()
            ]

        def batch(of: Any, number: int) -> list[tuple[int, int, str]]:
            return [
                row
                for part in of.partitions(*planned[number : number + 2])
                for row in rows(of.read(part))
            ]

        first = reader()
        planned = [first.initialOffset()]
        for _ in range(FIRST // BATCH):
            planned.append(
                json.loads(json.dumps(first.latestOffset(planned[-1], ReadMaxRows(BATCH))))
            )
        read = batch(first, 0)
        halves = [first.read(part) for part in first.partitions(*planned[1:3])]
        begun = [rows(iter([next(half)])) for half in halves]
        CommandLine.of(cluster).send_lines("t", bodies(FIRST, MORE))
        wait_for(
            lambda: gone_from_the_disks(cluster, FIRST // QUEUES),
            180,
            "the files of the first messages gone from the disk",
        )
        second = [
            row for head, half in zip(begun, halves, strict=True) for row in head + rows(half)
        ]
        again = reader()
        assert (batch(again, 0), batch(again, 1)) == (read, second)
        planned.append(again.latestOffset(planned[-1], ReadAllAvailable()))
        found = read + second + batch(again, 2) + batch(again, 3)
        assert len(read) == len(second) == BATCH and len(set(found)) == len(found)
        assert sorted(body for _, _, body in found) == bodies(0, FIRST + MORE)


def test_each_row_once_while_the_files_move(session: Any, tmp_path: Path) -> None:
    """In Spark, with its checkpoint and its sink of files."""
    from pyspark.errors import StreamingQueryException

    with stored_topic(tmp_path) as cluster:
        cli = CommandLine.of(cluster)
        sunk, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"

        def query() -> Any:
            options = {
                "endpoints": cluster.endpoints,
                "topic": "t",
                "maxMessagesPerTrigger": str(BATCH),
            }
            stream = (
                session.readStream.format("ledgermq")
                .options(**options)
                .load()
                .select("queue", "offset", "body")
            )
            followed = stream.mapInArrow(stopping(str(tmp_path)), stream.schema)
            writer = (
                followed.writeStream.format("parquet")
                .option("path", str(sunk))
                .option("checkpointLocation", str(checkpoint))
            )
            return writer.trigger(availableNow=True).start()

        def found() -> Counter[tuple[int, int, str]]:
            return Counter(
                (row["queue"], row["offset"], bytes(row["body"]).decode())
                for row in session.read.parquet(str(sunk)).collect()
            )

        def committed() -> int:
            return sum(path.name.isdigit() for path in (checkpoint / "commits").iterdir())

        for name in ("stop-0", "fail-1"):
            (tmp_path / name).touch()
        running_query = query()
        wait_for(lambda: (tmp_path / "at-0").exists(), 300, "the first batch")
        cli.send_lines("t", bodies(FIRST, MORE))
        # With the offsets of the first batches in the checkpoint or under way, and none of their
        # rows read.
        wait_for(
            lambda: gone_from_the_disks(cluster, FIRST // QUEUES),
            180,
            "the files of the first messages gone from all disks",
        )
        (tmp_path / "go-0").touch()
        with pytest.raises(StreamingQueryException, match="the query dies here"):
            running_query.awaitTermination()
        assert committed() == 1 and found().total() == BATCH
        (tmp_path / "fail-1").unlink()
        # The batch that died is read again as planned, then what came since, across the begin of
        # the disks.
        query().awaitTermination()
        rows = found()
        assert set(rows.values()) == {1}
        assert sorted(body for _, _, body in rows) == bodies(0, FIRST + MORE)
        for number in range(QUEUES):
            offsets = sorted(offset for queue, offset, _ in rows if queue == number)
            assert offsets == list(range(len(offsets)))
        query().awaitTermination()
        assert found() == rows
