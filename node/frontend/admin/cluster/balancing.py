"""Plans how to balance a cluster: moves of replicas, moves of leadership, and queues for topics
that have too few. Changes nothing itself.

Pure: it maps the facts of one moment to ordered steps, each with its reason. Property tests hold
these laws: nodes that can take replicas differ by at most one in their number of replicas;
leadership is spread as evenly as the replicas allow; no plan needs fewer replica moves; no step
removes a replica before its successor votes; and the plan for the result of a plan is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ledgermq.proto.workers import node_of

MOVE_REPLICA = "move-replica"
MOVE_LEADER = "move-leader"
ADD_QUEUES = "add-queues"


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A broker group. `voters`: the nodes with its replicas; `others`: the nodes with its learners
    or observers, which do not move."""

    voters: tuple[str, ...]
    leader: str | None = None
    wanted: str | None = None
    """The node that should lead."""
    fixed: bool = False
    """The configuration decides which node leads."""
    others: tuple[str, ...] = ()
    move: tuple[str, str] | None = None
    """An unfinished move of a replica: source and target node."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic. `stays`: why queues in further broker groups would do harm; empty if they would
    not."""

    namespace: str
    name: str
    placement: Mapping[str, int]
    stays: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one moment. `nodes`: the nodes that answer, and so may take replicas; `down`:
    the nodes that do not."""

    nodes: tuple[str, ...]
    groups: Mapping[str, GroupFacts]
    topics: tuple[TopicFacts, ...] = ()
    down: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `topic` is (namespace, name), and `queues` is its number of queues in the group
    after the step; both only for ADD_QUEUES."""

    kind: str
    group: str
    reason: str
    source: str = ""
    target: str = ""
    topic: tuple[str, str] = ("", "")
    queues: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """`notes`: what the plan leaves as it is, with the reason."""

    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    """The cluster as it will be after the steps planned so far."""

    facts: Facts
    voters: dict[str, list[str]]
    wanted: dict[str, str | None]
    leader: dict[str, str | None]
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def load(self) -> dict[str, int]:
        """The number of replicas on each node that may take replicas."""
        load = dict.fromkeys(sorted(self.facts.nodes), 0)
        for voters in self.voters.values():
            for node in voters:
                if node in load:
                    load[node] += 1
        return load

    def move(self, group: str, source: str, target: str, reason: str) -> None:
        self.steps.append(Step(MOVE_REPLICA, group, reason, source, target))
        self.voters[group] = sorted({*self.voters[group], target} - {source})
        # The new replica replaces the source as leader or as preferred leader.
        for table in (self.wanted, self.leader):
            if table[group] == source:
                table[group] = target


def plan(facts: Facts) -> Plan:
    """The steps that balance the cluster; empty if it is balanced."""
    draft = _Draft(
        facts,
        {name: sorted(group.voters) for name, group in sorted(facts.groups.items())},
        {name: _meant(group) for name, group in facts.groups.items()},
        {name: group.leader for name, group in facts.groups.items()},
    )
    if facts.down:
        names = ", ".join(facts.down)
        draft.notes.append(
            f"not reached: {names}; replicas there are not moved, and no replica is moved to it"
        )
    for name, group in sorted(facts.groups.items()):
        if group.leader is None:
            draft.notes.append(f"broker group {name} has no leader: the plan leaves it unchanged")
    _finish_moves(draft)
    _balance_replicas(draft)
    _balance_leaders(draft)
    _spread_queues(draft)
    return Plan(tuple(draft.steps), tuple(draft.notes))


def _meant(group: GroupFacts) -> str | None:
    """The node that should lead: the preferred leader if it has a replica, otherwise the current
    leader."""
    return group.wanted if group.wanted in group.voters else group.leader


def _finish_moves(draft: _Draft) -> None:
    for name, group in sorted(draft.facts.groups.items()):
        if group.move is not None and group.leader is not None:
            source, target = group.move
            draft.move(name, source, target, "this move is unfinished")


# -- replicas


def _balance_replicas(draft: _Draft) -> None:
    while True:
        load = draft.load()
        if not load or max(load.values()) - min(load.values()) <= 1:
            return
        found = _next_move(draft, load)
        if found is None:
            draft.notes.append(
                "replicas stay unevenly spread: the replicas to move belong to groups that cannot"
                " change now"
            )
            return
        group, source, target = found
        reason = f"{source} has {load[source]} replicas and {target} has {load[target]}"
        draft.move(group, source, target, reason)


