"""Faults of processes and of their power: they end, alone or together, once or repeatedly, are
paused, or get too little processor time; and faults of their clocks (rows 1–6, 15, 16, 31, 32, 51).

This module chooses which process ends when; `disk.py` defines what a power cut leaves of a disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ledgermq.sim.faults.faults_kind import (
    LEADER,
    Kind,
    a_while,
    lasting,
    leaders,
    nothing,
    own_chance,
    some_node,
    target,
)
from ledgermq.sim.faults.plan import FaultEvent, Value
from ledgermq.sim.machine.network import MS, around
from ledgermq.sim.machine.ports import Chance
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World

ACCESSES = 200
RECOVERY_ACCESSES = 60
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
EPOCH_ASKS, EPOCH_ASK_NS = 12, 400 * MS
"""How often an operator asks for a time epoch: the first requests may raise the feature level, and
leaders may change."""
DRIFT_PPM = 50_000
"""The greatest drift of a clock; that of a crystal is a thousandth of it."""
LOOK_NS = MS // 4
LOOKS = 1000
"""How often, and how many times, a log is checked until it was truncated. Each check is a step of
the run."""


def end(world: World, event: FaultEvent, *, power: bool) -> None:
    """One node ends and returns."""
    name = target(world, event)
    if name is not None:
        world.crash(name, power=power)
        world.after(event.number("for_ns"), partial(world.start, name))


def end_many(world: World, event: FaultEvent, *, power: bool, majority: bool = False) -> None:
    """All nodes, or a bare majority of them, end at the same moment and return one by one."""
    chance = own_chance(event)
    names = list(world.names)
    chance.shuffle(names)
    for name in sorted(names[: len(names) // 2 + 1] if majority else names):
        world.crash(name, power=power)
        world.after(chance.randrange(20 * MS, SECOND), partial(world.start, name))


def end_inside(world: World, event: FaultEvent) -> None:
    """A node ends after a number of disk accesses, wherever its code is then; with `again`, so does
    each of its next recoveries."""
    name = target(world, event)
    if name is not None:
        chance = own_chance(event)
        again = [chance.randrange(RECOVERY_ACCESSES) for _ in range(event.number("again"))]
        world.stations[name].medium.kill_after(event.number("accesses"), *again)


def pause(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.pause(name, event.number("for_ns"))


def starve(world: World, event: FaultEvent) -> None:
    """Threads of one node, or of all, wait for a processor whenever they have work, for a while."""
    name = target(world, event)
    names = list(world.names) if event.flag("everywhere") else [name] if name is not None else []
    for each in names:
        world.starving.starve(each, event.number("longest_ns"))
        world.after(event.number("for_ns"), partial(world.starving.starve, each, 0))


def suspend(world: World, event: FaultEvent) -> None:
    """The machine of one node is suspended, or moved: no processor, no network, and its monotonic
    clock stands still. The network is back a while after the machine goes on."""
    name = target(world, event)
    if name is not None:
        for_ns = event.number("for_ns")
        number = world.network.sever(around(name, world.names))
        world.suspend(name, for_ns)
        world.after(for_ns + event.number("apart_ns"), partial(world.network.end, number))


def pause_majority(world: World, event: FaultEvent) -> None:
    """A majority is paused, and meanwhile one node loses its power (the recipe of row 6)."""
    chance = own_chance(event)
    names = list(world.names)
    chance.shuffle(names)
    for name in sorted(names[: len(names) // 2 + 1]):
        world.pause(name, event.number("for_ns"))
    victim = names[chance.randrange(len(names))]
    world.after(chance.randrange(event.number("for_ns")), partial(world.crash, victim, power=True))
    world.after(event.number("for_ns") + SECOND // 2, partial(world.start, victim))


def depose(world: World, event: FaultEvent) -> None:
    """Only leaders end or are partitioned, at a moment when they may have told a single follower
    (Raft paper, figure 8)."""
    for name in leaders(world):
        if event.flag("crash"):
            world.crash(name, power=event.flag("power"))
            world.after(event.number("for_ns"), partial(world.start, name))
        else:
            number = world.network.sever(around(name, world.names))
            world.after(event.number("for_ns") * 2, partial(world.network.end, number))


def cut_after_truncation(world: World, event: FaultEvent) -> None:
    """The leader is partitioned, so that its successor makes it truncate its log; then its power is
    cut, before or after that is durable."""
    name = target(world, event)
    if name is not None:
        number = world.network.sever(around(name, world.names))
        world.after(event.number("apart_ns"), partial(world.network.end, number))
        world.after(
            event.number("apart_ns"), partial(_crash_when_cut, world, event, name, None, LOOKS)
        )


def _crash_when_cut(
    world: World, event: FaultEvent, name: str, former: tuple[int, int, int] | None, looks: int
) -> None:
    """`former`: end of the log, its term and its chain CRC at the last check."""
    life = world.stations[name].life
    if life is None or world.healed or not looks:
        return
    if former is None or (former[0] <= life.end_index and life.term_at(former[0]) == former[1]):
        world.after(LOOK_NS, partial(_crash_when_cut, world, event, name, life.tip, looks - 1))
        return
    world.after(event.number("then_ns"), partial(world.crash, name, power=True))
    world.after(event.number("then_ns") + event.number("for_ns"), partial(world.start, name))


def rolling_restart(world: World, event: FaultEvent) -> None:
    """Stop and start one node after the other, as for an upgrade."""
    every, down = event.number("every_ns"), event.number("for_ns")
    for at, name in enumerate(world.names):
        world.after(at * every, partial(world.crash, name, power=False))
        world.after(at * every + down, partial(world.start, name))


def clock_jump(world: World, event: FaultEvent) -> None:
    """A node's wall clock is wrong for a while."""
    name = target(world, event)
    if name is not None:
        station = world.stations[name]
        station.wall_offset_ms += event.number("offset_ms")
        world.after(event.number("for_ns"), partial(_set_right, world, name))


