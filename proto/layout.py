"""The entry encoder: messages into entries, sealing, verification, and one record back into its fields.

This is the writer's side of docs/format.md §2–§4. Everything works on whole batches: bytes are joined once, fields with a fixed place
are written in vectors, and only the CRCs are computed entry by entry. No file, no clock, no decision about what belongs into the log.
The auditor must never import this module: it is the second opinion.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address
from itertools import repeat
from operator import add
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from ledgermq.proto.layout_columns import (
    BODY_AT,
    CHAINED_BYTES,
    CRC_WORDS_AT,
    ENTRY_MAGIC,
    ENTRY_MIN_BYTES,
    FEW_ENTRIES,
    HEADER,
    HEADER_BYTES,
    INDEX_UNIT,
    ORIGIN_AT,
    PREFIX,
    QUEUE_UNIT,
    RECORD_FIXED_BYTES,
    RECORD_V1,
    RECORD_V2,
    SYSFLAG_AT,
    V1_TOPIC_MAX,
    Buffer,
    Columns,
    for_each,
    java_hash,
    prefixes,
    put_prefixes,
    record_columns,
    split_record,
    tags_code,
    tails,
    windows,
)
from ledgermq.proto.properties import PROPERTIES_MAX, Fields
from ledgermq.proto.properties import encode as encode_properties
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import I32, I64, Draft, Range, UnsealedBatch

__all__ = [
    "HEADER",
    "HEADER_BYTES",
    "INDEX_UNIT",
    "PREFIX",
    "QUEUE_UNIT",
    "BadEntry",
    "Columns",
    "Record",
    "chain_crc_at",
    "chain_seed",
    "decode_record",
    "encode_entries",
    "encode_messages",
    "entry_bytes",
    "host_bytes",
    "java_hash",
    "make_range",
    "prefixes",
    "record_columns",
    "seal",
    "tags_code",
    "verify_range",
]

NO_HOST = bytes(8)
_SIZE_AT = 4
_CRC_WORDS = np.dtype([("chain_crc", ">u4"), ("body_crc", ">u4")])
_CRC_BYTES = np.dtype("V8")
_CHAINED = np.dtype([("head", f"V{CHAINED_BYTES}"), ("body_crc", ">u4")])
_CHAINED_ITEM = np.dtype(f"V{_CHAINED.itemsize}")
_I2 = np.dtype(">i2")


def chain_seed(log_id: str) -> int:
    """The chain CRC before entry 0 of a log."""
    return int(crc32c(log_id.encode("ascii")))


def host_bytes(address: str, port: int) -> bytes:
    """STOREHOSTADDRESS: 0.0.0.0 for anything that is not an IPv4 address."""
    try:
        packed = IPv4Address(address).packed
    except AddressValueError:
        packed = bytes(4)
    return packed + port.to_bytes(4, "big")


def entry_bytes(stored_topic: str, body_bytes: int, properties_bytes: int) -> int:
    """How long the entry of a message will be."""
    topic = len(stored_topic.encode())
    return HEADER_BYTES + RECORD_FIXED_BYTES + (topic > V1_TOPIC_MAX) + topic + body_bytes + properties_bytes


def _template(stored_topic: str) -> tuple[bytes, bytes]:
    """The 136 bytes before the body with everything constant filled in, and what lies between body and properties (their length zero)."""
    topic = stored_topic.encode()
    v2 = len(topic) > V1_TOPIC_MAX
    head = np.zeros(1, PREFIX)
    head["record_magic"] = RECORD_V2 if v2 else RECORD_V1
    return head.tobytes(), len(topic).to_bytes(2 if v2 else 1, "big") + topic + b"\0\0"


_templates: dict[str, tuple[bytes, bytes]] = {}


def _template_of(stored_topic: str) -> tuple[bytes, bytes]:
    known = _templates.get(stored_topic)
    if known is None:
        if len(_templates) >= 4096:
            _templates.clear()
        known = _templates[stored_topic] = _template(stored_topic)
    return known


def encode_entries(drafts: Sequence[Draft]) -> UnsealedBatch:
    """Messages of any topics, in order, as one unsealed batch. A membership record's channel is the only byte of a header that is set."""
    n = len(drafts)
    numbers: dict[str, int] = {}
    topic_of = np.fromiter([numbers.setdefault(d.stored_topic, len(numbers)) for d in drafts], np.int32, n)
    templates = [_template_of(d.stored_topic) for d in drafts]
    batch = _assemble(
        heads=[head for head, _ in templates],
        bodies=[d.body for d in drafts],
        middles=[middle for _, middle in templates],
        properties=[d.properties for d in drafts],
        born_ms=np.fromiter([d.born_ms for d in drafts], np.int64, n),
        topics=tuple(numbers),
        topic_of=topic_of,
        queues=np.fromiter([d.queue for d in drafts], np.int32, n),
        tags_codes=np.fromiter([d.tags_code for d in drafts], np.int64, n),
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
    tags_codes: I64 | None = None,
) -> UnsealedBatch:
    """Messages of one topic from columns.

    Either `properties` (encoded, with their `tags_codes`), or any of `message_ids`, `tags` and `keys` (one a message; an empty one is
    not sent).
    """
    n = len(bodies)
    if properties is None:
        properties = _column_properties(n, message_ids, tags, keys)
        tags_codes = np.fromiter(map(java_hash, tags), np.int64, n) if tags is not None else None
    head, middle = _template_of(stored_topic)
    return _assemble(
        heads=repeat(head, n),
        bodies=bodies,
        middles=repeat(middle, n),
        properties=properties,
        born_ms=born_ms,
        topics=(stored_topic,),
        topic_of=np.zeros(n, np.int32),
        queues=np.full(n, queues, np.int32) if isinstance(queues, int) else queues,
        tags_codes=np.zeros(n, np.int64) if tags_codes is None else tags_codes,
    )


