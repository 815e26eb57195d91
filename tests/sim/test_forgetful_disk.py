"""The forgetful disk: it conforms to the disk port, and it forgets exactly what was not synced."""

from __future__ import annotations

import errno
import random

import pytest

from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.ports import PAGE_BYTES
from tests.disk_conformance import DiskConformance, Place

SIZE = 4 * PAGE_BYTES


class TestForgetfulDiskConforms(DiskConformance):
    """Every promise of the port."""

    @pytest.fixture
    def place(self) -> Place:
        disk = ForgetfulDisk()
        disk.mkdirs("/root")
        return disk, "/root"


@pytest.fixture
def disk() -> ForgetfulDisk:
    """A disk with one durable directory and one durable, zeroed file in it."""
    disk = ForgetfulDisk()
    disk.mkdirs("/d")
    file = disk.create("/d/f", SIZE, allocate=True)
    file.sync()
    disk.sync_dir("/d")
    return disk


def test_synced_bytes_survive_any_power_cut(disk: ForgetfulDisk) -> None:
    """What was written before a sync is there afterwards, whatever chance says."""
    file = disk.open("/d/f")
    file.pwrite(100, b"synced" * 1000)
    file.sync()
    for seed in range(50):
        file.pwrite(9000, bytes([seed + 1]) * 3000)
        disk.power_cut(random.Random(seed))
        assert file.pread(100, 6000) == b"synced" * 1000


def test_unsynced_bytes_survive_in_any_subset(disk: ForgetfulDisk) -> None:
    """Unsynced sectors are lost, kept and torn: all three happen, and nothing but old or new
    content is ever read."""
    seen = set()
    file = disk.open("/d/f")
    for seed in range(200):
        file.pwrite(0, bytes(SIZE))
        file.sync()
        file.pwrite(0, b"\x01" * SIZE)
        disk.power_cut(random.Random(seed))
        content = file.pread(0, SIZE)
        assert set(content) <= {0, 1}
        seen.add("none" if 1 not in content else "all" if 0 not in content else "torn")
    assert seen == {"none", "all", "torn"}


def test_killed_process_keeps_the_page_cache(disk: ForgetfulDisk) -> None:
    """SIGKILL leaves the cache: the successor reads unsynced bytes, the old object is dead."""
    file = disk.open("/d/f")
    file.pwrite(0, b"cached")
    successor = disk.successor()
    assert successor.open("/d/f").pread(0, 6) == b"cached"
    with pytest.raises(OSError, match="taken away"):
        file.pread(0, 1)


def test_names_survive_only_after_sync_dir(disk: ForgetfulDisk) -> None:
    """A created name may vanish before the directory is synced, and never after; a synced file
    alone does not save its name."""
    fates = set()
    for seed in range(30):
        disk.create(f"/d/new{seed}", 10, allocate=True).sync()
        disk.power_cut(random.Random(seed))
        fates.add(disk.exists(f"/d/new{seed}"))
    assert fates == {True, False}
    disk.create("/d/kept", 10, allocate=True)
    disk.sync_dir("/d")
    disk.power_cut(random.Random(0))
    assert disk.exists("/d/kept")


def test_a_rename_is_atomic(disk: ForgetfulDisk) -> None:
    """After a power cut, exactly one of the two names refers to the file."""
    for seed in range(30):
        old, new = f"/d/old{seed}", f"/d/new{seed}"
        disk.create(old, 10, allocate=True)
        disk.sync_dir("/d")
        disk.rename(old, new)
        disk.power_cut(random.Random(seed))
        assert disk.exists(old) != disk.exists(new)


def test_a_failed_sync_is_reported_once_and_its_pages_are_lost(disk: ForgetfulDisk) -> None:
    """After EIO the cache still returns the bytes, a second sync succeeds, and the medium has never
    seen them."""
    file = disk.open("/d/f")
    file.pwrite(0, b"lost")

    def fail(path: str) -> None:
        disk.on_sync = None
        raise OSError(errno.EIO, "broken", path)

    disk.on_sync = fail
    with pytest.raises(OSError, match="broken"):
        file.sync()
    file.sync()
    assert file.pread(0, 4) == b"lost"
    assert disk.on_medium("/d/f", 0, 4) == bytes(4)
    disk.power_cut(random.Random(1))
    assert file.pread(0, 4) == bytes(4)


