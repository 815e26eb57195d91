"""The records of a window in columns: where body, topic and properties lie, and what the derived files depend on.

Decoding only; which value is right is for `scan` and `derived` to say.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.decode import HEADER_BYTES, I64, RECORD_FIXED_BYTES, RECORD_V1, RECORD_V2, U8, Flags, find_tag, tags_code

RAFT_TOPIC = b"rmq_sys_ledgermq_raft"


@dataclass(frozen=True, slots=True)
class Columns:
    """The entries of one piece, one row each. `intact`: what the entry covers with its CRCs is what was written.

    `offset` is the place in the file; `index` is the index the entry must have, whatever its field says; `body_crc` is recomputed; `sound`
    marks intact entries whose record could be taken apart, only there `topic`, `tag_code` and the queue columns mean anything.
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
    topic: list[bytes]
    intact: Flags
    sound: Flags

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, slots=True)
class Parts:
    """The variable parts of records. `fits`: they fill the record exactly; elsewhere the other columns are fillers."""

    fits: Flags
    right_magic: Flags
    right_topic: Flags
    closed: Flags
    membership: Flags
    topics: list[bytes]
    tags_codes: I64
    record_crcs: I64
    property_at: I64


def take_apart(window: bytes, offsets: I64, sizes: I64, rows: NDArray[np.void]) -> Parts:
    """Find body, topic and properties of every record, in vectors; only their contents are touched one by one."""
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
    fits = fits & (property_at + property_bytes == ends) & (topic_at + topic_bytes == length_at) & (property_bytes < 1 << 15)
    right_magic = known & (second == (topic_bytes > 127)) | ~fits & known
    closed = (property_bytes == 0) | (data[np.minimum(ends, limit + 1) - 1] == 2)
    places = (column.tolist() for column in (body_at, at, topic_at, property_at, ends))
    topics, codes, crcs = _contents(window, fits.tolist(), *places)
    legal = {topic: _is_name(topic) for topic in set(topics)}
    return Parts(
        fits=fits,
        right_magic=right_magic,
        right_topic=np.array([legal[topic] for topic in topics], np.bool_),
        closed=closed,
        membership=_memberships(window, topics, property_at, ends),
        topics=topics,
        tags_codes=np.array(codes, np.int64),
        record_crcs=np.array(crcs, np.int64),
        property_at=property_at,
    )


def _contents(
    window: bytes, fits: list[bool], body_at: list[int], body_end: list[int], topic_at: list[int], property_at: list[int], ends: list[int]
) -> tuple[list[bytes], list[int], list[int]]:
    topics: list[bytes] = []
    codes: list[int] = []
    crcs: list[int] = []
    view = memoryview(window)
    for fit, body, stop, topic, props, end in zip(fits, body_at, body_end, topic_at, property_at, ends, strict=True):
        if not fit:
            topics.append(b"")
            codes.append(0)
            crcs.append(0)
            continue
        topics.append(window[topic : props - 2])
        tag = find_tag(window, props, end)
        codes.append(tags_code(tag) if tag else 0)
        crcs.append(zlib.crc32(view[body:stop]) & 0x7FFFFFFF)
    return topics, codes, crcs


def _is_name(topic: bytes) -> bool:
    try:
        return bool(topic.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _memberships(window: bytes, topics: list[bytes], property_at: I64, ends: I64) -> Flags:
    """Which records are membership records: kind `membership` on the raft topic."""
    flags = np.zeros(len(topics), np.bool_)
    for at, topic in enumerate(topics):
        if topic == RAFT_TOPIC:
            flags[at] = find_tag(window, int(property_at[at]), int(ends[at])) == b"membership"
    return flags
