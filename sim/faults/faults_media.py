"""Faults of bytes that are safely on a disk: rot, stale pages, lost writes, truncated or missing
files (rows 18–20, 22–24, 26).

This module chooses which bytes of which replica are harmed. Only bytes at or below the synced mark
*on the medium* are: a power cut cannot explain damage there, so it must be distinguished from a
torn tail, fenced, and fetched from peers (I10). Damage above the mark together with a power cut is
the double fault described in docs/divergence.md. So is damage of the same place on every replica,
which one kind does on purpose. Otherwise only one replica is damaged at a time, and if a majority
loses bytes, another replica still has them. Nodes are killed first, because rot shows when a page
is read again, and files are truncated while no process runs. After any such fault every replica is
fully verified at the end of faults, as an operator's audit would request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ledgermq.sim.faults.faults_kind import (
    Draw,
    Kind,
    a_node,
    lasting,
    own_chance,
    some_node,
    target,
)
from ledgermq.sim.faults.plan import FaultEvent, Value
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.sim.machine.ports import Chance
from ledgermq.sim.nodes.node import Medium
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World
from ledgermq.storage.files.ports import PAGE_BYTES
from ledgermq.storage.log.synced_mark import read_mark

LEAST_BYTES = 1024
"""With less log than this below the mark, nothing is harmed."""
APART_BYTES = 2 * PAGE_BYTES


def safe_end(medium: Medium) -> int:
    """The position up to which this medium would guarantee its log after a power cut now."""
    path = f"{medium.root}/dledger-{medium.name}/syncedmark"
    content = medium.disk.on_medium(path, 0, medium.disk.file_size(path))
    assert content is not None, "the mark is there from the beginning"
    copy = ForgetfulDisk()
    copy.mkdirs("/m")
    copy.create("/m/m", len(content), allocate=True).pwrite(0, content)
    return read_mark(copy, "/m/m", medium.identity.log_id).end_pos


def files(medium: Medium) -> list[int]:
    """Positions at which the medium's log files begin."""
    return sorted(
        int(name) for name in medium.disk.listdir(medium.data_directory) if name.isdigit()
    )


def _harmed_alone(world: World, *names: str) -> bool:
    """Mark these replicas as damaged, if no other one is."""
    if any(
        station.medium.wounded for other, station in world.stations.items() if other not in names
    ):
        return False
    for name in names:
        world.stations[name].medium.wounded = True
    return True


def _extent(medium: Medium) -> tuple[int, int]:
    """The positions between which bytes are safe."""
    bases = files(medium)
    return (bases[0], safe_end(medium)) if bases else (0, 0)


def _flip(world: World, medium: Medium, pos: int, bit: int) -> None:
    base = pos - pos % medium.file_bytes
    medium.disk.flip(f"{medium.data_directory}/{base:020d}", pos - base, 1 << bit)
    medium.harmed = True
    world.note(f"bit rot at position {pos}", medium.name)


def rot(world: World, event: FaultEvent) -> None:
    """Flip a few bits of one replica."""
    name = target(world, event)
    if name is None or not _harmed_alone(world, name):
        return
    chance, medium = own_chance(event), world.stations[name].medium
    world.crash(name, power=False)
    low, high = _extent(medium)
    if high - low >= LEAST_BYTES:
        for _ in range(event.number("bits")):
            _flip(world, medium, chance.randrange(low, high), chance.randrange(8))
    world.after(event.number("for_ns"), partial(world.start, name))


def rot_everywhere(world: World, event: FaultEvent) -> None:
    """Flip one bit of every replica, each at another place."""
    chance = own_chance(event)
    if any(station.medium.wounded for station in world.stations.values()):
        return
    _end_all(world, event, world.names)
    media = [world.stations[name].medium for name in world.names]
    low, high = (
        max(_extent(medium)[0] for medium in media),
        min(_extent(medium)[1] for medium in media),
    )
    slice_bytes = (high - low) // len(media)
    if slice_bytes <= 2 * APART_BYTES:
        return
    _harmed_alone(world, *world.names)
    order = list(range(len(media)))
    chance.shuffle(order)
    for at, medium in zip(order, media, strict=True):
        begin = low + at * slice_bytes + APART_BYTES
        _flip(
            world,
            medium,
            chance.randrange(begin, begin + slice_bytes - 2 * APART_BYTES),
            chance.randrange(8),
        )


