"""Files that get their name when they are complete, and have the name `.NAME.part` beside it until
then.

Law of `Aside`: a process that fails, is interrupted or is killed leaves no file under the name, and
a file that has the name is never overwritten. The remains of a killed process are overwritten by
the next attempt. Two processes never write the same file: the first one holds a lock.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO


def part_of(path: Path) -> Path:
    """Where the file of this name is written."""
    return path.with_name(f".{path.name}.part")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Give a file new content, durably: whoever reads it, also after a crash, finds the former
    content or the new one. `mode` is that of the new file, as far as the umask allows. The caller
    keeps other writers away. Raises OSError."""
    part = part_of(path)
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)
    sync_directory(path.parent)


class Aside:
    """One such file. `close` or `abandon` ends it."""

    def __init__(self, path: Path) -> None:
        """Raises FileExistsError if the file exists, BlockingIOError if another process is writing
        it, and other kinds of OSError."""
        self._path = path
        self._part = part_of(path)
        if path.exists():
            raise FileExistsError(path)
        self.file: IO[bytes] = open(self._part, "ab")  # noqa: SIM115 - closed by `close` and `abandon`
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                # Its writer has just completed it. What is open here may be that file, so it must
                # not be emptied.
                if self._part.exists() and os.path.samestat(
                    self._part.stat(), os.fstat(self.file.fileno())
                ):
                    self._part.unlink()
                raise FileExistsError(path)
            self.file.truncate(0)
        except OSError:
            self.file.close()
            raise

    def close(self) -> None:
        """Make the content durable and give the file its name. Raises OSError; the file then does
        not exist."""
        try:
            self.sync()
            # Renamed under the lock: another process sees either the lock or the name.
            os.rename(self._part, self._path)
        except OSError:
            self.abandon()
            raise
        self.file.close()
        sync_directory(self._path.parent)

    def sync(self) -> None:
        """Make the content durable, without the name. Raises OSError."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def abandon(self) -> None:
        """Leave no file."""
        with suppress(FileNotFoundError):
            self._part.unlink()
        with suppress(OSError):
            # Closing flushes; a full disk no longer matters.
            self.file.close()