def _column(name: str, values: Sequence[str]) -> list[bytes] | None:
    """`name 0x01 value 0x02` for each value, through one encoding call for all; None if some value needs more than that."""
    between = f"\x02\0{name}\x01"
    data = f"{name}\x01{between.join(values)}\x02".encode()
    n = len(values)
    if data.count(b"\0") != n - 1 or data.count(b"\x01") != n or data.count(b"\x02") != n:
        raise fail(Code.BAD_REQUEST, f"a value of {name} contains a control character; remove it")
    return None if b"\x01\x02" in data or b" " in data else data.split(b"\0")


def _column_properties(n: int, ids: Sequence[str] | None, tags: Sequence[str] | None, keys: Sequence[str] | None) -> Sequence[bytes]:
    if n == 0:
        return []
    columns: list[Sequence[bytes] | None] = []
    if ids is not None:
        columns.append(_column("UNIQ_KEY", ids))
    if tags is not None:
        distinct = list(dict.fromkeys(tags))
        encoded = _column("TAGS", distinct)
        columns.append(encoded and list(map(dict(zip(distinct, encoded, strict=True)).__getitem__, tags)))
    if keys is not None:
        columns.append(_column("KEYS", keys))
    joined: Sequence[bytes] | None = None
    for column in columns:
        if column is None:
            return _row_properties(ids or repeat(None, n), tags or repeat(None, n), keys or repeat(None, n))
        joined = column if joined is None else list(map(add, joined, column))
    return [b""] * n if joined is None else joined


def _row_properties(ids: Iterable[str | None], tags: Iterable[str | None], keys: Iterable[str | None]) -> list[bytes]:
    rows = zip(ids, tags, keys, strict=True)
    return [encode_properties(Fields(message_id=i or None, tag=t, keys=(k,) if k else ())) for i, t, k in rows]


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
    tags_codes: I64,
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
        raise fail(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"message properties take more than {PROPERTIES_MAX} bytes")
    middle_lengths = np.array([len(_template_of(topic)[1]) for topic in topics], np.int64)[topic_of]
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
    return UnsealedBatch(data, starts, sizes.astype(np.int32), topics, topic_of, queues, tags_codes)


