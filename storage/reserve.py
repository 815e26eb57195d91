"""Space set aside for cleaning up on a full disk: a file with real blocks and no content, given back when nothing else is left.

A snapshot must be written before log files may go, so a disk filled to the last byte could never be emptied by retention alone. The file is
made anew as soon as there is room for it twice over. It may be missing at any time.
"""

from __future__ import annotations

from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import is_no_space


class Reserve:
    """One reserve. Filling and releasing may happen on different threads: both leave the file whole or gone."""

    def __init__(self, disk: Disk, path: str, size: int) -> None:
        self._disk = disk
        self._path = path
        self._size = size

    @property
    def held(self) -> bool:
        return self._disk.exists(self._path)

    def fill(self) -> bool:
        """Have the reserve, if there is room for it and as much again. Raises OSError for anything but a full disk."""
        directory = self._path.rpartition("/")[0]
        if self.held or self._size == 0:
            return self._size > 0
        if self._disk.free_bytes(directory) < 2 * self._size:
            return False
        unfinished = self._path + ".tmp"
        try:
            if self._disk.exists(unfinished):
                self._disk.unlink(unfinished)
            file = self._disk.create(unfinished, self._size, allocate=True)
            try:
                file.sync()
            finally:
                file.close()
            self._disk.rename(unfinished, self._path)
            self._disk.sync_dir(directory)
        except OSError as error:
            if not is_no_space(error):
                raise
            return False
        return True

    def release(self) -> bool:
        """Give the space back. False: there was none to give."""
        try:
            self._disk.unlink(self._path)
        except FileNotFoundError:
            return False
        return True
