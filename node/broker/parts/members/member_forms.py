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
    return GroupMembers(
        index=index,
        voters=record.voters,
        learners=frozenset(record.learners),
        incarnations=dict(record.incarnations),
        returning=frozenset(record.returning),
        rule=record.rule,
        towards=record.towards,
        observers=frozenset(record.observers),
        since=record.since,
        minimum=record.minimum,
    )


def as_raft(members: GroupMembers) -> Members:
    """The form that the consensus core uses."""
    return Members(
        voters=members.voters,
        learners=members.learners,
        incarnations=members.incarnations,
        returning=members.returning,
        rule=Rule(members.rule),
        towards=None if members.towards is None else Rule(members.towards),
        observers=members.observers,
        since=members.since,
        minimum=members.minimum,
    )


def from_raft(index: int, members: Members) -> GroupMembers:
    """The members that the core has in force since the record at `index`."""
    return GroupMembers(
        index=index,
        voters=members.voters,
        learners=members.learners,
        incarnations=dict(members.incarnations),
        returning=members.returning,
        rule=members.rule.value,
        towards=None if members.towards is None else members.towards.value,
        observers=members.observers,
        since=members.since,
        minimum=members.minimum,
    )


def export_members(members: GroupMembers) -> dict[str, Any]:
    """The snapshot form (format §11): the record's index and fields."""
    record = Membership(
        voters=members.voters,
        learners=tuple(sorted(members.learners)),
        incarnations=members.incarnations,
        returning=tuple(sorted(members.returning)),
        rule=members.rule,
        towards=members.towards,
        observers=tuple(sorted(members.observers)),
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
