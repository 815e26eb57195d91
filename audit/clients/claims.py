"""The claims of clients, one per row, in the same buckets as the log's messages: pieces of
receipts, and deliveries.

A receipt is about a frame, whose messages have consecutive sequence numbers; it is split at the
bounds of buckets. Rows that cannot be valid claims become claims with a `wrong` text, so that they
are reported like all others. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.audit.clients.client_files import RECEIPTS, ClientFile, read_part
from ledgermq.audit.clients.logged_messages import (
    FRAME_BITS,
    buckets_of,
    native_ids_of,
    text_buckets,
)
from ledgermq.audit.reading.decode import I64, crc

RECEIPT, DELIVERY = 0, 1
_RANGES = pa.list_(
    pa.struct([("queue", pa.int32()), ("first_offset", pa.int64()), ("count", pa.int64())])
)
SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("kind", pa.int8()),
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("wrong", pa.string()),
        ("broker_group", pa.string()),
        ("topic", pa.string()),
        # Columns of a piece of a receipt: `length` messages from sequence number `sequence` on,
        # `skip` messages of the receipt before it.
        ("log_id", pa.string()),
        ("producer_id", pa.int64()),
        ("epoch", pa.int64()),
        ("sequence", pa.int64()),
        ("skip", pa.int64()),
        ("length", pa.int64()),
        ("count", pa.int64()),
        ("term", pa.int64()),
        ("first_index", pa.int64()),
        ("chain_crc", pa.int64()),
        ("store_ms", pa.int64()),
        ("durable", pa.bool_()),
        ("master", pa.bool_()),
        ("ranges", _RANGES),
        # Columns of a delivery.
        ("consumer_group", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.binary()),
        ("delivered_ms", pa.int64()),
        ("acknowledged_ms", pa.int64()),
        ("sought", pa.bool_()),
    ]
)
ORDERED = pa.schema(
    [
        ("bucket", pa.int32()),
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("broker_group", pa.string()),
        ("message_group", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("delivered_ms", pa.int64()),
    ]
)
SEQUENCES = 1 << 48
MESSAGES_MAX = 1 << 20
"""More messages than a frame can hold."""


def read_claims(part: ClientFile, buckets: int) -> Iterator[pa.RecordBatch]:
    """The claims in a part of a file. Raises BadFile."""
    for row, batch in read_part(part):
        made = _of_receipts if part.kind == RECEIPTS else _of_deliveries
        yield made(part.number, row, batch, buckets)


def read_ordered(part: ClientFile, buckets: int) -> Iterator[pa.RecordBatch]:
    """The deliveries of messages of message groups, in buckets of consumer group, topic and message
    group. Raises BadFile."""
    for row, batch in read_part(part):
        rows = pa.array(np.arange(row, row + batch.num_rows))
        mask = pc.invert(pc.fill_null(batch.column("sought"), False))
        for name in ("consumer_group", "topic", "message_group", "queue", "offset", "delivered_ms"):
            mask = pc.and_(mask, pc.is_valid(batch.column(name)))
        chosen = pa.RecordBatch.from_arrays(
            [*batch.columns, rows], names=[*batch.schema.names, "row"]
        ).filter(mask)
        keys = [
            chosen.column(name).cast(pa.binary())
            for name in ("consumer_group", "topic", "message_group")
        ]
        values = {
            name: chosen.column(name) for name in ORDERED.names if name in chosen.schema.names
        }
        values["bucket"] = pa.array(text_buckets(keys, buckets))
        values["file"] = pa.repeat(pa.scalar(part.number, pa.int32()), chosen.num_rows)
        yield pa.RecordBatch.from_arrays([values[name] for name in ORDERED.names], schema=ORDERED)


def _batch(count: int, values: Mapping[str, pa.Array]) -> pa.RecordBatch:
    columns = [
        values[field.name].cast(field.type) if field.name in values else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _of_deliveries(number: int, row: int, batch: pa.RecordBatch, buckets: int) -> pa.RecordBatch:
    count = batch.num_rows
    ids = pc.fill_null(batch.column("message_id"), "").cast(pa.binary())
    wrong = pa.nulls(count, pa.string())
    for name in ("topic", "message_id", "delivered_ms"):
        wrong = pc.if_else(pc.is_null(batch.column(name)), f"the row has no {name}", wrong)
    names = (
        "topic",
        "broker_group",
        "consumer_group",
        "queue",
        "offset",
        "delivered_ms",
        "acknowledged_ms",
    )
    values = {name: batch.column(name) for name in names}
    values |= {
        "bucket": pa.array(buckets_of(ids, buckets)),
        "kind": pa.repeat(DELIVERY, count),
        "file": pa.repeat(number, count),
        "row": pa.array(np.arange(row, row + count)),
        "wrong": wrong,
        "message_id": ids,
        "sought": pc.fill_null(batch.column("sought"), False),
    }
    return _batch(count, values)


def _of_receipts(number: int, row: int, batch: pa.RecordBatch, buckets: int) -> pa.RecordBatch:
    numbers = {
        name: _numbers(batch.column(name))
        for name in ("producer_id", "epoch", "first_sequence", "count", "term", "first_index")
    }
    wrong = _contradictions(batch, numbers)
    bad = ~_flags(pc.is_null(wrong))
    first = np.where(bad, 0, numbers["first_sequence"])
    counts = np.where(bad, 1, numbers["count"])
    step = 1 << FRAME_BITS
    pieces = (first + counts - 1) // step - first // step + 1
    of = np.repeat(np.arange(batch.num_rows), pieces)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.maximum((first[of] // step + nth) * step, first[of])
    end = np.minimum((first[of] // step + nth + 1) * step, first[of] + counts[of])
    take = pa.array(of)
    names = (
        "broker_group",
        "topic",
        "log_id",
        "producer_id",
        "epoch",
        "count",
        "term",
        "first_index",
        "chain_crc",
        "store_ms",
        "ranges",
    )
    values = {name: batch.column(name).take(take) for name in names}
    tags = _tags(batch.column("log_id"))[of]
    safe = {name: np.where(bad, 0, numbers[name])[of] for name in ("producer_id", "epoch")}
    ids = native_ids_of(tags, safe["producer_id"], safe["epoch"], begin.astype(np.uint64))
    values |= {
        "bucket": pa.array(buckets_of(ids, buckets)),
        "kind": pa.repeat(RECEIPT, len(of)),
        "file": pa.repeat(number, len(of)),
        "row": pa.array(row + of),
        "wrong": wrong.take(take),
        "sequence": pa.array(begin),
        "skip": pa.array(begin - first[of]),
        "length": pa.array(end - begin),
        "durable": pc.equal(batch.column("durability"), "durable").take(take),
        "master": pc.equal(batch.column("durability"), "master").take(take),
    }
    return _batch(len(of), values)


def _contradictions(batch: pa.RecordBatch, numbers: Mapping[str, I64]) -> pa.Array:
    """What is wrong with each receipt by itself; null for receipts that may be true."""
    wrong = pa.nulls(batch.num_rows, pa.string())
    sums = np.zeros(batch.num_rows, np.int64)
    ranges = batch.column("ranges")
    each = pc.list_parent_indices(ranges).to_numpy(zero_copy_only=False)
    flat = ranges.flatten()
    lengths = _numbers(pc.struct_field(flat, "count")) if len(flat) else np.zeros(0, np.int64)
    np.add.at(sums, each, lengths)
    odd = np.zeros(batch.num_rows, np.bool_)
    odd[each[(lengths <= 0) | (lengths > MESSAGES_MAX)]] = True
    n = numbers
    impossible = (
        (n["producer_id"] < 1)
        | (n["producer_id"] >= 1 << 32)
        | (n["epoch"] < 0)
        | (n["epoch"] >= 1 << 16)
    )
    impossible |= (n["count"] < 1) | (n["count"] > MESSAGES_MAX)
    impossible |= (n["first_sequence"] < 0) | (n["first_sequence"] > SEQUENCES - MESSAGES_MAX)
    impossible |= (n["first_index"] < 0) | (n["term"] < 0)
    class_ = pc.is_in(batch.column("durability"), pa.array(["durable", "memory", "master"]))
    wrong = pc.if_else(
        pa.array(odd | (sums != n["count"])),
        "its queue ranges do not hold as many messages as it says",
        wrong,
    )
    wrong = pc.if_else(pa.array(impossible), "its numbers are impossible for a frame", wrong)
    wrong = pc.if_else(pc.invert(class_), "its durability is not durable, memory or master", wrong)
    for name in batch.schema.names:
        if name not in ("cluster_id", "key_id"):
            wrong = pc.if_else(pc.is_null(batch.column(name)), f"the row has no {name}", wrong)
    return wrong


def _numbers(column: pa.Array) -> I64:
    values: I64 = pc.fill_null(column, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return values


def _flags(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    values: np.ndarray[tuple[int], np.dtype[np.bool_]] = column.to_numpy(
        zero_copy_only=False
    ).astype(np.bool_)
    return values


def _tags(log_ids: pa.Array) -> I64:
    """The log tag (docs/format.md §4.5) of each log id."""
    coded = pc.fill_null(log_ids, "").dictionary_encode()
    tags = np.array([crc(text.encode()) for text in coded.dictionary.to_pylist()], np.int64)
    values: I64 = tags[coded.indices.to_numpy(zero_copy_only=False)]
    return values
