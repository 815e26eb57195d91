"""Encoding of messages as entries: whole batches of records with empty headers (docs/format.md §2,
§4).

Bytes are joined once. Few entries are encoded one by one; of many, fields with a fixed place are
written with vector operations. `entry_sealing.py` adds the server's fields when an entry gets its
place in the log. No file, no clock, no decision about what belongs in the log. The auditor must
never import this module, because it is the independent second implementation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from ipaddress import AddressValueError, IPv4Address
from itertools import repeat
from operator import add
from zlib import crc32

import numpy as np

from ledgermq.proto.entries.layout import (
    BODY_AT,
    FEW_ENTRIES,
    HEADER_BYTES,
    ORIGIN_AT,
    RECORD_FIXED_BYTES,
    RECORD_V1,
    RECORD_V2,
    SYSFLAG_AT,
    V1_TOPIC_MAX,
    prefixes,
    put_prefixes,
    windows,
)
from ledgermq.proto.entries.properties import PROPERTIES_MAX, Fields
from ledgermq.proto.entries.properties import encode as encode_properties
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import I32, I64, Draft, UnsealedBatch

_I2 = np.dtype(">i2")
_PREFIX = struct.Struct(">32xi12xiiI24xiq28xqi")
"""The first 136 bytes of an unsealed entry: channel; total size, record magic, CRC-32 of the body;
sysflag, born time; origin, body length. Everything else is zero."""
assert _PREFIX.size == BODY_AT
_HALF_WORD = struct.Struct(">H")


def host_bytes(address: str, port: int) -> bytes:
    """STOREHOSTADDRESS: 0.0.0.0 for any address that is not IPv4."""
    try:
        packed = IPv4Address(address).packed
    except AddressValueError:
        packed = bytes(4)
    return packed + port.to_bytes(4, "big")


def entry_bytes(stored_topic: str, body_bytes: int, properties_bytes: int) -> int:
    """The length of a message's entry."""
    topic = len(stored_topic.encode())
    return (
        HEADER_BYTES
        + RECORD_FIXED_BYTES
        + (topic > V1_TOPIC_MAX)
        + topic
        + body_bytes
        + properties_bytes
    )


class _Template:
    """The constant bytes of every entry on one stored topic."""

    __slots__ = ("head", "magic", "middle", "topic")

    def __init__(self, stored_topic: str) -> None:
        topic = stored_topic.encode()
        v2 = len(topic) > V1_TOPIC_MAX
        self.magic = RECORD_V2 if v2 else RECORD_V1
        self.head = _PREFIX.pack(0, 0, self.magic, 0, 0, 0, 0, 0)
        """The 136 bytes before the body."""
        self.topic = len(topic).to_bytes(2 if v2 else 1, "big") + topic
        """The bytes between the body and the properties length."""
        self.middle = self.topic + b"\0\0"
        """The bytes between body and properties, with properties length zero."""


_templates: dict[str, _Template] = {}


def _template_of(stored_topic: str) -> _Template:
    known = _templates.get(stored_topic)
    if known is None:
        if len(_templates) >= 4096:
            _templates.clear()
        known = _templates[stored_topic] = _Template(stored_topic)
    return known


def encode_entries(drafts: Sequence[Draft]) -> UnsealedBatch:
    """Messages of any topics, in order, as one unsealed batch. A membership record's channel is the
    only byte of a header that is set."""
    n = len(drafts)
    if n <= FEW_ENTRIES:
        return _encode_each(drafts)
    numbers: dict[str, int] = {}
    topic_of = np.fromiter(
        [numbers.setdefault(d.stored_topic, len(numbers)) for d in drafts], np.int32, n
    )
    templates = [_template_of(d.stored_topic) for d in drafts]
    batch = _assemble(
        heads=[template.head for template in templates],
        bodies=[d.body for d in drafts],
        middles=[template.middle for template in templates],
        properties=[d.properties for d in drafts],
        born_ms=np.fromiter([d.born_ms for d in drafts], np.int64, n),
        topics=tuple(numbers),
        topic_of=topic_of,
        queues=np.fromiter([d.queue for d in drafts], np.int32, n),
    )
    for i, d in enumerate(drafts):
        if d.channel:
            at = int(batch.starts[i])
            batch.data[at + 32 : at + 36] = d.channel.to_bytes(4, "big")
        if d.sysflag:
            at = int(batch.starts[i]) + HEADER_BYTES + SYSFLAG_AT
            batch.data[at : at + 4] = d.sysflag.to_bytes(4, "big")
        if d.origin:
            at = int(batch.starts[i]) + HEADER_BYTES + ORIGIN_AT
            batch.data[at : at + 8] = d.origin.to_bytes(8, "big")
    return batch


