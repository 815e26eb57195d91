"""Bodies as their producers had them: native messages may be stored compressed (docs/format.md §4.5), and only native clients take them so.

What a producer stored is not trusted: no body becomes larger than the largest that a node takes. One that cannot be decompressed is handed
out as it is stored: a message that nobody can get would come again and again, and hold up those behind it.
"""

from __future__ import annotations

from ledgermq.node.runtime import metrics
from ledgermq.proto.compression import COMPRESSED, BadBody, decompress
from ledgermq.proto.message_record import Record


def plain(record: Record) -> Record:
    """The record with its body decompressed; itself if it is not compressed, or not as its SYSFLAG says."""
    if not record.sysflag & COMPRESSED:
        return record
    try:
        body = decompress(record.body, record.sysflag)
    except BadBody:
        metrics.UNREADABLE_BODIES.inc()
        return record
    return record._replace(body=body, sysflag=0)
