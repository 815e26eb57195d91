"""A second validator of native frames: a message is valid if and only if the unary path's encoder
produces the same bytes from its fields.

It is short and slow. It uses `properties`, the unary encoder, and the two differences of native
messages, FLAG and SYSFLAG.
"""

from __future__ import annotations

import struct

from ledgermq.proto.entries.compression import FIRST_BYTES
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, decode, encode
from ledgermq.proto.names import RESERVED_KEYS, has_control_character
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Draft

LIMITS = {
    "queues": 8,
    "max_body_bytes": 5000,
    "max_entry_bytes": 9000,
    "max_properties_bytes": 600,
    "max_user_properties": 4,
}
BORN_MS_MAX = 253_402_300_799_999


def plain_id(log_tag: int, producer_id: int, epoch: int, sequence: int) -> str:
    return (
        (b"\x4c" + struct.pack(">IIH", log_tag, producer_id, epoch) + sequence.to_bytes(6, "big"))
        .hex()
        .upper()
    )


def unary_entry(
    topic: str, queue: int, body: bytes, fields: Fields, born_ms: int, flag: int, sysflag: int = 0
) -> bytes:
    """The entry of the unary path, with the queue (which the server would set) and the two fields
    in which native messages differ."""
    data = encode_entries([Draft(topic, queue, body, encode(fields), born_ms)]).data
    struct.pack_into(">ii", data, 60, queue, flag)
    struct.pack_into(">i", data, 84, sysflag)
    return bytes(data)


def plain_good(topic: str, message_id: str, flag: int, entry: bytes) -> bool:
    """Whether this is a valid message."""
    if len(entry) > LIMITS["max_entry_bytes"]:
        return False
    try:
        record = decode_record(entry[48:])
        fields = decode(record.properties)
    except (ValueError, LedgerError, struct.error, RecursionError):
        return False
    (sysflag,) = struct.unpack_from(">i", entry, 84)
    first = FIRST_BYTES.get(sysflag, b"")
    if (
        not 0 < len(record.body) <= LIMITS["max_body_bytes"]
        or sysflag not in (0, 0x101, 0x201)
        or record.body[: len(first)] != first
    ):
        return False
    if (
        not 0 <= record.queue < LIMITS["queues"]
        or not 0 <= record.born_ms <= BORN_MS_MAX
        or fields.message_id != message_id
    ):
        return False
    if (
        len(record.properties) - 44 > LIMITS["max_properties_bytes"]
        or len(fields.user) > LIMITS["max_user_properties"]
    ):
        return False
    tag = fields.tag
    texts = [
        tag or "",
        *fields.keys,
        fields.trace_context or "",
        *fields.user,
        *fields.user.values(),
    ]
    if any(has_control_character(text) for text in texts) or (
        tag is not None and (not tag.strip() or "|" in tag)
    ):
        return False
    if any(key and not key.strip() for key in fields.keys) or any(
        not key or key in RESERVED_KEYS for key in fields.user
    ):
        return False
    # Other fields of the client's view would change the message kind, or exist only on the unary
    # path.
    said = Fields(
        message_id, tag, fields.keys, trace_context=fields.trace_context, user=fields.user
    )
    try:
        return (
            unary_entry(topic, record.queue, record.body, said, record.born_ms, flag, sysflag)
            == entry
        )
    except (LedgerError, UnicodeEncodeError):
        return False
