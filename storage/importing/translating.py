"""Translation of a RocketMQ message into an entry of the log: what is copied, and what has another
form here (docs/format.md §4.8).

Body, topic, tag, keys, times, IPv4 hosts and the redelivery count are copied. Properties keep their
order; names with another meaning here are escaped, and properties that only RocketMQ itself used
are left out.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple

from ledgermq.proto.entries.compression import (
    COMPRESSED,
    COMPRESSORS,
    LZ4_FLAG,
    ZLIB,
    ZSTD_FLAG,
    BadBody,
    decompress,
)
from ledgermq.proto.entries.layout import RECORD_FIXED_BYTES, V1_TOPIC_MAX
from ledgermq.proto.entries.properties import (
    BORN_HOST,
    DELIVER_MS,
    ESCAPE,
    FIRE_MS,
    INCARNATION,
    MESSAGE_ID,
    OWN_PREFIX,
    PRIORITY,
    PROPERTIES_MAX,
    REAL_QUEUE,
    REAL_TOPIC,
)
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.storage.rocketmq.records import Message, pairs_of

FLAG_PROPERTY = "__LMQ.FLAG"
"""Property for the application's FLAG, if it is not 0: in records of LedgerMQ the field counts the
messages of a frame."""
SOURCE_PRIORITY = "_SYS_MSG_PRIORITY_"
RECORD_CRC = "__CRC32#"
_WAITING = frozenset(
    {
        REAL_TOPIC,
        REAL_QUEUE,
        FIRE_MS,
        DELIVER_MS,
        "DELAY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_ENQUEUE_MS",
    }
) | {
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_DELAY_LEVEL",
}
"""Properties by which RocketMQ delays a message."""
_HEAD = struct.Struct(">iIiiiqqiq8sq8siqi")
_MAGIC_V1, _MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
_HEADER = bytes(48)


class Entry(NamedTuple):
    """An unsealed entry, in pieces, and the columns needed to seal it. `size`: of the whole
    entry."""

    head: bytes
    body: bytes
    rest: bytes
    size: int
    topic: str
    queue: int
    queue_offset: int
    store_host: bytes
    properties: bytes


class Waiting(NamedTuple):
    """The placement of a delayed message: its destination and time, the incarnation of its topic,
    and its place on the timer topic."""

    topic: str
    queue: int
    deliver_ms: int
    incarnation: int
    fire_ms: int
    slot: int
    offset: int


class CannotKeep(ValueError):
    """The message cannot be represented here; the text says why."""


def translate(message: Message, waiting: Waiting | None = None) -> Entry:
    """Translate the message for its own topic, or as a delayed one. Raises CannotKeep."""
    properties = _properties(message, waiting)
    body, sysflag, body_crc = (
        message.body,
        _sysflag(message),
        message.body_crc if message.body else 0,
    )
    topic, queue, queue_offset = message.topic, message.queue, message.queue_offset
    if waiting is not None:
        topic, queue, queue_offset = TIMER_TOPIC, waiting.slot, waiting.offset
        if sysflag:
            # The copy that is made at the delivery time does not state a compression.
            try:
                body, sysflag = decompress(body, sysflag), 0
            except BadBody as error:
                raise CannotKeep(str(error)) from error
            body_crc = zlib.crc32(body) & 0x7FFFFFFF
    return assemble(
        topic,
        queue,
        queue_offset,
        body,
        body_crc,
        properties=properties,
        sysflag=sysflag,
        born=(message.born_ms, _host(message.born_host)),
        stored=(message.store_ms, _host(message.store_host)),
        reconsume_times=message.reconsume_times,
    )


def assemble(
    topic: str,
    queue: int,
    queue_offset: int,
    body: bytes,
    body_crc: int,
    properties: bytes,
    sysflag: int,
    born: tuple[int, bytes],
    stored: tuple[int, bytes],
    reconsume_times: int,
) -> Entry:
    """An entry with these fields. `born`, `stored`: time and host."""
    name = topic.encode()
    wide = len(name) > V1_TOPIC_MAX
    total = RECORD_FIXED_BYTES + wide + len(name) + len(body) + len(properties)
    head = _HEADER + _HEAD.pack(
        total,
        _MAGIC_V2 if wide else _MAGIC_V1,
        body_crc,
        queue,
        0,
        queue_offset,
        0,
        sysflag,
        *born,
        *stored,
        reconsume_times,
        0,
        len(body),
    )
    rest = (
        len(name).to_bytes(2 if wide else 1, "big")
        + name
        + len(properties).to_bytes(2, "big")
        + properties
    )
    return Entry(
        head=head,
        body=body,
        rest=rest,
        size=len(_HEADER) + total,
        topic=topic,
        queue=queue,
        queue_offset=queue_offset,
        store_host=stored[1],
        properties=properties,
    )


def _host(host: bytes) -> bytes:
    return host if len(host) == 8 else bytes(8)


def _sysflag(message: Message) -> int:
    """The compression of the body, as flags of our records. RocketMQ's oldest flag names no
    compressor and means zlib."""
    if not message.sysflag & COMPRESSED:
        return 0
    kind = message.sysflag & COMPRESSORS
    return COMPRESSED | kind if kind in (LZ4_FLAG, ZSTD_FLAG) else ZLIB


def _properties(message: Message, waiting: Waiting | None) -> bytes:
    raw = message.properties
    if waiting is None and _is_plain(raw) and not message.flag:
        # The common case: only the properties are missing that RocketMQ derives from other fields
        # for clients.
        added = "" if b"__BORNHOST\x01" in raw else _pair(BORN_HOST, _address(message))
        data = raw + added.encode()
        if raw.startswith(b"UNIQ_KEY\x01") or b"\x02UNIQ_KEY\x01" in raw:
            return data if len(data) <= PROPERTIES_MAX else raw
    pairs = _renamed(pairs_of(raw))
    pairs.setdefault(MESSAGE_ID, _offset_id(message))
    pairs.setdefault(BORN_HOST, _address(message))
    if message.flag:
        pairs[FLAG_PROPERTY] = str(message.flag)
    if waiting is not None:
        pairs = {name: value for name, value in pairs.items() if name not in _WAITING}
        pairs |= {
            DELIVER_MS: str(waiting.deliver_ms),
            REAL_TOPIC: waiting.topic,
            REAL_QUEUE: str(waiting.queue),
            INCARNATION: str(waiting.incarnation),
            FIRE_MS: str(waiting.fire_ms),
        }
    data = "".join(map(_pair, pairs, pairs.values())).encode()
    if len(data) > PROPERTIES_MAX:
        raise CannotKeep(f"its properties take {len(data)} bytes, the maximum is {PROPERTIES_MAX}")
    return data


def _pair(name: str, value: str) -> str:
    return f"{name}\x01{value}\x02"


def _is_plain(raw: bytes) -> bool:
    """Whether the property string already has our form, and repeats nothing that is stored
    elsewhere here."""
    return (
        raw[-1:] == b"\x02"
        and raw.isascii()
        and raw[:1] != b"\x01"
        and raw.count(b"\x01") == raw.count(b"\x02")
        and b"\x02\x01" not in raw
        and b"\x02\x02" not in raw
        and raw[:1] != b"\x02"
        and b"__LMQ." not in raw
        and b"PRIORITY" not in raw
        and b"__CRC32#" not in raw
        and not _has_double(raw)
    )


def _has_double(raw: bytes) -> bool:
    """Whether a value contains another separator: then one pair has two of them, and another has
    none."""
    return any(piece.count(b"\x01") != 1 for piece in raw[:-1].split(b"\x02"))


def _renamed(pairs: Mapping[str, str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, value in pairs.items():
        if name == RECORD_CRC:
            continue
        if name.startswith(OWN_PREFIX) or name == PRIORITY:
            name = ESCAPE + name
        elif name == SOURCE_PRIORITY:
            name = PRIORITY
        out[name] = value.replace("\x01", " ")
    return out


def _address(message: Message) -> str:
    return str(ip_address(message.born_host[:-4]))


def _offset_id(message: Message) -> str:
    """The id that RocketMQ gives a message without a client's id: the host and position where it
    was stored."""
    return (message.store_host + message.position.to_bytes(8, "big")).hex().upper()
