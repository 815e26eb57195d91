"""The mapped-file queue: lookup, the file made ahead of need and warmed in the background, cold
maps, pins, and what is counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files import mapped_files, memory
from ledgermq.storage.files.mapped_files import (
    COLD_SWEEPS,
    MAPS_MAX,
    SWEEP_EVERY,
    MappedFiles,
    Warmth,
    file_name,
)
from ledgermq.storage.files.ports import PAGE_BYTES, Disk, DiskFile
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import LogWriter
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import HOST, make_batch, make_identity, new_log

WARM = Warmth(populate=True)


class Background:
    """A runner that runs when the test says so."""

    def __init__(self) -> None:
        self.works: list[Callable[[], object]] = []

    def __call__(self, work: Callable[[], object]) -> None:
        self.works.append(work)

    def run(self) -> None:
        while self.works:
            self.works.pop(0)()


def queue(
    disk: Disk,
    directory: Path | str,
    submit: mapped_files.Submit = mapped_files.run_now,
    warmth: Warmth = WARM,
    files: int = 0,
) -> MappedFiles:
    """A queue of `files` files that exist already."""
    disk.mkdirs(str(directory))
    for number in range(files):
        disk.create(
            f"{directory}/{file_name(number * PAGE_BYTES)}", PAGE_BYTES, allocate=True
        ).close()
    made = MappedFiles(disk, str(directory), PAGE_BYTES, submit, allocate=True, warmth=warmth)
    made.load()
    return made


def never(file: DiskFile) -> bool:
    return False


@pytest.mark.parametrize("first", [0, 3])
def test_lookup_by_offset_wherever_the_queue_begins(tmp_path: Path, first: int) -> None:
    """Every offset finds its file, nothing outside is there, and a file once open costs no look at
    the directory."""
    disk = FaultyDisk(RealDisk())
    files = queue(disk, tmp_path, files=8)
    files.close()
    for number in range(first):
        disk.unlink(f"{tmp_path}/{file_name(number * PAGE_BYTES)}")
    files.load()
    assert (files.begin, files.end) == (first * PAGE_BYTES, 8 * PAGE_BYTES)
    for number in range(first, 8):
        for offset in (number * PAGE_BYTES, (number + 1) * PAGE_BYTES - 1):
            assert files.at(offset).path.endswith(file_name(number * PAGE_BYTES))
    for offset in (first * PAGE_BYTES - 1, 8 * PAGE_BYTES):
        assert not files.has(offset)
        with pytest.raises(AssertionError, match="no file for offset"):
            files.at(offset)
    disk.trace.clear()
    assert [files.at(offset) for offset in range(files.begin, files.end, 1000)]
    assert disk.trace == []
    files.extend()
    assert files.at(8 * PAGE_BYTES).path.endswith(file_name(8 * PAGE_BYTES))


def test_the_background_makes_fills_and_locks_the_next_file(tmp_path: Path) -> None:
    """It is complete before it gets its final name; the owner only renames."""
    disk, background = FaultyDisk(RealDisk()), Background()
    files = queue(disk, tmp_path, background, Warmth(populate=True, stores=True, lock=True))
    disk.trace.clear()
    files.prepare()
    assert disk.trace == [] and not files.adopt_if_ready()
    background.run()
    unfinished = f"{tmp_path}/next.alloc"
    assert disk.trace == [
        ("create", unfinished),
        ("sync", unfinished),
        ("warm", unfinished, True),
        ("lock", unfinished),
    ]
    disk.trace.clear()
    assert files.adopt_if_ready()
    assert disk.trace == [("rename", f"{tmp_path}/{file_name(0)}")]
    assert files.at(0).path == f"{tmp_path}/{file_name(0)}"
    assert files.mapped_bytes == PAGE_BYTES
    files.close()
    assert (files.mapped_bytes, files.locked_bytes, disk.open_files) == (0, 0, 0)


def test_background_warms_files_of_the_owner(tmp_path: Path) -> None:
    """The file is made by the owner, its map is filled and locked by the background, whenever that
    comes to it."""
    disk, background = FaultyDisk(RealDisk()), Background()
    files = queue(disk, tmp_path, background, Warmth(populate=True, lock=True))
    files.extend()
    path = f"{tmp_path}/{file_name(0)}"
    assert not disk.names("warm", "lock")
    background.run()
    assert disk.names("warm", "lock") == [("warm", path), ("lock", path)]


def test_derived_files_are_not_kept_open_nor_warmed(tmp_path: Path) -> None:
    """Sparse files have no pages to fill: touching them would only make holes real in memory."""
    disk = FaultyDisk(RealDisk())
    files = queue(disk, tmp_path, warmth=mapped_files.COLD)
    files.extend()
    assert not disk.names("warm", "lock")
    assert disk.open_files == 0


def resident_kib(path: str) -> int:
    """How much of the maps of a file is in this process's page tables."""
    kib, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            counts = rest.endswith(path)
        elif counts and name == "Rss:":
            kib += int(rest.split()[0])
    return kib


