"""The join of the client side of the audit on a Spark cluster: both sides are shuffled by bucket,
and each bucket is judged in a task.

The driver sees only sums and the first findings of each rule, however many rows there are. Reading
and judging are the same as without Spark: functions that are passed by name, and texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from ledgermq.audit.clients.bad_file import BadFile
from ledgermq.audit.clients.bucket_results import LISTED
from ledgermq.audit.clients.joining import Judge, Side
from ledgermq.audit.reading.node_paths import NodeLost
from ledgermq.audit.reading.objects import StoreLost
from ledgermq.audit.spark.task_access import TaskAccess

PARTITIONS_MAX = 10_000
ERRORS: dict[str, Callable[[str], Exception]] = {
    "BadFile": BadFile,
    "NodeLost": partial(NodeLost, ""),
    "StoreLost": StoreLost,
    "FileNotFoundError": OSError,
}
"""What a task may raise about a file that it reads, by its name in Spark's text."""
COUNTED = ("what", "broker_group", "topic", "window_ms")


class SparkJoin:
    """A joiner (`clients.joining`) in a Spark session."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __call__(
        self, left: Side, right: Side, judge: Judge, schema: pa.Schema, buckets: int
    ) -> Iterator[pa.Table]:
        """Yield sums of counts, and up to `LISTED` findings of each rule; a row without text counts
        the others. Raises BadFile, NodeLost, StoreLost, OSError."""
        frames = [self._frame(side, buckets).groupBy("bucket") for side in (left, right)]

        def judged(ours: pa.Table, theirs: pa.Table) -> pa.Table:
            return judge(ours.cast(left.schema), theirs.cast(right.schema))

        outcome = (
            frames[0]
            .cogroup(frames[1])
            .applyInArrow(judged, from_arrow_schema(schema))
            .persist(StorageLevel.MEMORY_AND_DISK)
        )
        try:
            counts = outcome.where("proof IS NULL").groupBy(*COUNTED).agg(F.sum("n").alias("n"))
            yield _table(counts, schema)
            listed = outcome.where("proof IS NOT NULL")
            for row in listed.groupBy("what").count().collect():
                rows = (
                    listed.where(F.col("what") == row["what"])
                    .orderBy("file", "row", "index")
                    .limit(LISTED)
                )
                yield _table(rows, schema)
                if row["count"] > LISTED:
                    yield pa.Table.from_pylist(
                        [{"what": row["what"], "n": row["count"] - LISTED, "proof": ""}],
                        schema=schema,
                    )
        except PythonException as error:
            raise _told(error) from error
        finally:
            outcome.unpersist()

    def _frame(self, side: Side, buckets: int) -> Any:
        read, access = side.read, TaskAccess.of(side.sources)

        def reading(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            access.use()
            for batch in batches:
                for source in batch.column(0).to_pylist():
                    yield from read(source, buckets)

        texts = [(source,) for source in side.sources]
        sources = self._session.createDataFrame(
            self._session.sparkContext.parallelize(texts, max(1, len(texts))), "source string"
        )
        frame = sources.mapInArrow(reading, from_arrow_schema(side.schema))
        return frame.repartition(min(buckets, PARTITIONS_MAX), "bucket")


def _table(frame: Any, schema: pa.Schema) -> pa.Table:
    """The rows of a small frame, with all columns of the schema."""
    rows = [row.asDict() for row in frame.collect()]
    return pa.Table.from_pylist(rows, schema=schema)


def _told(error: Exception) -> Exception:
    """Convert the error of a task about a file to the error raised without Spark."""
    for name, made in ERRORS.items():
        mark = f"{name}: "
        messages = [line.partition(mark)[2] for line in str(error).splitlines() if mark in line]
        if messages:
            return made(messages[-1])
    return error