def test_rewriting_in_place_makes_unsynced_pages_durable(disk: ForgetfulDisk) -> None:
    """Writing the same bytes again makes the page dirty again, so that the next sync stores it."""
    file = disk.open("/d/f")
    file.pwrite(0, b"lost")
    disk.on_sync = lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "broken", path))
    with pytest.raises(OSError, match="broken"):
        file.sync()
    disk.on_sync = None
    file.pwrite(0, b"lost")
    file.sync()
    disk.power_cut(random.Random(1))
    assert file.pread(0, 4) == b"lost"


def test_a_full_disk_refuses_new_pages_only() -> None:
    """ENOSPC comes with the first byte of a new page of a sparse file; allocated files and old
    pages take writes on."""
    disk = ForgetfulDisk(capacity_bytes=3 * PAGE_BYTES)
    disk.mkdirs("/d")
    allocated = disk.create("/d/a", 2 * PAGE_BYTES, allocate=True)
    sparse = disk.create("/d/s", 4 * PAGE_BYTES, allocate=False)
    sparse.pwrite(0, b"x")
    with pytest.raises(OSError) as full:
        sparse.pwrite(PAGE_BYTES, b"x")
    assert full.value.errno == errno.ENOSPC
    sparse.pwrite(1, b"y")
    allocated.pwrite(PAGE_BYTES, b"z")
    disk.unlink("/d/a")
    sparse.pwrite(PAGE_BYTES, b"x")


def test_flipped_bits_stay_flipped(disk: ForgetfulDisk) -> None:
    """Bit rot changes cache and medium alike."""
    file = disk.open("/d/f")
    file.pwrite(0, b"\x10\x10")
    disk.flip("/d/f", 5, 4)
    assert file.pread(5, 1) == b"\x04"
    disk.power_cut(random.Random(3))
    assert file.pread(5, 1) == b"\x04"


def test_pages_survive_exactly_as_told(disk: ForgetfulDisk) -> None:
    """For tests that enumerate: the named pages are new, the torn ones half new, all others old,
    whichever call made them dirty."""
    file = disk.open("/d/f")
    file.pwrite(0, b"\x01" * PAGE_BYTES)
    file.store(PAGE_BYTES, b"\x01" * 2 * PAGE_BYTES)
    assert disk.unsynced_pages() == [("/d/f", 0), ("/d/f", 1), ("/d/f", 2)]
    disk.power_cut_keeping({("/d/f", 0)}, torn={("/d/f", 2)})
    half = PAGE_BYTES // 2
    assert file.pread(0, SIZE) == b"\x01" * PAGE_BYTES + bytes(PAGE_BYTES) + b"\x01" * half + bytes(
        half
    ) + bytes(PAGE_BYTES)
    assert disk.unsynced_pages() == []


def test_write_back_keeps_the_page_of_its_moment(disk: ForgetfulDisk) -> None:
    """Write-back makes some pages durable without a sync: afterwards a power cut may leave a state
    between the last two syncs."""
    seen = set()
    for seed in range(60):
        file = disk.open("/d/f")
        file.pwrite(0, bytes([1]))
        disk.write_back(random.Random(seed))
        file.pwrite(0, bytes([2]))
        disk.power_cut(random.Random(seed))
        seen.add(file.pread(0, 1)[0])
        file.pwrite(0, bytes(1))
        file.sync()
    assert seen == {0, 1, 2}


