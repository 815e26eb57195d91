"""Checking a frame received from a producer (docs/format.md §4.5): the whole frame is verified, or
nothing of it is accepted.

Nothing in a frame is trusted. The reader extracts from each record the fields that its producer may
choose, rebuilds the record from them and compares: any deviation from the format is a BadFrame,
which names the first bad message. Vector operations answer yes or no; only a refused or a short
frame is checked message by message, by a second implementation of the rules.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from ledgermq.proto import kernels
from ledgermq.proto.carried import Carried
from ledgermq.proto.entries.compression import FIRST_BYTES, Compression
from ledgermq.proto.entries.layout import BODY_AT, Buffer, for_each, prefixes, windows
from ledgermq.proto.entries.native_ids import (
    EPOCH_MAX,
    ID_PROPERTY_BYTES,
    PRODUCER_MAX,
    SEQUENCE_MAX,
)
from ledgermq.proto.entries.properties import PROPERTIES_MAX
from ledgermq.proto.frames import frame_properties
from ledgermq.proto.frames.frame_parts import ENTRY_FIXED_BYTES, heads_of, layout_of, tails_of
from ledgermq.proto.frames.frame_properties import (
    PROPERTIES_BYTES_MAX,
    USER_PROPERTIES_MAX,
    Complaint,
)
from ledgermq.proto.frames.frame_rules import BORN_MS_MAX, FrameRules, read_message
from ledgermq.proto.status import Code
from ledgermq.proto.types import I32, I64, Frame, UnsealedBatch

FEW = 4
"""Up to this many messages are checked one by one, because vector operations have a fixed cost of
about 100 µs."""
_SIZE = np.dtype("<u4")


class BadFrame(Carried):
    """The whole frame is refused. `position` is that of its first bad message, −1 if the reason is
    not a single message."""

    def __init__(self, position: int, reason: str, code: Code = Code.MESSAGE_CORRUPTED) -> None:
        super().__init__(reason if position < 0 else f"message {position} of the frame: {reason}")
        self.position = position
        self.reason = reason
        self.code = code


def read_frame(
    stored_topic: str,
    log_tag: int,
    producer_id: int,
    epoch: int,
    first_sequence: int,
    sizes: Buffer,
    entries: Buffer,
    *,
    queues: int,
    max_body_bytes: int,
    max_entry_bytes: int,
    max_properties_bytes: int = PROPERTIES_BYTES_MAX,
    max_user_properties: int = USER_PROPERTIES_MAX,
) -> Frame:
    """Check a frame. Raises BadFrame for any invalid bytes.

    `sizes` holds the length of each entry (u32 little-endian), `entries` the concatenated entries;
    a bytearray is used without copying, anything else is copied once. Queue ids are 0 … `queues`−1.
    """
    rules = FrameRules(
        layout=layout_of(stored_topic),
        log_tag=log_tag,
        producer_id=producer_id,
        epoch=epoch,
        first_sequence=first_sequence,
        queues=queues,
        max_body_bytes=max_body_bytes,
        max_entry_bytes=max_entry_bytes,
        max_properties_bytes=max_properties_bytes,
        max_user_properties=max_user_properties,
    )
    lengths = _lengths(rules, sizes, len(entries))
    data = entries if isinstance(entries, bytearray) else bytearray(entries)
    usual = _read_natively(rules, data, sizes, stored_topic) if kernels.NATIVE else None
    if usual is not None:
        return Frame(producer_id, epoch, first_sequence, usual)
    starts = np.cumsum(lengths) - lengths
    found = (
        _read_each(rules, data, starts, lengths)
        if len(lengths) <= FEW
        else _read_all(rules, data, starts, lengths)
    )
    if found is None:
        _read_each(rules, data, starts, lengths)
        raise BadFrame(-1, "the frame does not conform to the format", Code.INTERNAL_ERROR)
    batch = UnsealedBatch(
        data,
        starts,
        sizes=lengths.astype(np.int32),
        topics=(stored_topic,),
        topic_of=np.zeros(len(lengths), np.int32),
        queues=found,
    )
    return Frame(producer_id, epoch, first_sequence, batch)


def _lengths(rules: FrameRules, sizes: Buffer, entries_bytes: int) -> I64:
    """The length of each entry; their sum must be the size of the data."""
    if not 0 < rules.producer_id <= PRODUCER_MAX or not 0 <= rules.epoch <= EPOCH_MAX:
        raise BadFrame(
            -1,
            f"there is no producer {rules.producer_id} with epoch {rules.epoch}",
            Code.BAD_REQUEST,
        )
    if len(sizes) % _SIZE.itemsize or not len(sizes):
        raise BadFrame(
            -1,
            f"sizes have {len(sizes)} bytes; they hold 32 bits for each message, and a frame has"
            " one or more",
        )
    count = len(sizes) // _SIZE.itemsize
    if rules.first_sequence < 0 or rules.first_sequence + count - 1 > SEQUENCE_MAX:
        raise BadFrame(
            -1,
            f"sequence numbers are 0 to {SEQUENCE_MAX}; the frame begins with"
            f" {rules.first_sequence}",
            Code.BAD_REQUEST,
        )
    lengths: I64 = np.frombuffer(sizes, _SIZE).astype(np.int64)
    total = int(lengths.sum())
    if total != entries_bytes:
        raise BadFrame(-1, f"the sizes add up to {total} bytes; the entries have {entries_bytes}")
    return lengths


_COMPRESSIONS = list(FIRST_BYTES.items())


def _read_natively(
    rules: FrameRules, data: bytearray, sizes: Buffer, stored_topic: str
) -> UnsealedBatch | None:
    """The messages of a frame without anything unusual; None for any other frame, be it good or
    bad."""
    found = kernels.entries.check_frame(
        data, sizes, rules.layout.record_magic, rules.layout.topic, rules.log_tag, rules.producer_id, rules.epoch, rules.first_sequence,
        rules.queues, rules.max_body_bytes, rules.max_entry_bytes, rules.max_properties_bytes, rules.max_user_properties, _COMPRESSIONS,
    )  # fmt: skip
    if found is None or any(frame_properties.name_complaint(name) is not None for name in found[3]):
        return None
    starts, lengths, queues = (
        np.frombuffer(found[0], np.int64),
        np.frombuffer(found[1], np.int32),
        np.frombuffer(found[2], np.int32),
    )
    return UnsealedBatch(
        data,
        starts,
        sizes=lengths,
        topics=(stored_topic,),
        topic_of=np.zeros(len(lengths), np.int32),
        queues=queues,
    )


def _read_all(rules: FrameRules, data: bytearray, starts: I64, sizes: I64) -> I32 | None:
    """The queue of each message; None if some message is bad."""
    layout, n = rules.layout, len(starts)
    if sizes.min() < layout.least_bytes or sizes.max() > rules.max_entry_bytes:
        return None
    given = prefixes(data, starts)
    body_lengths = given["body_length"].astype(np.int64)
    properties = sizes - ENTRY_FIXED_BYTES - layout.topic_bytes - body_lengths
    if body_lengths.min() < 1 or body_lengths.max() > rules.max_body_bytes:
        return None
    if properties.min() < ID_PROPERTY_BYTES or properties.max() > PROPERTIES_MAX:
        return None
    queues, sysflags, born = (
        given["queue"].astype(np.int32),
        given["sysflag"].astype(np.int32),
        given["born_ms"].astype(np.int64),
    )
    if (
        queues.min() < 0
        or queues.max() >= rules.queues
        or born.min() < 0
        or born.max() > BORN_MS_MAX
    ):
        return None
    ends = starts + sizes
    body_ends = starts + BODY_AT + body_lengths
    crcs = for_each(crc32, data, starts + BODY_AT, body_ends)
    heads = heads_of(
        layout, sizes, body_lengths, crcs, queues=queues, born_ms=born, sysflags=sysflags
    )
    if heads.tobytes() != given.tobytes():
        return None
    tails = tails_of(
        layout,
        property_lengths=properties,
        log_tag=rules.log_tag,
        producer_id=rules.producer_id,
        epoch=rules.epoch,
        first_sequence=rules.first_sequence,
        count=n,
    )
    if windows(data, np.dtype(f"V{tails.shape[1]}"))[body_ends].tobytes() != tails.tobytes():
        return None
    if sysflags.any() and not _compressed_well(data, starts, body_lengths, sysflags):
        return None
    longer = np.flatnonzero(properties > ID_PROPERTY_BYTES)
    if not len(longer):
        return queues
    lengths = properties[longer] - ID_PROPERTY_BYTES
    view = memoryview(data)
    rests = b"".join(
        map(view.__getitem__, map(slice, (ends[longer] - lengths).tolist(), ends[longer].tolist()))
    )
    if not frame_properties.all_good(
        rests, lengths, rules.max_properties_bytes, rules.max_user_properties
    ):
        return None
    return queues


def _compressed_well(data: bytearray, starts: I64, body_lengths: I64, sysflags: I32) -> bool:
    known = sysflags == Compression.NONE.value
    for flag, first in FIRST_BYTES.items():
        rows = np.flatnonzero((sysflags == flag) & (body_lengths >= len(first)))
        known[rows] = windows(data, np.dtype(f"V{len(first)}"))[starts[rows] + BODY_AT] == np.void(
            first
        )
    return bool(known.all())


def _read_each(rules: FrameRules, data: bytearray, starts: I64, sizes: I64) -> I32:
    """The same for one message at a time. Raises BadFrame for the first bad one."""
    view = memoryview(data)
    queues = []
    for position, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        found = read_message(rules, view[start : start + size], position)
        if isinstance(found, Complaint):
            raise BadFrame(position, found.reason, found.code)
        queues.append(found)
    return np.array(queues, np.int32)
