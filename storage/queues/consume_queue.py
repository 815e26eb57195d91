"""Consume queues (format §6): for every (stored topic, queue) the positions of its committed
messages, 20 bytes each, dense from offset 0.

A queue whose first messages were trimmed from the log has a *minimum*, the offset of its first kept
message. The bytes below it are a function of the minimum alone, so that a trimmed queue and one
rebuilt from snapshot and log have equal bytes: whole files are removed, and the rest of the first
file holds pre-blank units. If no message of the queue was kept, the unit before the minimum stays
as it is (the snapshot carries it), so that the file still shows where the queue ends.

Derived from the log by the dispatcher. This module holds units, density (invariant I6) and the
bound on open files; which message belongs to which queue is decided elsewhere. The files are sparse
and written with `pwrite`. After a restart the caller knows the next offsets (snapshot plus log):
the files are cut to them, and never consulted for them.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.entries.layout import QUEUE_UNIT, Row
from ledgermq.proto.types import I32, I64
from ledgermq.storage.files.errors import (
    LIMIT_REMEDY,
    DerivedLost,
    Exhausted,
    NoSpace,
    is_exhausted,
    is_no_space,
)
from ledgermq.storage.files.mapped_files import NAME_DIGITS, file_name, parse_name
from ledgermq.storage.files.ports import Disk, DiskFile

UNIT_BYTES = 20
UNIT = struct.Struct(">qiq")
PRE_BLANK = UNIT.pack(0, 0x7FFFFFFF, 0)
"""The unit of a removed message, as RocketMQ writes it."""
OPEN_FILES_MAX = 256
ERASE_BYTES = 1 << 16
BLANK_BYTES = 4096 * UNIT_BYTES
"""Units below a minimum are blanked in pieces of this size."""
_ZEROS = bytes(ERASE_BYTES)

QueueKey = tuple[str, int]
"""Stored topic and queue id."""
Minimum = tuple[int, tuple[int, int, int] | None]
"""The first kept offset, and the unit before it (physical offset, size, tags code) if the queue was
empty when it was trimmed."""


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """The units first … first+n−1 of one queue as columns; `sizes` are TOTALSIZEs."""

    first: int
    physical_offsets: I64
    sizes: I32
    tags_codes: I64

    def __len__(self) -> int:
        return len(self.sizes)


class QueueSync:
    """A sync of everything dispatched before its creation. `run` opens its own handles, so any
    thread may run it; raises OSError."""

    def __init__(self, disk: Disk, files: tuple[str, ...], directories: tuple[str, ...]) -> None:
        self.files = files
        self.directories = directories
        self._disk = disk

    def run(self) -> None:
        for path in self.files:
            try:
                file = self._disk.open(path)
            except FileNotFoundError:
                # The file was trimmed in the meantime and is no longer needed.
                continue
            try:
                file.sync()
            finally:
                file.close()
        for directory in self.directories:
            self._disk.sync_dir(directory)


def by_queue(rows: list[Row]) -> dict[QueueKey, list[Row]]:
    """The rows of each queue, in order."""
    rows_of: dict[QueueKey, list[Row]] = {}
    for row in rows:
        key = row[0], row[1]
        known = rows_of.get(key)
        if known is None:
            rows_of[key] = [row]
        else:
            known.append(row)
    return rows_of


def require_dense(key: QueueKey, rows: list[Row]) -> None:
    """Assert that the queue offsets of some rows of one queue follow each other."""
    wanted = rows[0][2]
    for row in rows:
        assert row[2] == wanted, (
            f"queue offsets of {key} are not dense: {[row[2] for row in rows]} (invariant I6)"
        )
        wanted += 1


class ConsumeQueues:
    """What is written of all consume queues of one broker group; `queue_buffer.py` adds the units
    that wait. `directory` is `<group>/consumequeue`."""

    def __init__(
        self, disk: Disk, directory: str, file_bytes: int, *, open_files_max: int = OPEN_FILES_MAX
    ) -> None:
        assert file_bytes % UNIT_BYTES == 0
        self.directory = directory
        self._disk = disk
        self._file_bytes = file_bytes
        self._open_files_max = open_files_max
        self._next: dict[QueueKey, int] = {}
        self._min: dict[QueueKey, int] = {}
        """Only queues that were trimmed; the same for the tables below."""
        self._lasts: dict[QueueKey, tuple[int, int, int]] = {}
        """The unit before the minimum, where it is kept."""
        self._blank_to: dict[QueueKey, int] = {}
        """Everything below this offset is known to match the minimum. Nothing is known after a
        start, because the former process may have been interrupted."""
        self._files: dict[QueueKey, set[int]] = {}
        self._forgotten: dict[QueueKey, None] = {}
        """Queues without an end that may still have files; the next trim removes them."""
        self._open: OrderedDict[str, DiskFile] = OrderedDict()
        self._dirty: dict[str, None] = {}
        self._dirty_directories: dict[str, None] = {}

    def start(
        self,
        next_offsets: Mapping[str, Mapping[int, int]],
        units_above_max: int,
        minimums: Mapping[str, Mapping[int, Minimum]] | None = None,
    ) -> None:
        """Cut every queue to its next offset ({stored topic: {queue: next}}, missing = 0).

        At most `units_above_max` units can lie above it: the number of entries that the log has
        behind the snapshot. Raises DerivedLost if files between a minimum and a next offset are
        missing.
        """
        self._find_files()
        self._set_minimums(minimums or {})
        for topic, queues in next_offsets.items():
            for queue, offset in queues.items():
                self._next[topic, queue] = offset
        for key in self._files:
            # The former process may have created these names and stopped before syncing them.
            self._name_changed(key)
        self._forgotten = dict.fromkeys(key for key in self._files if key not in self._next)
        for key in {*self._files, *self._next}:
            self._require_files(key, self._next.get(key, 0))
            if units_above_max:
                self._erase(key, self._next.get(key, 0), units_above_max)

    def written_offset(self, topic: str, queue: int) -> int:
        """Units below this offset are in the files, where readers may read them
        (`queue_reader.py`)."""
        return self._next.get((topic, queue), 0)

    def next_offsets(self) -> dict[str, dict[int, int]]:
        """For the snapshot: every queue that ever had a message."""
        table: dict[str, dict[int, int]] = {}
        for (topic, queue), offset in sorted(self._next.items()):
            if offset:
                table.setdefault(topic, {})[queue] = offset
        return table

    def min_offset(self, topic: str, queue: int) -> int:
        """The offset of the first kept message; `next_offset` if none is kept."""
        return self._min.get((topic, queue), 0)

    def minimums(self) -> dict[str, dict[int, Minimum]]:
        """For the snapshot: every queue that was trimmed."""
        table: dict[str, dict[int, Minimum]] = {}
        for (topic, queue), offset in sorted(self._min.items()):
            table.setdefault(topic, {})[queue] = offset, self._lasts.get((topic, queue))
        return table

    def raise_minimums(self, begin_pos: int) -> list[QueueKey]:
        """The log now begins at `begin_pos`. Changes no file; `trim` follows. Returns the affected
        queues. The result depends only on the units, so it is the same on every replica. Raises
        OSError."""
        raised = []
        for key, end in self._next.items():
            low = self._min.get(key, 0)
            if low == end or self._unit(key, low)[0] >= begin_pos:
                continue
            last = self._unit(key, end - 1)
            if last[0] < begin_pos:
                self._min[key], self._lasts[key] = end, last
            else:
                self._min[key] = low + bisect_left(
                    range(low, end), begin_pos, key=partial(self._physical_offset, key)
                )
                self._lasts.pop(key, None)
            raised.append(key)
        return raised

    def forget(self, topic: str, queue: int) -> None:
        """Drop a queue of which no message is kept. Changes no file; `trim` follows."""
        key = topic, queue
        for state in (self._next, self._min, self._lasts, self._blank_to):
            state.pop(key, None)
        self._forgotten[key] = None

    def begin_at(self, topic: str, queue: int, offset: int) -> None:
        """Start a dropped or new queue with its first message at `offset`, above every offset of a
        forgotten queue of this name."""
        key = topic, queue
        assert key not in self._next, f"queue {key} is there"
        self._forgotten.pop(key, None)
        self._next[key] = self._min[key] = offset

    def trim(self, begin_pos: int) -> list[str]:
        """Remove everything that only messages before `begin_pos` need, in one call; see
        `trimming`. Returns the paths of removed files."""
        removed: list[str] = []
        for _ in self.trimming(begin_pos, removed):
            pass
        return removed

    def trimming(self, begin_pos: int, removed: list[str]) -> Iterator[int]:
        """Remove whole files, and blank the units below the minimum in the first file that stays,
        queue by queue; yields the number of bytes processed. Every kept snapshot must cover
        everything below the minimums as they are when this starts. It may be interrupted and
        started again. Raises OSError."""
        # Normally raised when the trim record was applied; this is for callers that trim without
        # one. It reads only written units.
        ConsumeQueues.raise_minimums(self, begin_pos)
        # Take the floors now, not at the first step: by then another trim record may be applied
        # that the snapshots do not cover yet.
        floors = {key: self._floor(key) for key in self._min}
        forgotten = list(self._forgotten)
        trimmed = (
            length
            for key, floor in floors.items()
            if key in self._min
            for length in self._trim_queue(key, floor, removed)
        )
        return chain(
            trimmed,
            (length for key in forgotten for length in self._remove_forgotten(key, removed)),
        )

    def begin_again(self, minimums: Mapping[str, Mapping[int, Minimum]]) -> None:
        """Discard every file and start each queue at its minimum: the messages still in the log are
        dispatched again. Raises OSError."""
        self.discard()
        self._set_minimums(minimums)
        for key, low in self._min.items():
            self._next[key] = low
            floor = self._floor(key)
            inside = floor * UNIT_BYTES % self._file_bytes
            file = self._file(key, floor * UNIT_BYTES - inside, make=True)
            self._dirty[file.path] = None
            if key in self._lasts:
                file.pwrite(inside, UNIT.pack(*self._lasts[key]))
            for _ in self._trim_queue(key, floor, []):
                pass

    def read(self, topic: str, queue: int, first: int, count: int) -> QueueUnits:
        """Up to `count` units from offset `first` on; fewer at the end of the queue. If these were
        trimmed, the answer begins with the minimum instead; its `first` shows it. Raises
        OSError."""
        key = (topic, queue)
        first = max(first, self._min.get(key, 0))
        stop = min(first + count, self._next.get(key, 0))
        parts = []
        offset, end = first * UNIT_BYTES, stop * UNIT_BYTES
        while offset < end:
            inside = offset % self._file_bytes
            data = self._file(key, offset - inside).pread(
                inside, min(end - offset, self._file_bytes - inside)
            )
            if not data:
                raise OSError(5, f"a file of {self._path(key)} is shorter than its full length")
            parts.append(data)
            offset += len(data)
        units = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), QUEUE_UNIT)
        return QueueUnits(
            first,
            units["physical_offset"].astype(np.int64),
            units["size"].astype(np.int32),
            units["tags_code"].astype(np.int64),
        )

    def begin_sync(self) -> QueueSync | None:
        """A sync job for everything dispatched so far, to be run before a snapshot relies on it;
        None if nothing is dirty."""
        if not self._dirty and not self._dirty_directories:
            return None
        sync = QueueSync(self._disk, tuple(self._dirty), tuple(self._dirty_directories))
        self._dirty.clear()
        self._dirty_directories.clear()
        return sync

    def sync(self) -> None:
        """Sync now, in this thread. Raises OSError."""
        sync = self.begin_sync()
        if sync is not None:
            sync.run()

    def discard(self) -> None:
        """Remove every file: the queues are dispatched again from the begin of the log."""
        self._close_files()
        for state in (self._next, self._min, self._lasts, self._blank_to, self._forgotten):
            state.clear()
        self._find_files(remove_strays=True)
        for key, bases in self._files.items():
            for base in bases:
                self._disk.unlink(f"{self._path(key)}/{file_name(base)}")
            self._dirty_directories[self._path(key)] = None
        self._files.clear()
        self._dirty.clear()

    def close(self) -> None:
        self._close_files()

    # Writing

    def _append_queue(self, key: QueueKey, offsets: I64, units: NDArray[np.void]) -> None:
        assert bool((np.diff(offsets) == 1).all()), (
            f"queue offsets of {key} are not dense: {offsets} (invariant I6)"
        )
        self._append_units(key, int(offsets[0]), units.tobytes())

    def _append_rows(self, key: QueueKey, rows: list[Row]) -> None:
        """As `_append_queue`, for a few messages."""
        require_dense(key, rows)
        pack = UNIT.pack
        units = [pack(physical, size, code) for _, _, _, code, physical, size, _, _ in rows]
        self._append_units(key, rows[0][2], units[0] if len(units) == 1 else b"".join(units))

    def _append_units(self, key: QueueKey, first: int, units: bytes) -> None:
        """Write the units from `first` on of one queue, without gaps."""
        count = len(units) // UNIT_BYTES
        known = self._next.get(key, 0)
        assert first <= known, (
            f"queue {key} continues at {first}, but has only {known} messages (invariant I6)"
        )
        skipped = known - first
        if skipped >= count:
            return
        data = memoryview(units)[skipped * UNIT_BYTES :]
        offset = known * UNIT_BYTES
        try:
            while data:
                inside = offset % self._file_bytes
                length = min(len(data), self._file_bytes - inside)
                file = self._file(key, offset - inside, make=True)
                self._dirty[file.path] = None
                file.pwrite(inside, data[:length])
                data, offset = data[length:], offset + length
        except OSError as error:
            if is_no_space(error):
                raise NoSpace(
                    f"no space for {self._path(key)}: free disk space; dispatching resumes by"
                    " itself"
                ) from error
            if is_exhausted(error):
                raise Exhausted(
                    f"{self._path(key)} cannot be opened ({error}): {LIMIT_REMEDY}; dispatching"
                    " resumes by itself"
                ) from error
            raise
        self._next[key] = first + count

    def _file(self, key: QueueKey, base: int, *, make: bool = False) -> DiskFile:
        path = f"{self.directory}/{key[0]}/{key[1]}/{base:0{NAME_DIGITS}d}"
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        bases = self._files.setdefault(key, set())
        if make and base not in bases:
            if not bases:
                self._make_directory(key)
            file = self._disk.create(path, self._file_bytes, allocate=False)
            bases.add(base)
            self._dirty_directories[self._path(key)] = None
        else:
            file = self._disk.open(path)
        self._open[path] = file
        if len(self._open) > self._open_files_max:
            # Closing is safe even if it is dirty: a sync opens its own handle, and the kernel keeps
            # the dirty pages.
            self._open.popitem(last=False)[1].close()
        return file

    def _make_directory(self, key: QueueKey) -> None:
        self._disk.mkdirs(self._path(key))
        self._name_changed(key)

    def _name_changed(self, key: QueueKey) -> None:
        """The next sync covers every directory on the path to the files of a queue."""
        for directory in (
            self._path(key),
            f"{self.directory}/{key[0]}",
            self.directory,
            self.directory.rpartition("/")[0],
        ):
            self._dirty_directories[directory] = None

    def _path(self, key: QueueKey) -> str:
        return f"{self.directory}/{key[0]}/{key[1]}"

    # Trimming

    def _floor(self, key: QueueKey) -> int:
        """The first unit that stays as it was written."""
        return self._min.get(key, 0) - (key in self._lasts)

    def _physical_offset(self, key: QueueKey, offset: int) -> int:
        return self._unit(key, offset)[0]

    def _unit(self, key: QueueKey, offset: int) -> tuple[int, int, int]:
        inside = offset * UNIT_BYTES % self._file_bytes
        data = self._file(key, offset * UNIT_BYTES - inside).pread(inside, UNIT_BYTES)
        if len(data) != UNIT_BYTES:
            raise OSError(5, f"a file of {self._path(key)} is shorter than its full length")
        physical_offset, size, tags_code = UNIT.unpack(data)
        return physical_offset, size, tags_code

    def _set_minimums(self, minimums: Mapping[str, Mapping[int, Minimum]]) -> None:
        for topic, queues in minimums.items():
            for queue, (offset, last) in queues.items():
                self._min[topic, queue] = offset
                if last is not None:
                    self._lasts[topic, queue] = last

    def _trim_queue(self, key: QueueKey, floor: int, removed: list[str]) -> Iterator[int]:
        stop = floor * UNIT_BYTES
        first = stop - stop % self._file_bytes
        bases = self._files.get(key, set())
        for base in sorted(base for base in bases if base < first):
            bases.discard(base)
            self._remove_file(key, base, removed)
            yield 0
        offset = max(first, self._blank_to.get(key, 0) * UNIT_BYTES)
        while offset < stop:
            length = min(stop - offset, BLANK_BYTES)
            file = self._file(key, first)
            wanted = PRE_BLANK * (length // UNIT_BYTES)
            if file.pread(offset - first, length) != wanted:
                file.pwrite(offset - first, wanted)
                self._dirty[file.path] = None
            offset += length
            yield length
        self._blank_to[key] = floor

    def _remove_forgotten(self, key: QueueKey, removed: list[str]) -> Iterator[int]:
        if key in self._next:
            # The queue was started again: what its files held before lies below its minimum.
            self._forgotten.pop(key, None)
        if key not in self._forgotten:
            return
        bases = self._files.get(key, set())
        for base in sorted(bases):
            self._remove_file(key, base, removed)
            bases.discard(base)
            yield 0
        self._files.pop(key, None)
        del self._forgotten[key]

    def _remove_file(self, key: QueueKey, base: int, removed: list[str]) -> None:
        path = f"{self._path(key)}/{file_name(base)}"
        self._dirty.pop(path, None)
        opened = self._open.pop(path, None)
        if opened is not None:
            opened.close()
        self._disk.unlink(path)
        self._dirty_directories[self._path(key)] = None
        removed.append(path)

    # Starting

    def _find_files(self, *, remove_strays: bool = False) -> None:
        """Find all queues on the disk. A file of a wrong length does not count: its creation was
        interrupted, or it is damaged."""
        self._files.clear()
        for topic in self._disk.listdir(self.directory):
            for queue in self._disk.listdir(f"{self.directory}/{topic}"):
                if not (queue.isascii() and queue.isdigit()):
                    continue
                key = topic, int(queue)
                bases = self._files.setdefault(key, set())
                for name in self._disk.listdir(self._path(key)):
                    base = parse_name(name)
                    path = f"{self._path(key)}/{name}"
                    if (
                        base is not None
                        and base % self._file_bytes == 0
                        and self._disk.file_size(path) == self._file_bytes
                    ):
                        bases.add(base)
                    else:
                        self._disk.unlink(path)
                        self._dirty_directories[self._path(key)] = None

    def _require_files(self, key: QueueKey, next_offset: int) -> None:
        have = self._files.get(key, set())
        floor = self._floor(key) * UNIT_BYTES
        for base in range(
            floor - floor % self._file_bytes, next_offset * UNIT_BYTES, self._file_bytes
        ):
            if base not in have:
                raise DerivedLost(
                    f"{self._path(key)} lacks the file {file_name(base)}: the queues are rebuilt"
                    " from the log"
                )

    def _erase(self, key: QueueKey, first: int, count: int) -> None:
        """Zero the units first … first+count−1 where they are not zero."""
        offset, stop = first * UNIT_BYTES, (first + count) * UNIT_BYTES
        bases = self._files.get(key, set())
        while offset < stop:
            inside = offset % self._file_bytes
            base = offset - inside
            length = min(stop - offset, self._file_bytes - inside, ERASE_BYTES)
            if base not in bases:
                if not any(other > base for other in bases):
                    return
                offset = base + self._file_bytes
                continue
            file = self._file(key, base)
            if file.pread(inside, length) != _ZEROS[:length]:
                file.pwrite(inside, _ZEROS[:length])
                self._dirty[file.path] = None
            offset += length

    def _close_files(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
