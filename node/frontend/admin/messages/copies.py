"""One replica's copy of one entry, as a query shows it: its place in the log, and whether it is
intact.

The loop, which owns the log, reads the copy between two turns; any other thread verifies its bytes.
This module does not know the other replicas.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ledgermq.proto import admin_pb2
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.types import Range
from ledgermq.storage.files.errors import Damaged


def copy_of(
    store: Any, node: str, group: str, index: int
) -> tuple[admin_pb2.ReplicaCopy, Range | None]:
    """The place of a replica's copy of an entry, and its bytes for `judged`; None instead of bytes
    if the replica has no readable copy."""
    log = store.log
    copy = admin_pb2.ReplicaCopy(node=node, index=index, state="missing")
    if index < log.begin_index:
        copy.reason = (
            f"the log of this replica begins with entry {log.begin_index}: older ones were trimmed"
        )
        return copy, None
    if index > log.end_index:
        copy.reason = f"the log of this replica ends with entry {log.end_index}"
        return copy, None
    try:
        entries: Range = log.read(index, 1)
    except (Damaged, OSError) as error:
        copy.state, copy.reason = "different", f"damaged: {error}"
        return copy, None
    base = entries.pos - entries.pos % store.identity.data_file_bytes
    copy.state, copy.file = "present", f"{group}/dledger-{node}/data/{base:020d}"
    copy.position, copy.size, copy.term, copy.chain_crc = (
        entries.pos,
        len(entries.data),
        entries.term,
        entries.last_chain,
    )
    # The mapped bytes may be truncated while another thread reads them.
    return copy, entries.copied()


def judged(copy: admin_pb2.ReplicaCopy, entries: Range) -> None:
    """Fill in the digest of a copy and verify both CRCs and its place in the chain. Runs on a
    thread."""
    copy.sha256 = hashlib.sha256(entries.data).hexdigest()
    try:
        verify_range(
            entries.data, entries.first_index, entries.term, entries.pos, entries.prev_chain
        )
    except BadEntry as error:
        copy.state, copy.reason = "different", f"damaged: {error}"
