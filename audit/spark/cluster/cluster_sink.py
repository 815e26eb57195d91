"""Writing Spark data frames and streams to a topic of a running cluster, each row once even if
tasks are retried.

    frame.write.format("ledgermq").option("endpoints", "127.0.0.1:8081").option("topic",
    "flights").mode("append").save()

Every partition of a write has its own producer, whose name contains topic, write and partition; the
index of a row in its partition is its sequence number. A retried task opens the same name, learns
how many of its messages are stored and a digest of them, and continues behind them. A task whose
rows are others than the stored ones fails, because it would leave out as many rows as are stored
(docs/spark.md).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ledgermq.audit.spark.cluster.cluster_options import Target, option, target_of
from ledgermq.client.errors import Refused
from ledgermq.client.native.log_connection import BrokerGroupQueues
from ledgermq.client.native.once.numbered import Chunk
from ledgermq.proto.frames import Compression
from ledgermq.proto.status import Code

COLUMNS = ("body", "tag", "keys", "properties", "queue_key", "born_time")
CHUNK_BYTES = 256 << 10
CHUNK_ROWS = 4096
ROW_BYTES = 512
"""An upper bound of the bytes of a row besides its values."""
OTHER_ROWS = (
    "nothing was left out, and what earlier tries stored is still there. Spark splits files by the"
    " number of cores, and a topic by its queues with messages: repeat the write with the same"
    " number of cores and an unchanged source, or compare the topic with the source and write what"
    " is missing under another writeId, for a stream with a new checkpoint (docs/spark.md, Write)"
)
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""The properties in which Spark tells a task of a stream its query and its batch."""


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """The result of one partition: its messages, and how many of them an earlier try had stored."""

    messages: int
    duplicates: int


class _Writing:
    """The common part of tables and streams: storing one partition. Sent to Spark's workers; the
    broker groups are fixed for a whole write."""

    def __init__(self, schema: Any, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise ValueError("a topic cannot be overwritten; use mode append")
        names = [field.name for field in schema.fields]
        unknown = [name for name in names if name not in COLUMNS]
        if unknown or "body" not in names:
            problem = (
                f"column {unknown[0]!r} is not supported" if unknown else "column body is missing"
            )
            raise ValueError(f"{problem}; columns are {', '.join(COLUMNS)}")
        self._target = target_of(options)
        self._compression = _compression(option(options, "compression", "none"))
        with self._target.connect() as connection:
            located = connection.locate(self._target.topic, self._target.namespace).broker_groups
        self._groups = chosen(
            [group for group in located if group.queues], option(options, "brokerGroups")
        )

    def store(self, write_id: str, batches: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None, "tasks of Spark have a context"
        partition = context.partitionId()
        group = self._groups[partition % len(self._groups)]
        target = self._target
        name = producer_name(target, write_id, partition)
        place = group.name, target.topic, target.namespace, name
        with (
            target.connect() as connection,
            connection.writer(*place, self._compression) as producer,
        ):
            most = min(CHUNK_BYTES, producer.max_frame_bytes)
            try:
                messages = producer.write(chunks(batches, group, partition, most))
            except Refused as error:
                if error.code != Code.PRECONDITION_FAILED:
                    raise
                problem = (
                    f"partition {partition} of write {write_id!r} has other rows than at an earlier"
                    f" try ({error.what})"
                )
                raise RuntimeError(f"{problem}; {OTHER_ROWS}") from error
            return Written(messages, producer.duplicates)


def chosen(groups: list[BrokerGroupQueues], names: str) -> list[BrokerGroupQueues]:
    """The broker groups of a write: those named, in this order, otherwise all."""
    if not names:
        return groups
    known = {group.name: group for group in groups}
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(
            f"option brokerGroups names {unknown[0]!r}, where the topic has no queue; it has some"
            f" in {', '.join(known)}"
        )
    return [known[name] for name in wanted]


def producer_name(target: Target, write_id: str, partition: int) -> str:
    """All producers of a name in a broker group share one sequence, whatever topic they send to, so
    the name contains the topic."""
    return f"spark {target.stored_topic} {write_id} {partition}"


def _compression(text: str) -> Compression:
    try:
        return Compression[text.upper()]
    except KeyError:
        raise ValueError(f"option compression is {text!r}; use none, lz4 or zstd") from None


class ClusterWriter(_Writing, DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a data frame to a topic. Option writeId names the write; repeating it under the same
    name stores only missing messages."""

    def __init__(self, schema: Any, options: Mapping[str, str], overwrite: bool) -> None:
        super().__init__(schema, options, overwrite)
        self._write_id = option(options, "writeId") or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.store(self._write_id, iterator)


class ClusterStreamWriter(_Writing, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes a stream to a topic: query and batch name the write, and both come from the
    checkpoint."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in (QUERY, BATCH))
        if query is None or batch is None:
            raise RuntimeError(
                "Spark did not name the query and the batch: messages cannot be stored exactly once"
            )
        return self.store(f"{query} {batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the messages of a task are stored already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the next try of the batch continues behind the stored messages."""


def chunks(
    batches: Iterator[pa.RecordBatch], group: BrokerGroupQueues, partition: int, most_bytes: int
) -> Iterator[Chunk]:
    """Rows as chunks for frames. Rows with a `queue_key` go to the queue of the key, the others to
    the queues in turn."""
    row = partition
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        bodies = [_body(value) for value in columns["body"]]
        count = len(bodies)
        now = int(time.time() * 1000)
        queues = [
            group.queues[_turn(key, row + i) % len(group.queues)]
            for i, key in enumerate(columns.get("queue_key") or [None] * count)
        ]
        born = [
            now if moment is None else int(moment.timestamp() * 1000)
            for moment in columns.get("born_time") or [None] * count
        ]
        users = (
            [dict(pairs or ()) for pairs in columns["properties"]]
            if "properties" in columns
            else None
        )
        whole = Chunk(
            bodies=bodies,
            queues=queues,
            born_ms=born,
            tags=columns.get("tag"),
            keys=columns.get("keys"),
            properties=users,
        )
        row += count
        yield from _cut(whole, most_bytes)


def _body(value: bytes | str | None) -> bytes:
    if value is None:
        raise ValueError("a row has no body")
    return value.encode() if isinstance(value, str) else value


def _turn(key: str | None, row: int) -> int:
    return row if key is None else crc32(key.encode())


def _cut(whole: Chunk, most_bytes: int) -> Iterator[Chunk]:
    begin = size = 0
    for row in range(len(whole)):
        extra = len(whole.bodies[row]) + ROW_BYTES + _property_bytes(whole, row)
        if row > begin and (size + extra > most_bytes or row - begin >= CHUNK_ROWS):
            yield whole.piece(begin, row)
            begin, size = row, 0
        size += extra
    if begin < len(whole):
        yield whole.piece(begin, len(whole))


def _property_bytes(whole: Chunk, row: int) -> int:
    """An upper bound: four bytes per character, plus separators."""
    texts: list[str] = []
    if whole.tags is not None:
        texts.append(whole.tags[row] or "")
    if whole.keys is not None:
        key = whole.keys[row] or ""
        texts += [key] if isinstance(key, str) else list(key)
    if whole.properties is not None:
        for name, value in whole.properties[row].items():
            texts += (name, value)
    return sum(4 * len(text) + 16 for text in texts)