def seal(
    batch: UnsealedBatch,
    *,
    first_index: int,
    term: int,
    pos: int | I64,
    queue_offsets: I64,
    store_ms: int | I64,
    store_host: bytes | NDArray[np.void],
    prev_chain: int,
) -> int:
    """Give every entry its place: fill the header and the server's fields in `batch.data`, then both CRCs. Returns the last chain CRC.

    `pos` is the position of the first entry, the others following without a gap, or the position of each. Store time and store host are
    those of all, or of each. Sealing again (after a
    lost proposal) is allowed: every field is overwritten.
    """
    n = len(batch)
    data, starts = batch.data, batch.starts
    positions = pos + starts if isinstance(pos, int) else pos
    heads = prefixes(data, starts)
    heads["magic"] = ENTRY_MAGIC
    heads["size"] = batch.sizes
    heads["index"] = np.arange(first_index, first_index + n)
    heads["term"] = term
    heads["pos"] = positions
    heads["body_size"] = batch.sizes - HEADER_BYTES
    heads["queue"] = batch.queues
    heads["queue_offset"] = queue_offsets
    heads["physical_offset"] = positions + HEADER_BYTES
    heads["store_ms"] = store_ms
    heads["store_host"] = np.void(store_host) if isinstance(store_host, bytes) else store_host
    put_prefixes(data, starts, heads)
    words = np.empty(n, _CRC_WORDS)
    words["body_crc"] = _body_crcs(data, starts, batch.sizes)
    value = prev_chain
    chain = [value := crc32c(item, value) for item in _chained(heads, words["body_crc"])]
    words["chain_crc"] = _numbers(chain)
    windows(data, _CRC_BYTES)[starts + CRC_WORDS_AT] = words.view(_CRC_BYTES)
    return value


def _numbers(crcs: list[int]) -> NDArray[np.uint32]:
    """Cheaper than an array made of a list, whose type NumPy must find out first."""
    return np.fromiter(crcs, np.uint32, len(crcs))


def _body_crcs(data: Buffer, starts: I64, sizes: I32) -> NDArray[np.uint32]:
    return _numbers(for_each(crc32c, data, starts + HEADER_BYTES, starts + sizes))


def _chained(heads: NDArray[Any], body_crcs: NDArray[Any]) -> list[bytes]:
    """What the chain covers of each entry."""
    chained = np.empty(len(heads), _CHAINED)
    chained["head"] = heads.view(_HEAD_ONLY)["head"]
    chained["body_crc"] = body_crcs
    items: list[bytes] = chained.view(_CHAINED_ITEM).tolist()
    return items


_HEAD_ONLY = np.dtype([("head", f"V{CHAINED_BYTES}"), ("rest", f"V{BODY_AT - CHAINED_BYTES}")])


def chain_crc_at(data: Buffer, start: int) -> int:
    """The chain CRC word of the sealed entry at `start`."""
    return int.from_bytes(data[start + CRC_WORDS_AT : start + CRC_WORDS_AT + 4], "big")


def make_range(batch: UnsealedBatch, low: int, high: int, *, first_index: int, term: int, pos: int, prev_chain: int) -> Range:
    """Entries low … high−1 of a sealed batch as a range; `first_index` and `pos` belong to entry `low`."""
    begin = int(batch.starts[low])
    end = int(batch.starts[high - 1]) + int(batch.sizes[high - 1])
    return Range(
        first_index=first_index,
        last_index=first_index + high - low - 1,
        term=term,
        pos=pos,
        data=memoryview(batch.data)[begin:end].toreadonly(),
        starts=batch.starts[low:high] - begin,
        sizes=batch.sizes[low:high],
        prev_chain=prev_chain,
        last_chain=chain_crc_at(batch.data, int(batch.starts[high - 1])),
    )


class BadEntry(Exception):
    """The bytes are not the range they were said to be. `index` and `offset` are those of the first bad entry: what lies before is good."""

    def __init__(self, index: int, offset: int, reason: str) -> None:
        super().__init__(f"entry {index} (byte {offset} of the range): {reason}")
        self.index = index
        self.offset = offset
        self.reason = reason


