"""The only access to bytes: files and directories by path, local or remote.

Files are read with `pread`, never mapped, so that a shrinking file or a failing device gives an
`OSError` instead of a signal. A path that starts with `node://` is on a running node: it works with
the same functions, which raise `NodeLost` if the node does not answer (`remote.py`, loaded with the
first such path). A path that starts with `store://` is an object of tiered storage (`objects.py`):
it can be opened. This module does not know what the bytes mean, and writes nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from ledgermq.audit.reading.node_paths import STORE, is_remote

if TYPE_CHECKING:
    from ledgermq.audit.reading.objects import StoredObject
    from ledgermq.audit.reading.remote import RemoteFile


@dataclass(frozen=True, slots=True)
class Stat:
    """Values that change when a file is written."""

    size: int
    mtime_ns: int
    inode: int


class File:
    """An open file. Raises OSError, which names it."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self.size = os.fstat(fd).st_size
        """When it was opened."""

    def pread(self, size: int, offset: int) -> bytes:
        """`size` bytes at `offset`, fewer only at the end of the file."""
        try:
            data = os.pread(self._fd, size, offset)
            if len(data) == size:
                return data
            parts = [data]
            while data and (size := size - len(data)):
                offset += len(data)
                data = os.pread(self._fd, size, offset)
                parts.append(data)
        except OSError as error:
            error.filename = self._path
            raise
        return b"".join(parts)

    def stretches(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of start … end that are not holes of a sparse file."""
        while start < end:
            try:
                begin = os.lseek(self._fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                raise
            if begin >= end:
                return
            stop = min(os.lseek(self._fd, begin, os.SEEK_HOLE), end)
            yield begin, stop
            start = stop

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AnyFile = Union[File, "RemoteFile", "StoredObject"]


def _entries(path: str, *, itself: bool = False) -> list[Any]:
    from ledgermq.audit.reading.remote import entries

    return entries(path, itself=itself)


def open_file(path: str) -> AnyFile:
    """Open for reading. Raises OSError."""
    if is_remote(path):
        from ledgermq.audit.reading.remote import RemoteFile

        return RemoteFile(path)
    if path.startswith(STORE):
        from ledgermq.audit.reading.objects import StoredObject

        return StoredObject(path)
    return File(os.open(path, os.O_RDONLY), path)


def read_whole(path: str) -> bytes:
    """A small file, in one version even if it is replaced during the read. Raises OSError."""
    return read_at(path, 0, None)


def read_if_there(path: str) -> bytes | None:
    """A small file, whole; None if it does not exist. Raises OSError."""
    try:
        return read_whole(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_at(path: str, offset: int, size: int | None) -> bytes:
    """Bytes of a file that is not read any further; size None: to its end. Fewer only at its end.
    Raises OSError."""
    if is_remote(path):
        from ledgermq.audit.reading.remote import read_at as read_remote

        return read_remote(path, offset, size)
    with open_file(path) as file:
        return file.pread(max(file.size - offset, 0) if size is None else size, offset)


def absolute(directory: str) -> str:
    """The absolute path, independent of later changes of the working directory."""
    return directory.rstrip("/") if is_remote(directory) else os.path.abspath(directory)


def stat_of(path: str) -> Stat | None:
    """None if the file does not exist."""
    if is_remote(path):
        return next(
            (
                Stat(entry.size, entry.mtime_ns, entry.inode)
                for entry in _entries(path, itself=True)
            ),
            None,
        )
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stat(status.st_size, status.st_mtime_ns, status.st_ino)


def size_of(path: str) -> int:
    """Raises OSError."""
    status = stat_of(path)
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return status.size


def exists(path: str) -> bool:
    return stat_of(path) is not None if is_remote(path) else os.path.exists(path)


def is_directory(path: str) -> bool:
    if is_remote(path):
        return any(entry.directory for entry in _entries(path, itself=True))
    return os.path.isdir(path)


def is_readable(path: str) -> bool:
    """Whether this process may read it. For a running node, that is found out by asking."""
    return is_remote(path) or os.access(path, os.R_OK)


def names_in(directory: str) -> list[str]:
    """The names in a directory, sorted; empty if it does not exist. Raises OSError."""
    if is_remote(directory):
        return sorted(entry.path.rpartition("/")[2] for entry in _entries(directory))
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
