"""Building the frames that a producer sends (docs/format.md §4.5): columns of messages in, bytes of
whole entries out.

Bytes are joined once; fields with a fixed place are written with vector operations; only the CRC of
each body is computed per message. Messages that a node would refuse are refused here, with the same
codes, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto import kernels
from ledgermq.proto.entries.compression import Compression, compressor
from ledgermq.proto.entries.layout import Buffer
from ledgermq.proto.entries.native_ids import (
    EPOCH_MAX,
    ID_PROPERTY_BYTES,
    PRODUCER_MAX,
    SEQUENCE_MAX,
)
from ledgermq.proto.frames.frame_parts import ENTRY_FIXED_BYTES, heads_of, layout_of, tails_of
from ledgermq.proto.frames.frame_rests import Keys, RestEncoder, refused
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import I32, I64

COMPRESS_OVER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """The content of a `Frame` of log.proto, except the names: `sizes` are u32 little-endian,
    `entries` whole entries, concatenated."""

    first_sequence: int
    count: int
    sizes: bytes
    entries: bytes

    @property
    def next_sequence(self) -> int:
        """The sequence number behind the last message."""
        return self.first_sequence + self.count


class Column(NamedTuple):
    """Concatenated values, and the start of each plus the end of the last: a binary or text column
    of Arrow.

    `valid` is False for missing values.
    """

    data: Buffer
    offsets: I64
    valid: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None

    def pieces(self) -> list[memoryview]:
        """The values; a missing one is empty."""
        view = memoryview(self.data).cast("B")
        return list(
            map(view.__getitem__, map(slice, self.offsets[:-1].tolist(), self.offsets[1:].tolist()))
        )

    def texts(self) -> list[str | None]:
        """The values as text. Raises UnicodeDecodeError for invalid UTF-8."""
        texts: list[str | None] = [str(piece, "utf-8") for piece in self.pieces()]
        return (
            texts
            if self.valid is None
            else [
                text if valid else None
                for text, valid in zip(texts, self.valid.tolist(), strict=True)
            ]
        )


class FrameBuilder:
    """Builds the frames of one producer for one topic. For one thread."""

    def __init__(self, stored_topic: str, log_tag: int, producer_id: int, epoch: int) -> None:
        if not 0 < producer_id <= PRODUCER_MAX or not 0 <= epoch <= EPOCH_MAX:
            raise ValueError(f"there is no producer {producer_id} with epoch {epoch}")
        self._layout = layout_of(stored_topic)
        self._log_tag = log_tag
        self._producer_id = producer_id
        self._epoch = epoch
        self._rests = RestEncoder()
        self._compressors = {kind: compressor(kind) for kind in Compression}

    def encode(
        self,
        first_sequence: int,
        queues: int | I32,
        bodies: Sequence[Buffer],
        *,
        born_ms: int | I64,
        tags: Sequence[str | None] | None = None,
        keys: Sequence[Keys | None] | None = None,
        properties: Sequence[Mapping[str, str]] | None = None,
        compression: Compression = Compression.NONE,
        compress_over: int = COMPRESS_OVER_BYTES,
    ) -> EncodedFrame:
        """A frame of messages, one or more, with consecutive sequence numbers.

        Each column is as long as `bodies`; an empty or missing tag or key is not stored; a single
        value applies to every message. Bodies longer than `compress_over` are stored compressed if
        that makes them smaller. Raises LedgerError, with the message's position, for messages that
        no node accepts; TypeError, ValueError or BufferError for a body that is not contiguous
        bytes.
        """
        count = len(bodies)
        if not count:
            raise fail(Code.MESSAGE_CORRUPTED, "a frame holds one message or more")
        if not 0 <= first_sequence <= SEQUENCE_MAX + 1 - count:
            raise fail(
                Code.BAD_REQUEST,
                f"sequence numbers are 0 to {SEQUENCE_MAX}; the frame begins with {first_sequence}",
            )
        sysflags: int | I32 = 0
        if compression is not Compression.NONE:
            bodies, sysflags = self._compressed(bodies, compression, compress_over)
        rests = self._rests.encode(count, tags, keys, properties)
        body_lengths = np.fromiter(map(len, bodies), np.int64, count)
        if not body_lengths.all():
            raise refused(
                int(np.flatnonzero(body_lengths == 0)[0]),
                Code.MESSAGE_BODY_EMPTY,
                "the message body is empty",
            )
        if kernels.NATIVE:
            layout = self._layout
            built = kernels.entries.build_frame(
                layout.record_magic,
                layout.topic,
                self._log_tag,
                self._producer_id,
                self._epoch,
                first_sequence,
                bodies,
                _column(queues, count, np.int32),
                _column(born_ms, count, np.int64),
                _column(sysflags, count, np.int32),
                rests,
            )
            if built is not None:
                encoded_sizes, entries = built
                return _whole(
                    EncodedFrame(
                        first_sequence=first_sequence,
                        count=count,
                        sizes=encoded_sizes,
                        entries=entries,
                    )
                )
        property_lengths: int | I64 = ID_PROPERTY_BYTES
        if rests is not None:
            property_lengths = ID_PROPERTY_BYTES + np.fromiter(map(len, rests), np.int64, count)
        sizes = body_lengths + (ENTRY_FIXED_BYTES + self._layout.topic_bytes) + property_lengths
        crcs = np.fromiter(map(crc32, bodies), np.uint32, count)
        heads = heads_of(
            self._layout,
            sizes,
            body_lengths,
            crcs,
            queues=queues,
            born_ms=born_ms,
            sysflags=sysflags,
        )
        tails = tails_of(
            self._layout,
            property_lengths,
            log_tag=self._log_tag,
            producer_id=self._producer_id,
            epoch=self._epoch,
            first_sequence=first_sequence,
            count=count,
        )
        parts: list[Buffer] = [b""] * ((3 if rests is None else 4) * count)
        step = 3 if rests is None else 4
        parts[0::step] = heads.view(f"V{heads.itemsize}").tolist()
        parts[1::step] = bodies
        parts[2::step] = tails.view(f"V{tails.shape[1]}").reshape(count).tolist()
        if rests is not None:
            parts[3::step] = rests
        return _whole(
            EncodedFrame(first_sequence, count, sizes.astype("<u4").tobytes(), b"".join(parts))
        )

    def encode_columns(
        self,
        first_sequence: int,
        queues: int | I32,
        bodies: Column,
        *,
        born_ms: int | I64,
        tags: Column | None = None,
        keys: Column | None = None,
        properties: Mapping[str, Column] | None = None,
        compression: Compression = Compression.NONE,
        compress_over: int = COMPRESS_OVER_BYTES,
    ) -> EncodedFrame:
        """The same for columns of concatenated values, as in Arrow; `properties` by their keys, a
        missing value meaning no property. The bodies are copied once, into the frame."""
        rows = None
        if properties:
            columns = [(name, column.texts()) for name, column in properties.items()]
            count = len(bodies.offsets) - 1
            rows = [
                {name: text for name, texts in columns if (text := texts[row]) is not None}
                for row in range(count)
            ]
        return self.encode(
            first_sequence,
            queues,
            bodies.pieces(),
            born_ms=born_ms,
            tags=None if tags is None else tags.texts(),
            keys=None if keys is None else keys.texts(),
            properties=rows,
            compression=compression,
            compress_over=compress_over,
        )

    def _compressed(
        self, bodies: Sequence[Buffer], kind: Compression, over: int
    ) -> tuple[list[Buffer], I32]:
        """The bodies in their stored form, and the SYSFLAG of each."""
        pack = self._compressors[kind]
        sysflags = np.zeros(len(bodies), np.int32)
        stored = list(bodies)
        for row, body in enumerate(bodies):
            if len(body) > over:
                packed = pack(body)
                if len(packed) < len(body):
                    stored[row], sysflags[row] = packed, kind.value
        return stored, sysflags


def _whole(frame: EncodedFrame) -> EncodedFrame:
    """The frame, if its sizes are those of its entries: a buffer whose items are longer than a byte
    has fewer items than bytes."""
    if int(np.frombuffer(frame.sizes, "<u4").sum()) != len(frame.entries):
        raise ValueError("a body is not a sequence of single bytes")
    return frame


def _column(
    values: int | NDArray[Any], count: int, dtype: type[np.int32 | np.int64]
) -> NDArray[Any]:
    """A contiguous column, also of a value for every message."""
    return (
        np.full(count, values, dtype)
        if isinstance(values, int)
        else np.ascontiguousarray(values, dtype)
    )
