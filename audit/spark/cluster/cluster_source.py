"""Topics of a running cluster as Spark tables and streams: one partition per range of a queue, read
from the queue's leader.

    spark.read.format("ledgermq").option("endpoints", "127.0.0.1:8081").option("topic",
    "flights").load()

The driver fixes the ranges before any task runs, and a stream's checkpoint holds them, so a retried
task reads the same messages. Nothing here judges; messages are read by the client library, not by
the auditor's decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ledgermq.audit.spark.cluster.cluster_options import (
    Places,
    Target,
    bounds,
    count_of,
    flag_of,
    offsets_at,
    option,
    places_of,
    queues_of,
    target_of,
)
from ledgermq.client.native.consumers.positions import Place, Start
from ledgermq.client.native.consumers.received import Batch
from ledgermq.proto.entries.compression import Expansion

COLUMNS = {
    "topic": "string",
    "broker_group": "string",
    "queue": "int",
    "offset": "bigint",
    "index": "bigint",
    "store_time": "timestamp",
    "born_time": "timestamp",
    "message_id": "string",
    "tag": "string",
    "keys": "array<string>",
    "properties": "map<string,string>",
    "body": "binary",
}


def message_schema(options: Mapping[str, str]) -> str:
    """The columns of the view `messages`: all of them, or those in option columns."""
    wanted = [name.strip() for name in option(options, "columns", ",".join(COLUMNS)).split(",")]
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown:
        raise ValueError(
            f"option columns: there is no column {unknown[0]!r}; use some of {', '.join(COLUMNS)}"
        )
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in wanted)


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    """Messages `first` … `end`−1 of one queue."""

    broker_group: str
    queue: int
    first: int
    end: int


def split(
    begins: Mapping[Place, int], ends: Mapping[Place, int], most: int | None
) -> list[RangePartition]:
    """The ranges between two places, at most `most` messages each. A new queue starts with its
    first message."""
    parts = []
    for queue in sorted(ends, key=lambda queue: (queue.broker_group, queue.queue)):
        first, end = begins.get(queue, 0), ends[queue]
        step = most or max(1, end - first)
        parts += [
            RangePartition(queue.broker_group, queue.queue, at, min(at + step, end))
            for at in range(first, end, step)
        ]
    return parts


class _Reading:
    """The common part of tables and streams: reading one range. Sent to Spark's workers."""

    def __init__(self, schema: Any, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._target = target_of(options)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._fail_on_loss = flag_of(options, "failOnDataLoss", True)
        self._most = count_of(options, "maxMessagesPerPartition")
        self._expansion = Expansion(ratio=count_of(options, "expansionMax"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For an empty list Spark makes an empty partition of its own.
        if not isinstance(partition, RangePartition):
            return
        place = Place(partition.broker_group, partition.queue)
        target = self._target
        with target.connect() as connection:
            parts = connection.read_range(
                target.topic,
                target.namespace,
                place,
                partition.first,
                partition.end,
                group=target.consumer_group,
                fail_on_loss=self._fail_on_loss,
                expansion=self._expansion,
            )
            for part in parts:
                yield message_batch(target, part, self._schema)


class ClusterReader(_Reading, DataSourceReader):  # type: ignore[misc]
    """A topic as a table."""

    def partitions(self) -> list[RangePartition]:
        with self._target.connect() as connection:
            return split(*bounds(connection, self._target, self._options), self._most)


class ClusterStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A topic as a stream. Spark keeps the offsets in its checkpoint."""

    _goal: dict[Place, int] | None = None
    """The end for a query that reads the existing messages and stops; None: it continues."""

    def initialOffset(self) -> Places:
        with self._target.connect() as connection:
            return places_of(bounds(connection, self._target, self._options)[0])

    def getDefaultReadLimit(self) -> ReadLimit:
        most = count_of(self._options, "maxMessagesPerTrigger")
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Places, limit: ReadLimit) -> Places:
        ends = self._ends() if self._goal is None else self._goal
        refuse_ahead(queues_of(start), ends)
        return places_of(
            limited(
                queues_of(start), ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None
            )
        )

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._ends()

    def _ends(self) -> dict[Place, int]:
        with self._target.connect() as connection:
            located = connection.locate(self._target.topic, self._target.namespace)
            return offsets_at(connection, self._target, located, Start(earliest=False))

    def partitions(self, start: Places, end: Places) -> list[RangePartition]:
        return split(queues_of(start), queues_of(end), self._most)

    def commit(self, end: Places) -> None:
        """Nothing to do: a stream's offsets are only in the checkpoint."""


def refuse_ahead(begins: Mapping[Place, int], ends: Mapping[Place, int]) -> None:
    """Raises ValueError if a checkpoint is ahead of the log: new messages would get offsets of
    which it says that they were read."""
    for queue, end in sorted(ends.items()):
        if begins.get(queue, 0) > end:
            problem = (
                f"the checkpoint has read queue {queue.queue} of broker group {queue.broker_group}"
                f" up to offset {begins[queue]}"
            )
            why = (
                f"the log ends at {end}: the cluster was restored from an older state; begin a new"
                " checkpoint (docs/backup.md)"
            )
            raise ValueError(f"{problem}, and {why}")


def limited(
    begins: Mapping[Place, int], ends: Mapping[Place, int], most: int | None
) -> dict[Place, int]:
    """Ends that are at most `most` messages behind the begins, shared among the queues; never
    before the begins."""
    waiting = {queue: max(0, end - begins.get(queue, 0)) for queue, end in ends.items()}
    total = sum(waiting.values())
    if most is not None and total > most:
        shares = {queue: most * count // total for queue, count in waiting.items()}
        left = most - sum(shares.values())
        for queue in sorted(waiting, key=lambda queue: shares[queue] - waiting[queue])[:left]:
            shares[queue] += 1
        waiting = shares
    return {**begins, **{queue: begins.get(queue, 0) + count for queue, count in waiting.items()}}


def message_batch(target: Target, part: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """Messages as Arrow columns, those of the schema."""
    return pa.RecordBatch.from_arrays(
        [_column(target, part, field) for field in schema], schema=schema
    )


def _column(target: Target, part: Batch, field: Any) -> pa.Array:
    columns, name, kind = part.columns, field.name, field.type
    count = len(columns)
    if name == "body":
        data, offsets = columns.joined_bodies()
        return pa.BinaryArray.from_buffers(
            kind, count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        )
    if name in ("topic", "broker_group"):
        return pa.repeat(
            pa.scalar(target.topic if name == "topic" else part.broker_group, kind), count
        )
    if name in ("store_time", "born_time"):
        times = columns.store_ms if name == "store_time" else columns.born_ms
        return pa.array(times * 1000).cast(kind)
    if name == "properties":
        return pa.array([list(columns.fields(row).user.items()) for row in range(count)], kind)
    values: Any = {
        "queue": lambda: columns.queues,
        "offset": lambda: columns.queue_offsets,
        "index": lambda: columns.indexes,
        "message_id": columns.message_ids,
        "tag": columns.tags,
        "keys": columns.keys,
    }[name]()
    return pa.array(values, kind)