@pytest.mark.parametrize("stores", [False, True])
def test_all_pages_of_a_warmed_file_are_in_the_page_tables(tmp_path: Path, stores: bool) -> None:
    """The first touch of any page of the next file faults nothing in."""
    size = 1 << 20
    files = MappedFiles(
        RealDisk(), str(tmp_path), size, allocate=True, warmth=Warmth(populate=True, stores=stores)
    )
    files.prepare()
    assert files.adopt_if_ready()
    assert resident_kib(f"{tmp_path}/{file_name(0)}") == size >> 10
    assert files.at(0).swap_out()
    assert resident_kib(f"{tmp_path}/{file_name(0)}") == 0


def test_refused_memory_lock_is_warned_once(tmp_path: Path) -> None:
    """Without permission or under a low limit the store works on; the warning says what to do."""
    disk = FaultyDisk(RealDisk())
    disk.locks_fail = True
    said: list[str] = []
    files = queue(disk, tmp_path, warmth=Warmth(populate=True, lock=True, refused=said.append))
    for _ in range(3):
        files.extend()
    assert (len(files.bases), files.locked_bytes) == (3, 0)
    assert len(said) == 1
    assert (
        "Operation not permitted" in said[0]
        and "ulimit -l" in said[0]
        and "storage.lock_memory" in said[0]
    )


def test_files_that_were_left_are_unlocked_and_the_tail_is_locked_at_start(tmp_path: Path) -> None:
    """Locked are the file being written and the one ahead: of those that exist at start, and of no
    older one after a sweep."""
    disk = ForgetfulDisk()
    files = queue(disk, "/q", warmth=Warmth(populate=True, lock=True), files=4)
    files.lock_tail(2 * PAGE_BYTES + 5)
    assert [base for base in files.bases if files.at(base).locked_bytes] == [
        2 * PAGE_BYTES,
        3 * PAGE_BYTES,
    ]
    files.extend()
    assert files.locked_bytes == 3 * PAGE_BYTES
    for _ in range(SWEEP_EVERY):
        files.sweep(3 * PAGE_BYTES, never)
    assert [base for base in files.bases if files.at(base).locked_bytes] == [
        3 * PAGE_BYTES,
        4 * PAGE_BYTES,
    ]


