"""Read access to all files of a broker group on this node's disk: directory listings and bytes.

Paths from outside reach the disk only here. A path is walked name by name from the node directory,
never through a link, and must end at a regular file of the broker group or at `node.json`. Access
is read-only, through descriptors of its own, from any thread. This module knows nothing about the
meaning of the bytes, rate limits, or the caller.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from ledgermq.proto.status import Code, fail

NODE_FILE = "node.json"
ENTRIES_MAX = 200_000
"""Limit for the number of names in one answer."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a named pipe in the place of a file must not make the open wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or directory; `path` is relative to the node directory."""

    path: str
    directory: bool
    size: int
    mtime_ns: int
    inode: int


class ReplicaFile:
    """One open file. The caller must close it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def pread(self, offset: int, length: int) -> bytes:
        """Read `length` bytes; fewer only at the end of the file. Raises OSError."""
        return os.pread(self._fd, length, offset)

    def stretches(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of start … end − 1 that are not holes of a sparse file. Raises
        OSError."""
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


class ReplicaFiles:
    """The files of the broker groups in one node directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def open(self, group: str, path: str) -> ReplicaFile | None:
        """Open a file; None if it does not exist. Raises OSError, and LedgerError for a path that
        does not belong to the group."""
        with self._parent(group, path) as (parent, name):
            if parent is None:
                return None
            try:
                fd = os.open(name, _FILE, dir_fd=parent)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    return None
                if error.errno == errno.ELOOP:
                    raise fail(
                        Code.BAD_REQUEST, f"{path!r} is a link, which is not followed"
                    ) from error
                raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise fail(Code.BAD_REQUEST, f"{path!r} is not a regular file")
        return ReplicaFile(fd)

    def entry(self, group: str, path: str) -> Entry | None:
        """A file or directory of the group; None if it does not exist. Raises LedgerError,
        OSError."""
        with self._parent(group, path) as (parent, name):
            return None if parent is None else _entry(parent, name, path)

    def entries(self, group: str, directory: str, *, recursive: bool) -> list[Entry]:
        """The contents of a directory, sorted by path; empty if it does not exist. Names that
        appear or vanish meanwhile may be included or not. Raises LedgerError, OSError."""
        found: list[Entry] = []
        with self._parent(group, directory) as (parent, name):
            if parent is not None and directory != NODE_FILE:
                self._collect(parent, name, directory, found, recursive=recursive)
        return sorted(found, key=lambda entry: entry.path)

    def _collect(
        self, parent: int, name: str, path: str, found: list[Entry], *, recursive: bool
    ) -> None:
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return
            raise
        try:
            for child in os.listdir(fd):
                entry = _entry(fd, child, f"{path}/{child}")
                if entry is None:
                    continue
                if len(found) >= ENTRIES_MAX:
                    raise fail(
                        Code.BAD_REQUEST,
                        f"{path} has more than {ENTRIES_MAX:,} names below it; ask for one"
                        " directory after the other",
                    )
                found.append(entry)
                if recursive and entry.directory:
                    self._collect(fd, child, entry.path, found, recursive=True)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _parent(self, group: str, path: str) -> Iterator[tuple[int | None, str]]:
        """The directory of the last name of a path, as an open descriptor (None if it does not
        exist), and that name."""
        names = _names(group, path)
        with contextlib.ExitStack() as opened:
            parent: int | None = None
            found = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, found)
            for name in names[:-1]:
                try:
                    found = os.open(name, _DIRECTORY, dir_fd=found)
                except OSError as error:
                    # A link in the place of a directory fails with ENOTDIR.
                    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                        raise
                    break
                opened.callback(os.close, found)
            else:
                parent = found
            yield parent, names[-1]


def _names(group: str, path: str) -> list[str]:
    """Split a path of the group into names. Raises LedgerError."""
    names = path.split("/")
    ours = path == NODE_FILE or (bool(group) and names[0] == group)
    if not ours or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise fail(
            Code.BAD_REQUEST,
            f"{path!r} is not a path of broker group {group}; paths begin with {group}/, or are"
            f" {NODE_FILE}",
        )
    return names


def _entry(parent: int, name: str, path: str) -> Entry | None:
    """Examine a name; None if it does not exist or is neither file nor directory."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return None
    return Entry(path, stat.S_ISDIR(found.st_mode), found.st_size, found.st_mtime_ns, found.st_ino)
