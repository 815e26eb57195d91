"""Bit rot under a running replica, on virtual time: the scrub of the node finds it, and the replica
is repaired from its peers while the others continue."""

from __future__ import annotations

import pytest

from ledgermq.node.replica.retention.scrub import Differs, Scrubber
from ledgermq.proto.records.control import SealRecord
from ledgermq.sim.faults.faults_media import files
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World

FILE_BYTES = 4 << 10


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [1, 4])
def test_a_byte_that_rots_in_a_complete_file_is_found_named_and_mended(seed: int) -> None:
    """While everything runs, and before anybody verifies the replica as a whole; nothing that is
    whole is ever called damaged."""
    world = World(seed, file_bytes=FILE_BYTES)
    medium = world.stations[world.names[seed % 3]].medium
    harmed: list[int] = []

    def rot() -> None:
        """Damage a file that all replicas have."""
        assert len(files(medium)) > 5, "an eventful second"
        base = files(medium)[1]
        medium.harmed = medium.wounded = True
        medium.disk.flip(f"{medium.data_directory}/{base:020d}", 1000, 4)
        harmed.append(base)

    outcome = world.run(100_000, lambda world: world.after(3 * SECOND, rot), until_ns=9 * SECOND)
    assert outcome.passed, outcome.violation
    (base,) = harmed
    events = list(world.events)
    healed = next(at for at, event in enumerate(events) if event.text == "everything heals")
    (said,) = [event for event in events[:healed] if event.text.startswith("repairing")]
    assert said.node == medium.name and f"{base:020d}" in said.text and "entry" in said.text
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
