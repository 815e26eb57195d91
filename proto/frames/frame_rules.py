"""The rules for one native message (docs/format.md §4.5), field by field, with the reason for a
refusal.

Used for the first bad message of a frame that the vector operations refused, and for short frames.
Implemented separately from the vector operations, and compared with them in tests.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from ledgermq.proto.entries.compression import FIRST_BYTES, Compression
from ledgermq.proto.entries.layout import BODY_AT, HEADER_BYTES
from ledgermq.proto.entries.native_ids import ID_FIELD, ID_PROPERTY_BYTES, native_id
from ledgermq.proto.entries.properties import PROPERTIES_MAX
from ledgermq.proto.frames.frame_parts import ENTRY_FIXED_BYTES, Layout
from ledgermq.proto.frames.frame_properties import Complaint, complaint
from ledgermq.proto.status import Code

BORN_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the latest time in a client's timestamp."""
SYSFLAGS = tuple(kind.value for kind in Compression)


class FrameRules(NamedTuple):
    """The values against which a frame is checked; see `read_frame`."""

    layout: Layout
    log_tag: int
    producer_id: int
    epoch: int
    first_sequence: int
    queues: int
    max_body_bytes: int
    max_entry_bytes: int
    max_properties_bytes: int
    max_user_properties: int


def read_message(rules: FrameRules, entry: memoryview, position: int) -> int | Complaint:
    """Check one message of a frame; its queue if it is good."""
    least = rules.layout.least_bytes
    if len(entry) < least:
        return _corrupted(
            f"its entry has {len(entry)} bytes; an entry of this topic has at least {least}"
        )
    if len(entry) > rules.max_entry_bytes:
        return Complaint(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"its entry has {len(entry)} bytes; the limit is {rules.max_entry_bytes}",
        )
    body_bytes = _number(entry, 132, 4)
    properties_bytes = len(entry) - ENTRY_FIXED_BYTES - rules.layout.topic_bytes - body_bytes
    if body_bytes == 0:
        return Complaint(Code.MESSAGE_BODY_EMPTY, "its body is empty")
    if body_bytes > rules.max_body_bytes:
        return Complaint(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"its body has {body_bytes} bytes; the limit is {rules.max_body_bytes}",
        )
    if body_bytes < 0 or properties_bytes < ID_PROPERTY_BYTES:
        return _corrupted(f"a body of {body_bytes} bytes does not fit an entry of {len(entry)}")
    if properties_bytes > PROPERTIES_MAX:
        text = f"its properties take {properties_bytes} bytes; the limit is {PROPERTIES_MAX}"
        return Complaint(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    found = _head_complaint(rules, entry, position) or _body_complaint(
        entry, entry[BODY_AT : BODY_AT + body_bytes]
    )
    if found is not None:
        return found
    topic_at = BODY_AT + body_bytes
    properties_at = topic_at + rules.layout.topic_bytes + 2
    if bytes(entry[topic_at : properties_at - 2]) != rules.layout.topic:
        return _corrupted("it is of another topic than its frame")
    if _number(entry, properties_at - 2, 2) != properties_bytes:
        return _corrupted(
            f"the length of its properties is {_number(entry, properties_at - 2, 2)}, not"
            f" {properties_bytes}"
        )
    properties = bytes(entry[properties_at:])
    wanted = native_id(
        rules.log_tag, rules.producer_id, rules.epoch, rules.first_sequence + position
    )
    if properties[:ID_PROPERTY_BYTES] != b"%b%b\x02" % (ID_FIELD, wanted.encode()):
        return Complaint(
            Code.ILLEGAL_MESSAGE_ID, f"its properties do not begin with the message id {wanted}"
        )
    rest = properties[ID_PROPERTY_BYTES:]
    found = complaint(rest, rules.max_properties_bytes, rules.max_user_properties)
    return _number(entry, 60, 4) if found is None else found


def _number(entry: memoryview, at: int, width: int) -> int:
    return int.from_bytes(entry[at : at + width], "big", signed=True)


def _corrupted(reason: str) -> Complaint:
    return Complaint(Code.MESSAGE_CORRUPTED, reason)


_ZERO = (
    ("the queue offset", 68, 8),
    ("the physical offset", 76, 8),
    ("the born host", 96, 8),
    ("the store timestamp", 104, 8),
    ("the store host", 112, 8),
    ("the number of reconsumptions", 120, 4),
    ("the prepared transaction offset", 124, 8),
)


def _head_complaint(rules: FrameRules, entry: memoryview, position: int) -> Complaint | None:
    """Check every field with a fixed place, except the CRC and the length of the body."""
    if any(entry[:HEADER_BYTES]):
        return _corrupted("the 48 bytes of its entry header are not zero")
    if _number(entry, 48, 4) != len(entry) - HEADER_BYTES:
        return _corrupted(
            f"its record size is {_number(entry, 48, 4)}, not {len(entry) - HEADER_BYTES}"
        )
    if _number(entry, 52, 4) != rules.layout.record_magic:
        return _corrupted(
            f"its magic is {_number(entry, 52, 4) & 0xFFFFFFFF:#010x}, not"
            f" {rules.layout.record_magic & 0xFFFFFFFF:#010x}"
        )
    if not 0 <= _number(entry, 60, 4) < rules.queues:
        return Complaint(
            Code.BAD_REQUEST,
            f"its queue is {_number(entry, 60, 4)}; the topic has queues 0 to {rules.queues - 1}"
            " here",
        )
    if _number(entry, 64, 4) != position + 1:
        return _corrupted(
            f"its FLAG is {_number(entry, 64, 4)}, not {position + 1}, its place in the frame"
        )
    if not 0 <= _number(entry, 88, 8) <= BORN_MS_MAX:
        return Complaint(
            Code.BAD_REQUEST,
            f"its born time is {_number(entry, 88, 8)}; it counts milliseconds since 1970",
        )
    for what, at, width in _ZERO:
        if any(entry[at : at + width]):
            return _corrupted(f"{what} is not zero; the server sets it")
    return None


def _body_complaint(entry: memoryview, body: memoryview) -> Complaint | None:
    found, computed = _number(entry, 56, 4), crc32(body) & 0x7FFFFFFF
    if found != computed:
        return _corrupted(f"the CRC of its body is {found:#010x}, computed {computed:#010x}")
    sysflag = _number(entry, 84, 4)
    if sysflag not in SYSFLAGS:
        return _corrupted(
            f"its SYSFLAG is {sysflag:#x}; native messages have"
            f" {', '.join(f'{flag:#x}' for flag in SYSFLAGS)}"
        )
    first = FIRST_BYTES.get(sysflag, b"")
    if bytes(body[: len(first)]) != first:
        return _corrupted("its body does not have the compression of its SYSFLAG")
    return None