def clocks_ahead(world: World, event: FaultEvent) -> None:
    """The wall clocks of all nodes are ahead together. They are set right, and an operator asks for
    a time epoch until one has begun."""
    for station in world.stations.values():
        station.wall_offset_ms = event.number("offset_ms")
    world.after(event.number("for_ns"), partial(_set_all_right, world))


def _set_all_right(world: World) -> None:
    for name in world.stations:
        _set_right(world, name)
    for number in range(EPOCH_ASKS):
        world.after(number * EPOCH_ASK_NS, world.begin_time_epoch)


def clock_drift(world: World, event: FaultEvent) -> None:
    """A node's monotonic clock runs fast or slow for a while."""
    name = target(world, event)
    if name is not None and not world.healed:
        world.set_clock(name, event.number("ppm"))
        world.after(event.number("for_ns"), partial(_true_again, world, name))


def _true_again(world: World, name: str) -> None:
    if not world.healed:
        world.set_clock(name, 0)


def _drifts(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    """Half of the drifts are small."""
    most = DRIFT_PPM if chance.random() < 0.5 else DRIFT_PPM // 100
    return {"node": some_node(chance, names), "ppm": chance.randrange(-most, most + 1)}


def _set_right(world: World, name: str) -> None:
    world.stations[name].wall_offset_ms = 0


BACK = a_while(20, 2000)

KINDS: dict[str, Kind] = {
    "kill": Kind((1, 3), "SIGKILL of one node", BACK, partial(end, power=False)),
    "kill-leader": Kind(
        (1,), "SIGKILL of the leader", a_while(20, 2000, LEADER), partial(end, power=False)
    ),
    "kill-majority": Kind(
        (2,),
        "SIGKILL of a majority at once",
        nothing,
        partial(end_many, power=False, majority=True),
    ),
    "kill-all": Kind(
        (2,), "SIGKILL of every node at once", nothing, partial(end_many, power=False)
    ),
    "kill-inside": Kind(
        (3, 15),
        "the process, or its power, ends between two accesses of its disk: in the middle of a turn,"
        " a sync, a roll or a trim",
        lambda chance, names: {
            "node": some_node(chance, names),
            "accesses": chance.randrange(ACCESSES),
            "again": 0,
        },
        end_inside,
    ),
    "crash-loop": Kind(
        (4,),
        "as kill-inside, and again in the middle of each of the next recoveries",
        lambda chance, names: {
            "node": some_node(chance, names),
            "accesses": chance.randrange(ACCESSES),
            "again": chance.randrange(1, 6),
        },
        end_inside,
    ),
    "power-cut": Kind(
        (15, 17),
        "power cut of one node: any subset of what was not synced is lost",
        BACK,
        partial(end, power=True),
    ),
    "power-cut-all": Kind(
        (16,), "power cut of every node at once", nothing, partial(end_many, power=True)
    ),
    "pause": Kind(
        (5, 32), "a node stands still: SIGSTOP, a stalled interpreter", a_while(50, 3000), pause
    ),
    "suspend": Kind(
        (52,),
        "the machine of the leader is suspended: it stands still, cut off, and so does its"
        " monotonic clock",
        lambda chance, names: {
            "node": LEADER,
            "for_ns": chance.randrange(100 * MS, 3000 * MS),
            "apart_ns": chance.randrange(400 * MS),
        },
        suspend,
    ),
    "starved": Kind(
        (51,),
        "the threads of one node, or of all, wait for a processor: mostly not at all, sometimes for"
        " 0.1 to 1.5 s",
        lambda chance, names: {
            "node": some_node(chance, names),
            "everywhere": chance.random() < 0.7,
            "longest_ns": chance.randrange(100 * MS, 1500 * MS),
            "for_ns": chance.randrange(500 * MS, 8 * SECOND),
        },
        starve,
    ),
    "pause-majority": Kind(
        (6,),
        "a majority stands still while one node loses its power",
        lasting(500, 3000),
        pause_majority,
    ),
    "depose": Kind(
        (1, 7),
        "the leader is cut off or killed when it may have told one follower only",
        lambda chance, names: {
            "crash": chance.random() < 0.5,
            "power": chance.random() < 0.5,
            "for_ns": chance.randrange(20 * MS, SECOND),
        },
        depose,
    ),
    "cut-after-truncation": Kind(
        (3, 15),
        "the leader is cut off until it has to cut its log back, and its power goes a moment after"
        " it did",
        lambda chance, names: {
            "node": LEADER,
            "apart_ns": chance.randrange(900 * MS, 2 * SECOND),
            "then_ns": chance.randrange(MS),
            "for_ns": chance.randrange(20 * MS, SECOND),
        },
        cut_after_truncation,
    ),
    "clock-jump": Kind(
        (31,),
        "a wall clock is wrong by up to an hour, ahead or behind, and set right again",
        lasting(
            500,
            4000,
            lambda c, n: {"node": some_node(c, n), "offset_ms": c.randrange(-HOUR_MS, HOUR_MS)},
        ),
        clock_jump,
    ),
    "clocks-ahead": Kind(
        (31,),
        "the wall clocks of all nodes are ahead together, by minutes or by a year; they are set"
        " right, and a time epoch begins",
        lasting(
            100,
            3000,
            lambda c, n: {
                "offset_ms": (
                    c.randrange(2 * MINUTE_MS, 2 * HOUR_MS) if c.random() < 0.5 else YEAR_MS
                )
            },
        ),
        clocks_ahead,
    ),
    "clock-drift": Kind(
        (31,),
        "a monotonic clock runs up to 5 % fast or slow",
        lasting(1000, 8000, _drifts),
        clock_drift,
    ),
    "rolling-restart": Kind(
        (36,),
        "one node after the other is stopped and started",
        lambda chance, names: {
            "every_ns": chance.randrange(300 * MS, 2 * SECOND),
            "for_ns": chance.randrange(20 * MS, 600 * MS),
        },
        rolling_restart,
    ),
}
