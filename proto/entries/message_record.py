"""Decoding of one stored message record, for delivery (docs/format.md §4).

Many records at once are read as columns: `layout.py`, `entry_columns.py`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from ledgermq.proto.entries.layout import RECORD_FIXED_BYTES, Buffer, split_record

_RECORD = struct.Struct(">iiiiiqqiq8sq8siqi")


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
    """In stored form: compressed if `sysflag` says so."""
    properties: bytes
    sysflag: int = 0


@lru_cache(maxsize=256)
def _host_text(packed: bytes) -> str:
    return f"{packed[0]}.{packed[1]}.{packed[2]}.{packed[3]}:{int.from_bytes(packed[4:], 'big')}"


def decode_record(record: Buffer) -> Record:
    """The fields of a record. Raises ValueError for invalid bytes; CRCs were checked when the entry
    was received."""
    if len(record) < RECORD_FIXED_BYTES:
        raise ValueError(
            f"a message record has at least {RECORD_FIXED_BYTES} bytes, not {len(record)}"
        )
    body_end, topic_at, topic_end, properties_at = split_record(record)
    _, _, _, queue, _, queue_offset, physical, sysflag, born_ms, _, store_ms, host, _, _, _ = (
        _RECORD.unpack_from(record)
    )
    topic, body, properties = (
        bytes(record[topic_at:topic_end]).decode(),
        bytes(record[88:body_end]),
        bytes(record[properties_at:]),
    )
    return Record(
        topic=topic,
        queue=queue,
        queue_offset=queue_offset,
        physical_offset=physical,
        born_ms=born_ms,
        store_ms=store_ms,
        store_host=_host_text(host),
        body=body,
        properties=properties,
        sysflag=sysflag,
    )
