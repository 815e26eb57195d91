"""Decompresses message bodies for clients of the contract: native producers may store them
compressed (docs/format.md §4.5), and only native clients read those.

Producers are not trusted: no body may exceed the largest size that a node accepts, and the memory
for what bodies gain is asked for before they are decompressed (`AnswerBudget.grow`). A body that
cannot be decompressed is delivered as it is stored, with a user property that says so: a message
that no consumer can get would come again and again and block those behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.node.runtime import metrics
from ledgermq.proto.entries.compression import COMPRESSED, BadBody, decompress, length_max
from ledgermq.proto.entries.layout import BODY_AT, HEADER_BYTES, split_record
from ledgermq.proto.entries.message_record import Record

_SYSFLAG = slice(36, 40)
_BODY_AT = BODY_AT - HEADER_BYTES


def gain(records: Iterable[bytes]) -> int:
    """How many bytes longer the bodies of these records can become by `plain`."""
    gained = 0
    for record in records:
        if record[_SYSFLAG.stop - 1] & COMPRESSED:
            body = memoryview(record)[_BODY_AT : split_record(record)[0]]
            gained += max(0, length_max(body, int.from_bytes(record[_SYSFLAG], "big")) - len(body))
    return gained


def plain(record: Record) -> Record:
    """The record with its body decompressed; the unchanged record if it is not compressed or cannot
    be decompressed."""
    if not record.sysflag & COMPRESSED:
        return record
    try:
        body = decompress(record.body, record.sysflag)
    except BadBody:
        metrics.UNREADABLE_BODIES.inc()
        return record
    return record._replace(body=body, sysflag=0)
