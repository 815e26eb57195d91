"""Membership records: entries of the log that say which nodes replicate the group (docs/format.md
§11, kind `membership`).

The first entry of every log is one. Every replica of a new group writes the same bytes at
bootstrap, before any contact with the others: index 0, term 0, store time = the cluster's creation.
So that entry is committed by definition, and chain CRCs that start with it prove that replicas
belong to one group. Every membership change is an entry of its own, marked by channel 1 in its
header. This module converts between records and the core's `Members` and finds membership entries;
`raft` decides what members may do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.proto.records import control
from ledgermq.proto.types import Range
from ledgermq.raft.config import Members, Rule
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.log.entry_log import EntryLog

MEMBERSHIP_INDEX = 0
MEMBERSHIP_TERM = 0
NO_STORE_HOST = bytes(8)
SCAN_BYTES = 1 << 20
CHANNEL_AT = 35
"""The low byte of the channel in an entry's header (docs/format.md §2); `verify_range` admits no
other bit."""


def bootstrap(
    log: EntryLog, voters: Iterable[str], created_ms: int, rule: Rule = Rule.MAJORITY
) -> None:
    """Append the membership entry to an empty log, durably. Does nothing to a log that has its
    first entry, so a bootstrap that a crash interrupted is repeated. Raises NoSpace, LogFenced."""
    if log.end_index >= MEMBERSHIP_INDEX:
        return
    batch = encode_entries(
        [control.draft(record_of(Members(tuple(sorted(voters)), rule=rule), ""), created_ms)]
    )
    log.append_leader(
        MEMBERSHIP_TERM, batch, np.zeros(1, np.int64), created_ms, NO_STORE_HOST, control=True
    )
    log.flush_mark()


def membership(log: EntryLog) -> control.Membership:
    """The group's first membership record. Raises OSError, and ValueError if the first entry is not
    a membership record."""
    return record_in(log.read(MEMBERSHIP_INDEX, 1))


def record_in(entries: Range) -> control.Membership:
    """The membership record in the first of these entries. Raises ValueError if that entry is not
    one, and UnknownControlRecord."""
    record = decode_record(entries.data[HEADER_BYTES : int(entries.sizes[0])])
    if (
        record.topic != control.Membership.TOPIC
        or f"TAGS\x01{control.Membership.TAG}\x02".encode() != record.properties
    ):
        raise ValueError(
            f"entry {entries.first_index} of the log is a message on {record.topic}, not a"
            " membership record"
        )
    members = control.decode(control.Membership.TAG, record.body)
    assert isinstance(members, control.Membership)
    return members


def members_of(record: control.Membership) -> Members:
    """Convert a record to the core's form."""
    return Members(
        voters=tuple(record.voters),
        learners=frozenset(record.learners),
        incarnations=dict(record.incarnations),
        returning=frozenset(record.returning),
        rule=Rule(record.rule),
        towards=None if record.towards is None else Rule(record.towards),
        observers=frozenset(record.observers),
        since=record.since,
        minimum=record.minimum,
    )


def record_of(members: Members, reason: str) -> control.Membership:
    """Convert the core's form to a record."""
    return control.Membership(
        voters=members.voters,
        learners=tuple(sorted(members.learners)),
        incarnations=members.incarnations,
        returning=tuple(sorted(members.returning)),
        reason=reason,
        rule=members.rule.value,
        towards=None if members.towards is None else members.towards.value,
        observers=tuple(sorted(members.observers)),
        since=members.since,
        minimum=members.minimum,
    )


def membership_entries(entries: Range) -> list[int]:
    """The indexes of the entries that are membership records."""
    if entries.first_index == entries.last_index:
        return [entries.first_index] if entries.data[CHANNEL_AT] else []
    marks = np.frombuffer(entries.data, np.uint8)[entries.starts + CHANNEL_AT]
    return [entries.first_index + at for at in np.flatnonzero(marks).tolist()]


def alone(entries: Range) -> Range:
    """The longest prefix of a range that may be sent: a membership entry is always sent alone."""
    found = membership_entries(entries)
    if not found:
        return entries
    return cut(entries, found[0] if found[0] == entries.first_index else found[0] - 1)


def read_verified(log: EntryLog, first_index: int, max_bytes: int) -> Range:
    """Like `EntryLog.read`, but verifies all CRCs of entries that this process did not write or
    verify. Raises OSError, LogDamaged."""
    entries = log.read(first_index, max_bytes)
    if log.is_verified(entries.pos):
        return entries
    try:
        return verify_range(
            entries.data, entries.first_index, entries.term, entries.pos, entries.prev_chain
        )
    except BadEntry as bad:
        raise LogDamaged(
            f"entries {entries.first_index} to {entries.last_index} are not what was stored there"
            f" ({bad})"
        ) from bad


def configurations(log: EntryLog, known: tuple[int, Members]) -> Iterator[tuple[int, Members]]:
    """Yield `known`, an (index, members) that was committed or precedes the log, and then every
    later configuration in a recovered log. Reads the log behind that index once. Raises ValueError,
    UnknownControlRecord, OSError, and LogDamaged, also if damage set or cleared the membership mark
    of an entry."""
    yield known
    first = max(log.begin_index, known[0] + 1)
    while first <= log.end_index:
        entries = read_verified(log, first, SCAN_BYTES)
        for index in membership_entries(entries):
            yield index, members_of(record_in(tail_of(entries, index)))
        first = entries.last_index + 1
