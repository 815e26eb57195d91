"""Bit rot: every byte of a log file is read, in an order that restarts cannot starve, and
differences from a seal are classified."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.replica.retention.scrub import SCRUB_FILE, Differs, Gone, Scrubber
from ledgermq.proto.records.control import SealRecord
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.file_digest import file_digest
from ledgermq.storage.files.real_disk import RealDisk
from tests.node.replica.test_node_hosting import Driver, single

SIZE = 64 << 10
FILES = 3
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped replica whose log has three complete files and a bit of a fourth."""
    directory = tmp_path_factory.mktemp("made")
    driver = Driver(single(directory, group={"data_file_bytes": "64KiB"}))
    driver.configure()
    while driver.group.store.log.end_pos < FILES * SIZE + 5000:
        driver.produce(3, size=3000)
    driver.group.close()
    return directory


@pytest.fixture(autouse=True)
def no_note(made: Path) -> None:
    """Every test begins with a process that was never there before."""
    (made / "g1" / "state" / SCRUB_FILE).unlink(missing_ok=True)


def path_of(directory: Path, base: int) -> Path:
    return directory / "g1" / "dledger-n1" / "data" / f"{base:020d}"


def seals_of(directory: Path) -> dict[int, SealRecord]:
    bases = range(0, FILES * SIZE, SIZE)
    digests = {
        base: file_digest(RealDisk(), str(path_of(directory, base)), lambda length: None)
        for base in bases
    }
    return {base: SealRecord(base, 0, 0, 0, digest, ("n1",)) for base, digest in digests.items()}


class Clock:
    def __init__(self) -> None:
        self.ms = 10 * DAY_MS + 1_800_000_000_000

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


def scrubber(
    directory: Path,
    clock: Callable[[], int],
    seals: dict[int, SealRecord] | None = None,
    disk: Any = None,
) -> Scrubber:
    return Scrubber(disk or RealDisk(), str(directory / "g1"), lambda: seals or {}, clock, DAY_MS)


def read(one: Scrubber, base: int) -> int:
    return sum(one.read(base))


def read_all(one: Scrubber) -> list[int]:
    """The files that were due, in order."""
    found = []
    while (base := one.due()) is not None:
        read(one, base)
        found.append(base)
    return found


@pytest.mark.parametrize("sealed", [False, True])
def test_a_changed_byte_anywhere_in_a_complete_file_is_found(made: Path, sealed: bool) -> None:
    """Header fields, both CRC words, body, record fields, the blank and its filler: with a recorded
    digest and without one."""
    chance, seals = random.Random(7), seals_of(made) if sealed else None
    one = scrubber(made, Clock(), seals)
    for base in range(0, FILES * SIZE, SIZE):
        assert read(one, base) > 0
        path = path_of(made, base)
        whole = path.read_bytes()
        blank = whole.rindex(b"\xff\xff\xff\xff")
        places = {
            0,
            7,
            15,
            37,
            41,
            47,
            60,
            105,
            blank,
            blank + 5,
            SIZE - 1,
            *(chance.randrange(SIZE) for _ in range(40)),
        }
        for place in sorted(places):
            path.write_bytes(
                whole[:place]
                + bytes([whole[place] ^ 1 << chance.randrange(8)])
                + whole[place + 1 :]
            )
            with pytest.raises(LogDamaged):
                read(one, base)
        path.write_bytes(whole)
        assert read(one, base) > 0
    one.close()


def test_every_file_once_after_an_opening_and_then_again_when_it_has_rested(made: Path) -> None:
    """The one that was read longest ago first, the active file too; nothing is due while all of
    them rest."""
    clock = Clock()
    one = scrubber(made, clock)
    order = [base * SIZE for base in range(FILES + 1)]
    assert read_all(one) == order
    assert one.due() is None
    clock.ms += DAY_MS
    assert read_all(one) == order
    one.close()


def test_a_pass_goes_on_where_the_last_process_was(made: Path) -> None:
    """However often it is ended after a single file, no file is read twice before all of them were
    read; also when the note is old."""
    clock, seen = Clock(), []
    for _ in range(2 * (FILES + 1)):
        one = scrubber(made, clock)
        base = one.due()
        assert base is not None
        read(one, base)
        one.write_note()
        one.close()
        seen.append(base)
    assert seen == [base * SIZE for base in range(FILES + 1)] * 2


