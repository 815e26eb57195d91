"""Encodes `FetchResponse` messages by hand, so that the bytes of the entries are copied only once,
into the message.

Field numbers and wire types are those of proto/log.proto; a test compares every message with the
generated code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledgermq.proto.types import I32
from ledgermq.storage.log.entry_reader import Piece

_ENTRIES = 0x12
"""Tag of field 2 of FetchResponse, length-delimited."""
_QUEUE, _FIRST_OFFSET, _SIZES, _DATA, _END_OFFSET, _SKIPPED = 0x08, 0x10, 0x1A, 0x22, 0x28, 0x30
_NEGATIVE = 1 << 64


def varint(value: int) -> bytes:
    """A protobuf varint; a negative number takes ten bytes."""
    value = value + _NEGATIVE if value < 0 else value
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(tag: int, value: int) -> bytes:
    return bytes((tag,)) + varint(value) if value else b""


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive entries of one queue (of the whole log if `queue` is −1), as pieces of the
    log."""

    queue: int
    first_offset: int
    sizes: I32
    pieces: list[Piece]
    source: str
    """Where they were read (recent, waiting, cold), for metrics."""
    pos: int = 0
    """The log position behind the last entry, for readers that read several queues in log order."""

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.sizes)


@dataclass(frozen=True, slots=True)
class Answer:
    """An encoded message, with the number of its entries and their bytes."""

    data: bytes
    count: int
    size: int
    source: str
    skipped: int = 0


def entries_answer(batch: Batch, end_offset: int, skipped: int) -> Answer:
    """An encoded FetchResponse with these entries."""
    sizes = batch.sizes.astype("<u4").tobytes()
    size = int(batch.sizes.sum(dtype="i8"))
    head = b"".join(
        (
            _number(_QUEUE, batch.queue),
            _number(_FIRST_OFFSET, batch.first_offset),
            bytes((_SIZES,)),
            varint(len(sizes)),
            sizes,
            bytes((_DATA,)),
            varint(size),
        )
    )
    tail = _number(_END_OFFSET, end_offset) + _number(_SKIPPED, skipped)
    whole: Iterable[Piece] = (
        bytes((_ENTRIES,)),
        varint(len(head) + size + len(tail)),
        head,
        *batch.pieces,
        tail,
    )
    return Answer(b"".join(whole), len(batch.sizes), size, batch.source, skipped)
