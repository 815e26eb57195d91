"""Judges whether a node can stop: what its stop would cost, what has to be waited for, and which
leaderships have to move before.

Law: what is unknown is never judged as safe. Only pure functions live here; nothing is asked and
nothing printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import units
from ledgermq.proto.workers import node_of

BEHIND_MAX_BYTES = 8 << 20
"""A replica that lacks more than this would make sends wait while it catches up. It is what a
leader sends ahead by default."""


@dataclass(slots=True)
class Drain:
    """What stands between a node and its stop."""

    waits: list[str] = field(default_factory=list)
    """Reasons that may pass; the node must not stop while there is one."""
    losses: list[str] = field(default_factory=list)
    """What stops with the node, however long one waits: there are too few other members."""
    transfers: dict[str, str] = field(default_factory=dict)
    """Broker group that the node leads → the replica that is to take over."""


def plan(status: pb.ClusterStatusResponse, members: Iterable[pb.MemberInfo], node: str) -> Drain:
    """What the stop of a node, with all its workers, needs now."""
    drain = Drain()
    up = {info.node for info in status.nodes if info.up}
    for group in status.groups:
        if any(node_of(voter) == node for voter in group.voters):
            _judge_group(drain, group, up, node)
    _judge_controllers(drain, members, node)
    return drain


def _judge_group(drain: Drain, group: pb.BrokerGroupInfo, up: set[str], node: str) -> None:
    others = [voter for voter in group.voters if node_of(voter) != node]
    needed = max(1, group.ha.min_in_sync) if group.HasField("ha") else majority(len(group.voters))
    if len(others) < needed:
        drain.losses.append(
            f"broker group {group.group} needs {needed} of {', '.join(group.voters)}: it stops with"
            f" {node}"
        )
        return
    if not group.HasField("leader"):
        drain.waits.append(f"broker group {group.group} has no leader")
        return
    replicas = {replica.node: replica for replica in group.replicas}
    objections = {other: objection(group, replicas.get(other), other in up) for other in others}
    able = [other for other in others if not objections[other]]
    if len(able) < needed:
        missing = ", ".join(f"{other} {why}" for other, why in objections.items() if why)
        drain.waits.append(
            f"broker group {group.group} needs {needed} replicas without {node}, and {missing}"
        )
    elif node_of(group.leader) == node:
        drain.transfers[group.group] = max(
            able, key=lambda other: (replicas[other].end_index, other)
        )


def objection(group: pb.BrokerGroupInfo, replica: pb.ReplicaInfo | None, up: bool) -> str:
    """Why a replica does not count; empty if it does."""
    if not up or replica is None:
        return "is down"
    if replica.HasField("fenced"):
        return "has stopped"
    if replica.state not in ("", "running"):
        return f"is {replica.state}"
    if not replica.HasField("role"):
        return "has no role"
    if group.HasField("ha") and replica.node not in group.ha.in_sync:
        return "is not in sync"
    if replica.node == group.leader:
        return ""
    if replica.catch_up.state != "flowing":
        return f"is {replica.catch_up.state or 'not known to the leader'}"
    if replica.catch_up.behind_bytes > BEHIND_MAX_BYTES:
        return f"lacks {units.size_words(replica.catch_up.behind_bytes)}"
    return ""


def _judge_controllers(drain: Drain, members: Iterable[pb.MemberInfo], node: str) -> None:
    controllers: Sequence[pb.MemberInfo] = [member for member in members if member.controller]
    others = [member for member in controllers if node_of(member.node) != node]
    if len(others) == len(controllers):
        return
    needed = majority(len(controllers))
    if len(others) < needed:
        names = ", ".join(member.node for member in controllers)
        drain.losses.append(
            f"the controller quorum needs {needed} of {names}: it stops with {node}"
        )
    elif sum(member.up for member in others) < needed:
        down = ", ".join(member.node for member in others if not member.up)
        drain.waits.append(
            f"the controller quorum needs {needed} members without {node}, and these are down:"
            f" {down}"
        )


def majority(count: int) -> int:
    """How many of so many voters decide."""
    return count // 2 + 1