def test_any_names_survive_where_order_is_not_promised(disk: ForgetfulDisk) -> None:
    """With `any_names` a later name may survive an earlier one; a synced one always does."""
    disk.any_names = True
    seen = set()
    for seed in range(40):
        for name in ("a", "b"):
            disk.create(f"/d/{name}{seed}", 10, allocate=True)
        disk.power_cut(random.Random(seed))
        seen.add((disk.exists(f"/d/a{seed}"), disk.exists(f"/d/b{seed}")))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def test_a_new_directory_may_vanish_with_all_it_holds(disk: ForgetfulDisk) -> None:
    """With `forgets_directories` synced files in a directory whose parent was not synced are lost
    with it."""
    disk.forgets_directories = True
    fates = set()
    for seed in range(20):
        path = f"/d/new{seed}"
        disk.mkdirs(path)
        disk.create(f"{path}/file", 10, allocate=True).sync()
        disk.sync_dir(path)
        if seed % 2:
            disk.sync_dir("/d")
        disk.power_cut(random.Random(seed))
        fates.add((seed % 2 == 1, disk.exists(f"{path}/file")))
    assert fates == {(True, True), (False, True), (False, False)}


def test_a_lost_write_is_there_until_the_power_goes(disk: ForgetfulDisk) -> None:
    """The sync says done, the cache shows what was written, and the power cut brings back what the
    medium really has."""
    file = disk.open("/d/f")
    disk.lie_at_next_sync("/d/", random.Random(1), misdirected=False)
    file.pwrite(0, b"x" * PAGE_BYTES)
    file.sync()
    assert file.pread(0, 1) == b"x"
    assert disk.on_medium("/d/f", 0, 1) == b"\0"
    disk.power_cut(random.Random(1))
    assert file.pread(0, PAGE_BYTES) == bytes(PAGE_BYTES)
    assert disk.lies == [("/d/f", 0)]


def test_a_misdirected_write_replaces_another_page(disk: ForgetfulDisk) -> None:
    """The write replaces the contents of another page; a later write to either page is stored."""
    file = disk.open("/d/f")
    file.pwrite(0, b"old!" * PAGE_BYTES)
    file.sync()
    disk.lie_at_next_sync("/d/f", random.Random(3), misdirected=True)
    file.pwrite(PAGE_BYTES, b"new!" * (PAGE_BYTES // 4))
    file.sync()
    disk.power_cut(random.Random(1))
    pages = [file.pread(number * PAGE_BYTES, 4) for number in range(4)]
    assert pages[1] == b"old!"
    assert pages.count(b"new!") == 1


def test_a_stale_page_reads_as_before_its_last_change(disk: ForgetfulDisk) -> None:
    """Only pages that were synced twice have an older version, and none is older than one sync."""
    file = disk.open("/d/f")
    assert not disk.go_stale("/d/f", random.Random(1))
    for content in (b"1", b"2", b"3"):
        file.pwrite(0, content * PAGE_BYTES)
        file.sync()
    assert disk.go_stale("/d/f", random.Random(1))
    disk.power_cut(random.Random(1))
    assert file.pread(0, PAGE_BYTES) == b"2" * PAGE_BYTES


def test_a_broken_page_reports_an_error_until_it_is_written(disk: ForgetfulDisk) -> None:
    """EIO for every read that touches it, whole-file reads included; other pages are read as
    ever."""
    disk.break_page("/d/f", PAGE_BYTES + 5)
    file = disk.open("/d/f")
    assert file.pread(0, PAGE_BYTES) == bytes(PAGE_BYTES)
    for read in (lambda: file.pread(PAGE_BYTES - 1, 2), lambda: disk.read_file("/d/f")):
        with pytest.raises(OSError) as error:
            read()
        assert error.value.errno == errno.EIO
    file.pwrite(PAGE_BYTES, b"mended")
    assert file.pread(PAGE_BYTES, 6) == b"mended"


def test_files_are_shortened_and_vanish(disk: ForgetfulDisk) -> None:
    """As by a careless hand: a power cut brings nothing back."""
    disk.shorten("/d/f", 100)
    disk.power_cut(random.Random(1))
    assert disk.file_size("/d/f") == 100
    disk.vanish("/d/f")
    disk.power_cut(random.Random(1))
    assert not disk.exists("/d/f")
