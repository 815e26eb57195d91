"""Joining two sides by bucket in this process: each side is read once, split into scratch files,
and judged bucket by bucket.

Memory holds one bucket of both sides. A side is a list of sources, which are texts that can cross
process boundaries, and a function that reads one of them into batches with a column `bucket`.
`spark.clients` does the same on a Spark cluster.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

Read = Callable[[str, int], Iterator[pa.RecordBatch]]
Judge = Callable[[pa.Table, pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two tables of a join. `read(source, buckets)` yields batches of `schema`, which
    has a column `bucket`."""

    sources: tuple[str, ...]
    read: Read
    schema: pa.Schema


def join_here(
    left: Side, right: Side, judge: Judge, schema: pa.Schema, buckets: int
) -> Iterator[pa.Table]:
    """The join in this process. Raises the errors of the sides."""
    scratch = tempfile.mkdtemp(prefix="ledgermq-audit-")
    try:
        spread = [
            _Spread(f"{scratch}/{name}", side, buckets)
            for name, side in (("left", left), ("right", right))
        ]
        for bucket in range(buckets):
            tables = [side.bucket(bucket) for side in spread]
            if any(table.num_rows for table in tables):
                yield judge(*tables)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Spread:
    """One side in scratch files, one for each bucket with rows."""

    def __init__(self, name: str, side: Side, buckets: int) -> None:
        self._name, self._schema = name, side.schema
        self._writers: dict[int, Any] = {}
        try:
            for source in side.sources:
                for batch in side.read(source, buckets):
                    if batch.num_rows:
                        self._write(batch)
        finally:
            for writer in self._writers.values():
                writer.close()

    def _write(self, batch: pa.RecordBatch) -> None:
        bucket = batch.column("bucket").to_numpy()
        order = np.argsort(bucket, kind="stable")
        numbers, begins = np.unique(bucket[order], return_index=True)
        for number, part in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
            if number not in self._writers:
                self._writers[number] = pa.ipc.new_file(f"{self._name}-{number}", self._schema)
            self._writers[number].write_batch(batch.take(pa.array(part)))

    def bucket(self, number: int) -> pa.Table:
        if number not in self._writers:
            return self._schema.empty_table()
        with pa.OSFile(f"{self._name}-{number}") as file, pa.ipc.open_file(file) as reader:
            return reader.read_all()


def nothing(schema: pa.Schema) -> Side:
    """A side without rows."""
    return Side((), no_rows, schema)


def no_rows(source: str, buckets: int) -> Iterator[pa.RecordBatch]:
    """A read function without rows."""
    yield from ()


def count_of(sources: Sequence[Any], rows: int, most: int) -> int:
    """The number of buckets needed for `rows` rows with at most `most` each."""
    return max(1, -(-rows // most)) if sources else 1
