"""Space reserved for cleaning up on a full disk: a file with real blocks and no content, released
when no other space is left.

A snapshot must be written before log files may be removed, so retention alone could never empty a
completely full disk. The file is created again when there is room for it twice. It may be missing
at any time.
"""

from __future__ import annotations

from ledgermq.storage.files.errors import is_no_space
from ledgermq.storage.files.ports import Disk


class Reserve:
    """One reserve file. Filling and releasing may happen on different threads; after either the
    file is complete or removed."""

    def __init__(self, disk: Disk, path: str, size: int) -> None:
        self._disk = disk
        self._path = path
        self._size = size

    @property
    def held(self) -> bool:
        return self._disk.exists(self._path)

    def fill(self) -> bool:
        """Create the reserve if there is room for twice its size. Raises OSError for any failure
        except a full disk."""
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
        """Free the space. False: there was none."""
        try:
            self._disk.unlink(self._path)
        except FileNotFoundError:
            return False
        return True
