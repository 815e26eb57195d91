"""The messages in the log, as the client side of the audit needs them: one row per message with its
id and its place, in Arrow.

Decodes only entries that were found intact; system topics are left out, because clients never
receive them. The caller says in a `Slice` which entries count, and from which replica they are
read. All rows about the same message are in one bucket.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from ledgermq.audit.reading.columns import is_system, native_ids, take_apart
from ledgermq.audit.reading.decode import I64, Flags
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.walk import LogFile, Piece, Walk

SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("broker_group", pa.string()),
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.binary()),
        ("native", pa.bool_()),
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("chain_crc", pa.int64()),
        ("store_ms", pa.int64()),
    ]
)
_ID = b"UNIQ_KEY\x01"
NATIVE_CHARACTERS = 34
FRAME_BITS = 12
"""Sequence numbers that differ only in this many low bits share a bucket, so that a frame is in few
buckets."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Slice:
    """The entries of one log file that count: those up to `last_index` that are in none of
    `without`."""

    task: LogFile
    last_index: int
    without: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Slice:
        value = json.loads(text)
        return cls(LogFile(**value["task"]), value["last_index"], tuple(value["without"]))


def read_stored(piece: Slice, buckets: int) -> Iterator[pa.RecordBatch]:
    """The messages of a slice. Raises OSError."""
    with open_file(piece.task.path) as file:
        for run in Walk(piece.task, file, piece.task.limit(file.size)).pieces():
            batch = _messages(piece, run, buckets)
            if batch is not None:
                yield batch


def _messages(piece: Slice, run: Piece, buckets: int) -> pa.RecordBatch | None:
    count = run.count
    rows, offsets, sizes = run.rows[:count], run.offsets[:count], run.sizes[:count]
    index = rows["index"].astype(np.int64)
    parts = take_apart(run.window, offsets, sizes, rows)
    system = np.array([is_system(topic) for topic in parts.topics], np.bool_)
    keep = (
        parts.fits
        & ~system[parts.topic_of]
        & (index <= piece.last_index)
        & ~np.isin(index, piece.without)
    )
    chosen = np.flatnonzero(keep)
    if not len(chosen):
        return None
    rows, ends = rows[chosen], (offsets + sizes)[chosen]
    starts, lengths = _ids(run.window, parts.property_at[chosen], ends)
    ids = texts(run.window, starts, lengths)
    native = (rows["flag"] > 0) & native_ids(run.window, parts.property_at[chosen], ends)
    names = pa.array([topic.decode("utf-8", "replace") for topic in parts.topics], pa.string())
    values = {
        "bucket": pa.array(buckets_of(ids, buckets)),
        "broker_group": pa.repeat(piece.task.group, len(chosen)),
        "topic": names.take(pa.array(parts.topic_of[chosen])),
        "queue": pa.array(rows["queue"].astype(np.int32)),
        "offset": pa.array(rows["queue_offset"].astype(np.int64)),
        "message_id": ids,
        "native": pa.array(native),
        "index": pa.array(index[chosen]),
        "term": pa.array(rows["term"].astype(np.int64)),
        "chain_crc": pa.array(rows["chain_crc"].astype(np.int64)),
        "store_ms": pa.array(rows["store_ms"].astype(np.int64)),
    }
    return pa.RecordBatch.from_arrays([values[name] for name in SCHEMA.names], schema=SCHEMA)


def _ids(window: bytes, starts: I64, ends: I64) -> tuple[I64, I64]:
    """The offset and length of the message id in each property string; length 0 if there is none.
    It is the first property, by the order of docs/format.md §4.1; a string that starts otherwise is
    searched."""
    data = np.frombuffer(window, np.uint8)
    closes = np.append(np.flatnonzero(data == 2), len(data))
    at = starts + len(_ID)
    first: Flags = at <= ends
    for place, letter in enumerate(_ID):
        first &= data[np.minimum(starts + place, len(data) - 1)] == letter
    for row in np.flatnonzero(~first).tolist():
        place = window.find(b"\x02" + _ID, int(starts[row]), int(ends[row]))
        at[row] = place + 1 + len(_ID) if place >= 0 else ends[row]
    stops = closes[np.searchsorted(closes, at)]
    return at, np.maximum(np.minimum(stops, ends) - at, 0)


