"""Fault schedules: what goes wrong in a run, drawn from the seed (the rows of the fault matrix that one process can act out).

Here lives only the drawing. A fault is set up as events of the world; what it does is in `disk.py`, `network.py` and `world.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ledgermq.proto.types import Role
from ledgermq.sim.network import MS
from ledgermq.sim.world import SECOND, World

Fault = Callable[[World], None]
GAP_NS = (20 * MS, 600 * MS)
FAULTS_A_RUN = 4
ACCESSES = 200


def some_node(world: World) -> str:
    return world.names[world.chance.randrange(len(world.names))]


def kill(world: World) -> None:
    """SIGKILL of one node (rows 1, 3)."""
    name = some_node(world)
    world.crash(name, power=False)
    world.after(world.chance.randrange(20 * MS, 2 * SECOND), lambda: world.start(name))


def power_cut(world: World) -> None:
    """Power cut of one node (row 15)."""
    name = some_node(world)
    world.crash(name, power=True)
    world.after(world.chance.randrange(20 * MS, 2 * SECOND), lambda: world.start(name))


def power_cut_all(world: World) -> None:
    """Power cut of every node at once (row 16)."""
    for name in world.names:
        world.crash(name, power=True)
        world.after(world.chance.randrange(20 * MS, SECOND), partial(world.start, name))


def pause(world: World) -> None:
    """A node stands still: SIGSTOP, a stalled interpreter (rows 5, 32)."""
    world.pause(some_node(world), world.chance.randrange(50 * MS, 3 * SECOND))


def depose(world: World) -> None:
    """The leader, and nobody else, is cut off or killed just when it may have told one follower only (Raft paper, figure 8)."""
    leaders = [name for name, station in world.stations.items() if station.life is not None and station.life.role is Role.LEADER]
    for name in leaders:
        if world.chance.random() < 0.5:
            world.crash(name, power=world.chance.random() < 0.5)
            world.after(world.chance.randrange(20 * MS, SECOND), partial(world.start, name))
        else:
            world.network.isolate(name, [n for n in world.names if n != name])
            world.after(world.chance.randrange(500 * MS, 2 * SECOND), world.network.cut.clear)


def isolate(world: World) -> None:
    """A node is cut off, in both directions or one (rows 7, 8)."""
    name = some_node(world)
    inbound, outbound = ((True, True), (True, False), (False, True))[world.chance.randrange(3)]
    world.network.isolate(name, [n for n in world.names if n != name], inbound=inbound, outbound=outbound)
    world.after(world.chance.randrange(200 * MS, 3 * SECOND), world.network.cut.clear)


def split(world: World) -> None:
    """One link is cut, the bridge between the others stays (row 7)."""
    name = some_node(world)
    world.network.isolate(name, [some_node(world)])
    world.after(world.chance.randrange(200 * MS, 3 * SECOND), world.network.cut.clear)


def bad_network(world: World) -> None:
    """Loss, repetition, stragglers and damage (row 10)."""
    network, chance = world.network, world.chance
    network.loss, network.duplication = chance.uniform(0, 0.3), chance.uniform(0, 0.3)
    network.slow, network.damage = chance.uniform(0, 0.05), chance.uniform(0, 0.3)
    world.after(chance.randrange(200 * MS, 2 * SECOND), network.settle)


def slow_disks(world: World) -> None:
    """Syncs take as long as elections (rows 13, 14)."""
    world.sync_ns = (MS, world.chance.randrange(20 * MS, 600 * MS))


def failed_sync(world: World) -> None:
    """One fdatasync reports EIO (row 25)."""
    world.stations[some_node(world)].medium.fail_next_sync()


def kill_inside(world: World) -> None:
    """SIGKILL or power cut between two accesses of the disk, in the middle of a turn, a sync or a recovery (rows 3, 15)."""
    world.stations[some_node(world)].medium.kill_after(world.chance.randrange(ACCESSES))


def full_disk(world: World) -> None:
    """No room for a further file on one node's disk, for a while (row 24)."""
    medium = world.stations[some_node(world)].medium
    medium.fill()
    world.after(world.chance.randrange(200 * MS, 3 * SECOND), medium.free)


def trim(world: World) -> None:
    """No fault, but what goes on beside them: files of the log go that every voter has on stable storage."""
    world.trim(world.chance.randrange(1, 4))


def transfer(world: World) -> None:
    """No fault either: leadership is handed to some node, whatever state that one is in (row 37)."""
    world.transfer(some_node(world))


FAULTS: dict[str, Fault] = {
    "kill": kill,
    "power-cut": power_cut,
    "power-cut-all": power_cut_all,
    "pause": pause,
    "depose": depose,
    "isolate": isolate,
    "split": split,
    "bad-network": bad_network,
    "slow-disks": slow_disks,
    "failed-sync": failed_sync,
}
RARE: dict[str, Fault] = {"kill-inside": kill_inside, "full-disk": full_disk, "trim": trim, "transfer": transfer}
"""Known by name only: the seeds that found what the track record tells draw from FAULTS alone, and go on telling the same stories."""
KNOWN = FAULTS | RARE


def schedule(names: tuple[str, ...] = tuple(FAULTS)) -> Fault:
    """Faults of the given kinds, one after another at random distances, for as long as the run lasts."""

    def next_fault(world: World, faults: list[Fault]) -> None:
        if world.healed:
            return
        faults[world.chance.randrange(len(faults))](world)
        world.after(world.chance.randrange(*GAP_NS), partial(next_fault, world, faults))

    def begin(world: World) -> None:
        """A run is devoted to a few kinds, each more or less likely: many seeds see rare combinations often."""
        if names:
            faults = [KNOWN[names[world.chance.randrange(len(names))]] for _ in range(FAULTS_A_RUN)]
            world.after(world.chance.randrange(*GAP_NS), partial(next_fault, world, faults))

    return begin
