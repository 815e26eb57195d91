"""The ids of native messages (docs/format.md §4.5), and how the code that applies the log
recognises them.

An id contains producer, epoch and sequence number, so the record itself identifies the message of
its producer. FLAG marks native records and the start of frames; an id alone proves nothing, because
any client may choose one of this form. Pure functions of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from ledgermq.proto.entries.layout import BODY_AT, FLAG_AT, HEADER_BYTES, windows
from ledgermq.proto.entries.ports import Sealed
from ledgermq.proto.types import I32

MAGIC_ID = 0x4C
NATIVE_ID_BYTES = 34
"""Hexadecimal characters."""
PRODUCER_MAX = (1 << 32) - 1
EPOCH_MAX = (1 << 16) - 1
SEQUENCE_MAX = (1 << 48) - 1
"""The largest sequence number of a message; the next one of a producer may be one more."""

STRETCH = 1 << 10
"""The key index contains one message out of this many (docs/format.md §14)."""

ID_FIELD = b"UNIQ_KEY\x01"
ID_PROPERTY_BYTES = len(ID_FIELD) + NATIVE_ID_BYTES + 1
_ID = np.dtype(f"V{NATIVE_ID_BYTES}")
_HEX_OF_BYTE = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), "u2")
_FLAGS = np.dtype(">i4")


class NativeId(NamedTuple):
    """Identifies a message of a producer in a log."""

    log_tag: int
    producer_id: int
    epoch: int
    sequence: int


def native_id(log_tag: int, producer_id: int, epoch: int, sequence: int) -> str:
    """The id of one message."""
    return f"{MAGIC_ID:02X}{log_tag:08X}{producer_id:08X}{epoch:04X}{sequence:012X}"


def native_ids(
    log_tag: int, producer_id: int, epoch: int, first_sequence: int, count: int
) -> NDArray[np.void]:
    """The ids of `count` consecutive messages, one item of 34 bytes each."""
    digits = np.frombuffer(
        bytearray(native_id(log_tag, producer_id, epoch, first_sequence).encode() * count), np.uint8
    )
    rows = digits.reshape(count, NATIVE_ID_BYTES)
    put_sequences(rows, first_sequence)
    return rows.view(_ID).reshape(count)


def put_sequences(rows: NDArray[np.uint8], first_sequence: int) -> None:
    """Each row ends with the digits of the first sequence number; write the digits of its own."""
    count = len(rows)
    differing = (first_sequence ^ (first_sequence + count - 1)).bit_length()
    width = (differing + 7) // 8
    if width:
        numbers = (
            np.arange(first_sequence, first_sequence + count, dtype=">u8")
            .view(np.uint8)
            .reshape(count, 8)
        )
        rows[:, -2 * width :] = (
            _HEX_OF_BYTE[numbers[:, -width:]].view(np.uint8).reshape(count, 2 * width)
        )


def stretch_id(text: str) -> str:
    """The id under which the key index has the message with this id: that of the first of its 1,024
    sequence numbers."""
    return f"{text[:-3]}{int(text[-3:], 16) & ~(STRETCH - 1):03X}"


def read_native_id(text: str | bytes) -> NativeId | None:
    """The content of an id; None if it is not of this form. An id of this form is native only in a
    record with a FLAG."""
    if len(text) != NATIVE_ID_BYTES:
        return None
    try:
        digits = text if isinstance(text, str) else text.decode("ascii")
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    if raw[0] != MAGIC_ID or len(raw) != NATIVE_ID_BYTES // 2 or raw.hex().upper() != digits:
        return None
    number = int.from_bytes
    return NativeId(
        number(raw[1:5], "big"),
        number(raw[5:9], "big"),
        number(raw[9:11], "big"),
        number(raw[11:], "big"),
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one frame.

    `at` is the row of the first one in the range, `position` its position in its frame as sent by
    the producer: 0 unless the range begins inside the frame.
    """

    at: int
    count: int
    log_tag: int
    producer_id: int
    epoch: int
    first_sequence: int
    position: int


