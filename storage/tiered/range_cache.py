"""A bounded cache on disk for ranges of objects, shared by the readers of one node.

It holds copies only: it is emptied when it is opened, whatever it cannot write or read back is
fetched again, and it gives its room back when the disk gets full. Its bytes are compared with a CRC
that stays in memory, so damage on this disk is a miss and not an answer. Any thread may call; files
are read and written outside of the lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import crc32c

from ledgermq.storage.files.errors import is_no_space, lacks_descriptors
from ledgermq.storage.files.ports import Disk


@dataclass(frozen=True, slots=True)
class _Kept:
    name: str
    size: int
    crc: int


class RangeCache:
    """Ranges by key, in `directory`, at most `max_bytes` of them. `crowded`: whether the disk is so
    full that the cache must give way."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        max_bytes: int,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raises OSError."""
        self._disk = disk
        self._directory = directory
        self._max_bytes = max_bytes
        self._crowded = crowded
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._number = 0
        self.size = 0
        """The bytes of all files that are kept."""
        self.refused = 0
        """How many ranges were not kept because the disk had no room."""
        disk.mkdirs(directory)
        for name in disk.listdir(directory):
            disk.unlink(f"{directory}/{name}")

    def get(self, key: str) -> bytes | None:
        """The range kept under a key; None if it is not kept, or not readable."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
        try:
            data = self._disk.read_file(f"{self._directory}/{kept.name}")
        except OSError:
            # Evicted meanwhile, or the disk fails: either way the object store still has it.
            data = b""
        if len(data) == kept.size and crc32c.crc32c(data) == kept.crc:
            return data
        self._drop(key, kept)
        return None

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return key in self._kept

    def put(self, key: str, data: bytes) -> None:
        """Keep a range if there is room for it. Raises OSError only for errors that another attempt
        would meet, too."""
        if len(data) > self._max_bytes:
            return
        if self._crowded():
            self._refuse()
            return
        with self._lock:
            if key in self._kept:
                return
            self._number += 1
            kept = _Kept(f"{self._number:020d}", len(data), crc32c.crc32c(data))
        path = f"{self._directory}/{kept.name}"
        try:
            file = self._disk.create(path, len(data), allocate=False)
            try:
                file.pwrite(0, data)
            finally:
                file.close()
        except OSError as error:
            self._remove(kept.name)
            if not is_no_space(error) and not lacks_descriptors(error):
                raise
            self._refuse()
            return
        with self._lock:
            doubled = self._kept.get(key)
            self._kept[key] = kept
            self.size += kept.size - (0 if doubled is None else doubled.size)
            gone = [] if doubled is None else [doubled]
            while self.size > self._max_bytes:
                gone.append(self._pop())
        for one in gone:
            self._remove(one.name)

    def give_way(self) -> None:
        """Give the room back if the disk is full. To be called regularly: others fill it, too."""
        if self.size and self._crowded():
            self._empty()

    def _refuse(self) -> None:
        """The disk has no room: nothing more is kept, and what was kept goes."""
        with self._lock:
            self.refused += 1
        self._empty()

    def _empty(self) -> None:
        with self._lock:
            gone = [self._pop() for _ in range(len(self._kept))]
        for one in gone:
            self._remove(one.name)

    def _pop(self) -> _Kept:
        _, kept = self._kept.popitem(last=False)
        self.size -= kept.size
        return kept

    def _drop(self, key: str, kept: _Kept) -> None:
        with self._lock:
            if self._kept.get(key) is not kept:
                return
            del self._kept[key]
            self.size -= kept.size
        self._remove(kept.name)

    def _remove(self, name: str) -> None:
        try:
            self._disk.unlink(f"{self._directory}/{name}")
        except FileNotFoundError:
            # Another reader found it unreadable and removed it.
            return
