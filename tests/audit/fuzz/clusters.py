"""Data directories for the fuzzer, written by the product's code: simulated clusters over disks in
memory, stopped, killed or partitioned.

This module creates clusters and does not damage them. An image is the bytes of every file, by path
under a base directory. Files that the simulator does not write (node identity, table of peers, key
index) are written by the product's code as well.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.node.broker.parts.retention.retained import Retained
from ledgermq.node.replica.background.step_thread import StepThread
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.records.control import SealRecord
from ledgermq.proto.types import Range
from ledgermq.sim.checks.truth import Truth
from ledgermq.sim.faults import FAULTS, acting, draw
from ledgermq.sim.faults.plan import FaultEvent, Plan
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES, Settings
from ledgermq.sim.nodes.node import CLUSTER_ID, CREATED_MS, KEY_SLOTS, KEY_UNITS, Life
from ledgermq.sim.nodes.upkeep import Upkeep
from ledgermq.sim.runs.cluster import Station
from ledgermq.sim.runs.world import World
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.state import identity
from ledgermq.storage.state.checkpoints import StoreCheckpoint

Image = dict[str, bytes]
READ_BYTES = 4 << 20
FOR_EVER_NS = 3600 * 1000 * MS


class _Unwatched(Truth):
    """Notes nothing: for a replica that is opened only to be stopped."""

    def applied(self, node: str, entries: Range) -> None:
        pass

    def grown(self, node: str, retained: Retained) -> None:
        pass

    def sealed(self, node: str, seals: Iterable[SealRecord]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Cluster:
    """`clean`: every node was stopped cleanly. `complete`: all replicas have the same entries."""

    name: str
    image: Image
    clean: bool
    complete: bool

    @property
    def nodes(self) -> list[str]:
        return sorted({path.partition("/")[0] for path in self.image})

    def write(self, base: Path) -> list[str]:
        """Write it to disk. Returns the node directories."""
        for path, data in self.image.items():
            target = base / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return [str(base / node) for node in self.nodes]


class _Enough(Exception):
    """Ends the simulation at the chosen time."""


def at_rest(
    seed: int, *, steps: int = 700, file_bytes: int = SMALL_FILE_BYTES, kinds: Sequence[str] = ()
) -> Cluster:
    """A cluster that was healed and became quiescent before every node was stopped cleanly."""
    world = World(seed, file_bytes=file_bytes)
    outcome = world.run(steps, acting(draw(seed, world.names, steps, kinds) if kinds else Plan()))
    assert outcome.passed, f"seed {seed}: {outcome.violation}"
    members = world.members()
    # A removed replica, or one beside a group with a single voter, need not have all entries.
    complete = members is None or (len(members.voters) > 1 and {*members.nodes} == {*world.names})
    return Cluster(
        f"rest-{seed}{'-trimmed' if kinds else ''}", stopped(world), clean=True, complete=complete
    )


def interrupted(
    seed: int,
    at_ms: int,
    *,
    kinds: Sequence[str] | None = None,
    power: bool | None = None,
    policy: FlushPolicy = FlushPolicy.DURABLE,
    append: str | None = None,
    group: Settings | None = None,
) -> Cluster:
    """A cluster whose run was interrupted: all nodes were stopped cleanly one by one (`power`
    None), killed at once (False), or lost their power at once (True). `kinds`: the faults until
    then; None: all ordinary ones. `append`: the append mode; None: a different one on each node.
    `group`: the kind of group; None: a Raft group of three nodes."""
    settings = replace(
        group or Settings.of_nodes(3), file_bytes=SMALL_FILE_BYTES, policy=policy, append=append
    )
    world = World(seed, settings=settings)
    until(
        world,
        at_ms,
        draw(seed, world.names, at_ms, tuple(FAULTS) if kinds is None else kinds)
        if kinds != ()
        else Plan(),
    )
    how = {None: "stopped", False: "killed", True: "powerless"}[power]
    image = stopped(world) if power is None else killed(world, power=power)
    return Cluster(f"{how}-{seed}-{at_ms}", image, clean=power is None, complete=False)


def cut_off(seed: int, node: str, *, from_ms: int, at_ms: int, maintained: bool = True) -> Cluster:
    """A cleanly stopped cluster in which one node (`leader`: the leader at that time) was isolated
    for the last part of the run. It lags behind, or stayed leader for a while without followers.
    Not `maintained`: nodes exchange no digests and trim nothing, so that no file is sealed."""
    world = World(seed, file_bytes=SMALL_FILE_BYTES)
    event = FaultEvent(
        from_ms * MS,
        "isolate",
        {"node": node, "inbound": True, "outbound": True, "for_ns": FOR_EVER_NS, "salt": 0},
    )
    with ExitStack() as idle:
        for method in () if maintained else ("begin", "hurry"):
            idle.enter_context(patch.object(Upkeep, method, lambda self: None))
        until(world, at_ms, Plan((event,)))
    return Cluster(f"cut-off-{node}-{seed}", stopped(world), clean=True, complete=False)


def until(world: World, at_ms: int, plan: Plan) -> None:
    def stop() -> None:
        raise _Enough

    def begin(running: World) -> None:
        acting(plan)(running)
        running.after(at_ms * MS, stop)

    try:
        outcome = world.run(1 << 40, begin)
    except _Enough:
        return
    raise AssertionError(f"seed {world.seed} ended before its time: {outcome.violation}")


def killed(world: World, *, power: bool) -> Image:
    """What the nodes' disks hold when all processes end at once, with or without the power."""
    image: Image = {}
    chance = random.Random(f"power {world.seed}")
    for station in world.stations.values():
        disk = station.medium.disk
        if power:
            after = type(disk)()
            after._directories = copy.deepcopy(disk._directories)
            after.power_cut(chance)
            disk = after
        _introduce(world, station, disk)
        image |= {path.lstrip("/"): disk.read_file(path) for path in disk.files()}
    return image


