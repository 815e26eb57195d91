"""Faults: what can go wrong, drawn from a seed into a plan, and carried out on a world.

Here live the kinds: how the parameters of one are drawn, and which method of world, disk or network it pulls. A plan is drawn whole before
the run begins, from a source of chance of its own, so that dropping one of its events changes no other. What a kind needs to know of the
moment (who leads) it asks when it is carried out; what it needs of chance it draws from its own `salt`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ledgermq.proto.types import Role
from ledgermq.sim.network import MS, Chance
from ledgermq.sim.plan import FaultEvent, Params, Plan, PlanError, Value
from ledgermq.sim.world import SECOND, World

GAP_NS = (20 * MS, 600 * MS)
FAULTS_A_RUN = 4
STEP_NS = 20 * MS
"""A plan is drawn for so much virtual time per step: more than a step takes at any load, so that faults go on until everything heals."""
LEADER = "leader"
"""Instead of a node's name: whoever leads when the fault is carried out."""
ACCESSES = 200


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: its rows of the fault matrix, what it does, how it is drawn, how it is carried out."""

    rows: tuple[int, ...]
    about: str
    draw: Callable[[Chance, Sequence[str]], dict[str, Value]]
    act: Callable[[World, FaultEvent], None]


# -- drawing ----------------------------------------------------------------------------------------------------------------------------


def some_node(chance: Chance, names: Sequence[str]) -> str:
    return names[chance.randrange(len(names))]


def _a_while(low_ns: int, high_ns: int) -> Callable[[Chance, Sequence[str]], dict[str, Value]]:
    """A node, and for how long."""
    return lambda chance, names: {"node": some_node(chance, names), "for_ns": chance.randrange(low_ns, high_ns)}


def _a_node(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"node": some_node(chance, names)}


def draw(seed: int, names: Sequence[str], steps: int, kinds: Sequence[str] | None = None) -> Plan:
    """The plan of a seed: a few kinds, each more or less likely, one fault after another at random distances.

    A run is devoted to few kinds so that many seeds see rare combinations often.
    """
    chance = random.Random(f"faults {seed}")
    known = tuple(FAULTS) if kinds is None else tuple(kinds)
    if not known:
        return Plan()
    chosen = [known[chance.randrange(len(known))] for _ in range(FAULTS_A_RUN)]
    events, at = [], chance.randrange(*GAP_NS)
    while at < steps * STEP_NS:
        kind = chosen[chance.randrange(len(chosen))]
        params: Params = {**KNOWN[kind].draw(chance, names), "salt": chance.randrange(1 << 32)}
        events.append(FaultEvent(at, kind, params))
        at += chance.randrange(*GAP_NS)
    return Plan(tuple(events))


# -- carrying out -----------------------------------------------------------------------------------------------------------------------


def carry_out(world: World, event: FaultEvent) -> None:
    """Let one fault happen now. Raises PlanError when there is no such kind, node or parameter."""
    kind = KNOWN.get(event.kind)
    if kind is None:
        raise PlanError(f"there is no fault {event.kind!r}; known: {', '.join(KNOWN)}")
    world.note(f"fault {event}")
    world.faults[event.kind] += 1
    kind.act(world, event)


def acting(plan: Plan) -> Callable[[World], None]:
    """What `World.run` takes: every event of the plan set up; none is carried out any more once everything heals."""

    def act(world: World, event: FaultEvent) -> None:
        if not world.healed:
            carry_out(world, event)

    def begin(world: World) -> None:
        for event in plan:
            world.after(event.at_ns, partial(act, world, event))

    return begin


def schedule(kinds: Sequence[str] | None = None, steps: int = 2000) -> Callable[[World], None]:
    """What `World.run` takes: the plan of the world's own seed."""
    return lambda world: acting(draw(world.seed, world.names, steps, kinds))(world)


def leaders(world: World) -> list[str]:
    """Every node that takes itself for the leader, running or paused."""
    return [name for name, station in world.stations.items() if station.life is not None and station.life.role is Role.LEADER]


def target(world: World, event: FaultEvent) -> str | None:
    """The node an event names; None when it says `leader` and nobody leads. Raises PlanError."""
    name = event.text("node")
    if name == LEADER:
        found = leaders(world)
        return found[-1] if found else None
    if name not in world.stations:
        raise PlanError(f"there is no node {name!r} in this run; its nodes: {', '.join(world.stations)}")
    return name


def _crash(world: World, event: FaultEvent, *, power: bool) -> None:
    name = target(world, event)
    if name is not None:
        world.crash(name, power=power)
        world.after(event.number("for_ns"), partial(world.start, name))


def power_cut_all(world: World, event: FaultEvent) -> None:
    chance = random.Random(event.number("salt"))
    for name in world.names:
        world.crash(name, power=True)
        world.after(chance.randrange(20 * MS, SECOND), partial(world.start, name))


