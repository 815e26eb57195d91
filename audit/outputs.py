"""The files that an audit writes: each complete or absent, and a set of files from one audit or
absent. Their content is not known here.

A file is written under a temporary name next to its target, synced, and renamed. One file of a set
is written last: it is removed before the first file of the set is replaced, and created when all
others exist. A reader that finds it has a complete set. A killed job leaves at most temporary
files, which the next one overwrites.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ledgermq.proto.carried import Carried
from ledgermq.proto.status import ExitCode

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WriteTo = Callable[[Path], None]
"""Writes one complete file to the given path."""


class CannotWrite(Carried):
    """The target cannot be written. Carries the messages of the command line."""

    exit_code = ExitCode.USAGE

    def __init__(self, path: Path, error: OSError) -> None:
        self.what = (
            f"{path} cannot be written ({os.strerror(error.errno) if error.errno else error})"
        )
        room = "free disk space there, or choose another place"
        self.remedy = room if error.errno in FULL else "choose a place where this user may write"
        super().__init__(f"{self.what}; {self.remedy}")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(path, error) from error


def text(content: str) -> WriteTo:
    """A file with this text."""
    return lambda path: _write_text(path, content)


def _write_text(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")


def try_file(path: Path) -> None:
    """Test whether a file can be written there before a long audit starts. Raises CannotWrite."""
    with _told(path):
        if not _is_special(path):
            unfinished = _unfinished(path.resolve())
            unfinished.touch()
            unfinished.unlink()


def try_directory(directory: Path) -> None:
    """The same for a directory of files; it is created if missing. Raises CannotWrite."""
    with _told(directory):
        directory.mkdir(parents=True, exist_ok=True)
    try_file(directory / "verdict.json")


def write_file(path: Path, write: WriteTo) -> None:
    """Write one file. A device or a pipe is written to directly. Raises CannotWrite."""
    with _told(path):
        if _is_special(path):
            write(path)
        else:
            # Keep a symbolic link, and replace its target.
            place = path.resolve()
            _prepare(place, write)
            os.replace(_unfinished(place), place)


def write_set(
    directory: Path, files: Mapping[str, WriteTo], last: str, former: Collection[str] = ()
) -> None:
    """Write files that belong together, by name; `last` is one of them. `former`: names that an
    older set may have had, which are removed if this set does not have them. Raises CannotWrite."""
    try_directory(directory)
    try:
        for name, write in files.items():
            with _told(directory / name):
                _prepare(directory / name, write)
    except (CannotWrite, KeyboardInterrupt):
        for name in files:
            _unfinished(directory / name).unlink(missing_ok=True)
        raise
    with _told(directory):
        for name in (last, *(name for name in former if name not in files)):
            (directory / name).unlink(missing_ok=True)
        for name in sorted(files, key=lambda name: name == last):
            os.replace(_unfinished(directory / name), directory / name)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def _is_special(path: Path) -> bool:
    """Whether the path is something that cannot be replaced, such as /dev/stdout."""
    return path.exists() and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()


def _prepare(path: Path, write: WriteTo) -> None:
    """Write the content under the temporary name, and sync it. Raises OSError. After that, and
    after Ctrl-C, removes what it wrote."""
    unfinished = _unfinished(path)
    try:
        write(unfinished)
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
    except (OSError, KeyboardInterrupt):
        unfinished.unlink(missing_ok=True)
        raise
