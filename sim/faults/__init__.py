"""Faults: what can go wrong, drawn from a seed into a plan, and carried out on a world.

This module chooses: which kinds exist, from which of them a run draws by default, and how a seed
becomes a plan. The kinds are in `faults_process.py`, `faults_network.py`, `faults_disk.py`,
`faults_media.py`, `faults_group.py` and `faults_ha.py`. A plan is drawn completely before the run
begins, from its own random source, so that removing an event changes no other. A kind asks for the
current state (such as the leader) when it is carried out; its random choices come from its own
`salt`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from ledgermq.raft.config import Rule
from ledgermq.sim.faults import (
    faults_disk,
    faults_group,
    faults_ha,
    faults_media,
    faults_network,
    faults_process,
)
from ledgermq.sim.faults.faults_kind import Kind
from ledgermq.sim.faults.plan import FaultEvent, Plan, PlanError
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.runs.world import World

GAP_NS = 20 * MS
PACES_NS = (600 * MS, 1500 * MS, 4000 * MS)
"""The longest gap between two faults of a run: in some runs faults follow each other closely, in
others they are far apart."""
FAULTS_A_RUN = 4
STEP_NS = 20 * MS
"""A plan covers this much virtual time per step: more than a step takes at any load, so that faults
occur until the end of faults."""

KNOWN: dict[str, Kind] = (
    faults_process.KINDS
    | faults_network.KINDS
    | faults_disk.KINDS
    | faults_media.KINDS
    | faults_group.KINDS
    | faults_ha.KINDS
)
_ALONE = frozenset(
    {
        "kill-inside",
        "crash-loop",
        "full-disk",
        "late-answers",
        "cut-after-truncation",
        "clock-drift",
        "clocks-ahead",
        "starved",
        "suspend",
    }
)
BY_NAME = _ALONE | faults_group.KINDS.keys() | faults_media.KINDS.keys() | faults_ha.BY_NAME
"""Drawn only if they are named."""
FAULTS: dict[str, Kind] = {
    name: kind for name, kind in KNOWN.items() if name not in BY_NAME | faults_ha.KINDS.keys()
}
HA_FAULTS: dict[str, Kind] = {name: kind for name, kind in KNOWN.items() if name not in BY_NAME}
"""The kinds that runs of HA groups draw from."""


def drawn_from(settings: Settings) -> tuple[str, ...]:
    """The kinds for a run that names none. For an HA group, half of the draws are from the kinds
    for such groups."""
    if settings.rule is Rule.MAJORITY:
        return tuple(FAULTS)
    own = [name for name in HA_FAULTS if name in faults_ha.KINDS]
    return (*FAULTS, *own * (len(FAULTS) // len(own)))


def draw(seed: int, names: Sequence[str], steps: int, kinds: Sequence[str] | None = None) -> Plan:
    """The plan of a seed: a few kinds with different probabilities, and faults at random distances.

    A run uses few kinds so that rare combinations occur often over many seeds.
    """
    chance = random.Random(f"faults {seed}")
    known = tuple(FAULTS) if kinds is None else tuple(kinds)
    if not known:
        return Plan()
    chosen = [known[chance.randrange(len(known))] for _ in range(FAULTS_A_RUN)]
    pace = PACES_NS[chance.randrange(len(PACES_NS))]
    events, at = [], chance.randrange(GAP_NS, pace)
    while at < steps * STEP_NS:
        kind = chosen[chance.randrange(len(chosen))]
        params = {**KNOWN[kind].draw(chance, names), "salt": chance.randrange(1 << 32)}
        events.append(FaultEvent(at, kind, params))
        at += chance.randrange(GAP_NS, pace)
    return Plan(tuple(events))


def carry_out(world: World, event: FaultEvent) -> None:
    """Carry out one fault now. Raises PlanError for an unknown kind, node or parameter."""
    kind = KNOWN.get(event.kind)
    if kind is None:
        raise PlanError(f"there is no fault {event.kind!r}; known: {', '.join(KNOWN)}")
    world.note(f"fault {event}")
    world.faults[event.kind] += 1
    kind.act(world, event)


def acting(plan: Plan) -> Callable[[World], None]:
    """The argument of `World.run`: schedules every event of the plan; none is carried out after the
    end of faults."""

    def act(world: World, event: FaultEvent) -> None:
        if not world.healed:
            carry_out(world, event)

    def begin(world: World) -> None:
        for event in plan:
            world.after(event.at_ns, partial(act, world, event))

    return begin


def schedule(kinds: Sequence[str] | None = None, steps: int = 2000) -> Callable[[World], None]:
    """The argument of `World.run` for the plan of the world's own seed."""

    def begin(world: World) -> None:
        acting(
            draw(
                world.seed,
                world.names,
                steps,
                drawn_from(world.settings) if kinds is None else kinds,
            )
        )(world)

    return begin
