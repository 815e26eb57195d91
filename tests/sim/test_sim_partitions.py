"""The budget of one-way and flapping partitions, counted in virtual time: at most one election per
heal, terms that do not grow by themselves, and as much through the group afterwards as before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest

from ledgermq.proto.types import Role
from ledgermq.sim.actors.clients import Habits
from ledgermq.sim.machine.network import MS, Link, around, between
from ledgermq.sim.runs.world import World

BEGIN_MS, CUT_MS, HEAL_MS, SETTLED_MS, END_MS = 1500, 3500, 5000, 6000, 8000
EVEN = Habits(
    round_ns=(299 * MS, 301 * MS), messages_a_send=(50, 51), reads=0, forgets=0, prolongs=0
)
"""Clients that want the same in every second."""
STEPS = 1 << 40
FLAPS, FLAP_MS = 8, 150
SEEDS = (1,)


@dataclass
class Seen:
    """Highest term, and entries committed, at named moments."""

    terms: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)

    def look(self, world: World, name: str) -> None:
        self.terms[name] = max(
            station.life.term for station in world.stations.values() if station.life is not None
        )
        self.commits[name] = len(world.truth)

    def passed(self, first: str, last: str) -> int:
        return self.commits[last] - self.commits[first]


def leader(world: World) -> str:
    lives = [
        (station.life.term, name)
        for name, station in world.stations.items()
        if station.life and station.life.role is Role.LEADER
    ]
    return max(lives)[1]


def run(seed: int, fault: Callable[[World], None]) -> Seen:
    """Two seconds as they are, the fault, a second to settle, two seconds more."""
    seen = Seen()

    def schedule(world: World) -> None:
        for name, at_ms in (
            ("begin", BEGIN_MS),
            ("cut", CUT_MS - 1),
            ("heal", HEAL_MS),
            ("settled", SETTLED_MS),
            ("end", END_MS),
        ):
            world.after(at_ms * MS, partial(seen.look, world, name))
        world.after(CUT_MS * MS, partial(fault, world))

    outcome = World(seed, habits=EVEN).run(STEPS, schedule, until_ns=(END_MS + 1) * MS)
    assert outcome.passed, f"seed {seed}: {outcome.violation}"
    return seen


def cut(world: World, links: Iterable[Link], for_ms: int) -> None:
    number = world.network.sever(links)
    world.after(for_ms * MS, partial(world.network.end, number))


def one_way(world: World, role: str, inbound: bool, outbound: bool) -> None:
    leads = leader(world)
    victim = leads if role == "leader" else next(name for name in world.names if name != leads)
    cut(world, around(victim, world.names, inbound=inbound, outbound=outbound), HEAL_MS - CUT_MS)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize(
    ("inbound", "outbound"),
    [(True, False), (False, True), (True, True)],
    ids=["deaf", "mute", "both"],
)
def test_a_partition_of_one_node_costs_an_election_per_heal_at_most(
    role: str, inbound: bool, outbound: bool
) -> None:
    """A leader that cannot send or cannot receive is replaced once; a follower causes no election;
    afterwards the cluster is as before."""
    for seed in SEEDS:
        seen = run(seed, lambda world: one_way(world, role, inbound, outbound))
        told = f"seed {seed}: {seen}"
        assert seen.terms["begin"] == seen.terms["cut"], told
        assert seen.terms["heal"] - seen.terms["cut"] <= (role == "leader"), told
        assert seen.terms["settled"] - seen.terms["heal"] <= 1, told
        assert seen.terms["end"] == seen.terms["settled"], told
        assert seen.passed("settled", "end") >= 0.9 * seen.passed("begin", "cut"), told
        if role == "follower":
            assert seen.passed("cut", "heal") >= 0.9 * seen.passed("begin", "cut") * (
                HEAL_MS - CUT_MS
            ) / (CUT_MS - BEGIN_MS), told


def flapping(world: World, everywhere: bool) -> None:
    """The leader's link to one follower, or to both, goes and comes, shorter than an election
    timeout and longer."""
    leads = leader(world)
    other = next(name for name in world.names if name != leads)
    links = list(around(leads, world.names) if everywhere else between((leads,), (other,)))
    for flap in range(FLAPS):
        world.after(
            flap * FLAP_MS * MS, partial(cut, world, links, FLAP_MS // 2 if flap % 4 else FLAP_MS)
        )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("everywhere", [False, True], ids=["one-follower", "both-followers"])
def test_flapping_link_of_the_leader_costs_no_election_or_throughput(
    everywhere: bool,
) -> None:
    """While one follower has contact with the leader, no other node is elected; gaps shorter than
    an election timeout have no effect even for both."""
    for seed in SEEDS:
        seen = run(seed, lambda world: flapping(world, everywhere))
        told = f"seed {seed}: {seen}"
        assert seen.terms["cut"] == seen.terms["heal"] == seen.terms["end"], told
        assert seen.passed("settled", "end") >= 0.9 * seen.passed("begin", "cut"), told


def test_flapping_links_of_a_leader_cost_one_election_a_heal() -> None:
    """Each heal costs one election and no further term, whichever node leads."""
    times = 3

    def fault(world: World) -> None:
        for number in range(times):
            world.after(
                number * 1500 * MS,
                lambda: cut(world, list(around(leader(world), world.names)), 1000),
            )

    for seed in SEEDS:
        seen = run(seed, fault)
        assert seen.terms["end"] - seen.terms["cut"] <= times, f"seed {seed}: {seen}"