def native_runs(entries: Sealed, flags: I32 | list[int] | None = None) -> list[Run]:
    """The frames, or parts of frames, in a range whose bytes this process wrote or verified, in log
    order. Other messages are in none. `flags` are the FLAGs, if the caller has them already.

    Decodes one id per run, and a second one to verify it. Raises ValueError if a record claims to
    be native but its id does not agree, which is impossible for frames that passed `read_frame`.
    """
    if flags is None:
        flags = windows(entries.data, _FLAGS)[entries.starts + HEADER_BYTES + FLAG_AT].astype(
            np.int32
        )
    # A run ends where the next entry does not continue the frame: a frame is appended as a whole,
    # and its first entry has FLAG 1.
    if isinstance(flags, list):
        begins = [
            at for at in range(1, len(flags)) if flags[at] != flags[at - 1] + 1 or flags[at] == 1
        ]
    elif flags.any():
        begins = (np.flatnonzero((flags[1:] != flags[:-1] + 1) | (flags[1:] == 1)) + 1).tolist()
    else:
        return []
    edges = [0, *begins, len(flags)]
    runs = []
    for at, end in pairwise(edges):
        position = int(flags[at]) - 1
        if position < 0:
            continue
        first, last = _id_at(entries, at), _id_at(entries, end - 1)
        if last != first._replace(sequence=first.sequence + end - at - 1):
            raise ValueError(
                f"entries {at} to {end - 1} of the range are no messages of one frame: their ids"
                f" are {first} and {last}"
            )
        runs.append(
            Run(
                at=at,
                count=end - at,
                log_tag=first.log_tag,
                producer_id=first.producer_id,
                epoch=first.epoch,
                first_sequence=first.sequence,
                position=position,
            )
        )
    return runs


def content_digest(entries: Sealed, first_row: int, count: int, before: int) -> int:
    """Continue the digest of a producer's messages, 64 bits, by `count` of its native messages.
    `before`: the digest of those before; 0 if there are none.

    It covers the stored body and the properties behind the id, each with its length: what the
    producer's program wrote, not when or where it was stored. Both halves are CRCs of all these
    bytes in a row, CRC32C above and CRC-32 below, so the digest does not depend on where frames and
    ranges were cut.
    """
    parts: list[memoryview] = []
    for row in range(first_row, first_row + count):
        entry, body_end, properties_at = _parts_of(entries, row)
        # Both lengths stand directly before what they are of.
        parts += (
            entry[BODY_AT - 4 : body_end],
            entry[properties_at - 2 : properties_at],
            entry[properties_at + ID_PROPERTY_BYTES :],
        )
    content = b"".join(parts)
    return int(crc32c(content, before >> 32)) << 32 | crc32(content, before & 0xFFFFFFFF)


def _parts_of(entries: Sealed, row: int) -> tuple[memoryview, int, int]:
    """An entry, the end of its body and the begin of its properties."""
    start, size = int(entries.starts[row]), int(entries.sizes[row])
    entry = entries.data[start : start + size]
    body_end = BODY_AT + int.from_bytes(entry[BODY_AT - 4 : BODY_AT], "big")
    wide = entry[HEADER_BYTES + 7] == 0xAB
    topic_at = body_end + (2 if wide else 1)
    return entry, body_end, topic_at + int.from_bytes(entry[body_end:topic_at], "big") + 2


def _id_at(entries: Sealed, row: int) -> NativeId:
    entry, _, properties_at = _parts_of(entries, row)
    field = bytes(entry[properties_at : properties_at + ID_PROPERTY_BYTES])
    found = (
        read_native_id(field[len(ID_FIELD) : -1])
        if field[: len(ID_FIELD)] == ID_FIELD and field[-1:] == b"\x02"
        else None
    )
    if found is None:
        raise ValueError(
            f"entry {row} of the range has the FLAG of a native message and no native id"
        )
    return found
