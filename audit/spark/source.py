"""The Spark data source `ledgermq`: node directories as tables, one partition per log file, read by the auditor's own decoder.

    spark.read.format("ledgermq").option("view", "entries").load("ledgermq-data/n1")

Views:

* `entries`: one row per entry, with its checks (`intact`: both CRCs agree).
* `segments`: one row per log file, everything verified inside `read()`, so that only small columns cross; `report` is the scan as JSON.

Option `dirs`: several node directories as a JSON list, instead of the path of `load`. With the option `endpoints` the source is a topic of
a running cluster instead (`cluster_source.py`, `cluster_sink.py`), to be read, streamed and written. Nothing here judges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from ledgermq.audit.checks.replica import find_replicas
from ledgermq.audit.checks.scan import Scan
from ledgermq.audit.jobs import adopt
from ledgermq.audit.reading.columns import Columns
from ledgermq.audit.spark.cluster_sink import ClusterStreamWriter, ClusterWriter
from ledgermq.audit.spark.cluster_source import ClusterReader, ClusterStreamReader, message_schema
from ledgermq.audit.works import Outcome, Work, look

ENTRIES = pa.schema(
    [
        ("replica", pa.string()),
        ("group", pa.string()),
        ("file", pa.string()),
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("pos", pa.int64()),
        ("size", pa.int32()),
        ("channel", pa.int32()),
        ("chain_crc", pa.int64()),
        ("body_crc", pa.int64()),
        ("intact", pa.bool_()),
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("queue_offset", pa.int64()),
        ("tags_code", pa.int64()),
        ("store_ms", pa.int64()),
    ]
)
SEGMENTS = pa.schema(
    [
        ("directory", pa.string()),
        ("replica", pa.string()),
        ("group", pa.string()),
        ("kind", pa.string()),
        ("file", pa.string()),
        ("base", pa.int64()),
        ("bytes", pa.int64()),
        ("entries", pa.int64()),
        ("first_index", pa.int64()),
        ("last_index", pa.int64()),
        ("last_term", pa.int64()),
        ("last_chain_crc", pa.int64()),
        ("flaws", pa.int32()),
        ("report", pa.string()),
    ]
)
VIEWS = {"entries": ENTRIES, "segments": SEGMENTS}
_DDL = {pa.string(): "string", pa.int64(): "bigint", pa.int32(): "int", pa.bool_(): "boolean"}


@dataclass
class WorkPartition(InputPartition):  # type: ignore[misc]
    """One log file, or the derived files of one replica."""

    work: str


class LedgermqSource(DataSource):  # type: ignore[misc]
    """Node directories as tables."""

    @classmethod
    def name(cls) -> str:
        return "ledgermq"

    def schema(self) -> str:
        if "endpoints" in self.options:
            return message_schema(self.options)
        return ", ".join(f"`{field.name}` {_DDL[field.type]}" for field in VIEWS[self._view()])

    def reader(self, schema: Any) -> DataSourceReader:
        if "endpoints" in self.options:
            return ClusterReader(schema, self.options)
        return LedgermqReader(self._view(), self._works())

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        self._need_cluster()
        return ClusterStreamReader(schema, self.options)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        self._need_cluster()
        return ClusterWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        self._need_cluster()
        # Spark says overwrite for the output mode complete only.
        return ClusterStreamWriter(schema, self.options, overwrite)

    def _need_cluster(self) -> None:
        if "endpoints" not in self.options:
            raise ValueError("streams and writes need a running cluster: give option endpoints")

    def _view(self) -> str:
        view = str(self.options.get("view", "entries"))
        if view not in VIEWS:
            raise ValueError(f"there is no view {view!r}; use one of {', '.join(VIEWS)}")
        return view

    def _works(self) -> list[Work]:
        if "works" in self.options:
            return [Work.from_json(text) for text in json.loads(self.options["works"])]
        directories = json.loads(self.options["dirs"]) if "dirs" in self.options else [self.options["path"]]
        replicas = [replica for directory in directories for replica in find_replicas(directory)]
        adopt(replicas)
        return [Work(one.directory, task) for one in replicas for task in one.tasks()]


class LedgermqReader(DataSourceReader):  # type: ignore[misc]
    """Reads one view; runs in Spark's Python workers."""

    def __init__(self, view: str, works: list[Work]) -> None:
        self._view = view
        self._partitions = [work.to_json() for work in works]

    def partitions(self) -> list[WorkPartition]:
        return [WorkPartition(work) for work in self._partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one empty partition of its own out of an empty list.
        if not isinstance(partition, WorkPartition):
            return
        work = Work.from_json(partition.work)
        if self._view == "entries":
            for columns in Scan(work.task).columns():
                yield entry_batch(work, columns)
        else:
            yield segment_batch(work, look(work))


def entry_batch(work: Work, columns: Columns) -> pa.RecordBatch:
    """One piece of a log file as Arrow columns."""
    count, task = len(columns), work.task
    unsound = ~columns.sound
    names = pa.array([topic.decode("utf-8", "replace") for topic in columns.topics], pa.string())
    values = {
        "replica": pa.array([task.replica] * count),
        "group": pa.array([task.group] * count),
        "file": pa.array([task.shown] * count),
        "index": pa.array(columns.index),
        "term": pa.array(columns.term),
        "pos": pa.array(task.base + columns.offset),
        "size": pa.array(columns.size.astype(np.int32)),
        "channel": pa.array(columns.channel.astype(np.int32)),
        "chain_crc": pa.array(columns.chain),
        "body_crc": pa.array(columns.body_crc),
        "intact": pa.array(columns.intact),
        "topic": names.take(pa.array(columns.topic_of, mask=unsound)),
        "queue": pa.array(columns.queue.astype(np.int32), mask=unsound),
        "queue_offset": pa.array(columns.queue_offset, mask=unsound),
        "tags_code": pa.array(columns.tags_code, mask=unsound),
        "store_ms": pa.array(columns.store_ms),
    }
    return pa.RecordBatch.from_arrays([values[name] for name in ENTRIES.names], schema=ENTRIES)


def segment_batch(work: Work, outcome: Outcome) -> pa.RecordBatch:
    """One log file, verified, as one row; for the derived files of a replica a row without a file."""
    report, task = outcome.log, work.task
    row: dict[str, object] = {"directory": work.directory, "replica": task.replica, "group": task.group, "kind": work.kind}
    row |= {"base": task.base, "report": outcome.to_json()}
    if report is not None:
        row |= {"file": report.file, "bytes": report.length, "entries": report.entries, "flaws": len(report.flaws)}
    if report is not None and report.entries:
        row |= {"first_index": report.first_index, "last_index": report.last_index, "last_term": report.last_term}
        row["last_chain_crc"] = report.last_chain
    return pa.RecordBatch.from_pylist([row], schema=SEGMENTS)