def _alike(data: memoryview) -> tuple[int, int]:
    """How many entries from the first one on have its size, as their size fields say, and that size; (0, 0) without a whole entry."""
    if len(data) < ENTRY_MIN_BYTES:
        return 0, 0
    size = int.from_bytes(data[_SIZE_AT : _SIZE_AT + 4], "big", signed=True)
    if not ENTRY_MIN_BYTES <= size <= len(data):
        return 0, 0
    same = np.ndarray((len(data) // size,), ">i4", data, _SIZE_AT, (size,)) == size
    return (len(same) if same.all() else int(same.argmin())), size


def _walk(data: memoryview) -> tuple[I64, bool]:
    """Offsets of the entries as their size fields say, followed by the end; and whether they fill the data exactly."""
    alike, size = _alike(data)
    begin: I64 = np.arange(alike + 1, dtype=np.int64) * size
    rest, whole = _walk_from(data, alike * size)
    return np.concatenate((begin, np.array(rest, np.int64))) if rest else begin, whole


def _walk_from(data: memoryview, at: int) -> tuple[list[int], bool]:
    """The same of what lies behind `at`, one by one: where each entry ends."""
    unpack = struct.Struct(">i").unpack_from
    end = len(data)
    starts: list[int] = []
    while at + ENTRY_MIN_BYTES <= end:
        size = unpack(data, at + _SIZE_AT)[0]
        if size < ENTRY_MIN_BYTES:
            return starts, False
        at += size
        starts.append(at)
    return starts, at == end


def verify_range(data: Buffer, first_index: int, term: int, pos: int, prev_chain: int) -> Range:
    """Check every byte of entries that somebody sent or a disk returned, and give them their columns. Raises BadEntry.

    The entries must be whole, of one term, contiguous from (`first_index`, `pos`) on, and continue the chain `prev_chain`. The data is
    neither copied nor kept from changing: verify what nobody writes to any more.
    """
    view = memoryview(data)
    edges, whole = _walk(view)
    starts, sizes = edges[:-1], np.diff(edges).astype(np.int32)
    n = len(starts)
    if not whole or n <= FEW_ENTRIES:
        last_chain = _check_each(view, first_index, term, pos, prev_chain)
        return Range(first_index, first_index + n - 1, term, pos, view, starts, sizes, prev_chain, last_chain)
    heads = prefixes(view, starts)
    body_crcs = _body_crcs(view, starts, sizes)
    # Every link by itself, from what is said of the entry before: equal to computing the chain through, if all of them hold.
    said = heads["chain_crc"].tolist()
    chain = _numbers(list(map(crc32c, _chained(heads, body_crcs), [prev_chain, *said[:-1]])))
    magics = heads["record_magic"]
    channels = heads["channel"]
    body_sizes = sizes - HEADER_BYTES
    good = (
        (heads["magic"] == ENTRY_MAGIC).all()
        and (heads["index"] == np.arange(first_index, first_index + n)).all()
        and (heads["term"] == term).all()
        and (heads["pos"] == pos + starts).all()
        and ((channels == 0) | (channels == 1)).all()
        and (heads["body_size"] == body_sizes).all()
        and (heads["total_size"] == body_sizes).all()
        and ((magics == RECORD_V1) | (magics == RECORD_V2)).all()
        and (heads["physical_offset"] == pos + starts + HEADER_BYTES).all()
        and (heads["body_crc"] == body_crcs).all()
        and (heads["chain_crc"] == chain).all()
        and tails(view, starts, sizes, heads).ok.all()
    )
    if not good:
        _check_each(view, first_index, term, pos, prev_chain)
        raise AssertionError("a range was refused in vectors but every entry of it is good")
    return Range(first_index, first_index + n - 1, term, pos, view, starts, sizes, prev_chain, said[-1])


def _check_each(data: memoryview, first_index: int, term: int, pos: int, prev_chain: int) -> int:
    """The same rules one entry at a time, in the order a reader meets them: for short ranges, and to name the first bad entry of any.
    Returns the last chain CRC."""
    at, index, chain = 0, first_index, prev_chain
    while at < len(data):
        reason, size, chain = _complaint(data, at, index, term, pos + at, chain)
        if reason is not None:
            raise BadEntry(index, at, reason)
        at += size
        index += 1
    if at == 0:
        raise BadEntry(index, 0, "there is no entry")
    return chain


_ENTRY_HEAD = struct.Struct(">iiqqqiIIi")


def _complaint(data: memoryview, at: int, index: int, term: int, pos: int, chain: int) -> tuple[str | None, int, int]:
    """(what is wrong with the entry at `at`, or None; its size; its chain CRC)."""
    if len(data) - at < ENTRY_MIN_BYTES:
        return f"only {len(data) - at} bytes are left for it", 0, 0
    magic, size, index_is, term_is, pos_is, channel, chain_crc, body_crc, body_size = _ENTRY_HEAD.unpack_from(data, at)
    if magic != ENTRY_MAGIC:
        return f"magic is {magic}, not {ENTRY_MAGIC}", 0, 0
    if size < ENTRY_MIN_BYTES or size > len(data) - at:
        return f"size {size} does not fit", 0, 0
    expected = (
        ("body size", body_size, size - HEADER_BYTES),
        ("index", index_is, index),
        ("term", term_is, term),
        ("position", pos_is, pos),
        ("channel", channel, channel if channel in (0, 1) else 0),
    )
    for name, found, wanted in expected:
        if found != wanted:
            return f"{name} is {found}, not {wanted}", 0, 0
    body = data[at + HEADER_BYTES : at + size]
    found_crc = crc32c(body)
    if body_crc != found_crc:
        return f"body CRC is {body_crc:#010x}, computed {found_crc:#010x}", 0, 0
    next_chain = crc32c(bytes(data[at : at + CHAINED_BYTES]) + body_crc.to_bytes(4, "big"), chain)
    if chain_crc != next_chain:
        return f"chain CRC is {chain_crc:#010x}, computed {next_chain:#010x}", 0, 0
    reason = _record_complaint(body)
    if reason is None and int.from_bytes(body[28:36], "big") != pos + HEADER_BYTES:
        reason = "the record's physical offset is not its position"
    return reason, size, next_chain


def _record_complaint(record: memoryview) -> str | None:
    try:
        split_record(record)
    except ValueError as error:
        return str(error)
    return None


class Record(NamedTuple):
    """One message record, for delivery. `properties` is the encoded property string."""

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    born_ms: int
    store_ms: int
    store_host: str
    body: bytes
    """As stored: compressed if `sysflag` says so."""
    properties: bytes
    sysflag: int = 0


_RECORD = struct.Struct(">iiiiiqqiq8sq8siqi")


@lru_cache(maxsize=256)
def _host_text(packed: bytes) -> str:
    return f"{packed[0]}.{packed[1]}.{packed[2]}.{packed[3]}:{int.from_bytes(packed[4:], 'big')}"



def decode_record(record: Buffer) -> Record:
    """The fields of a record. ValueError if it is none; CRCs were checked when the entry came in."""
    if len(record) < RECORD_FIXED_BYTES:
        raise ValueError(f"a message record has at least {RECORD_FIXED_BYTES} bytes, not {len(record)}")
    body_end, topic_at, topic_end, properties_at = split_record(record)
    _, _, _, queue, _, queue_offset, physical, sysflag, born_ms, _, store_ms, host, _, _, _ = _RECORD.unpack_from(record)
    return Record(
        topic=bytes(record[topic_at:topic_end]).decode(),
        queue=queue,
        queue_offset=queue_offset,
        physical_offset=physical,
        born_ms=born_ms,
        store_ms=store_ms,
        store_host=_host_text(host),
        body=bytes(record[88:body_end]),
        properties=bytes(record[properties_at:]),
        sysflag=sysflag,
    )
