"""What the views share: a task and its rows, the types of columns, and values as Arrow arrays.
`ports.py` has the interface of a view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ledgermq.audit.reading.decode import I64, U8
from ledgermq.audit.reading.properties import cut
from ledgermq.audit.reading.walk import LogFile

SHORT = 64
"""Up to this mean length, texts are copied byte by byte with vector operations; longer ones one
after the other."""


@dataclass
class Share(InputPartition):  # type: ignore[misc]
    """One task of Spark: a log file from byte `start` on, or files `names` of a replica whose log
    begins with entry `start`."""

    directory: str
    task: LogFile
    start: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows. A column is built only if it is wanted: an Arrow array, a value that Arrow
    converts, or a value that all rows share."""

    count: int
    columns: Mapping[str, Callable[[], Any]]

    def to_arrow(self, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of the schema, with its types."""
        return pa.RecordBatch.from_arrays([self._column(field) for field in schema], schema=schema)

    def _column(self, field: Any) -> pa.Array:
        value = self.columns[field.name]()
        if value is None or isinstance(value, str | int | float):
            return pa.array([value], field.type).take(pa.array(np.zeros(self.count, np.int64)))
        if not isinstance(value, pa.Array):
            return pa.array(value, field.type)
        return value if value.type == field.type else value.cast(field.type)


TYPES = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
}


def struct_of(columns: Mapping[str, str], names: Iterable[str]) -> StructType:
    """The schema of some columns of a view."""
    return StructType([StructField(name, TYPES[columns[name]]) for name in names])


def texts(data: U8, at: I64, lengths: I64) -> pa.Array:
    """Texts in a window as an Arrow array; invalid UTF-8 is replaced."""
    plain, offsets = cut(data, at, lengths)
    array = pa.StringArray.from_buffers(
        len(at), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(plain))
    )
    if len(plain) and plain.max() >= 0x80:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            whole = plain.tobytes()
            bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
            return pa.array([whole[a:b].decode("utf-8", "replace") for a, b in bounds], pa.string())
    return array


def stretches(data: U8, at: I64, lengths: I64) -> pa.Array:
    """Byte strings in a window as an Arrow array."""
    if int(lengths.sum()) <= SHORT * len(at):
        plain, offsets = cut(data, at, lengths)
        joined: Any = np.ascontiguousarray(plain)
    else:
        view = memoryview(np.ascontiguousarray(data).data)
        joined = b"".join(
            [view[a:b] for a, b in zip(at.tolist(), (at + lengths).tolist(), strict=True)]
        )
        offsets = np.concatenate(([0], np.cumsum(lengths)))
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(at), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(joined)]
    )


def moments(ms: I64) -> pa.Array:
    """Milliseconds since 1970 as timestamps."""
    return pa.array(ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
