"""Plans how the members of a cluster follow the wanted number of nodes: which nodes join, which
replicas move, which nodes leave.

Pure: it maps the facts of one moment to ordered steps, or to the reason of a refusal. The only
state is the cluster's own agreed metadata, so an interrupted run is continued by planning anew. An
exhaustive test holds these laws in every small cluster:

* a step leaves every broker group and the controller quorum with enough members that are up and in
  sync, and a group never with fewer than before;
* a node leaves only when no broker group has a voting replica on it, and a replica leaves only when
  its successor votes;
* a plan that cannot be carried out whole is refused whole, before its first step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ledgermq.client.plans.draining import majority, objection
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.workers import is_first, node_of, worker_name

JOINING = "joining"
Kind = Literal["add", "promote", "move", "abort", "remove"]


@dataclass(frozen=True, slots=True)
class Member:
    """A node, or a worker of one. `learns`: it is a learner, but no observer, of some broker
    group."""

    up: bool
    controller: bool
    state: str = "member"
    learns: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group. `sound`: the voters that are up and in sync. `least`: how many sound voters
    an HA group demands; None: a majority. `others`: learners and observers. `move`: the move of a
    replica that is under way, as (source, target)."""

    voters: frozenset[str]
    sound: frozenset[str]
    led: bool = True
    least: int | None = None
    others: frozenset[str] = frozenset()
    move: tuple[str, str] | None = None

    def needs(self, voters: int) -> int:
        """The number of sound voters among so many that the group needs to commit."""
        return majority(voters) if self.least is None else self.least

    @property
    def factor(self) -> int:
        """The number of replicas, without the second copy of the one that moves."""
        return len(
            self.voters - {self.move[0]}
            if self.move and self.move[1] in self.voters
            else self.voters
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """The facts of one moment."""

    members: Mapping[str, Member]
    groups: Mapping[str, Group]


@dataclass(frozen=True, slots=True)
class Step:
    """One change of members. `node` joins, gets its votes, leaves, or gives up its replica of
    `group` to `target`."""

    kind: Kind
    node: str
    group: str = ""
    target: str = ""

    def __str__(self) -> str:
        if self.kind == "move":
            return f"move the replica of {self.group} from {self.node} to {self.target}"
        if self.kind == "abort":
            return (
                f"give up the move of the replica of {self.group} from {self.node} to {self.target}"
            )
        return f"{self.kind} {self.node}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order; none: the members are as wanted. With `refused`, nothing may be
    done."""

    steps: tuple[Step, ...] = ()
    refused: str = ""


class _Refused(Exception):
    """Why the wanted members would cost a majority, or replicas."""


def ordinal(member: str, name: str) -> int | None:
    """The number of a node NAME-0, NAME-1 … or of its workers; None for nodes with other names,
    which no plan touches."""
    match = re.fullmatch(re.escape(name) + r"-(0|[1-9]\d*)", node_of(member))
    return int(match[1]) if match else None


def plan(cluster: Cluster, name: str, count: int, *, workers: int = 1, adds: bool = True) -> Plan:
    """What makes NAME-0 to NAME-(count-1) the members among all nodes of this name. Without `adds`,
    nodes only leave."""
    if all(ordinal(member, name) is None for member in cluster.members):
        return Plan(
            refused=(
                f"no member is named {name}-0, {name}-1 …; the members are"
                f" {', '.join(sorted(cluster.members))}"
            )
        )
    draft = _Draft(cluster, [member for member in cluster.members if _beyond(member, name, count)])
    try:
        if adds:
            draft.join(
                worker_name(f"{name}-{number}", worker)
                for number in range(count)
                for worker in range(1, workers + 1)
            )
        draft.move_replicas()
        draft.leave()
    except _Refused as refusal:
        return Plan(refused=str(refusal))
    return Plan(tuple(draft.steps))


def _beyond(member: str, name: str, count: int) -> bool:
    number = ordinal(member, name)
    return number is not None and number >= count


class _Draft:
    """The cluster as it will be after the steps so far."""

    def __init__(self, cluster: Cluster, leaving: Iterable[str]) -> None:
        self.members = dict(cluster.members)
        self.groups = dict(cluster.groups)
        self.leaving = frozenset(leaving)
        self.steps: list[Step] = []

    # -- joining

    def join(self, wanted: Iterable[str]) -> None:
        """Make the wanted nodes members. Learners get their votes, unless they learn for the sake
        of a move."""
        for node in wanted:
            known = self.members.get(node)
            if known is not None and known.state != JOINING:
                continue
            moves_here = any(
                group.move is not None and group.move[1] == node for group in self.groups.values()
            )
            promoted = known is not None and known.learns and not moves_here
            self.steps.append(Step("promote" if promoted else "add", node))
            self.members[node] = Member(up=True, controller=is_first(node))

    # -- moving

    def move_replicas(self) -> None:
        for name, group in sorted(self.groups.items()):
            concerned = group.voters & self.leaving or (
                group.move is not None and group.move[1] in self.leaving
            )
            if not concerned:
                continue
            self._check_factor(name, group)
            if group.move is not None:
                self._end_move(name, *group.move)
            for source in sorted(self.groups[name].voters & self.leaving):
                self._move(name, source, self._target(name, source))

    def _check_factor(self, name: str, group: Group) -> None:
        remaining = {node_of(node) for node in self._staying()}
        if len(remaining) < group.factor:
            raise _Refused(
                f"broker group {name} has {group.factor} replicas, and only {len(remaining)} nodes"
                " would remain for them"
            )

    def _staying(self) -> list[str]:
        return sorted(
            node
            for node, member in self.members.items()
            if node not in self.leaving and member.state != "observer"
        )

    def _end_move(self, name: str, source: str, target: str) -> None:
        """One move of a group at a time: the move under way goes on, or is given up if its target
        leaves, or is down."""
        given_up = target in self.leaving or not self._up(target)
        if given_up and source in self.groups[name].voters:
            group = self.groups[name]
            self._check(name, group, group.voters - {target}, group.sound - {target})
            self.steps.append(Step("abort", source, name, target))
            self.groups[name] = replace(
                group,
                voters=group.voters - {target},
                sound=group.sound - {target},
                others=group.others - {target},
                move=None,
            )
        else:
            self._move(name, source, target)

    def _up(self, node: str) -> bool:
        return node in self.members and self.members[node].up

    def _target(self, name: str, source: str) -> str:
        """The node with the fewest replicas among those that may take this one."""
        group = self.groups[name]
        taken = {node_of(node) for node in group.voters | group.others if node != source}
        free = [
            node for node in self._staying() if node_of(node) not in taken and self.members[node].up
        ]
        if not free:
            down = ", ".join(node for node in self._staying() if not self.members[node].up)
            why = f"these are down: {down}" if down else "each node that remains has one already"
            raise _Refused(
                f"no node can take the replica of broker group {name} from {source}; {why}"
            )
        load = {node: sum(node in known.voters for known in self.groups.values()) for node in free}
        return min(free, key=lambda node: (load[node], node))

    def _move(self, name: str, source: str, target: str) -> None:
        group = self.groups[name]
        voters = group.voters | {target}
        sound = group.sound | {target} if self._up(target) else group.sound
        self._check(name, group, voters, sound)
        self._check(name, group, voters - {source}, sound - {source})
        self.steps.append(Step("move", source, name, target))
        self.groups[name] = replace(
            group,
            voters=voters - {source},
            sound=sound - {source},
            others=group.others - {source, target},
            move=None,
        )

    @staticmethod
    def _check(name: str, group: Group, voters: frozenset[str], sound: frozenset[str]) -> None:
        if not group.led:
            raise _Refused(f"broker group {name} has no leader")
        needed = group.needs(len(voters))
        if len(sound) < needed:
            missing = ", ".join(sorted(voters - sound))
            problem = (
                f"broker group {name} would have {len(voters)} voters and need {needed}, and these"
                f" are down or not in sync: {missing}"
            )
            raise _Refused(problem)

    # -- leaving

    def leave(self) -> None:
        """Nodes that are down leave first, because each of them counts against the majority; then
        the highest ordinals, workers before their node."""
        for node in sorted(
            self.leaving, key=lambda node: (self.members[node].up, *_last_first(node))
        ):
            if self.members[node].controller:
                self._check_controllers(node)
            self.steps.append(Step("remove", node))
            del self.members[node]

    def _check_controllers(self, node: str) -> None:
        others = {
            name: member
            for name, member in self.members.items()
            if member.controller and name != node
        }
        down = [name for name, member in others.items() if not member.up]
        if len(others) - len(down) < majority(len(others)):
            shown = ", ".join(sorted(down))
            problem = (
                f"the controller quorum would have {len(others)} members without {node} and need"
                f" {majority(len(others))}"
            )
            raise _Refused(f"{problem}, and these are down: {shown}")


def _last_first(member: str) -> tuple[int, bool]:
    return -int(node_of(member).rpartition("-")[2]), is_first(member)


def facts(
    status: pb.ClusterStatusResponse,
    members: Iterable[pb.MemberInfo],
    groups: Iterable[pb.BrokerGroupEntry] = (),
) -> Cluster:
    """The facts as nodes tell them; what is unknown counts as down, or as not in sync."""
    answered = {info.node for info in status.nodes if info.up}
    known = {
        info.node: Member(
            up=info.up and info.node in answered,
            controller=info.controller,
            state=info.state,
            learns=any(row.role == "learner" for row in info.groups),
        )
        for info in members
    }
    statuses = {info.group: info for info in status.groups}
    return Cluster(
        known,
        {
            entry.broker_group: _group(statuses.get(entry.broker_group), entry, answered)
            for entry in groups
        },
    )


def _group(info: pb.BrokerGroupInfo | None, entry: pb.BrokerGroupEntry, up: set[str]) -> Group:
    """Without a leader the voters are not known for sure: then all who could be voters are taken
    for it."""
    move = (entry.move.from_node, entry.move.to_node) if entry.HasField("move") else None
    if info is None or not info.HasField("leader"):
        return Group(
            frozenset(entry.replicas) | frozenset(() if info is None else info.voters),
            frozenset(),
            led=False,
            move=move,
        )
    replicas = {replica.node: replica for replica in info.replicas}
    sound = frozenset(
        node for node in info.voters if not objection(info, replicas.get(node), node in up)
    )
    least = max(1, info.ha.min_in_sync) if info.HasField("ha") else None
    return Group(
        voters=frozenset(info.voters),
        sound=sound,
        led=True,
        least=least,
        others=frozenset(info.learners) | frozenset(info.observers),
        move=move,
    )