def _encode_each(drafts: Sequence[Draft]) -> UnsealedBatch:
    """The same, entry by entry."""
    parts: list[bytes] = []
    keys: list[tuple[str, int]] = []
    edges, end = [0], 0
    for d in drafts:
        topic, body, properties = d.stored_topic, d.body, d.properties
        template = _templates.get(topic) or _template_of(topic)
        if len(properties) > PROPERTIES_MAX:
            raise fail(
                Code.MESSAGE_PROPERTIES_TOO_LARGE,
                f"message properties take more than {PROPERTIES_MAX} bytes",
            )
        size = BODY_AT + len(body) + len(template.middle) + len(properties)
        crc = crc32(body) & 0x7FFFFFFF
        parts += (
            _PREFIX.pack(
                d.channel,
                size - HEADER_BYTES,
                template.magic,
                crc,
                d.sysflag,
                d.born_ms,
                d.origin,
                len(body),
            ),
            body,
            template.topic,
            _HALF_WORD.pack(len(properties)),
            properties,
        )
        keys.append((topic, d.queue))
        end += size
        edges.append(end)
    return UnsealedBatch.of_few(bytearray().join(parts), edges, keys)


def encode_messages(
    stored_topic: str,
    queues: int | I32,
    bodies: Sequence[bytes],
    *,
    born_ms: int | I64,
    tags: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    message_ids: Sequence[str] | None = None,
    properties: Sequence[bytes] | None = None,
) -> UnsealedBatch:
    """Encode messages of one topic from columns.

    The caller gives either `properties` (encoded), or any of `message_ids`, `tags` and `keys` (one
    per message; an empty value is not stored).
    """
    n = len(bodies)
    if properties is None:
        properties = _column_properties(n, message_ids, tags, keys)
    template = _template_of(stored_topic)
    return _assemble(
        heads=repeat(template.head, n),
        bodies=bodies,
        middles=repeat(template.middle, n),
        properties=properties,
        born_ms=born_ms,
        topics=(stored_topic,),
        topic_of=np.zeros(n, np.int32),
        queues=np.full(n, queues, np.int32) if isinstance(queues, int) else queues,
    )


def _column(name: str, values: Sequence[str]) -> list[bytes] | None:
    """`name 0x01 value 0x02` for each value, with one encoding call for all; None if some value
    needs more than that."""
    between = f"\x02\0{name}\x01"
    data = f"{name}\x01{between.join(values)}\x02".encode()
    n = len(values)
    if data.count(b"\0") != n - 1 or data.count(b"\x01") != n or data.count(b"\x02") != n:
        raise fail(Code.BAD_REQUEST, f"a value of {name} contains a control character; remove it")
    return None if b"\x01\x02" in data or b" " in data else data.split(b"\0")


def _column_properties(
    n: int, ids: Sequence[str] | None, tags: Sequence[str] | None, keys: Sequence[str] | None
) -> Sequence[bytes]:
    if n == 0:
        return []
    columns: list[Sequence[bytes] | None] = []
    if ids is not None:
        columns.append(_column("UNIQ_KEY", ids))
    if tags is not None:
        distinct = list(dict.fromkeys(tags))
        encoded = _column("TAGS", distinct)
        columns.append(
            encoded and list(map(dict(zip(distinct, encoded, strict=True)).__getitem__, tags))
        )
    if keys is not None:
        columns.append(_column("KEYS", keys))
    joined: Sequence[bytes] | None = None
    for column in columns:
        if column is None:
            return _row_properties(
                ids or repeat(None, n), tags or repeat(None, n), keys or repeat(None, n)
            )
        joined = column if joined is None else list(map(add, joined, column))
    return [b""] * n if joined is None else joined


def _row_properties(
    ids: Iterable[str | None], tags: Iterable[str | None], keys: Iterable[str | None]
) -> list[bytes]:
    rows = zip(ids, tags, keys, strict=True)
    return [
        encode_properties(Fields(message_id=i or None, tag=t, keys=(k,) if k else ()))
        for i, t, k in rows
    ]


def _assemble(
    *,
    heads: Iterable[bytes],
    bodies: Sequence[bytes],
    middles: Iterable[bytes],
    properties: Sequence[bytes],
    born_ms: int | I64,
    topics: tuple[str, ...],
    topic_of: I32,
    queues: I32,
) -> UnsealedBatch:
    n = len(bodies)
    parts: list[bytes] = [b""] * (4 * n)
    parts[0::4] = heads
    parts[1::4] = bodies
    parts[2::4] = middles
    parts[3::4] = properties
    data = bytearray().join(parts)
    body_lengths = np.fromiter(map(len, bodies), np.int64, n)
    property_lengths = np.fromiter(map(len, properties), np.int64, n)
    if n and int(property_lengths.max()) > PROPERTIES_MAX:
        raise fail(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"message properties take more than {PROPERTIES_MAX} bytes",
        )
    middle_lengths = np.array([len(_template_of(topic).middle) for topic in topics], np.int64)[
        topic_of
    ]
    sizes = BODY_AT + body_lengths + middle_lengths + property_lengths
    ends = np.cumsum(sizes)
    starts = ends - sizes
    records = prefixes(data, starts)
    records["total_size"] = sizes - HEADER_BYTES
    records["crc32"] = np.fromiter(map(crc32, bodies), np.uint32, n) & 0x7FFFFFFF
    records["born_ms"] = born_ms
    records["body_length"] = body_lengths
    put_prefixes(data, starts, records)
    windows(data, _I2)[ends - property_lengths - 2] = property_lengths
    return UnsealedBatch(
        data, starts, sizes=sizes.astype(np.int32), topics=topics, topic_of=topic_of, queues=queues
    )
