"""Conversion of Arrow tables to columns of messages. pyarrow is imported only when a table is
converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ledgermq.client.errors import BadArgument
from ledgermq.client.native.producers.columns import Columns
from ledgermq.proto.frames import Column


def columns_of(
    table: Any,
    born_ms: int,
    body: str,
    tag: str | None,
    keys: str | None,
    properties: Sequence[str],
    order_key: str | None,
) -> tuple[Columns, list[str] | None]:
    """The named columns of a Table or RecordBatch, and the order keys. Raises BadArgument."""
    missing = [
        name
        for name in (body, tag, keys, order_key, *properties)
        if name is not None and name not in table.schema.names
    ]
    if missing:
        raise BadArgument(
            f"the table has no column {missing[0]!r}", f"it has {', '.join(table.schema.names)}"
        )
    bodies = _column(table, body)
    if bodies.valid is not None and not bodies.valid.all():
        row = int(np.flatnonzero(~bodies.valid)[0])
        raise BadArgument(f"row {row} has no {body}", "remove such rows")
    columns = Columns(
        bodies=bodies,
        queues=0,
        born_ms=born_ms,
        tags=None if tag is None else _column(table, tag),
        keys=None if keys is None else _column(table, keys),
        properties={name: _column(table, name) for name in properties} or None,
    )
    if order_key is None:
        return columns, None
    return columns, [text or "" for text in _column(table, order_key).texts()]


def _column(table: Any, name: str) -> Column:
    """One column as bytes and offsets; a type other than text or binary is cast to text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = (
                pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
            )
    kind = column.type
    if not (pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
        wide = (
            pa.large_binary()
            if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
            else pa.large_string()
        )
        try:
            column = pc.cast(column, wide)
        except pa.ArrowException as error:
            raise BadArgument(
                f"column {name!r} is neither text nor bytes ({error})", "convert it first"
            ) from None
    _, places, data = column.buffers()
    offsets = (
        np.frombuffer(places, np.int64)[column.offset : column.offset + len(column) + 1]
        if len(column)
        else np.zeros(1, np.int64)
    )
    valid = np.asarray(column.is_valid()) if column.null_count else None
    return Column(memoryview(data) if data is not None else b"", offsets, valid)
