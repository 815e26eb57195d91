"""Faults of disks: slow, full, failing, and lying ones (rows 13, 14, 18–20, 22–27).

This module chooses which disk is harmed, when and where; `disk.py` defines the effects.
"""

from __future__ import annotations

from functools import partial

from ledgermq.sim.faults.faults_kind import FOLLOWER, LEADER, Kind, a_node, a_while, lasting, target
from ledgermq.sim.faults.plan import FaultEvent
from ledgermq.sim.machine.network import MS
from ledgermq.sim.runs.world import World


def slow(world: World, event: FaultEvent) -> None:
    """The syncs of one node, or of all, take up to this long."""
    name = target(world, event) if "node" in event.params else None
    if name is None and "node" in event.params:
        return
    number = world.slow_down(
        (name,) if name is not None else tuple(world.names), (MS, event.number("sync_ns"))
    )
    world.after(event.number("for_ns"), partial(world.speed_up, number))


def failed_sync(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.stations[name].medium.fail_next_sync()


def full(world: World, event: FaultEvent) -> None:
    """The nodes learn of it by their checks of the disks."""
    name = target(world, event)
    if name is not None:
        world.stations[name].medium.fill()
        world.after(event.number("for_ns"), world.stations[name].medium.free)


KINDS: dict[str, Kind] = {
    "slow-disks": Kind(
        (13, 14),
        "every sync may take as long as an election",
        lasting(500, 4000, lambda c, n: {"sync_ns": c.randrange(20 * MS, 600 * MS)}),
        slow,
    ),
    "slow-leader": Kind(
        (14,),
        "syncs of the leader take up to 20 to 600 ms",
        lasting(
            500, 4000, lambda c, n: {"node": LEADER, "sync_ns": c.randrange(20 * MS, 600 * MS)}
        ),
        slow,
    ),
    "slow-follower": Kind(
        (13,),
        "syncs of one follower take up to 20 ms to 2 s",
        lasting(
            500, 4000, lambda c, n: {"node": FOLLOWER, "sync_ns": c.randrange(20 * MS, 2000 * MS)}
        ),
        slow,
    ),
    "failed-sync": Kind(
        (25,), "one fdatasync reports EIO; what it should have stored is lost", a_node, failed_sync
    ),
    "full-disk": Kind(
        (27,),
        "no room for a further file on one node's disk, for a while",
        a_while(200, 3000),
        full,
    ),
}
