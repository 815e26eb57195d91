"""Conversion of a batch to an Arrow record batch: vectorised, and without an object per message
where the format allows it.

pyarrow is imported only when a batch is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from ledgermq.client.errors import BadArgument
from ledgermq.client.native.consumers.ports import Convertible
from ledgermq.client.native.consumers.spans import PropertyFields
from ledgermq.proto.entries.properties import EXACT_KEYS, KEYS, MESSAGE_ID, TAG
from ledgermq.proto.types import I64


def _text(batch: Convertible, fields: PropertyFields, name: str) -> Any:
    """A text column; null for messages without the property."""
    import pyarrow as pa

    spans = fields.spans(name)
    lengths = np.zeros(len(batch), np.int64)
    lengths[spans.rows] = spans.lengths
    valid = None
    if len(spans.rows) < len(batch):
        present = np.zeros(len(batch), np.bool_)
        present[spans.rows] = True
        valid = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    buffers = [valid, pa.py_buffer(_edges(lengths)), pa.py_buffer(spans.joined())]
    return pa.Array.from_buffers(pa.string(), len(batch), buffers)


def _edges(lengths: I64) -> bytes:
    edges = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    return edges.tobytes()


def _body(batch: Convertible, fields: PropertyFields) -> Any:
    import pyarrow as pa

    # They fit into offsets of 31 bits: a batch ends before (`Convertible.read`).
    joined, edges = batch.joined_bodies()
    return pa.Array.from_buffers(
        pa.binary(),
        len(batch),
        [None, pa.py_buffer(edges.astype(np.int32).tobytes()), pa.py_buffer(joined)],
    )


def _keys(batch: Convertible, fields: PropertyFields) -> Any:
    import pyarrow as pa

    if not len(fields.spans(KEYS).rows):
        return _empties(pa.list_(pa.string()), len(batch))
    return pa.array(batch.keys(), pa.list_(pa.string()))


def _properties(batch: Convertible, fields: PropertyFields) -> Any:
    import pyarrow as pa

    having = {
        *fields.others((MESSAGE_ID, TAG, KEYS, EXACT_KEYS)).tolist(),
        *batch.columns.undecoded,
    }
    kind = pa.map_(pa.string(), pa.string())
    if not having:
        return _empties(kind, len(batch))
    rows: list[list[tuple[str, str]]] = [[]] * len(batch)
    for row in having:
        rows[row] = list(batch.columns.fields(row).user.items())
    return pa.array(rows, kind)


def _empties(kind: Any, count: int) -> Any:
    """A column of `count` empty lists or maps."""
    import pyarrow as pa

    none = (
        pa.nulls(0, kind.value_type)
        if pa.types.is_list(kind)
        else pa.array([], pa.struct([kind.key_field, kind.item_field]))
    )
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(bytes(4 * (count + 1)))], children=[none]
    )


def _numbers(name: str) -> Callable[[Convertible, PropertyFields], Any]:
    def column(batch: Convertible, fields: PropertyFields) -> Any:
        import pyarrow as pa

        return pa.array(getattr(batch.columns, name), pa.int64())

    return column


def _queue(batch: Convertible, fields: PropertyFields) -> Any:
    import pyarrow as pa

    return pa.array(np.full(len(batch), batch.queue, np.int32), pa.int32())


_MAKERS: dict[str, Callable[[Convertible, PropertyFields], Any]] = {
    "queue": _queue,
    "offset": _numbers("queue_offsets"),
    "store_ms": _numbers("store_ms"),
    "born_ms": _numbers("born_ms"),
    "message_id": lambda batch, fields: _text(batch, fields, MESSAGE_ID),
    "tag": lambda batch, fields: _text(batch, fields, TAG),
    "keys": _keys,
    "properties": _properties,
    "body": _body,
}
COLUMNS = tuple(_MAKERS)
"""What a record batch can hold: queue (int32), offset, store_ms, born_ms (int64), message_id, tag
(string), keys (list of string), properties (map of string to string), body (binary)."""


def schema(columns: Collection[str] | None) -> Any:
    """The schema of a record batch with the given columns, in the given order. Raises BadArgument
    for an unknown column."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    kinds = {
        "queue": pa.int32(),
        **dict.fromkeys(("offset", "store_ms", "born_ms"), number),
        **dict.fromkeys(("message_id", "tag"), text),
        "keys": pa.list_(text),
        "properties": pa.map_(text, text),
        "body": pa.binary(),
    }
    names = list(COLUMNS if columns is None else columns)
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise BadArgument(
            f"there is no column {unknown[0]!r}", f"the columns are {', '.join(COLUMNS)}"
        )
    return pa.schema([(name, kinds[name]) for name in names])


def record_batch(
    batch: Convertible, fields: PropertyFields, columns: Collection[str] | None
) -> Any:
    """The given columns, in the given order. Raises BadArgument for an unknown column."""
    import pyarrow as pa

    wanted = schema(columns)
    return pa.RecordBatch.from_arrays(
        [_MAKERS[name](batch, fields) for name in wanted.names], schema=wanted
    )
