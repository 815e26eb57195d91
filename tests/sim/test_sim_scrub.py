"""Bit rot under a running replica, on virtual time: the scrub finds it, with and without recorded
digests, and the replica is repaired from its peers while the others continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ledgermq.node.replica.retention.scrub import Differs, Scrubber
from ledgermq.proto.records.control import SealRecord
from ledgermq.sim.faults.faults_media import files
from ledgermq.sim.machine.network import MS
from ledgermq.sim.nodes.node import Life
from ledgermq.sim.runs.cluster import SECOND, Station
from ledgermq.sim.runs.world import World
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.file_digest import file_digest

FILE_BYTES = 4 << 10
LOOK_EVERY_NS = 25 * MS


def seals_of(stations: Sequence[Station]) -> dict[int, SealRecord]:
    """What a majority has, of every file behind which each replica has applied an entry."""
    media = [station.medium for station in stations]
    settled = min(
        0 if station.life is None else station.life.machine.applied_end_pos for station in stations
    )
    found = {}
    for base in [base for base in files(media[0]) if base + FILE_BYTES < settled]:
        digests = [
            file_digest(medium.disk, f"{medium.data_directory}/{base:020d}", lambda length: None)
            for medium in media
        ]
        found[base] = SealRecord(base, 0, 0, 0, max(digests, key=digests.count), ("others",))
    return found


class Loops:
    """The two loops of one replica of a world, one look at a time."""

    def __init__(self, world: World, name: str, *, sealed: bool) -> None:
        self.world, self.station = world, world.stations[name]
        self.found: list[str] = []
        self.seals: Callable[[], dict[int, SealRecord]] = (
            (lambda: seals_of([*world.stations.values()])) if sealed else dict
        )
        self.life: Life | None = None
        self.scrubber: Scrubber

    def look(self) -> None:
        """Scrub one file and report damage to the group, as a node does."""
        self.world.after(LOOK_EVERY_NS, self.look)
        life, medium = self.station.life, self.station.medium
        if life is None:
            return
        if life is not self.life:
            self.life = life
            self.scrubber = Scrubber(
                medium.disk,
                medium.root,
                self.seals,
                lambda: 1_800_000_000_000 + self.world.now // MS,
                300,
            )
        try:
            base = self.scrubber.due()
            if base is not None:
                for _ in self.scrubber.read(base):
                    continue
        except LogDamaged as damage:
            self.found.append(str(damage))
            self.world.unreadable(self.station, damage)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("seed", "sealed"), [(1, False), (4, True)])
def test_a_byte_that_rots_in_a_complete_file_is_found_named_and_mended(
    seed: int, sealed: bool
) -> None:
    """While everything runs, and long before anybody verifies the replica as a whole; nothing that
    is whole is ever called damaged."""
    world = World(seed, file_bytes=FILE_BYTES)
    loops = [Loops(world, name, sealed=sealed) for name in world.names]
    harmed: list[tuple[Loops, int]] = []

    def rot() -> None:
        """Damage a file that all replicas have."""
        chosen = loops[seed % len(loops)]
        medium = chosen.station.medium
        assert len(files(medium)) > 5 and chosen.station.life is not None, "an eventful second"
        base = files(medium)[1]
        medium.harmed = medium.wounded = True
        medium.disk.flip(f"{medium.data_directory}/{base:020d}", 1000, 4)
        harmed.append((chosen, base))

    def arrange(world: World) -> None:
        for each in loops:
            world.after(SECOND, each.look)
        world.after(3 * SECOND, rot)

    outcome = world.run(100_000, arrange, until_ns=7 * SECOND)
    assert outcome.passed, outcome.violation
    ((chosen, base),) = harmed
    assert [len(each.found) for each in loops if each is not chosen] == [0, 0]
    (said,) = chosen.found
    assert f"{base:020d}" in said and "entry" in said
    medium = chosen.station.medium
    whole = Scrubber(medium.disk, medium.root, dict, lambda: 1_900_000_000_000, 1)
    assert sum(whole.read(base)) > 0


def test_another_history_is_told_and_not_mended() -> None:
    """Every entry right in itself, and the file another one: that is no rot, and no repair
    begins."""
    world = World(4, file_bytes=FILE_BYTES)
    told: list[str] = []

    def look() -> None:
        medium = world.stations["n1"].medium
        base = files(medium)[1]
        seals = {base: SealRecord(base, 0, 0, 0, "ab" * 32, ("n2", "n3"))}
        with pytest.raises(Differs) as differs:
            sum(
                Scrubber(
                    medium.disk, medium.root, lambda: seals, lambda: 1_900_000_000_000, 1
                ).read(base)
            )
        told.append(str(differs.value))

    outcome = world.run(100_000, lambda world: world.after(6 * SECOND, look), until_ns=7 * SECOND)
    assert outcome.passed and outcome.coverage.get("repairs", 0) == 0, outcome.violation
    assert "n2, n3" in told[0]
