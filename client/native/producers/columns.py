"""Messages by column, as a producer keeps them until they are acknowledged: slices of them, and
their encoding as frames.

Messages have no objects of their own here. The given values are kept beside the encoded frame,
because a frame may have to be encoded again: split in two, with other sequence numbers, or for
another producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ledgermq.client.errors import BadArgument
from ledgermq.proto.entries.compression import Compression
from ledgermq.proto.entries.layout import Buffer
from ledgermq.proto.frames import COMPRESS_OVER_BYTES, Column, EncodedFrame, FrameBuilder
from ledgermq.proto.types import I32, I64


@dataclass(frozen=True, slots=True)
class Packing:
    """How bodies are compressed: bodies above this size, if compression makes them smaller."""

    compression: Compression = Compression.NONE
    over: int = COMPRESS_OVER_BYTES


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages in order. Each column is as long as `bodies`; `queues` (ids within the broker group)
    and `born_ms` may be one value for all.

    Either every column is a sequence, or every one is a `Column` of Arrow's layout.
    """

    bodies: Sequence[Buffer] | Column
    queues: int | I32
    born_ms: int | I64
    tags: Sequence[str | None] | Column | None = None
    keys: Sequence[Any] | Column | None = None
    properties: Sequence[Mapping[str, str]] | Mapping[str, Column] | None = None

    def __len__(self) -> int:
        return len(self.bodies.offsets) - 1 if isinstance(self.bodies, Column) else len(self.bodies)

    def lengths(self) -> I64:
        """The size of each body in bytes."""
        if isinstance(self.bodies, Column):
            return np.diff(self.bodies.offsets)
        try:
            return np.fromiter(map(len, self.bodies), np.int64, len(self.bodies))
        except (TypeError, ValueError):
            # What is no body has no size; its row fails alone when it is encoded.
            return np.fromiter(map(_length, self.bodies), np.int64, len(self.bodies))

    def part(self, begin: int, end: int) -> Columns:
        """The messages from `begin` to before `end`. Values are not copied."""
        properties: Any = self.properties
        if isinstance(properties, Mapping):
            properties = {name: _cut(column, begin, end) for name, column in properties.items()}
        else:
            properties = _cut(properties, begin, end)
        return Columns(
            bodies=_cut(self.bodies, begin, end),
            queues=_cut(self.queues, begin, end),
            born_ms=_cut(self.born_ms, begin, end),
            tags=_cut(self.tags, begin, end),
            keys=_cut(self.keys, begin, end),
            properties=properties,
        )

    def take(self, rows: Sequence[int]) -> Columns:
        """The messages of these rows, in this order."""
        queues = self.queues if isinstance(self.queues, int) else self.queues[rows]
        born_ms = self.born_ms if isinstance(self.born_ms, int) else self.born_ms[rows]
        properties: Any = self.properties
        if isinstance(properties, Mapping):
            properties = {name: _taken(column, rows) for name, column in properties.items()}
        else:
            properties = _taken(properties, rows)
        return Columns(
            bodies=_taken(self.bodies, rows),
            queues=queues,
            born_ms=born_ms,
            tags=_taken(self.tags, rows),
            keys=_taken(self.keys, rows),
            properties=properties,
        )

    def to_queues(self, queues: I32) -> Columns:
        """The same messages, each with its queue."""
        return Columns(
            bodies=self.bodies,
            queues=queues,
            born_ms=self.born_ms,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
        )

    def in_queue(self, queue: int) -> Columns:
        """The same messages, all with one queue."""
        return Columns(
            bodies=self.bodies,
            queues=queue,
            born_ms=self.born_ms,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
        )

    def encode(self, builder: FrameBuilder, first_sequence: int, packing: Packing) -> EncodedFrame:
        """Encode as a frame. Raises LedgerError for messages that no node accepts."""
        build: Any = builder.encode_columns if isinstance(self.bodies, Column) else builder.encode
        frame = build(
            first_sequence,
            self.queues,
            self.bodies,
            born_ms=self.born_ms,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
            compression=packing.compression,
            compress_over=packing.over,
        )
        return cast(EncodedFrame, frame)


def flat(bodies: Iterable[Buffer]) -> tuple[Buffer, ...]:
    """The bodies as contiguous bytes, each as long as its `len`. Only views of another layout are
    copied; what is no body stays."""
    rows = tuple(bodies)
    return rows if set(map(type, rows)) <= {bytes} else tuple(map(_flat, rows))


def _flat(body: Buffer) -> Buffer:
    if not isinstance(body, memoryview):
        return body
    try:
        return (
            body if body.format == "B" and body.ndim == 1 and body.c_contiguous else body.tobytes()
        )
    except ValueError:  # the view was released
        return body


def _length(body: Buffer) -> int:
    try:
        return len(body)
    except (TypeError, ValueError):
        return 0


def copied(body: Buffer) -> bytes:
    """The bytes of a body as they are now. Raises BadArgument."""
    if type(body) is bytes:
        return body
    try:
        return memoryview(body).tobytes()
    except (TypeError, ValueError, BufferError) as error:
        raise BadArgument(
            f"a body of type {type(body).__name__} cannot be sent ({error})",
            "give bytes, bytearray or memoryview",
        ) from None


def _cut(value: Any, begin: int, end: int) -> Any:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, Column):
        return Column(
            value.data,
            value.offsets[begin : end + 1],
            None if value.valid is None else value.valid[begin:end],
        )
    return value[begin:end]


def _taken(value: Any, rows: Sequence[int]) -> Any:
    if value is None:
        return None
    if not isinstance(value, Column):
        return [value[row] for row in rows]
    pieces = value.pieces()
    data = b"".join(pieces[row] for row in rows)
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.diff(value.offsets)[rows], out=offsets[1:])
    return Column(data, offsets, None if value.valid is None else value.valid[rows])
