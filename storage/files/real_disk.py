"""The disk port over POSIX: the only module of the product that calls the operating system for
files of a node directory.

It only forwards calls, and raises every failure as the `OSError` it was. Reads and writes go
through `pread` and `pwrite`, syncs through `fdatasync` (which, unlike flushing a map, releases the
interpreter lock, and also persists bytes stored through a map). A map is read-only and serves views
until the first `store` needs a writable one.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from ledgermq.storage.files import memory
from ledgermq.storage.files.ports import Buffer, Disk, DiskFile

ZERO_CHUNK_BYTES = 1 << 20
"""Allocation writes zeros in pieces of this size …"""
ZERO_SYNC_BYTES = 16 << 20
"""… and syncs after this many, so that a background allocation never fills the device queue in
front of the log's own sync."""
COPY_BYTES = 16 << 20
"""A copy is made in pieces of at most this size, so that it can be interrupted and can report
progress."""
CANNOT_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
"""The error codes for two file systems between which `copy_file_range` does not work."""


class RealFile:
    """A file descriptor and, when requested, a shared map of it.

    `_guard` serialises mapping and unmapping: a background thread warms, locks and unmaps while the
    owner reads and stores.
    """

    def __init__(self, path: str, fd: int, size: int, *, new: bool) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._new = new
        self._guard = threading.Lock()
        self._map: mmap.mmap | None = None
        self._stores = False
        self._locked = False
        self._view: memoryview | None = None
        """A view of `_map` that is never handed out: when it is released, only others' views pin
        the map."""
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        """Every map of this object that still exists, because of `_map` or of a view."""

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
        assert offset >= 0 and offset + length <= self.size, (
            f"write of {length} bytes at {offset} leaves {self.path} ({self.size} bytes)"
        )
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
            # Not every file system's fdatasync covers the length that was set at creation.
            os.fsync(self._fd)
            self._new = False
        else:
            os.fdatasync(self._fd)

    def store(self, offset: int, data: Buffer) -> None:
        length = len(data)
        assert offset >= 0 and offset + length <= self.size, (
            f"store of {length} bytes at {offset} leaves {self.path} ({self.size} bytes)"
        )
        with self._guard:
            self._mapped(stores=True)[offset : offset + length] = data

    def view(self) -> memoryview:
        with self._guard:
            self._mapped(stores=False)
            assert self._view is not None
            return self._view.toreadonly()

    def warm(self, *, stores: bool) -> None:
        with self._guard:
            area = self._mapped(stores=stores)
        memory.populate(area)

    def lock(self) -> None:
        with self._guard:
            area = self._mapped(stores=False)
        memory.lock(area)
        with self._guard:
            self._locked = area is self._map

    def unlock(self) -> None:
        with self._guard:
            self._unlock()

    def swap_out(self) -> bool:
        with self._guard:
            if self._map is None:
                return True
            assert self._view is not None
            self._view.release()
            try:
                self._map.close()
            except BufferError:
                self._view = memoryview(self._map)
                return False
            self._map = self._view = None
            self._stores = self._locked = False
            return True

    def forget(self, offset: int, length: int) -> None:
        os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    @property
    def mapped_bytes(self) -> int:
        return self.size * len(self._maps)

    @property
    def locked_bytes(self) -> int:
        return self.size if self._locked else 0

    def close(self) -> None:
        with self._guard:
            # Views handed out keep the map alive; it is unmapped with the last of them.
            self._unlock()
            self._map = self._view = None
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _mapped(self, *, stores: bool) -> mmap.mmap:
        """The map; a writable one replaces a read-only one. Called with `_guard` held."""
        if self._map is None or (stores and not self._stores):
            made = memory.map_file(self._fd, self.size, self.path, writable=stores)
            self._unlock()
            self._map, self._stores, self._view = made, stores, memoryview(made)
            self._maps.add(made)
        return self._map

    def _unlock(self) -> None:
        if self._map is not None and self._locked:
            memory.unlock(self._map)
        self._locked = False


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
        replace_file(path, data)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize


def replace_file(path: str, data: bytes, mode: int = 0o666) -> None:
    """Give a file new content, durably: whoever reads it, also after a crash, finds the former
    content or the new one. `mode` is that of the new file, as far as the umask allows. The caller
    keeps other writers away. Raises OSError."""
    unfinished = path + ".tmp"
    with suppress(FileNotFoundError):
        os.unlink(unfinished)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)
    RealDisk().sync_dir(os.path.dirname(path) or ".")


class DirectoryLock:
    """Keeps a second process out of a node directory while this object is open; the kernel releases
    it with the process."""

    def __init__(self, path: str) -> None:
        """Lock the directory `path`. Raises BlockingIOError if another process holds it."""
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def close(self) -> None:
        os.close(self._fd)


class HeldFile:
    """A file held open only for copying: it keeps its content when its owner, another process,
    removes the name."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)

    def copy_to(
        self, path: str, length: int, size: int, *, allocate: bool, step: Callable[[int], None]
    ) -> None:
        """Create the file `path` of `size` bytes with the first `length` of this one; the rest is
        zero, with `allocate` in real blocks. The bytes stay in the kernel. On return the file is
        durable, except for the name, and not in the page cache, so that verifying the copy reads
        the medium. `step` is called for every piece."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            copied = 0
            while copied < length:
                piece = _copy(self._fd, fd, copied, min(COPY_BYTES, length - copied))
                if piece == 0:
                    raise OSError(
                        errno.EIO, f"{self.path} ends at byte {copied} of {length}", self.path
                    )
                copied += piece
                step(piece)
            if allocate:
                _write_zeros(fd, size - length, length)
            else:
                os.ftruncate(fd, size)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def copy_sparse(self, path: str) -> None:
        """Create the file `path` as long as this one, and copy its data; holes stay holes. Durable
        on return, except for the name."""
        size = os.fstat(self._fd).st_size
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(fd, size)
            at = _next_data(self._fd, 0, size)
            while at < size:
                stop = os.lseek(self._fd, at, os.SEEK_HOLE)
                while at < stop:
                    piece = _copy(self._fd, fd, at, min(COPY_BYTES, stop - at))
                    if piece == 0:
                        raise OSError(
                            errno.EIO, f"{self.path} ends at byte {at} of {size}", self.path
                        )
                    at += piece
                at = _next_data(self._fd, at, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        os.close(self._fd)


def _next_data(fd: int, at: int, size: int) -> int:
    """The first byte from `at` on that is not in a hole; `size` if there is none."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA) if at < size else size
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


def cut_file(path: str, end: int, size: int) -> None:
    """Keep the first `end` bytes of a file of `size`; the others become zero. Durable on return."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(fd, end)
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(source: int, target: int, offset: int, length: int) -> int:
    """Copy a piece between two files inside the kernel; returns the number of bytes."""
    try:
        return os.copy_file_range(source, target, length, offset, offset)
    except OSError as error:
        if error.errno not in CANNOT_COPY:
            raise
    os.lseek(target, offset, os.SEEK_SET)
    return os.sendfile(target, source, offset, length)


def _write_zeros(fd: int, size: int, start: int = 0) -> None:
    zeros = bytes(min(size, ZERO_CHUNK_BYTES))
    done = 0
    while done < size:
        wrote = os.pwrite(
            fd, zeros[: size - done] if size - done < len(zeros) else zeros, start + done
        )
        if done // ZERO_SYNC_BYTES != (done + wrote) // ZERO_SYNC_BYTES:
            os.fdatasync(fd)
        done += wrote


def _conforms(disk: RealDisk) -> Disk:
    """Type check only: a RealDisk is a Disk."""
    return disk
