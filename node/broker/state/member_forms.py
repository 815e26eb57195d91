"""Who replicates a group, in its forms: membership record (format §11), snapshot, the core's, and the value that the rest of a node reads.

Conversions only. Who may change the members is decided in `raft/`, when it is asked for in `memberships.py`.
"""

from __future__ import annotations

from typing import Any

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.proto.control import Membership
from ledgermq.raft.config import Members, Rule


def members_of(index: int, record: Membership) -> GroupMembers:
    """The members of the record at `index`."""
    parts = frozenset(record.learners), dict(record.incarnations), frozenset(record.returning)
    return GroupMembers(index, record.voters, *parts, record.rule, record.towards, frozenset(record.observers), record.since)


def as_raft(members: GroupMembers) -> Members:
    """As the consensus core takes them."""
    towards = None if members.towards is None else Rule(members.towards)
    parts = members.learners, members.incarnations, members.returning
    return Members(members.voters, *parts, Rule(members.rule), towards, members.observers, members.since)


def from_raft(index: int, members: Members) -> GroupMembers:
    """What the core has in force, made by the record at `index`."""
    towards = None if members.towards is None else members.towards.value
    parts = members.learners, dict(members.incarnations), members.returning
    return GroupMembers(index, members.voters, *parts, members.rule.value, towards, members.observers, members.since)


def export_members(members: GroupMembers) -> dict[str, Any]:
    """As in the snapshot (format §11): `index` of the record, and what it says of each node."""
    told = tuple(sorted(members.learners)), members.incarnations, tuple(sorted(members.returning)), ""
    record = Membership(members.voters, *told, members.rule, members.towards, tuple(sorted(members.observers)), members.since)
    return {"index": members.index, **record.fields()}


def restore_members(exported: Any) -> GroupMembers | None:
    """What `export_members` returned. Version 2 of the snapshot had a list, the voters of entry 0, or no members at all."""
    if not exported:
        return None
    if isinstance(exported, list):
        return GroupMembers(0, tuple(exported))
    return members_of(exported["index"], Membership.read(exported))
