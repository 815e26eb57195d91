"""Repairing a stretch of a log in place while the log is open and appended to elsewhere (format §2,
§5, §6).

This module writes entries below the synced mark, and the units derived from them, where they are
damaged. `node/replica/shipping/range_repair.py` decides what proves the entries. Only bytes that
differ are written, and only into files of full length. No other code changes these bytes any more,
so a concurrent reader sees either the damage or the correct bytes. Files are never created or
renamed, because the log's owner holds them open. While a written entry is not durable, the marker
of `mending.py` exists: an open after a power cut then verifies everything.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ledgermq.proto.entries.layout import QUEUE_UNIT, record_columns
from ledgermq.proto.types import Identity, Range
from ledgermq.storage.files.errors import LIMIT_REMEDY, Exhausted, lacks_descriptors, needing_room
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.ports import Buffer, Disk, DiskFile
from ledgermq.storage.log.index_files import UNIT_BYTES, make_units
from ledgermq.storage.queues.consume_queue import UNIT_BYTES as QUEUE_UNIT_BYTES
from ledgermq.storage.repair.mending import MARK, MARKER


class Stretch:
    """The files of the group directory `root`, opened as needed. For one caller."""

    def __init__(self, disk: Disk, root: str, identity: Identity) -> None:
        self.written_bytes = 0
        self._disk, self._root, self._identity = disk, root, identity
        self._directory = f"{root}/dledger-{identity.replica}"
        self._open: dict[str, DiskFile] = {}
        self._dirty: dict[DiskFile, None] = {}
        self._marked = False

    def missing(self, pos: int, end_pos: int) -> str | None:
        """The first log file between two positions that is missing or not of full length, as text;
        None if there is none."""
        size = self._identity.data_file_bytes
        for base in range(pos - pos % size, end_pos, size):
            path = self._log_file(base)
            actual = self._disk.file_size(path) if self._disk.exists(path) else None
            if actual != size:
                return (
                    f"{path} is missing"
                    if actual is None
                    else f"{path} has {actual} bytes instead of {size}"
                )
        return None

    def put(self, pos: int, data: Buffer) -> None:
        """Write bytes of the log, all in one file, unless they are there already. Raises NoSpace,
        Exhausted, OSError."""
        size = self._identity.data_file_bytes
        file = self._file(self._log_file(pos - pos % size))
        if _same(file, pos % size, data):
            return
        if not self._marked:
            self._note()
        self._write(file, pos % size, data)

    def put_units(self, entries: Range, *, committed_index: int) -> list[str]:
        """Write the index units of verified entries, and the consume queue units of those up to
        `committed_index`, where files for them exist. Returns the changed paths. Raises NoSpace,
        Exhausted, OSError."""
        units = make_units(
            entries.first_index, entries.term, entries.starts + entries.pos, entries.sizes
        )
        directory, size = f"{self._directory}/index", self._identity.index_file_bytes
        changed = self._put_over(directory, size, entries.first_index * UNIT_BYTES, units.tobytes())
        count = min(len(entries), committed_index - entries.first_index + 1)
        if count <= 0:
            return changed
        columns = record_columns(entries)
        rows = np.empty(count, QUEUE_UNIT)
        rows["physical_offset"] = columns.physical_offsets[:count]
        rows["size"] = columns.sizes[:count]
        rows["tags_code"] = columns.tags_codes[:count]
        keys = columns.topic_of[:count].astype(np.int64) << 32 | columns.queues[:count]
        order = np.argsort(keys, kind="stable")
        bounds = [0, *(np.flatnonzero(np.diff(keys[order])) + 1).tolist(), count]
        size = self._identity.consume_queue_file_bytes
        for low, high in pairwise(bounds):
            chosen = order[low:high]
            topic, queue = (
                columns.topics[int(columns.topic_of[chosen[0]])],
                int(columns.queues[chosen[0]]),
            )
            first = int(columns.queue_offsets[chosen[0]])
            assert bool(
                (columns.queue_offsets[chosen] == np.arange(first, first + len(chosen))).all()
            ), "queue offsets are dense (I6)"
            at = first * QUEUE_UNIT_BYTES
            changed += self._put_over(
                f"{self._root}/consumequeue/{topic}/{queue}", size, at, rows[chosen].tobytes()
            )
        return changed

    def sync(self) -> None:
        """Make everything written durable. The first failure is final (I9): the marker stays.
        Raises Exhausted, OSError."""
        for file in self._dirty:
            file.sync()
        self._dirty.clear()
        if self._marked:
            with _needing_descriptors(self._directory):
                self._disk.unlink(f"{self._directory}/{MARKER}")
                self._disk.sync_dir(self._directory)
            self._marked = False

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    # Inside

    def _log_file(self, base: int) -> str:
        return f"{self._directory}/data/{file_name(base)}"

    def _file(self, path: str) -> DiskFile:
        file = self._open.get(path)
        if file is None:
            with _needing_descriptors(path):
                file = self._open[path] = self._disk.open(path)
        return file

    def _put_over(self, directory: str, file_bytes: int, offset: int, data: bytes) -> list[str]:
        """Write bytes of derived data, across files if needed; the next open creates files that are
        missing."""
        changed, view = [], memoryview(data)
        while view:
            inside = offset % file_bytes
            length = min(len(view), file_bytes - inside)
            path = f"{directory}/{file_name(offset - inside)}"
            if self._disk.exists(path) and not _same(
                file := self._file(path), inside, view[:length]
            ):
                self._write(file, inside, view[:length])
                changed.append(path)
            offset, view = offset + length, view[length:]
        return changed

    def _note(self) -> None:
        path = f"{self._directory}/{MARKER}"
        # Nothing was written yet: any failure here, including the sync of the note, leaves
        # everything unchanged.
        with needing_room(path), _needing_descriptors(path):
            self._disk.replace_file(path, MARK)
        self._marked = True

    def _write(self, file: DiskFile, inside: int, data: Buffer) -> None:
        self._dirty[file] = None
        with needing_room(file.path):
            file.pwrite(inside, data)
        self.written_bytes += len(data)


@contextlib.contextmanager
def _needing_descriptors(path: str) -> Iterator[None]:
    """Context for opening a file before anything is written to it: a limit of open files refuses
    the repair, without harm."""
    try:
        yield
    except OSError as error:
        if lacks_descriptors(error):
            raise Exhausted(
                f"{path} cannot be opened ({error}): {LIMIT_REMEDY}, then repair again"
            ) from error
        raise


def _same(file: DiskFile, inside: int, data: Buffer) -> bool:
    """Whether the file holds these bytes; unreadable bytes count as different."""
    try:
        return file.pread(inside, len(data)) == data
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
