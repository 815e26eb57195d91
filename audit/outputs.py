"""The files that an audit writes: whole, or not there; of one audit, or not there. What stands in them is not known here.

A file is written under a temporary name beside its place, and renamed once it is on the disk. Of a set of files one is the last: it is
gone before the first of the set is exchanged, and comes when all are there, so that whoever finds it finds a set that belongs together. A
job that is killed leaves temporary files at most, and the next one overwrites them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ledgermq.proto.status import ExitCode

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WriteTo = Callable[[Path], None]
"""Writes one file, whole, to the path it is given."""


class CannotWrite(Exception):
    """There is no way to write there. Carries what the command line tells."""

    exit_code = ExitCode.USAGE

    def __init__(self, path: Path, error: OSError) -> None:
        self.what = f"{path} cannot be written ({os.strerror(error.errno) if error.errno else error})"
        room = "make room there, or name another place"
        self.remedy = room if error.errno in FULL else "name a place where this user may write"
        super().__init__(f"{self.what}; {self.remedy}")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(path, error) from error


def text(content: str) -> WriteTo:
    """A file of this text."""
    return lambda path: _write_text(path, content)


def _write_text(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")


def try_file(path: Path) -> None:
    """Find out whether a file can be written there, before hours are spent on what shall stand in it. Raises CannotWrite."""
    with _told(path):
        if not _is_special(path):
            unfinished = _unfinished(path.resolve())
            unfinished.touch()
            unfinished.unlink()


def try_directory(directory: Path) -> None:
    """The same of a directory of files; it is made if it is not there. Raises CannotWrite."""
    with _told(directory):
        directory.mkdir(parents=True, exist_ok=True)
    try_file(directory / "verdict.json")


def write_file(path: Path, write: WriteTo) -> None:
    """Write one file. A device or a pipe is written to directly. Raises CannotWrite."""
    with _told(path):
        if _is_special(path):
            write(path)
        else:
            # A link stays one.
            place = path.resolve()
            _prepare(place, write)
            os.replace(_unfinished(place), place)


def write_set(directory: Path, files: Mapping[str, WriteTo], last: str, former: Collection[str] = ()) -> None:
    """Write files that belong together, by their names; `last` is one of them. `former`: names that an older set may have had, and which go
    if this one does not have them. Raises CannotWrite."""
    try_directory(directory)
    for name, write in files.items():
        with _told(directory / name):
            _prepare(directory / name, write)
    with _told(directory):
        for name in (last, *(name for name in former if name not in files)):
            (directory / name).unlink(missing_ok=True)
        for name in sorted(files, key=lambda name: name == last):
            os.replace(_unfinished(directory / name), directory / name)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def _is_special(path: Path) -> bool:
    """Whether something stands there that cannot be exchanged, such as /dev/stdout."""
    return path.exists() and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()


def _prepare(path: Path, write: WriteTo) -> None:
    """The content under the temporary name, on the disk. Raises OSError; then nothing is left that would take room."""
    unfinished = _unfinished(path)
    try:
        write(unfinished)
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
