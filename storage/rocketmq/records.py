"""Parsing one message record of RocketMQ's commit log, V1 or V2 (RocketMQ's layout, hosts of IPv4
and IPv6 width).

Pure functions over bytes, written from the layout alone. The bytes come from another program, so
every length is checked before it is used, and the body is checked against its CRC. Properties stay
bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
RECORD_MIN_BYTES = 91
RECORD_MAX_BYTES = (64 << 20) + (64 << 10)
"""Longer records are rejected: RocketMQ accepts 4 MiB unless configured otherwise."""

COMPRESSED, MULTI_TAGS, BORN_V6, STORE_V6, NEED_UNWRAP, INNER_BATCH = (
    0x001,
    0x002,
    0x010,
    0x020,
    0x040,
    0x080,
)
TRANSACTION_BITS, PREPARED, COMMIT, ROLLBACK = 0x00C, 0x004, 0x008, 0x00C

_HEAD = struct.Struct(">iIiiiqqiq")
_I32, _I64, _I16, _I8 = (
    struct.Struct(">i"),
    struct.Struct(">q"),
    struct.Struct(">h"),
    struct.Struct(">b"),
)


class BadRecord(ValueError):
    """The bytes are not a whole message record; the text says why."""


class Message(NamedTuple):
    """One record. `position`: its PHYSICALOFFSET; hosts are address bytes (4 or 16) and port
    (4)."""

    position: int
    size: int
    queue: int
    flag: int
    queue_offset: int
    sysflag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    body_crc: int
    body: bytes
    topic: str
    properties: bytes


def take_apart(record: bytes) -> Message:
    """Parse a record. Raises BadRecord."""
    if len(record) < RECORD_MIN_BYTES:
        raise BadRecord(f"{len(record)} bytes are not a record")
    total, magic, crc, queue, flag, queue_offset, position, sysflag, born_ms = _HEAD.unpack_from(
        record
    )
    if magic not in (V1, V2):
        raise BadRecord(f"its magic is {magic:#010x}")
    if total != len(record):
        raise BadRecord(f"it says {total} bytes, there are {len(record)}")
    store_at = 68 if sysflag & BORN_V6 else 56
    times_at = store_at + (28 if sysflag & STORE_V6 else 16)
    body_at = times_at + 16
    if body_at + 4 > total:
        raise BadRecord("its parts do not fit")
    (body_bytes,) = _I32.unpack_from(record, body_at - 4)
    body_end = body_at + body_bytes
    if body_bytes < 0 or body_end + 3 > total:
        raise BadRecord(f"its body of {body_bytes} bytes does not fit")
    if magic == V1:
        (topic_bytes,) = _I8.unpack_from(record, body_end)
        topic_at = body_end + 1
    else:
        (topic_bytes,) = _I16.unpack_from(record, body_end)
        topic_at = body_end + 2
    topic_end = topic_at + topic_bytes
    if topic_bytes <= 0 or topic_end + 2 > total:
        raise BadRecord(f"its topic of {topic_bytes} bytes does not fit")
    (properties_bytes,) = _I16.unpack_from(record, topic_end)
    if properties_bytes < 0 or topic_end + 2 + properties_bytes != total:
        raise BadRecord(f"its properties of {properties_bytes} bytes do not fit")
    body = record[body_at:body_end]
    if body and crc32(body) & 0x7FFFFFFF != crc:
        raise BadRecord("the CRC of its body is wrong")
    if queue < 0 or queue_offset < 0:
        raise BadRecord(f"its place in the queue is {queue}/{queue_offset}")
    try:
        topic = str(record[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError:
        raise BadRecord("its topic is not text") from None
    return Message(
        position=position,
        size=total,
        queue=queue,
        flag=flag,
        queue_offset=queue_offset,
        sysflag=sysflag,
        born_ms=born_ms,
        born_host=record[48:store_at],
        store_ms=_I64.unpack_from(record, store_at)[0],
        store_host=record[store_at + 8 : times_at],
        reconsume_times=_I32.unpack_from(record, times_at)[0],
        body_crc=crc,
        body=body,
        topic=topic,
        properties=record[topic_end + 2 :],
    )


def pairs_of(properties: bytes) -> dict[str, str]:
    """Name → value in order, parsed as RocketMQ does: split at 0x02 or the end, pieces without name
    or value skipped. Invalid UTF-8 becomes the replacement character."""
    out: dict[str, str] = {}
    for piece in properties.decode("utf-8", "replace").split("\x02"):
        name, separator, value = piece.partition("\x01")
        if separator and name and value:
            out[name] = value
    return out


def number_of(text: str | bytes) -> int:
    """A number of less than 19 digits; -1 for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
