"""Clusters beyond one machine, on paper: 3, 9 and 30 nodes with 3 to 300 broker groups, in racks
that may be lost.

`python -m bench.alone.scale` prints the table of docs/sizing.md. Nothing is measured and nothing
runs: placement, preferred leaders and balance are those of the product over simulated metadata, a
leader's packets are counted on a Raft core at rest, and periods are the constants of the code. So
the table is the same on every machine.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.core_step import START_NS, leader
from ledgermq.node.controller.broker_groups import GroupSpec, fewest_replicas, preferred_of
from ledgermq.node.controller.quorum import Timing as QuorumTiming
from ledgermq.node.frontend.admin.cluster.balancing import MOVE_REPLICA, Facts, GroupFacts, plan
from ledgermq.node.process.frontend_side import LEADERS_EVERY_S
from ledgermq.raft.messages import AppendReply

SIZES = ((3, 3), (3, 30), (9, 9), (9, 90), (30, 30), (30, 300))
"""(Nodes, broker groups)."""
REPLICAS, RACKS = 3, 3
GROUP_BYTES = 100 << 30
COPY_BYTES_PER_S = 48e6
"""Catching up under half load (docs/performance.md, `catch-up`): what one node takes in."""
HEADER = (
    *(
        "nodes",
        "groups",
        "replicas",
        "leaders",
        "streams",
        "controller connections",
        "controller packets/s",
        "heartbeat packets/s",
    ),
    *(
        "questions/s",
        "moves",
        "leaders lost",
        "stopped: across",
        "stopped: in blocks",
        "copied",
        "hours",
    ),
)


@dataclass(frozen=True, slots=True)
class Placed:
    """Simulated metadata: broker group → replicas, and → preferred leader."""

    nodes: tuple[str, ...]
    replicas: dict[str, tuple[str, ...]]
    leaders: dict[str, str]


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number + 1:02}" for number in range(count))


def across(place: int, nodes: int) -> int:
    """The rack of a node whose neighbours by name are in other racks, as a StatefulSet numbers
    nodes that spread over zones."""
    return place % RACKS


def in_blocks(place: int, nodes: int) -> int:
    """The rack of a node whose neighbours by name are in the same rack."""
    return place * RACKS // nodes


def placed(nodes: int, groups: int) -> Placed:
    """The groups, added one after the other without a choice of nodes."""
    known = names(nodes)
    replicas: dict[str, tuple[str, ...]] = {}
    specs: dict[str, GroupSpec] = {}
    for number in range(groups):
        group = f"g{number + 1:03}"
        replicas[group] = fewest_replicas(replicas, known, REPLICAS)
        specs[group] = GroupSpec(preferred=preferred_of(group, replicas[group], specs))
    return Placed(
        known, replicas, {group: str(spec.leader_wanted) for group, spec in specs.items()}
    )


def spread(counts: Counter[str], nodes: Iterable[str]) -> str:
    """The least and the most of any node."""
    each = [counts[node] for node in nodes]
    return f"{min(each)}" if min(each) == max(each) else f"{min(each)} to {max(each)}"


def moves_when_grown(nodes: int, groups: int) -> int:
    """The moves of replicas by which `rebalance` spreads the groups of a cluster that began with
    three nodes."""
    before = placed(REPLICAS, groups)
    facts = {
        group: GroupFacts(voters, before.leaders[group], before.leaders[group])
        for group, voters in before.replicas.items()
    }
    return sum(step.kind == MOVE_REPLICA for step in plan(Facts(names(nodes), facts)).steps)


def heartbeats_per_s(seconds: int = 10) -> float:
    """Packets a second that the leader of an idle group of three sends, counted on a core whose
    followers answer."""
    voters = ("a", "b", "c")
    core, sent = leader(voters), 0
    now_ns = START_NS
    for _ in range(seconds * 1_000):
        now_ns += 1_000_000
        core.tick(now_ns)
        effects = core.take(now_ns)
        sent += len(effects.messages)
        for message in effects.messages:
            core.step(
                AppendReply(
                    sender=message.to,
                    to="a",
                    term=2,
                    round=message.round,
                    boot_id=7,
                    rejected=False,
                    received=0,
                    durable=0,
                ),
                now_ns,
            )  # type: ignore[union-attr]
    return sent / seconds


def questions_per_s(found: Placed) -> float:
    """How often a node asks for the leader of a group of which it has no replica, as the mean of
    the nodes."""
    foreign = len(found.nodes) * len(found.replicas) - sum(map(len, found.replicas.values()))
    return foreign / len(found.nodes) / LEADERS_EVERY_S


def lost_rack(found: Placed, rack_of: Callable[[int, int], int]) -> tuple[int, int, int, float]:
    """(Leaders lost, groups without a majority, bytes to copy, seconds of the copy) for the rack
    whose loss is worst."""
    outcomes = []
    for rack in range(RACKS):
        gone = {
            node
            for place, node in enumerate(found.nodes)
            if rack_of(place, len(found.nodes)) == rack
        }
        lost = Counter(
            sum(node in gone for node in replicas) for replicas in found.replicas.values()
        )
        leaders = sum(node in gone for node in found.leaders.values())
        copied = sum(times * count for times, count in lost.items()) * GROUP_BYTES
        # The empty replacements take the copies in side by side.
        outcomes.append(
            (
                leaders,
                sum(count for times, count in lost.items() if 2 * times >= REPLICAS),
                copied,
                copied / len(gone),
            )
        )
    leaders, without, copied, each = max(
        outcomes, key=lambda outcome: (outcome[1], outcome[0], outcome[2])
    )
    return leaders, without, copied, each / COPY_BYTES_PER_S


def row(nodes: int, groups: int, beat: float) -> tuple[str, ...]:
    found = placed(nodes, groups)
    hosted = Counter(node for replicas in found.replicas.values() for node in replicas)
    led = Counter(found.leaders.values())
    leaders, without, copied, copy_s = lost_rack(found, across)
    blocked = lost_rack(found, in_blocks)[1]
    packets = groups * beat * 2 / nodes
    return (
        *(f"{nodes}", f"{groups}", spread(hosted, found.nodes), spread(led, found.nodes)),
        *(
            f"{2 * (nodes - 1)}",
            f"{nodes - 1}",
            f"{2 * (nodes - 1) / QuorumTiming().heartbeat_s:,.0f}",
            f"{packets:,.0f}",
        ),
        *(
            f"{questions_per_s(found):,.0f}",
            f"{moves_when_grown(nodes, groups)}",
            f"{leaders}",
            f"{without}",
            f"{blocked}",
        ),
        *(f"{copied / (1 << 40):,.1f} TiB", f"{copy_s / 3600:,.1f}"),
    )


def table(sizes: Sequence[tuple[int, int]] = SIZES) -> str:
    """The table as Markdown. Packets are sent and received ones together."""
    beat = heartbeats_per_s()
    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    return "\n".join(
        [*lines, *(f"| {' | '.join(row(nodes, groups, beat))} |" for nodes, groups in sizes)]
    )


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
