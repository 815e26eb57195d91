"""The records in a window as columns: the positions of body, topic and properties, and the values
that derived files need.

Decoding only; `scan` and `derived` decide which value is right.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.reading.decode import (
    HEADER_BYTES,
    I64,
    RECORD_FIXED_BYTES,
    RECORD_V1,
    RECORD_V2,
    U8,
    Flags,
    tags_code,
)

RAFT_TOPIC = b"rmq_sys_ledgermq_raft"
TIMER_TOPIC = b"rmq_sys_ledgermq_timer"
SYSTEM_PREFIX = b"rmq_sys_"
FIRE_TIME = b"\x02TIMER_OUT_MS\x01"
TAGS = b"TAGS\x01"
NATIVE_BEGIN = b"UNIQ_KEY\x014C"
NATIVE_BYTES = len(b"UNIQ_KEY\x01") + 34 + 1
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Columns:
    """The entries of one piece, one row each. `intact`: both CRCs of the entry match; `proven`:
    they match after the header fields that are known to be wrong are corrected.

    `offset` is the place in the file; `index` is the index the entry must have, whatever its field
    says; `body_crc` is recomputed; `sound` marks proven entries whose record could be parsed. Only
    there `topics[topic_of]`, `tag_code` and the queue columns are valid. `ordinal` counts the sound
    entries of the file before each.
    """

    index: I64
    term: I64
    offset: I64
    size: I64
    chain: I64
    body_crc: I64
    channel: I64
    queue: I64
    queue_offset: I64
    store_ms: I64
    total_size: I64
    tags_code: I64
    topic_of: I64
    topics: list[bytes]
    intact: Flags
    proven: Flags
    sound: Flags
    ordinal: I64

    def __len__(self) -> int:
        return len(self.index)

    def place_of(self, row: int) -> tuple[int, int, int]:
        """Index, ordinal and offset of an entry."""
        return int(self.index[row]), int(self.ordinal[row]), int(self.offset[row])


@dataclass(frozen=True, slots=True)
class Parts:
    """The variable parts of records. `fits`: they fill the record exactly; for other records the
    columns hold filler values."""

    fits: Flags
    right_magic: Flags
    right_topic: Flags
    closed: Flags
    membership: Flags
    topic_of: I64
    topics: list[bytes]
    tags_codes: I64
    record_crcs: I64
    property_at: I64


def take_apart(window: bytes, offsets: I64, sizes: I64, rows: NDArray[np.void]) -> Parts:
    """Find body, topic and properties of every record with vector operations; only the CRC of the
    body is computed per message."""
    data: U8 = np.frombuffer(window, np.uint8)
    limit = len(data) - 1
    ends = offsets + sizes
    second = rows["record_magic"] == RECORD_V2
    known = second | (rows["record_magic"] == RECORD_V1)
    body_at = offsets + HEADER_BYTES + RECORD_FIXED_BYTES
    body_bytes = rows["body_bytes"].astype(np.int64)
    fits: Flags = known & (body_bytes >= 0) & (body_bytes <= sizes)
    at = np.minimum(body_at + np.where(fits, body_bytes, 0), limit - 1)
    wide = (data[at].astype(np.int64) << 8) | data[at + 1]
    topic_bytes = np.where(second, wide, data[at])
    topic_at = at + 1 + second
    length_at = np.minimum(topic_at + topic_bytes, limit - 1)
    property_bytes = (data[length_at].astype(np.int64) << 8) | data[length_at + 1]
    property_at = length_at + 2
    fits = (
        fits
        & (property_at + property_bytes == ends)
        & (topic_at + topic_bytes == length_at)
        & (property_bytes < 1 << 15)
    )
    right_magic = known & (second == (topic_bytes > 127)) | ~fits & known
    closed = (property_bytes == 0) | (data[np.minimum(ends, limit + 1) - 1] == 2)
    topic_of, topics = intern(data, topic_at, np.where(fits, topic_bytes, 0))
    tag_at, tag_bytes = find_tags(window, data, property_at, np.where(fits, ends, property_at))
    tag_of, tags = intern(data, tag_at, tag_bytes)
    codes = np.array([tags_code(tag) for tag in tags], np.int64)
    tags_codes = codes[tag_of]
    if TIMER_TOPIC in topics:
        for row in np.flatnonzero(fits & (topic_of == topics.index(TIMER_TOPIC))).tolist():
            tags_codes[row] = fire_time(window[int(property_at[row]) : int(ends[row])])
    raft = np.array([topic == RAFT_TOPIC for topic in topics], np.bool_)
    membership = np.array([tag == b"membership" for tag in tags], np.bool_)
    return Parts(
        fits=fits,
        right_magic=right_magic,
        right_topic=np.array([_is_name(topic) for topic in topics], np.bool_)[topic_of],
        closed=closed,
        membership=raft[topic_of] & membership[tag_of],
        topic_of=topic_of,
        topics=topics,
        tags_codes=tags_codes,
        record_crcs=_record_crcs(window, body_at, np.where(fits, at, body_at)),
        property_at=property_at,
    )


def native_ids(window: bytes, property_at: I64, ends: I64) -> Flags:
    """Whether property strings start with a native message id: `UNIQ_KEY`, 01, 34 upper-case
    hexadecimal digits, the first two 4C, 02."""
    data: U8 = np.frombuffer(window, np.uint8)
    texts = data[np.minimum(property_at[:, None] + np.arange(NATIVE_BYTES), len(data) - 1)]
    begin, digits = texts[:, : len(NATIVE_BEGIN)], texts[:, len(NATIVE_BEGIN) : -1]
    hexadecimal = ((digits >= ord("0")) & (digits <= ord("9"))) | (
        (digits >= ord("A")) & (digits <= ord("F"))
    )
    native: Flags = (
        (begin == np.frombuffer(NATIVE_BEGIN, np.uint8)).all(axis=1)
        & hexadecimal.all(axis=1)
        & (texts[:, -1] == 2)
    )
    return native & (property_at + NATIVE_BYTES <= ends)


def is_system(topic: bytes) -> bool:
    """Whether a stored name is that of a topic created by nodes; topics in a namespace belong to
    clients, whatever their name."""
    return topic.startswith(SYSTEM_PREFIX) and b"@" not in topic


def intern(data: U8, starts: I64, lengths: I64) -> tuple[I64, list[bytes]]:
    """Assign equal byte strings the same number: (number of each, the distinct strings)."""
    numbers = np.zeros(len(starts), np.int64)
    distinct: list[bytes] = []
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if not length:
            numbers[rows] = len(distinct)
            distinct.append(b"")
            continue
        strided = np.lib.stride_tricks.as_strided(
            data, (len(data) - length + 1, length), (1, 1), writeable=False
        )
        texts = strided[starts[rows]]
        first, number = _group(texts)
        numbers[rows] = number + len(distinct)
        distinct += [texts[at].tobytes() for at in first.tolist()]
    return numbers, distinct


def _group(texts: U8) -> tuple[I64, I64]:
    """(row of the first of each kind, kind of each row) for strings of equal length. Hashes only
    preselect; equality decides."""
    if (texts == texts[0]).all():
        return np.zeros(1, np.int64), np.zeros(len(texts), np.int64)
    hashes = np.zeros(len(texts), np.uint64)
    for column in range(texts.shape[1]):
        hashes = hashes * HASH_FACTOR + texts[:, column]
    _, first, kind = np.unique(hashes, return_index=True, return_inverse=True)
    if not (texts == texts[first][kind]).all():
        _, first, kind = np.unique(texts, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), kind.reshape(-1).astype(np.int64)


def find_tags(window: bytes, data: U8, starts: I64, ends: I64) -> tuple[I64, I64]:
    """The position and length of the value of TAGS in each property string; length 0 if there is
    none.

    TAGS is the first property, or the second behind UNIQ_KEY: these are found with vector
    operations. Other strings are searched one by one.
    """
    closes = np.flatnonzero(data == 2)
    padded = np.append(closes, len(data))
    second = padded[np.searchsorted(closes, starts)] + 1
    tag_at = np.full(len(starts), -1, np.int64)
    for candidates in (second, starts):
        clipped = np.minimum(candidates, max(len(data) - len(TAGS), 0))
        tagged = (candidates + len(TAGS) <= ends) & (clipped == candidates)
        for at, letter in enumerate(TAGS):
            tagged &= data[clipped + at] == letter
        tag_at = np.where(tagged, candidates + len(TAGS), tag_at)
    for row in np.flatnonzero((tag_at < 0) & (second < ends)).tolist():
        tag_at[row] = _search_tag(window, int(starts[row]), int(ends[row]))
    lengths = np.minimum(padded[np.searchsorted(closes, np.maximum(tag_at, 0))], ends) - tag_at
    return np.maximum(tag_at, 0), np.where(tag_at < 0, 0, np.maximum(lengths, 0))


def fire_time(properties: bytes) -> int:
    """The delivery time of a message on the timer topic, which its consume queue unit holds instead
    of a tags code: its last property, a number; -1 if it has none, which does not occur in an
    intact unit."""
    _, separator, value = properties.rpartition(FIRE_TIME)
    digits = value[:-1]
    return (
        int(digits)
        if separator and value.endswith(b"\x02") and digits.isdigit() and len(digits) < 19
        else -1
    )


def _search_tag(window: bytes, start: int, end: int) -> int:
    at = window.find(TAGS, start, end)
    while at > start and window[at - 1] != 2:
        at = window.find(TAGS, at + 1, end)
    return at + len(TAGS) if at >= 0 else -1


def _record_crcs(window: bytes, starts: I64, ends: I64) -> I64:
    view, checksum = memoryview(window), zlib.crc32
    crcs = [
        checksum(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(crcs, np.int64) & 0x7FFFFFFF


def _is_name(topic: bytes) -> bool:
    try:
        return bool(topic.decode("utf-8"))
    except UnicodeDecodeError:
        return False