def _next_move(draft: _Draft, load: Mapping[str, int]) -> tuple[str, str, str] | None:
    """The next (group, source, target), from a node with the most replicas to one with the fewest;
    prefers groups not led from there."""

    def gap(pair: tuple[str, str]) -> tuple[int, int]:
        return -load[pair[0]], load[pair[1]]

    pairs = [
        (source, target) for source in load for target in load if load[source] - load[target] > 1
    ]
    for _, equal in groupby(sorted(pairs, key=lambda pair: (*gap(pair), *pair)), gap):
        led_there = None
        for source, target in equal:
            # The groups are in the order of their names. With many, comparing all of them would
            # stop the event loop for seconds.
            for group in draft.voters:
                if _may_move(draft, group, source, target):
                    if source not in (draft.leader[group], draft.wanted[group]):
                        return group, source, target
                    led_there = led_there or (group, source, target)
        if led_there is not None:
            return led_there
    return None


def _may_move(draft: _Draft, group: str, source: str, target: str) -> bool:
    facts = draft.facts.groups[group]
    voters = draft.voters[group]
    pinned = facts.fixed and facts.wanted == source
    if facts.leader is None or pinned or source not in voters:
        return False
    # Workers of one node fail together: a group has at most one replica on them.
    return (
        node_of(target)
        not in {node_of(node) for node in (*voters, *facts.others) if node != source}
        and target != source
    )


# -- leaders


def _balance_leaders(draft: _Draft) -> None:
    """Shift leadership along shortest paths from a node that leads too many groups to one that
    leads too few. Each group on a path moves one step along it."""
    began = dict(draft.wanted)
    load = _led(draft)
    while way := _shift(draft, load):
        for group, target in way:
            draft.wanted[group] = target
        load = _led(draft)
    before = _count(draft.facts.nodes, began.values())
    for group, wanted in sorted(draft.wanted.items()):
        leader = draft.leader[group]
        if wanted is None or leader is None or (wanted == leader and began[group] == wanted):
            continue
        if began[group] == wanted:
            reason = f"{wanted} should lead it, and {leader} leads it"
        else:
            former = str(began[group])
            reason = (
                f"{former} leads {before.get(former, 0)} broker groups and {wanted}"
                f" {before.get(wanted, 0)}"
            )
        draft.steps.append(Step(MOVE_LEADER, group, reason, leader, wanted))


def _led(draft: _Draft) -> dict[str, int]:
    return _count(draft.facts.nodes, draft.wanted.values())


def _count(nodes: Iterable[str], leaders: Iterable[str | None]) -> dict[str, int]:
    load = dict.fromkeys(sorted(nodes), 0)
    for node in leaders:
        if node in load:
            load[node] += 1
    return load


def _shift(draft: _Draft, load: Mapping[str, int]) -> Sequence[tuple[str, str]]:
    """(Group, new leader) pairs of the next shift; empty if no shift makes leadership more even."""
    for source in sorted(load, key=lambda node: (-load[node], node)):
        way = _way_down(draft, load, source)
        if way:
            return way
    return ()


def _way_down(draft: _Draft, load: Mapping[str, int], source: str) -> Sequence[tuple[str, str]]:
    came: dict[str, tuple[str, str]] = {}
    waiting = deque([source])
    while waiting:
        node = waiting.popleft()
        if load[source] - load[node] >= 2:
            way = []
            while node != source:
                former, group = came[node]
                way.append((group, node))
                node = former
            return way
        for group in sorted(draft.voters):
            facts = draft.facts.groups[group]
            if draft.wanted[group] != node or facts.fixed or facts.leader is None:
                continue
            for other in draft.voters[group]:
                if other in load and other != source and other not in came:
                    came[other] = node, group
                    waiting.append(other)
    return ()


# -- queues


def _spread_queues(draft: _Draft) -> None:
    groups = sorted(name for name, group in draft.facts.groups.items() if group.leader is not None)
    for topic in draft.facts.topics:
        most = max(topic.placement.values(), default=0)
        few = [group for group in groups if topic.placement.get(group, 0) < most]
        if most - min((topic.placement.get(group, 0) for group in groups), default=most) <= 1:
            continue
        shown = f"{topic.namespace}@{topic.name}" if topic.namespace else topic.name
        if topic.stays:
            draft.notes.append(f"topic {shown} stays where it is: {topic.stays}")
            continue
        for group in few:
            has = topic.placement.get(group, 0)
            reason = f"the topic has {most} queues in another broker group and {has} in this one"
            draft.steps.append(
                Step(ADD_QUEUES, group, reason, topic=(topic.namespace, topic.name), queues=most)
            )
