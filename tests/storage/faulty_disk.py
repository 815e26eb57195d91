"""A disk that forwards to another disk, records all operations, and fails on request. It never
loses data; `ForgetfulDisk` does that."""

from __future__ import annotations

import errno

from ledgermq.storage.files.ports import Buffer, Disk, DiskFile


class FaultyFile:
    """One open file of a FaultyDisk."""

    def __init__(self, disk: FaultyDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path
        self.size = file.size
        self._closed = False
        disk.opened += 1
        disk.open_files += 1
        disk.open_files_most = max(disk.open_files_most, disk.open_files)

    def pread(self, offset: int, length: int) -> bytes:
        self._disk.note("pread", self.path, offset, length)
        data = self._file.pread(offset, length)
        self._disk.bytes_read += len(data)
        return data

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._disk.note("pwrite", self.path, offset, len(data))
        self._disk.count_write()
        self._file.pwrite(offset, data)

    def store(self, offset: int, data: Buffer) -> None:
        if data:
            self._disk.note("store", self.path, offset, len(data))
            self._disk.count_write()
        self._file.store(offset, data)

    def sync(self) -> None:
        self._disk.note("sync", self.path)
        if self._disk.syncs_fail:
            raise OSError(errno.EIO, "Input/output error", self.path)
        self._file.sync()

    def view(self) -> memoryview:
        self._disk.note("view", self.path)
        return self._file.view()

    def warm(self, *, stores: bool) -> None:
        self._disk.note("warm", self.path, stores)
        self._file.warm(stores=stores)

    def lock(self) -> None:
        self._disk.note("lock", self.path)
        if self._disk.locks_fail:
            raise OSError(errno.EPERM, "Operation not permitted")
        self._file.lock()

    def unlock(self) -> None:
        self._disk.note("unlock", self.path)
        self._file.unlock()

    def swap_out(self) -> bool:
        self._disk.note("swap_out", self.path)
        return self._file.swap_out()

    @property
    def mapped_bytes(self) -> int:
        return self._file.mapped_bytes

    @property
    def locked_bytes(self) -> int:
        return self._file.locked_bytes

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.open_files -= 1
        self._file.close()


class FaultyDisk:
    """`trace` holds (operation, path, …) of each operation; the methods below make operations
    fail."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.trace: list[tuple[object, ...]] = []
        self.opened = 0
        self.open_files = 0
        self.open_files_most = 0
        self.bytes_read = 0
        self.syncs_fail = False
        self.locks_fail = False
        self.free: int | None = None
        self._writes_left: int | None = None
        self._write_errno = 0
        self._creation_errno = 0
        self._opening_errno = 0

    def note(self, *event: object) -> None:
        self.trace.append(event)

    def names(self, *operations: str) -> list[tuple[object, ...]]:
        return [event[:2] for event in self.trace if event[0] in operations]

    def fail_writes_after(self, count: int, *, errno_of: str) -> None:
        self._writes_left, self._write_errno = count, getattr(errno, errno_of)

    def fail_creation(self, *, errno_of: str) -> None:
        self._creation_errno = getattr(errno, errno_of)

    def fail_opening(self, *, errno_of: str) -> None:
        self._opening_errno = getattr(errno, errno_of)

    def heal(self) -> None:
        self._writes_left, self._creation_errno, self._opening_errno, self.syncs_fail, self.free = (
            None,
            0,
            0,
            False,
            None,
        )

    def count_write(self) -> None:
        if self._writes_left is None:
            return
        if self._writes_left == 0:
            raise OSError(self._write_errno, "made to fail")
        self._writes_left -= 1

    def open(self, path: str) -> DiskFile:
        self._refuse_opening()
        return FaultyFile(self, self._disk.open(path))

    def create(self, path: str, size: int, *, allocate: bool) -> DiskFile:
        self.note("create", path)
        if self._creation_errno:
            raise OSError(self._creation_errno, "made to fail")
        return FaultyFile(self, self._disk.create(path, size, allocate=allocate))

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def file_size(self, path: str) -> int:
        return self._disk.file_size(path)

    def listdir(self, path: str) -> list[str]:
        return self._disk.listdir(path)

    def mkdirs(self, path: str) -> None:
        self._disk.mkdirs(path)

    def rename(self, old: str, new: str) -> None:
        self.note("rename", new)
        self._disk.rename(old, new)

    def unlink(self, path: str) -> None:
        self.note("unlink", path)
        self._disk.unlink(path)

    def sync_dir(self, path: str) -> None:
        self.note("sync_dir", path)
        if self.syncs_fail:
            raise OSError(errno.EIO, "Input/output error", path)
        self._disk.sync_dir(path)

    def _refuse_opening(self) -> None:
        if self._opening_errno:
            raise OSError(self._opening_errno, "made to fail")

    def read_file(self, path: str) -> bytes:
        self._refuse_opening()
        return self._disk.read_file(path)

    def replace_file(self, path: str, data: bytes) -> None:
        self.note("replace_file", path)
        self._disk.replace_file(path, data)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path) if self.free is None else self.free

    def total_bytes(self, path: str) -> int:
        return self._disk.total_bytes(path)
