"""The POSIX disk: the conformance suite, and what only a real file system shows."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.storage.files import memory
from ledgermq.storage.files.ports import PAGE_BYTES, Disk
from ledgermq.storage.files.real_disk import DirectoryLock, RealDisk, RealFile
from tests.disk_conformance import DiskConformance


class TestRealDisk(DiskConformance):
    """The suite on this machine's file system."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> tuple[Disk, str]:
        return RealDisk(), str(tmp_path)


def test_allocated_files_own_their_blocks(tmp_path: Path) -> None:
    """Allocation writes real blocks, creation without it none."""
    disk = RealDisk()
    disk.create(str(tmp_path / "full"), 3 << 20, allocate=True).sync()
    disk.create(str(tmp_path / "holes"), 3 << 20, allocate=False).sync()
    assert os.stat(tmp_path / "full").st_blocks * 512 >= 3 << 20
    assert os.stat(tmp_path / "holes").st_blocks * 512 < 1 << 20


def test_failed_creation_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When zeros cannot be written the half-made file is removed and the error passes through."""

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        RealDisk().create(str(tmp_path / "a"), 100, allocate=True)
    assert os.listdir(tmp_path) == []


def test_short_writes_and_reads_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may do a part of a request; the port does the rest."""
    file = RealDisk().create(str(tmp_path / "a"), 100, allocate=True)
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data)[:7], offset))
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 3), offset))
    content = bytes(range(90))
    file.pwrite(5, content)
    assert file.pread(5, 90) == content
    assert file.pread(90, 50) == content[85:] + bytes(5)


def test_first_sync_covers_the_length_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file is synced with its metadata once, and with its data alone from then on; errors
    pass through."""
    calls: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("fdatasync"))
    file = RealDisk().create(str(tmp_path / "a"), 100, allocate=False)
    for _ in range(3):
        file.sync()
    assert calls == ["fsync", "fdatasync", "fdatasync"]

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()


def test_close_is_idempotent_and_final(tmp_path: Path) -> None:
    """A closed file answers with an error, not with another file that got its number."""
    file = RealDisk().create(str(tmp_path / "a"), 100, allocate=False)
    assert isinstance(file, RealFile)
    file.close()
    file.close()
    uses: list[Callable[[], object]] = [
        lambda: file.pread(0, 1),
        file.view,
        lambda: file.store(0, b"x"),
        lambda: file.warm(stores=False),
        file.lock,
    ]
    for use in uses:
        with pytest.raises(OSError, match="descriptor"):
            use()


def test_a_map_of_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    """A file that is shorter than it was when it was opened is an error of the disk, not a map that
    kills at the first look."""
    file = RealDisk().create(str(tmp_path / "a"), 2 * PAGE_BYTES, allocate=True)
    os.truncate(tmp_path / "a", PAGE_BYTES)
    for use in (file.view, lambda: file.store(0, b"x")):
        with pytest.raises(OSError, match="shorter than"):
            use()
    file.close()


def test_populating_an_area_without_backing_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """Pages that lost their backing are reported by the calls that fill and lock maps; only
    touching them is fatal."""
    file = RealDisk().create(str(tmp_path / "a"), 4 * PAGE_BYTES, allocate=True)
    file.warm(stores=True)
    file.swap_out()
    view = file.view()
    os.truncate(tmp_path / "a", 0)
    with pytest.raises(OSError):
        file.warm(stores=False)
    del view
    file.close()


def test_an_old_kernel_reads_ahead_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pages cannot be populated at once the kernel is asked to read them."""
    monkeypatch.setattr(memory, "MADV_POPULATE_READ", 9999)
    file = RealDisk().create(str(tmp_path / "a"), 4 * PAGE_BYTES, allocate=True)
    file.warm(stores=False)
    assert file.mapped_bytes == 4 * PAGE_BYTES
    file.close()


def test_a_store_replaces_the_map_that_only_shows(tmp_path: Path) -> None:
    """Views of the former map stay and see what is stored through the new one; both count until the
    views are gone."""
    file = RealDisk().create(str(tmp_path / "a"), PAGE_BYTES, allocate=True)
    view = file.view()
    file.lock()
    file.store(3, b"new")
    assert bytes(view[3:6]) == bytes(file.view()[3:6]) == b"new"
    assert (file.mapped_bytes, file.locked_bytes) == (2 * PAGE_BYTES, 0)
    del view
    assert file.mapped_bytes == PAGE_BYTES
    file.close()
    assert file.mapped_bytes == 0


def test_directory_lock_keeps_a_second_owner_out(tmp_path: Path) -> None:
    """One directory has one owner until that owner lets go."""
    first = DirectoryLock(str(tmp_path))
    with pytest.raises(BlockingIOError):
        DirectoryLock(str(tmp_path))
    first.close()
    DirectoryLock(str(tmp_path)).close()


def test_replacing_a_file_is_synced_before_and_after_its_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content, then name, then directory: a power cut between any two leaves the old file or the
    new one, whole."""
    steps: list[str] = []
    rename = os.rename

    def renamed(old: str, new: str) -> None:
        steps.append("rename")
        rename(old, new)

    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: steps.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "content"),
    )
    monkeypatch.setattr(os, "rename", renamed)
    RealDisk().replace_file(str(tmp_path / "a"), b"new")
    assert steps == ["content", "rename", "directory"]
    assert (tmp_path / "a").read_bytes() == b"new"