@pytest.mark.parametrize("note", [b"", b"{}", b'{"crc32c":1}', "other log"])
def test_scrub_note_of_another_log_is_ignored(made: Path, note: bytes | str) -> None:
    """Then everything counts as never read."""
    path = made / "g1" / "state" / SCRUB_FILE
    if isinstance(note, str):
        sealed_json.write(RealDisk(), str(path), {"v": 1, "log_id": note, "files": [[0, 1 << 50]]})
    else:
        path.write_bytes(note)
    one = scrubber(made, Clock())
    assert one.due() == 0
    one.close()


def test_the_oldest_byte_ages_until_its_file_is_read(made: Path) -> None:
    """The metric's figure: never younger than the oldest file, and a pass later as young as the
    pass."""
    clock = Clock()
    one = scrubber(made, clock)
    assert one.oldest_ms is None
    assert one.due() == 0
    written_ms = one.oldest_ms
    assert written_ms is not None and written_ms < clock.ms - 5 * DAY_MS
    read(one, 0)
    assert one.oldest_ms is not None and one.oldest_ms <= clock.ms - 5 * DAY_MS, (
        "the other files are as old as before"
    )
    began_ms = clock.ms
    read_all(one)
    assert one.oldest_ms <= began_ms
    for base in range(FILES + 1):
        read(one, base * SIZE)
    assert one.oldest_ms >= began_ms
    one.close()


def test_a_file_that_is_asked_for_is_next(made: Path) -> None:
    """Agreement found it different. What is no file of the log is passed over."""
    one = scrubber(made, Clock())
    one.soon(1 << 40)
    one.soon(2 * SIZE)
    assert one.due() == 2 * SIZE
    assert one.due() == 0
    one.close()


def test_a_sealed_file_that_is_right_in_itself_and_another_one_is_no_rot(made: Path) -> None:
    """Two histories: nothing here says which entry is wrong, and nothing is to be repaired."""
    seals = {**seals_of(made), SIZE: SealRecord(SIZE, 0, 0, 0, "ab" * 32, ("n2", "n3"))}
    one = scrubber(made, Clock(), seals)
    assert read(one, 0) > 0
    with pytest.raises(Differs, match="n2, n3"):
        read(one, SIZE)
    one.close()


def test_a_file_of_another_history_keeps_no_other_file_waiting(made: Path) -> None:
    """It is as long as it lasts not what was sealed: it has its turn like all others, and ages no
    further."""
    clock = Clock()
    seals = {**seals_of(made), SIZE: SealRecord(SIZE, 0, 0, 0, "ab" * 32, ("n2", "n3"))}
    one = scrubber(made, clock, seals)
    began_ms, order = clock.ms, []
    while (base := one.due()) is not None and len(order) <= FILES + 1:
        order.append(base)
        if base == SIZE:
            with pytest.raises(Differs):
                read(one, base)
        else:
            read(one, base)
    assert order == [base * SIZE for base in range(FILES + 1)]
    assert one.oldest_ms is not None and one.oldest_ms >= began_ms
    one.close()


def test_a_file_that_goes_while_it_is_read_is_no_damage(made: Path) -> None:
    """Trimmed between two pieces, or before the first."""
    path = path_of(made, SIZE)
    whole = path.read_bytes()
    one = scrubber(made, Clock(), seals_of(made))
    assert one.due() == 0
    path.unlink()
    with pytest.raises((Gone, FileNotFoundError)):
        read(one, SIZE)
    path.write_bytes(whole)
    one.close()


def test_a_sealed_file_is_asked_from_the_medium(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached pages say nothing about the disk, so every chunk is dropped from the cache before it
    is read."""
    from ledgermq.storage.files.real_disk import RealFile

    forgotten: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        RealFile,
        "forget",
        lambda file, offset, length: forgotten.append((file.path, offset, length)),
    )
    one = scrubber(made, Clock(), seals_of(made))
    read(one, 0)
    assert forgotten == [(str(path_of(made, 0)), 0, SIZE)]
    one.close()