def stopped(world: World) -> Image:
    """The contents of the disks after every process was stopped cleanly in its current state."""
    image: Image = {}
    for station in world.stations.values():
        station.medium.repair()
        applied = -1
        if station.life is not None:
            # A process that is asked to stop writes everything, including the data of a running
            # sync.
            log = station.life.log
            if (job := log.durability.job) is not None:
                job.run()
                log.finish_sync(job, None)
            log.flush_mark()
            applied = station.life.machine.applied_index
        station.medium.crash(None)
        disk = station.medium.disk
        try:
            life = station.medium.live(
                int, random.Random(0), station.lives + 1, _Unwatched("", 0), StepThread
            )
        except StorageError:
            # An installation was running; it stays unfinished.
            _introduce(world, station, disk)
        else:
            _introduce(world, station, disk)
            _stop(life, applied)
        image |= {path.lstrip("/"): disk.read_file(path) for path in disk.files()}
    return image


def _stop(life: Life, applied: int) -> None:
    """Stop a replica as a node does: apply the known committed entries, write all derived state,
    close."""
    store, machine, log = life.store, life.machine, life.store.log
    while machine.applied_index < applied:
        machine.apply(_committed(log, machine.applied_index + 1, applied))
    index = KeyIndex(
        store.disk, store.root, store.identity.log_id, slots=KEY_SLOTS, units=KEY_UNITS
    )
    index.start(log.begin_index, log.end_index, log.chain_at)
    index.load(itertools.repeat(None))
    while index.next_index <= machine.applied_index:
        index.append(_committed(log, index.next_index, machine.applied_index))
    while index.tend(itertools.repeat(None)):
        pass
    index.sync()
    log.flush_mark()
    store.queues.sync()
    if machine.applied_index >= 0:
        store.write_snapshot(machine.export(store.identity.log_id))
    stamps = StoreCheckpoint(machine.store_ms, machine.store_ms, index.durable_store_ms)
    store.write_checkpoints(machine.applied_index, stamps)
    index.close()
    store.close()


def _committed(log: EntryLog, first: int, last: int) -> Range:
    entries = log.read(first, READ_BYTES)
    return entries if entries.last_index <= last else cut(entries, last)


def _introduce(world: World, station: Station, disk: object) -> None:
    """Write the files of a node other than the logs of its groups."""
    name, medium = station.name, station.medium
    state = f"{medium.root}/state"
    identity.write_node(disk, f"/{name}", identity.NodeIdentity(CLUSTER_ID, name, CREATED_MS))  # type: ignore[arg-type]
    met = {
        peer: incarnation for peer, incarnation in station.acquaintance.met.items() if peer != name
    }
    identity.write_peers(disk, state, met, met, vouched=medium.founder)  # type: ignore[arg-type]
    identity.note_boot(disk, state, f"{name}-{station.lives:012d}")  # type: ignore[arg-type]


Make = Callable[[], Cluster]
HEALTHY: dict[str, Make] = {
    "at rest": lambda: at_rest(5, steps=300),
    "trimmed": lambda: at_rest(114, steps=1400, kinds=("trim",)),
    "lagging": lambda: cut_off(20, "n3", from_ms=600, at_ms=900),
    "failed over": lambda: cut_off(81, "leader", from_ms=700, at_ms=2200),
}
"""The clusters that the fuzzer damages. An audit of an undamaged one reports nothing."""
