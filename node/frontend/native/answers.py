"""`FetchResponse` messages with entries, written by hand: the bytes of the entries are copied once, into the message.

Field numbers and wire types are those of proto/log.proto; a test holds every message against the generated code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledgermq.proto.types import I32
from ledgermq.storage.entry_reader import Piece

_ENTRIES = 0x12
"""Field 2 of FetchResponse, with a length."""
_QUEUE, _FIRST_OFFSET, _SIZES, _DATA, _END_OFFSET, _SKIPPED = 0x08, 0x10, 0x1A, 0x22, 0x28, 0x30
_NEGATIVE = 1 << 64


def varint(value: int) -> bytes:
    """A number as protobuf writes it; negative ones take ten bytes."""
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
    """Entries of one queue (of the whole log if `queue` is −1) without a gap, as pieces of the log."""

    queue: int
    first_offset: int
    sizes: I32
    pieces: list[Piece]
    source: str
    """Where they were found, for metrics."""
    pos: int = 0
    """Where the log goes on behind the last one, for whoever reads several queues in the order of the log."""

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.sizes)


@dataclass(frozen=True, slots=True)
class Answer:
    """A message ready to be sent, and what it holds: entries and their bytes."""

    data: bytes
    count: int
    size: int
    source: str
    skipped: int = 0


def entries_answer(batch: Batch, end_offset: int, skipped: int) -> Answer:
    """A FetchResponse with these entries."""
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
    whole: Iterable[Piece] = (bytes((_ENTRIES,)), varint(len(head) + size + len(tail)), head, *batch.pieces, tail)
    return Answer(b"".join(whole), len(batch.sizes), size, batch.source, skipped)
