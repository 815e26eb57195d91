"""Decompresses message bodies for clients of the contract: native producers may store them compressed (docs/format.md §4.5), and only
native clients read those.

Producers are not trusted: no body may exceed the largest size that a node accepts. A body that cannot be decompressed is delivered as it is
stored: a message that no consumer can get would come again and again and block those behind it.
"""

from __future__ import annotations

from ledgermq.node.runtime import metrics
from ledgermq.proto.compression import COMPRESSED, BadBody, decompress
from ledgermq.proto.message_record import Record


def plain(record: Record) -> Record:
    """The record with its body decompressed; the unchanged record if it is not compressed or cannot be decompressed."""
    if not record.sysflag & COMPRESSED:
        return record
    try:
        body = decompress(record.body, record.sysflag)
    except BadBody:
        metrics.UNREADABLE_BODIES.inc()
        return record
    return record._replace(body=body, sysflag=0)
