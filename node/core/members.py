"""Who replicates a group, in its three forms: membership record (format §11), snapshot, and the value that the rest of a node reads.

Conversions only. Who may change the members is decided in `raft/`, when it is asked for in `memberships.py`.
"""

from __future__ import annotations

from typing import Any

from ledgermq.node.core.calls import GroupMembers
from ledgermq.proto.control import Membership


def members_of(index: int, record: Membership) -> GroupMembers:
    """The members of the record at `index`."""
    return GroupMembers(index, record.voters, frozenset(record.learners), dict(record.incarnations), frozenset(record.returning))


def export_members(members: GroupMembers) -> dict[str, Any]:
    """As in the snapshot (format §11): `index` of the record, and what it says of each node."""
    return {
        "index": members.index,
        "voters": {node: _of_node(members, node) for node in sorted(members.voters)},
        "learners": {node: _of_node(members, node) for node in sorted(members.learners)},
    }


def _of_node(members: GroupMembers, node: str) -> dict[str, Any]:
    incarnation = members.incarnations.get(node)
    known = {} if incarnation is None else {"incarnation": incarnation}
    return {**known, "returning": True} if node in members.returning else known


def restore_members(exported: Any) -> GroupMembers | None:
    """What `export_members` returned. Version 2 of the snapshot had a list, the voters of entry 0, or no members at all."""
    if not exported:
        return None
    if isinstance(exported, list):
        return GroupMembers(0, tuple(exported))
    both = {**exported["voters"], **exported["learners"]}
    return GroupMembers(
        exported["index"],
        tuple(sorted(exported["voters"])),
        frozenset(exported["learners"]),
        {node: fields["incarnation"] for node, fields in both.items() if "incarnation" in fields},
        frozenset(node for node, fields in exported["learners"].items() if fields.get("returning")),
    )
