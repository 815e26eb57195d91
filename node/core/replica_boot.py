"""The group's first entry: who replicates it (docs/format.md §11, kind `membership`).

Every replica writes the same bytes at bootstrap, before it hears of any other: index 0, term 0, store time = the cluster's creation. So it
is committed by definition, and chain CRCs that start with it prove that replicas belong to one group with the same members.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ledgermq.proto import control
from ledgermq.proto.layout import HEADER_BYTES, decode_record, encode_entries
from ledgermq.storage.entry_log import EntryLog

MEMBERSHIP_INDEX = 0
MEMBERSHIP_TERM = 0
NO_STORE_HOST = bytes(8)


def bootstrap(log: EntryLog, voters: Iterable[str], created_ms: int) -> None:
    """Make the membership entry the first of an empty log, on stable storage. Does nothing to a log that already has its first entry, so
    that a bootstrap cut short by a crash is simply repeated. Raises NoSpace, LogFenced."""
    if log.end_index >= MEMBERSHIP_INDEX:
        return
    batch = encode_entries([control.draft(control.Membership(tuple(sorted(voters))), created_ms)])
    log.append_leader(MEMBERSHIP_TERM, batch, np.zeros(1, np.int64), created_ms, NO_STORE_HOST, control=True)
    log.flush_mark()


def membership(log: EntryLog) -> control.Membership:
    """Who the log itself says replicates it. Raises ValueError when the first entry is no membership record, OSError."""
    entries = log.read(MEMBERSHIP_INDEX, 1)
    record = decode_record(entries.data[HEADER_BYTES : int(entries.sizes[0])])
    if record.topic != control.Membership.TOPIC or f"TAGS\x01{control.Membership.TAG}\x02".encode() != record.properties:
        raise ValueError(f"the first entry of the log is a message on {record.topic}, not a membership record")
    members = control.decode(control.Membership.TAG, record.body)
    assert isinstance(members, control.Membership)
    return members