def pause(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.pause(name, event.number("for_ns"))


def depose(world: World, event: FaultEvent) -> None:
    for name in leaders(world):
        if event.flag("crash"):
            world.crash(name, power=event.flag("power"))
            world.after(event.number("for_ns"), partial(world.start, name))
        else:
            world.network.isolate(name, [n for n in world.names if n != name])
            world.after(event.number("for_ns") * 2, world.network.cut.clear)


def isolate(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        others = [n for n in world.names if n != name]
        world.network.isolate(name, others, inbound=event.flag("inbound"), outbound=event.flag("outbound"))
        world.after(event.number("for_ns"), world.network.cut.clear)


def split(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.network.isolate(name, [event.text("other")])
        world.after(event.number("for_ns"), world.network.cut.clear)


def bad_network(world: World, event: FaultEvent) -> None:
    network = world.network
    network.loss, network.duplication = event.share("loss"), event.share("duplication")
    network.slow, network.damage = event.share("slow"), event.share("damage")
    world.after(event.number("for_ns"), network.settle)


def slow_disks(world: World, event: FaultEvent) -> None:
    world.sync_ns = (MS, event.number("sync_ns"))


def failed_sync(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.stations[name].medium.fail_next_sync()


def kill_inside(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.stations[name].medium.kill_after(event.number("accesses"))


def full_disk(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        medium = world.stations[name].medium
        medium.fill()
        world.after(event.number("for_ns"), medium.free)


def trim(world: World, event: FaultEvent) -> None:
    world.trim(event.number("files"))


def transfer(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.transfer(name)


def _draw_depose(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"crash": chance.random() < 0.5, "power": chance.random() < 0.5, "for_ns": chance.randrange(20 * MS, SECOND)}


def _draw_isolate(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    inbound, outbound = ((True, True), (True, False), (False, True))[chance.randrange(3)]
    return {"node": some_node(chance, names), "inbound": inbound, "outbound": outbound, "for_ns": chance.randrange(200 * MS, 3 * SECOND)}


def _draw_split(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"node": some_node(chance, names), "other": some_node(chance, names), "for_ns": chance.randrange(200 * MS, 3 * SECOND)}


def _draw_bad_network(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    shares: dict[str, Value] = {name: chance.uniform(0, most) for name, most in (("loss", 0.3), ("duplication", 0.3), ("slow", 0.05))}
    return {**shares, "damage": chance.uniform(0, 0.3), "for_ns": chance.randrange(200 * MS, 2 * SECOND)}


RESTART = _a_while(20 * MS, 2 * SECOND)

FAULTS: dict[str, Kind] = {
    "kill": Kind((1, 3), "SIGKILL of one node", RESTART, partial(_crash, power=False)),
    "power-cut": Kind((15,), "power cut of one node", RESTART, partial(_crash, power=True)),
    "power-cut-all": Kind((16,), "power cut of every node at once", lambda chance, names: {}, power_cut_all),
    "pause": Kind((5, 32), "a node stands still: SIGSTOP, a stalled interpreter", _a_while(50 * MS, 3 * SECOND), pause),
    "depose": Kind((1, 7), "the leader is cut off or killed when it may have told one follower only (figure 8)", _draw_depose, depose),
    "isolate": Kind((7, 8), "a node is cut off, in both directions or one", _draw_isolate, isolate),
    "split": Kind((7,), "one link is cut, the bridge between the others stays", _draw_split, split),
    "bad-network": Kind((10,), "loss, repetition, stragglers and damage", _draw_bad_network, bad_network),
    "slow-disks": Kind(
        (13, 14), "syncs take as long as elections", lambda chance, names: {"sync_ns": chance.randrange(20 * MS, 600 * MS)}, slow_disks
    ),
    "failed-sync": Kind((25,), "one fdatasync reports EIO", _a_node, failed_sync),
}
RARE: dict[str, Kind] = {
    "kill-inside": Kind(
        (3, 15),
        "SIGKILL or power cut between two accesses of the disk: in the middle of a turn, a sync or a recovery",
        lambda chance, names: {"node": some_node(chance, names), "accesses": chance.randrange(ACCESSES)},
        kill_inside,
    ),
    "full-disk": Kind((27,), "no room for a further file on one node's disk, for a while", _a_while(200 * MS, 3 * SECOND), full_disk),
    "trim": Kind(
        (40,), "no fault: files of the log go that every voter has", lambda chance, names: {"files": chance.randrange(1, 4)}, trim
    ),
    "transfer": Kind((37,), "no fault: leadership is handed to some node, whatever state that one is in", _a_node, transfer),
}
"""Drawn only when they are named."""
KNOWN = FAULTS | RARE
