"""The POSIX disk: the conformance suite, and what only a real file system shows."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ledgermq.storage.disk import Disk
from ledgermq.storage.real_disk import DirectoryLock, RealDisk, RealFile
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


def test_short_writes_and_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """A new file is synced with its metadata once, and with its data alone from then on; errors pass through."""
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
    with pytest.raises(OSError, match="descriptor"):
        file.pread(0, 1)


def test_directory_lock_keeps_a_second_owner_out(tmp_path: Path) -> None:
    """One directory has one owner until that owner lets go."""
    first = DirectoryLock(str(tmp_path))
    with pytest.raises(BlockingIOError):
        DirectoryLock(str(tmp_path))
    first.close()
    DirectoryLock(str(tmp_path)).close()


def test_replacing_a_file_is_synced_before_and_after_its_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content, then name, then directory: a power cut between any two leaves the old file or the new one, whole."""
    steps: list[str] = []
    rename = os.rename

    def renamed(old: str, new: str) -> None:
        steps.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", lambda fd: steps.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "content"))
    monkeypatch.setattr(os, "rename", renamed)
    RealDisk().replace_file(str(tmp_path / "a"), b"new")
    assert steps == ["content", "rename", "directory"]
    assert (tmp_path / "a").read_bytes() == b"new"
