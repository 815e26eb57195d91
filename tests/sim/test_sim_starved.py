"""Nodes with too little CPU time, in virtual time: leadership does not move, a dead leader is still
detected, and as fast as usual once CPU time is available again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft.config import Timing
from ledgermq.sim.faults import acting
from ledgermq.sim.faults.plan import FaultEvent, Plan
from ledgermq.sim.machine.network import MS
from ledgermq.sim.runs.world import World

pytestmark = pytest.mark.timeout(900)  # a loaded machine is no failure

BEGIN_MS, STARVED_MS, LONGEST_WAIT_MS = 2_000, 30_000, 800
SEEDS = range(1, 5)
CHANGES_MOST = 4
"""Of all seeds together, in two minutes. While election timeouts took no notice of lateness there
were eleven. 120 seeds had 23 changes, and 31 since news of commits no longer travels by itself, so
that fewer messages are signs of life."""
STEPS = 1 << 40
TIMING = Timing()
ELECTED_MS = 200
"""Votes and the first message of a new leader, on nodes that have processors."""


def starved(for_ms: int = STARVED_MS) -> Plan:
    event = {
        "node": "n1",
        "everywhere": True,
        "longest_ns": LONGEST_WAIT_MS * MS,
        "for_ns": for_ms * MS,
        "salt": 0,
    }
    return Plan((FaultEvent(BEGIN_MS * MS, "starved", event),))


def leader(world: World) -> str | None:
    """Of the highest term, if it runs."""
    lives = [
        (station.life.term, name)
        for name, station in world.stations.items()
        if station.life and station.life.role is Role.LEADER
    ]
    return max(lives)[1] if lives else None


def run(
    seed: int, plan: Plan, until_ms: int, also: Callable[[World], None] = lambda world: None
) -> World:
    def schedule(world: World) -> None:
        acting(plan)(world)
        also(world)

    world = World(seed)
    outcome = world.run(STEPS, schedule, until_ns=until_ms * MS)
    # Messages that readers give up while all nodes are starved go to a topic that simulated clients
    # do not know.
    assert outcome.passed or "%DLQ%" in str(outcome.violation), f"seed {seed}: {outcome.violation}"
    return world


@pytest.mark.verify
def test_leadership_stays_while_all_nodes_are_starved() -> None:
    """There is no other fault, so no election is needed, and the group continues."""
    changes = 0
    for seed in SEEDS:
        world = run(seed, starved(), BEGIN_MS + STARVED_MS)
        changes += world.checkers.elections - 1
        assert len(world.truth) > 500, f"seed {seed}: {len(world.truth)}"
    assert changes <= CHANGES_MOST


def time_to_a_leader_ms(seed: int, plan: Plan, killed_ms: int) -> float:
    """From the kill of the leader to another one, in virtual milliseconds."""
    found: list[int] = []

    def look(world: World, victim: str, killed_ns: int) -> None:
        if leader(world) in (None, victim):
            world.after(MS, partial(look, world, victim, killed_ns))
        else:
            found.append(world.now - killed_ns)

    def kill(world: World) -> None:
        victim = leader(world)
        if victim is None:
            world.after(MS, partial(kill, world))
            return
        world.crash(victim, power=False)
        look(world, victim, world.now)

    run(
        seed,
        plan,
        killed_ms + 8_000,
        lambda world: world.after(killed_ms * MS, partial(kill, world)),
    )
    return found[0] / MS


def test_a_leader_that_dies_among_starved_nodes_is_replaced_within_the_bound() -> None:
    """Five times the longest election timeout, and what the votes take that wait for processors
    themselves."""
    for seed in SEEDS[:2]:
        took_ms = time_to_a_leader_ms(seed, starved(), BEGIN_MS + 15_000)
        assert (
            took_ms * MS <= TIMING.election_max_ns + TIMING.slack_max_ns + 8 * LONGEST_WAIT_MS * MS
        ), f"seed {seed}: {took_ms} ms"


@pytest.mark.verify
def test_a_death_is_noticed_as_soon_as_ever_once_there_are_processors_again() -> None:
    """After the longest slack has faded."""
    for seed in SEEDS[:2]:
        took_ms = time_to_a_leader_ms(seed, starved(8_000), BEGIN_MS + 8_000 + 26_000)
        assert took_ms <= TIMING.election_max_ns / MS + ELECTED_MS, f"seed {seed}: {took_ms} ms"
