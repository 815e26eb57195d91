"""Conversions between the forms of a group's members: membership record and snapshot (format §11),
the Raft core's, and `GroupMembers`.

Conversions only: `raft/` decides which changes are allowed, `memberships.py` takes the requests.
"""

from __future__ import annotations

from typing import Any

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.proto.records.control import Membership
from ledgermq.raft.config import Members, Rule


def members_of(index: int, record: Membership) -> GroupMembers:
    """The members of the record at `index`."""
    parts = frozenset(record.learners), dict(record.incarnations), frozenset(record.returning)
    rule, towards, observers = record.rule, record.towards, frozenset(record.observers)
    return GroupMembers(
        index,
        record.voters,
        *parts,
        rule,
        towards,
        observers,
        since=record.since,
        minimum=record.minimum,
    )


def as_raft(members: GroupMembers) -> Members:
    """The form that the consensus core uses."""
    towards = None if members.towards is None else Rule(members.towards)
    parts = members.learners, members.incarnations, members.returning
    return Members(
        members.voters,
        *parts,
        Rule(members.rule),
        towards,
        members.observers,
        members.since,
        members.minimum,
    )


def from_raft(index: int, members: Members) -> GroupMembers:
    """The members that the core has in force since the record at `index`."""
    towards = None if members.towards is None else members.towards.value
    parts = members.learners, dict(members.incarnations), members.returning
    rule, observers = members.rule.value, members.observers
    return GroupMembers(
        index,
        members.voters,
        *parts,
        rule,
        towards,
        observers,
        since=members.since,
        minimum=members.minimum,
    )


def export_members(members: GroupMembers) -> dict[str, Any]:
    """The snapshot form (format §11): the record's index and fields."""
    told = (
        tuple(sorted(members.learners)),
        members.incarnations,
        tuple(sorted(members.returning)),
        "",
    )
    rule, towards, observers = members.rule, members.towards, tuple(sorted(members.observers))
    record = Membership(
        members.voters,
        *told,
        rule,
        towards,
        observers,
        since=members.since,
        minimum=members.minimum,
    )
    return {"index": members.index, **record.fields()}


def restore_members(exported: Any) -> GroupMembers | None:
    """The members that `export_members` returned; None for none. Snapshots of version 2 have a list
    instead: the voters of entry 0."""
    if not exported:
        return None
    if isinstance(exported, list):
        return GroupMembers(0, tuple(exported))
    return members_of(exported["index"], Membership.read(exported))
