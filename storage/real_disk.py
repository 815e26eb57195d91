"""The disk port over POSIX: the only module of the product that calls the operating system for files of a node directory.

It forwards; it decides nothing and hides nothing: every failure leaves as the `OSError` it was. Reads and writes go through `pread` and
`pwrite`, syncs through `fdatasync` (which, unlike flushing a map, releases the interpreter lock); maps are read-only and serve views.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

from ledgermq.storage.disk import Buffer, Disk, DiskFile

ZERO_CHUNK_BYTES = 1 << 20
"""Allocation writes zeros in pieces of this size …"""
ZERO_SYNC_BYTES = 16 << 20
"""… and syncs after this many, so that a background allocation never leaves a long queue in front of the log's own sync."""


class RealFile:
    """A file descriptor and, once asked for, a shared read-only map of it."""

    def __init__(self, path: str, fd: int, size: int, *, new: bool) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._new = new
        self._view: memoryview | None = None

    def pread(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._fd, length - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, offset: int, data: Buffer) -> None:
        length = len(data)
        assert offset >= 0 and offset + length <= self.size, f"write of {length} bytes at {offset} leaves {self.path} ({self.size} bytes)"
        done = os.pwrite(self._fd, data, offset)
        if done == length:
            return
        rest = memoryview(data)
        while done < length:
            wrote = os.pwrite(self._fd, rest[done:], offset + done)
            if wrote == 0:
                raise OSError(errno.EIO, "the disk accepts no more bytes", self.path)
            done += wrote

    def sync(self) -> None:
        if self._new:
            # The length set at creation is not covered by fdatasync on every file system.
            os.fsync(self._fd)
            self._new = False
        else:
            os.fdatasync(self._fd)

    def view(self) -> memoryview:
        if self._view is None:
            self._view = memoryview(mmap.mmap(self._fd, self.size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED))
        return self._view

    def close(self) -> None:
        # Views handed out keep the map alive; it goes with the last of them.
        self._view = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """The file system of this machine."""

    def open(self, path: str) -> DiskFile:
        fd = os.open(path, os.O_RDWR)
        return RealFile(path, fd, os.fstat(fd).st_size, new=False)

    def create(self, path: str, size: int, *, allocate: bool) -> DiskFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if allocate:
                _write_zeros(fd, size)
            else:
                os.ftruncate(fd, size)
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        return RealFile(path, fd, size, new=True)

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def mkdirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace_file(self, path: str, data: bytes) -> None:
        unfinished = path + ".tmp"
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
        self.sync_dir(os.path.dirname(path))

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize


class DirectoryLock:
    """Keeps a second process out of a node directory for as long as this object is open; the kernel drops it with the process."""

    def __init__(self, path: str) -> None:
        """Lock the directory `path`. Raises BlockingIOError when another process holds it."""
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def close(self) -> None:
        os.close(self._fd)


def _write_zeros(fd: int, size: int) -> None:
    zeros = bytes(min(size, ZERO_CHUNK_BYTES))
    done = 0
    while done < size:
        wrote = os.pwrite(fd, zeros[: size - done] if size - done < len(zeros) else zeros, done)
        if done // ZERO_SYNC_BYTES != (done + wrote) // ZERO_SYNC_BYTES:
            os.fdatasync(fd)
        done += wrote


def _conforms(disk: RealDisk) -> Disk:
    """Type check only: a RealDisk is a Disk."""
    return disk