def same_rot(world: World, event: FaultEvent) -> None:
    """Flip the same byte on a majority, or on all replicas: damage of a majority can still be
    repaired if another replica has the bytes; damage of all is permanent."""
    chance = own_chance(event)
    names = list(world.names)
    chance.shuffle(names)
    everywhere = event.flag("all")
    chosen = sorted(names if everywhere else names[: len(names) // 2 + 1])
    if not everywhere and any(station.medium.wounded for station in world.stations.values()):
        return
    _end_all(world, event, chosen)
    media = [world.stations[name].medium for name in chosen]
    low, high = (
        max(_extent(medium)[0] for medium in media),
        min(_extent(medium)[1] for medium in media),
    )
    if high - low < LEAST_BYTES:
        return
    if everywhere:
        pos = chance.randrange(low, high)
    else:
        spared = [
            (medium, *_extent(medium))
            for name in world.names
            if name not in chosen and (medium := world.stations[name].medium)
        ]
        places = [
            (at, len(data)) for at, data in _committed(world, low, high) if _kept(spared, at, data)
        ]
        if not places or not _harmed_alone(world, *chosen):
            return
        at, size = places[chance.randrange(len(places))]
        pos = at + chance.randrange(size)
    bit = chance.randrange(8)
    for medium in media:
        _flip(world, medium, pos, bit)
    world.hopeless |= everywhere


def _committed(world: World, low: int, high: int) -> list[tuple[int, bytes]]:
    """Position and bytes of every committed entry between two positions."""
    found = []
    for piece in world.truth.pieces(0, len(world.truth) - 1):
        for start, size in zip(piece.starts.tolist(), piece.sizes.tolist(), strict=True):
            at = piece.pos + start
            if low <= at and at + size <= high:
                found.append((at, bytes(piece.data[start : start + size])))
    return found


def _kept(media: Sequence[tuple[Medium, int, int]], pos: int, data: bytes) -> bool:
    """Whether one of these media has an entry within its extent."""
    return any(
        low <= pos and pos + len(data) <= high and _has(medium, pos, data)
        for medium, low, high in media
    )


def _has(medium: Medium, pos: int, data: bytes) -> bool:
    base = pos - pos % medium.file_bytes
    return (
        medium.disk.on_medium(f"{medium.data_directory}/{base:020d}", pos - base, len(data)) == data
    )


def _end_all(world: World, event: FaultEvent, names: Sequence[str]) -> None:
    for name in names:
        world.crash(name, power=False)
        world.after(event.number("for_ns"), partial(world.start, name))


def go_stale(world: World, event: FaultEvent) -> None:
    """Return a page of one replica's log to its content before the last change."""
    name = target(world, event)
    if name is None or not _harmed_alone(world, name):
        return
    chance, medium = own_chance(event), world.stations[name].medium
    world.crash(name, power=False)
    end = safe_end(medium)
    for base in reversed(files(medium)):
        if medium.disk.go_stale(f"{medium.data_directory}/{base:020d}", chance, below=end - base):
            medium.harmed = True
            world.note(f"a page of the log file at {base} is stale", name)
            break
    world.after(event.number("for_ns"), partial(world.start, name))


def lie(world: World, event: FaultEvent) -> None:
    """Lose or misdirect one write of one replica; cut its power later, when the mark has passed the
    write."""
    name = target(world, event)
    if name is None or not _harmed_alone(world, name):
        return
    medium = world.stations[name].medium
    medium.disk.lie_at_next_sync(
        f"{medium.data_directory}/", own_chance(event), misdirected=event.flag("misdirected")
    )
    world.after(
        event.number("for_ns"), partial(_power_after_lie, world, name, len(medium.disk.lies))
    )


def _power_after_lie(world: World, name: str, before: int) -> None:
    medium = world.stations[name].medium
    medium.disk.lie = None
    if world.healed or len(medium.disk.lies) == before:
        return
    path, page = medium.disk.lies[-1]
    if safe_end(medium) < int(path.rpartition("/")[2]) + (page + 1) * PAGE_BYTES:
        # A lost write that the mark has not passed may be taken for torn, and is truncated.
        world.after(SECOND // 2, partial(_power_after_lie, world, name, before))
        return
    medium.harmed = True
    world.note("a write was lost or went elsewhere", name)
    world.crash(name, power=True)
    world.after(SECOND // 2, partial(world.start, name))


def unreadable(world: World, event: FaultEvent) -> None:
    """Make pages of one replica's log report EIO until they are written again."""
    name = target(world, event)
    if name is None or not _harmed_alone(world, name):
        return
    chance, medium = own_chance(event), world.stations[name].medium
    low, high = _extent(medium)
    if high - low < LEAST_BYTES:
        return
    medium.harmed = True
    for _ in range(event.number("pages")):
        pos = chance.randrange(low, high)
        base = pos - pos % medium.file_bytes
        medium.disk.break_page(f"{medium.data_directory}/{base:020d}", pos - base)
        world.note(f"the page at position {pos} cannot be read", name)


def cut_file(world: World, event: FaultEvent) -> None:
    """Truncate or remove a log file of one replica."""
    name = target(world, event)
    if name is None or not _harmed_alone(world, name):
        return
    chance, medium = own_chance(event), world.stations[name].medium
    world.crash(name, power=False)
    safe = [base for base in files(medium) if base + LEAST_BYTES < safe_end(medium)]
    if safe:
        base = safe[chance.randrange(len(safe))]
        path = f"{medium.data_directory}/{base:020d}"
        medium.harmed = True
        if event.flag("gone"):
            medium.disk.vanish(path)
        else:
            medium.disk.shorten(
                path, chance.randrange(min(medium.file_bytes, safe_end(medium) - base))
            )
        world.note(f"the log file at {base} is {'gone' if event.flag('gone') else 'cut'}", name)
    world.after(event.number("for_ns"), partial(world.start, name))


def _with(**more: Value) -> Draw:
    return lambda chance, names: {"node": some_node(chance, names), **more}


def _draw_rot(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"node": some_node(chance, names), "bits": chance.randrange(1, 4)}


def _draw_unreadable(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"node": some_node(chance, names), "pages": chance.randrange(1, 3)}


KINDS: dict[str, Kind] = {
    "bit-rot": Kind(
        (18,),
        "one to three bits of one replica flip while it is down",
        lasting(20, 1000, _draw_rot),
        rot,
    ),
    "bit-rot-everywhere": Kind(
        (19,),
        "a bit of every replica flips, each in another place",
        lasting(20, 1000),
        rot_everywhere,
    ),
    "same-rot-majority": Kind(
        (20,),
        "the same bit of a majority flips",
        lasting(20, 1000, lambda c, n: {"all": False}),
        same_rot,
    ),
    "same-rot-all": Kind(
        (20,),
        "the same bit of every replica flips: to be refused by name",
        lasting(20, 1000, lambda c, n: {"all": True}),
        same_rot,
    ),
    "stale-page": Kind(
        (24,),
        "a page of the log is the one before its last change",
        lasting(20, 1000, a_node),
        go_stale,
    ),
    "lost-write": Kind(
        (23,),
        "a write was acknowledged and is nowhere; a power cut shows it",
        lasting(1500, 4000, _with(misdirected=False)),
        lie,
    ),
    "misdirected-write": Kind(
        (23,),
        "a write went over another page; a power cut shows it",
        lasting(1500, 4000, _with(misdirected=True)),
        lie,
    ),
    "read-error": Kind(
        (26,),
        "pages of the log report EIO until they are written again",
        _draw_unreadable,
        unreadable,
    ),
    "truncated-file": Kind(
        (22,), "a log file is shorter than it was", lasting(20, 1000, _with(gone=False)), cut_file
    ),
    "missing-file": Kind(
        (22,), "a log file is gone", lasting(20, 1000, _with(gone=True)), cut_file
    ),
}