def test_the_locked_map_is_the_one_that_is_stored_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tail that exists already is mapped for stores before it is locked: its first store keeps
    the lock."""
    monkeypatch.setattr(memory, "lock", lambda area: None)
    monkeypatch.setattr(memory, "unlock", lambda area: None)
    files = queue(
        RealDisk(), tmp_path, warmth=Warmth(populate=True, stores=True, lock=True), files=1
    )
    files.lock_tail(0)
    files.at(0).store(0, b"x")
    assert files.locked_bytes == files.mapped_bytes == PAGE_BYTES


def mapped(files: MappedFiles) -> list[int]:
    """Numbers of the files whose map is there."""
    return [
        base // PAGE_BYTES
        for base in files.bases
        if base in files._open and files._open[base].mapped_bytes
    ]


def test_cold_maps_are_bounded(tmp_path: Path) -> None:
    """Of the files before the tail only those used last keep their maps, and the tail and the file
    ahead always do."""
    files = queue(RealDisk(), tmp_path, files=12)
    for base in files.bases:
        bytes(files.at(base).view()[:1])
    files.at(2 * PAGE_BYTES)
    tail = 10 * PAGE_BYTES
    for _ in range(SWEEP_EVERY - 1):
        files.sweep(tail, never)
    assert len(mapped(files)) == 12, "a look at the maps is taken at every sixteenth sweep only"
    files.sweep(tail, never)
    assert mapped(files) == [2, *range(10 - MAPS_MAX + 1, 12)]
    assert files.mapped_bytes == (MAPS_MAX + 2) * PAGE_BYTES
    assert bytes(files.at(0).view()[:1]) == b"\0"


def test_maps_not_used_for_a_while_go(tmp_path: Path) -> None:
    """Even a few maps are removed if they were not used for a number of group commits; any use
    keeps a map."""
    files = queue(RealDisk(), tmp_path, files=4)
    for base in files.bases:
        bytes(files.at(base).view()[:1])
    for _ in range(COLD_SWEEPS + 2 * SWEEP_EVERY):
        files.at(PAGE_BYTES)
        files.sweep(3 * PAGE_BYTES, never)
    assert mapped(files) == [1, 3]


@pytest.mark.parametrize("real", [True, False])
def test_view_of_a_pinned_file_outlives_close_and_unlink(tmp_path: Path, real: bool) -> None:
    """A view stays valid over sweeps, close and unlink; its map is counted until the view goes."""
    disk: Disk = RealDisk() if real else ForgetfulDisk()
    root = str(tmp_path) if real else "/q"
    files = queue(disk, root, files=MAPS_MAX + 4)
    files.at(0).pwrite(7, b"pinned")
    views = [files.at(base).view()[7:13] for base in files.bases[: MAPS_MAX + 2]]
    del views[1:]
    tail = (MAPS_MAX + 2) * PAGE_BYTES
    for _ in range(COLD_SWEEPS + 2 * SWEEP_EVERY):
        files.sweep(tail, never)
    assert mapped(files) == [0]
    for base in reversed(files.bases):
        disk.unlink(f"{root}/{file_name(base)}")
    files.close()
    assert files.mapped_bytes == PAGE_BYTES
    assert bytes(views[0]) == b"pinned"
    views.clear()
    assert files.mapped_bytes == 0


def test_closed_files_beyond_the_bound_leave_no_map_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are closed when too many are open; a map that a view held is counted until then and
    forgotten afterwards."""
    monkeypatch.setattr(mapped_files, "OPEN_FILES_MAX", 3)
    files = queue(RealDisk(), tmp_path, files=8)
    view = files.at(0).view()
    for base in files.bases:
        files.at(base)
    files.close_idle(never)
    assert len(files._open) == 3 and files.mapped_bytes == PAGE_BYTES
    del view
    assert files.mapped_bytes == 0
    for _ in range(SWEEP_EVERY):
        files.sweep(files.end, never)
    assert files._lingering == []


@pytest.mark.parametrize("seed", range(6))
def test_at_most_one_file_is_ahead_under_its_final_name(seed: int) -> None:
    """However appends, truncations, syncs and the background meet: one file behind the one being
    written, and one unfinished."""
    chance, disk, background = random.Random(seed), ForgetfulDisk(), Background()
    identity = make_identity()
    disk.mkdirs("/log")
    EntryLog.create(disk, "/log", identity)
    log = EntryLog.open(disk, "/log", identity, clean=True, submit=background)
    ahead = 0
    for step in range(150):
        if chance.random() < 0.1 and log.end_index > 20:
            log.truncate_from(log.end_index - chance.randint(0, 20))
        else:
            count = chance.randint(1, 6)
            batch = make_batch(count, chance.choice([10, 700, 3000]), first=step)
            log.append_leader(step + 1, batch, np.arange(count), 1, HOST)
        if chance.random() < 0.3:
            background.run()
        job = log.begin_sync() if chance.random() < 0.3 else None
        if job is not None:
            job.run()
            log.finish_sync(job, None)
        names = disk.listdir("/log/data")
        behind = [name for name in names if name.isdigit() and int(name) > log.end_pos]
        assert (
            len(behind) <= 1
            and names.count("next.alloc") <= 1
            and len(names) - names.count("next.alloc") == len(log._data.bases)
        )
        ahead += len(behind)
    assert ahead, "the test never saw a file ahead"


def test_a_log_counts_maps_and_locked_memory(tmp_path: Path) -> None:
    """What a log maps and locks is read as numbers: two files at first, none after it was
    closed."""
    disk = FaultyDisk(ForgetfulDisk())
    identity = make_identity()
    disk.mkdirs("/log")
    EntryLog.create(disk, "/log", identity)
    log = EntryLog.open(disk, "/log", identity, clean=True, writer=LogWriter(lock_memory=True))
    assert (log.mapped_bytes, log.locked_bytes) == (
        identity.data_file_bytes,
        identity.data_file_bytes,
    )
    log.close()
    assert (log.mapped_bytes, log.locked_bytes) == (0, 0)
    plain = new_log(tmp_path / "log")
    assert (plain.mapped_bytes, plain.locked_bytes) == (identity.data_file_bytes, 0)
    plain.close()