def texts(window: bytes, starts: I64, lengths: I64) -> pa.Array:
    """Byte strings in a window as an Arrow column, with vector operations."""
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=edges[1:])
    places = np.repeat(starts - edges[:-1], lengths) + np.arange(edges[-1])
    data = np.frombuffer(window, np.uint8)[places]
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(data)]
    )


# -------------------------------------------------------------------------------------------------------------- message ids


def buckets_of(ids: pa.Array, buckets: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The bucket of each message id, the same in every process: native ids by producer and sequence
    number, others by their bytes."""
    data, edges = bytes_of(ids)
    lengths = np.diff(edges)
    hashes = np.zeros(len(lengths), np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if length:
            letters = data[edges[:-1][rows][:, None] + np.arange(length)]
            hashes[rows] = _hash_of(letters)
    return (hashes % np.uint64(buckets)).astype(np.int32)


def bytes_of(ids: pa.Array) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], I64]:
    """The bytes of a binary column without nulls, and the start of each value plus the end of the
    last."""
    edges = np.frombuffer(ids.buffers()[1], np.int32)[
        ids.offset : ids.offset + len(ids) + 1
    ].astype(np.int64)
    buffer = ids.buffers()[2]
    return (np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)), edges


def _hash_of(
    letters: np.ndarray[tuple[int, int], np.dtype[np.uint8]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    native = np.zeros(len(letters), np.bool_)
    if letters.shape[1] == NATIVE_CHARACTERS:
        native = (letters[:, 0] == ord("4")) & (letters[:, 1] == ord("C"))
    hashes = np.zeros(len(letters), np.uint64)
    for column in range(letters.shape[1]):
        hashes = hashes * _MIX + letters[:, column]
    if native.any():
        # The last 12 bits of the 17 bytes, three digits, are the index within one bucket.
        near = np.zeros(int(native.sum()), np.uint64)
        for column in range(letters.shape[1] - FRAME_BITS // 4):
            near = near * _MIX + letters[native][:, column]
        hashes[native] = near
    return hashes ^ (hashes >> np.uint64(29))


def native_ids_of(
    log_tag: I64, producer: I64, epoch: I64, sequence: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> pa.Array:
    """Message ids (docs/format.md §4.5) of these numbers."""
    count = len(producer)
    raw = np.zeros((count, 17), np.uint8)
    raw[:, 0] = 0x4C
    raw[:, 1:5] = log_tag.astype(">u4").view(np.uint8).reshape(count, 4)
    raw[:, 5:9] = producer.astype(">u4").view(np.uint8).reshape(count, 4)
    raw[:, 9:11] = epoch.astype(">u2").view(np.uint8).reshape(count, 2)
    raw[:, 11:17] = sequence.astype(">u8").view(np.uint8).reshape(count, 8)[:, 2:]
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    letters = np.empty((count, NATIVE_CHARACTERS), np.uint8)
    letters[:, 0::2], letters[:, 1::2] = digits[raw >> 4], digits[raw & 15]
    edges = np.arange(count + 1, dtype=np.int32) * NATIVE_CHARACTERS
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(letters.tobytes())]
    )


def text_buckets(
    keys: Sequence[pa.Array], buckets: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The bucket of rows that several binary columns identify together, the same in every
    process."""
    hashes = np.zeros(len(keys[0]), np.uint64)
    for column in keys:
        coded = column.dictionary_encode()
        own = np.array(
            [zlib.crc32(text) for text in coded.dictionary.to_pylist()] or [0], np.uint64
        )
        hashes = hashes * _MIX + own[coded.indices.to_numpy(zero_copy_only=False)]
    hashes ^= hashes >> np.uint64(29)
    return (hashes % np.uint64(buckets)).astype(np.int32)
