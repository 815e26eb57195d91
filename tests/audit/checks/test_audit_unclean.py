"""The result of a kill or a power cut is not damage, and damage is still found after one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.audit.rules import BIT_ROT, TORN_TAIL
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.sim.faults import draw
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES, Settings
from ledgermq.sim.runs.world import World
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.fuzz.clusters import Cluster, killed, until
from tests.audit.fuzz.runner import LIVELY
from tests.audit.log_writer import Placed, Writer

MARK = 20
SECTOR = 512


def run(base: Path) -> Audit:
    return audit([str(base / name) for name in NODES], deep=True)


def cluster(base: Path, **more: object) -> Writer:
    """Three replicas that were killed; the second is the one at which things are lost."""
    return write_cluster(
        base, history(6, 40), **{"clean": False, "mark": MARK, "snapshot": False, **more}
    )[1]  # type: ignore[arg-type]


def lose(path: Path, start: int, stop: int) -> None:
    """These bytes were never written."""
    data = bytearray(path.read_bytes())
    data[start:stop] = bytes(stop - start)
    path.write_bytes(data)


def data_file(writer: Writer, entry: Placed) -> tuple[Path, int]:
    at = entry.pos % writer.data_bytes
    return writer.log / "data" / f"{entry.pos - at:020d}", at


def sector_above(writer: Writer, index: int) -> tuple[Path, int]:
    """File and position of a sector that is completely within entries behind `index`, in the same
    file."""
    path, at = data_file(writer, writer.entries[index])
    return path, (at + writer.entries[index].size + SECTOR - 1) // SECTOR * SECTOR


def outcome(result: Audit) -> tuple[bool, set[str]]:
    """Whether anything failed, and the classes."""
    return any(finding.fails for finding in result.findings), {
        finding.klass for finding in result.findings
    }


def test_sectors_above_the_mark_that_were_never_written_are_no_damage(tmp_path: Path) -> None:
    """Though a majority holds what should stand there: this replica never said it were on stable
    storage. It lags."""
    writer = cluster(tmp_path)
    path, at = sector_above(writer, MARK)
    lose(path, at, at + SECTOR)
    result = run(tmp_path)
    assert (result.verdict, outcome(result)) == ("INCOMPLETE", (False, {TORN_TAIL}))
    assert any("n2 ends" in reason for reason in result.reasons)


@pytest.mark.parametrize("left", ["an entry", "the end of one"])
@pytest.mark.parametrize("how", ["zeros", "a byte more"])
def test_a_sector_that_was_written_in_part_before_it_was_written_again_is_no_damage(
    tmp_path: Path, how: str, left: str
) -> None:
    """The log of this replica ended in the middle of a sector that the others filled later, and the
    sector before it was never written. Behind it there is a whole entry, or only the end of one."""
    writer = cluster(tmp_path)
    path, at = sector_above(writer, MARK)
    same = [entry for entry in writer.entries if data_file(writer, entry)[0] == path]
    behind = next(
        number for number, entry in enumerate(same) if data_file(writer, entry)[1] > at + SECTOR
    )
    last = same[behind if left == "an entry" else behind - 1]
    end = data_file(writer, last)[1] + last.size
    assert last is not same[-1] and end % SECTOR and end > at + SECTOR
    for later in sorted((writer.log / "data").iterdir()):
        if int(later.name) >= int(path.name):
            lose(later, end if later == path else 0, writer.data_bytes)
    lose(path, at, at + SECTOR)
    if how == "a byte more":
        flip(path, end + SECTOR - end % SECTOR - 1)
    assert outcome(run(tmp_path)) == (
        (False, {TORN_TAIL}) if how == "zeros" else (True, {TORN_TAIL, BIT_ROT})
    )


@pytest.mark.parametrize(
    "how", ["a byte more", "in good order", "below the mark", "the last entry"]
)
def test_change_unexplained_by_unwritten_sectors_is_damage(tmp_path: Path, how: str) -> None:
    """A changed byte, a clean stop, a synced place, and a damaged last entry that a majority
    has."""
    writer = cluster(tmp_path, mark=MARK + 10 if how == "below the mark" else MARK)
    path, at = sector_above(writer, MARK)
    if how == "the last entry":
        path, at = data_file(writer, writer.entries[-1])
        flip(path, at + 60)
    else:
        lose(path, at, at + SECTOR)
    if how == "a byte more":
        flip(path, at + 100)
    if how == "in good order":
        (writer.root / "abort").unlink()
    assert run(tmp_path).verdict == "FAIL"


def test_file_with_unwritten_first_sectors_is_a_torn_tail(tmp_path: Path) -> None:
    """Entries in the same file and in the next one may exist nevertheless."""
    writer = cluster(tmp_path)
    first = next(
        entry
        for entry in writer.entries
        if entry.index > MARK and entry.pos % writer.data_bytes == 0
    )
    path, at = data_file(writer, first)
    lose(path, at, at + 2 * SECTOR)
    assert outcome(run(tmp_path)) == (False, {TORN_TAIL})
    lose(path, at, writer.data_bytes)
    assert outcome(run(tmp_path)) == (False, {TORN_TAIL})


def test_blank_before_an_unwritten_file_is_a_torn_tail(tmp_path: Path) -> None:
    """And a blank that was not written although the next file was."""
    writer = cluster(tmp_path)
    blank = next(pos for pos, _ in writer.blanks if pos > writer.entries[MARK].pos)
    path = writer.log / "data" / f"{blank - blank % writer.data_bytes:020d}"
    before = path.read_bytes()
    lose(path, (blank % writer.data_bytes) // SECTOR * SECTOR, writer.data_bytes)
    assert outcome(run(tmp_path)) == (False, {TORN_TAIL})
    path.write_bytes(before)
    for later in sorted((writer.log / "data").iterdir()):
        if int(later.name) > int(path.name):
            lose(later, 0, writer.data_bytes)
    assert outcome(run(tmp_path)) == (False, {TORN_TAIL})


def test_index_units_of_the_file_of_the_mark_may_be_lacking(tmp_path: Path) -> None:
    """They are synced with the first sync after the log went on to the next file; those of older
    files are on the disk."""
    writer = cluster(tmp_path, mark=-1 + len(history(6, 40)))
    marked = writer.entries[-1]
    base = marked.pos - marked.pos % writer.data_bytes
    first = next(entry.index for entry in writer.entries if entry.pos >= base)
    unit = writer.log / "index" / f"{first * 32 // writer.index_bytes * writer.index_bytes:020d}"
    lose(unit, first * 32 % writer.index_bytes, first * 32 % writer.index_bytes + 40)
    assert outcome(run(tmp_path)) == (True, {TORN_TAIL, "wrong-derived"}), (
        "half a unit within a sector is damage"
    )
    lose(unit, first * 32 % writer.index_bytes, first * 32 % writer.index_bytes + 64)
    assert outcome(run(tmp_path)) == (False, {TORN_TAIL})
    lose(writer.log / "index" / f"{0:020d}", 32, 64)
    assert outcome(run(tmp_path)) == (True, {TORN_TAIL, "wrong-derived"})


@pytest.mark.parametrize("clean", [False, True])
def test_agreement_without_the_index_units_of_the_last_file_is_no_finding(
    tmp_path: Path, clean: bool
) -> None:
    """After a power cut all units may be missing: only the bytes of the log show its entries, and
    the report says so."""
    writer = cluster(tmp_path, mark=len(history(6, 40)) - 1, clean=clean, snapshot=True)
    base = writer.entries[-1].pos - writer.entries[-1].pos % writer.data_bytes
    first = next(entry.index for entry in writer.entries if entry.pos >= base)
    for path in sorted((writer.log / "index").iterdir()):
        start = max(first * 32 - int(path.name), 0)
        if start < writer.index_bytes:
            lose(path, start, writer.index_bytes)
    result = audit([str(tmp_path / name) for name in NODES], agreement=True)
    assert (result.verdict, [finding.text for finding in result.findings if finding.fails]) == (
        "INCOMPLETE",
        [],
    )
    assert any("n2 ends" in reason for reason in result.reasons)


def test_an_index_unit_of_an_entry_that_was_replaced_may_be_left(tmp_path: Path) -> None:
    """The unit of the newer entry was not written yet, so the unit still has the older term."""
    writer = cluster(tmp_path, mark=len(history(6, 40)) - 1)
    last = writer.entries[-1]
    assert last.term > 1
    path = (
        writer.log / "index" / f"{last.index * 32 // writer.index_bytes * writer.index_bytes:020d}"
    )
    at = last.index * 32 % writer.index_bytes
    data = bytearray(path.read_bytes())
    data[at + 12 : at + 16], data[at + 24 : at + 32] = (
        (200).to_bytes(4, "big"),
        (last.term - 1).to_bytes(8, "big"),
    )
    path.write_bytes(data)
    assert outcome(run(tmp_path)) == (False, {TORN_TAIL})
    (writer.root / "abort").unlink()
    assert run(tmp_path).verdict == "FAIL"


def test_consume_queue_units_above_the_snapshot_may_be_lacking(tmp_path: Path) -> None:
    """In the middle too, and halves of units at the edge of a sector; what the snapshot covers has
    to be there."""
    for name, covered in (("loose", False), ("covered", True)):
        base = tmp_path / name
        messages = history(6, 200)
        writer = write_cluster(
            base,
            messages,
            lambda one: setattr(one, "queue_bytes", 2000),
            clean=False,
            snapshot=covered,
        )[1]
        path = next(
            path
            for path in sorted((writer.root / "consumequeue").rglob("0" * 20))
            if any(path.read_bytes()[600:620])
        )
        lose(path, SECTOR, SECTOR + 8)
        assert outcome(run(base))[0] == covered, (
            "the unit from byte 500 to 520 lacks what lies in the second sector"
        )
        lose(path, 0, 40)
        assert outcome(run(base))[0] == covered


@pytest.mark.one_in(5)
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("policy", [FlushPolicy.DURABLE, FlushPolicy.MEMORY, FlushPolicy.HYBRID])
def test_clusters_that_end_all_at_once_never_fail(
    tmp_path: Path, policy: FlushPolicy, power: bool
) -> None:
    """Every way of appending, the store pool among them, under every flush policy, killed or
    without power in the middle of faults."""
    for seed in (3, 9, 19, 52):
        settings = replace(
            Settings.of_nodes(3),
            file_bytes=SMALL_FILE_BYTES,
            policy=policy,
            append=None if seed % 2 else "pool",
        )
        settings = replace(settings, append=None) if policy is FlushPolicy.DURABLE else settings
        world = World(seed, settings=settings)
        at_ms = random.Random(f"ended {seed}").randrange(300, 1500)
        until(world, at_ms, draw(seed, world.names, at_ms, LIVELY))
        image = Cluster("ended", killed(world, power=power), clean=False, complete=False)
        result = audit(image.write(tmp_path / str(seed)), deep=True)
        assert [finding.text for finding in result.findings if finding.fails] == [], seed
