"""The only door to bytes: files and directories by path, wherever they lie.

Files are read with `pread`, never mapped: a file that shrinks or a device that fails is then an `OSError`, not a dead process. Nothing here
knows what the bytes mean, and nothing writes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Stat:
    """What changes when somebody writes to a file."""

    size: int
    mtime_ns: int
    inode: int


class File:
    """An open file. Raises OSError."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size
        """When it was opened."""

    def pread(self, size: int, offset: int) -> bytes:
        """`size` bytes at `offset`, fewer only at the end of the file."""
        data = os.pread(self._fd, size, offset)
        if len(data) == size:
            return data
        parts = [data]
        while data and (size := size - len(data)):
            offset += len(data)
            data = os.pread(self._fd, size, offset)
            parts.append(data)
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_file(path: str) -> File:
    """For reading. Raises OSError."""
    return File(os.open(path, os.O_RDONLY))


def read_whole(path: str) -> bytes:
    """A small file. Raises OSError."""
    with open_file(path) as file:
        return file.pread(file.size, 0)


def stat_of(path: str) -> Stat | None:
    """None where there is no file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stat(found.st_size, found.st_mtime_ns, found.st_ino)


def size_of(path: str) -> int:
    """Raises OSError."""
    return os.path.getsize(path)


def exists(path: str) -> bool:
    return os.path.exists(path)


def is_directory(path: str) -> bool:
    return os.path.isdir(path)


def is_readable(path: str) -> bool:
    return os.access(path, os.R_OK)


def names_in(directory: str) -> list[str]:
    """The names in a directory, sorted; none where there is no directory. Raises OSError."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
