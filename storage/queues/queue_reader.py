"""Reading units of consume queues from threads other than the queues' owner: own handles, `pread`
only.

Any thread may read. The caller knows what may be read: units below the queue's *written* offset
(`ConsumeQueues.written_offset`) never change again, except that retention blanks or removes them,
which is reported as `None`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.entries.layout import QUEUE_UNIT
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.queues.consume_queue import PRE_BLANK, UNIT_BYTES, QueueUnits

_BLANK_BYTES = int.from_bytes(PRE_BLANK[8:12], "big")
"""The size in the unit of a trimmed message."""


class QueueReader:
    """Reads the consume queues in `directory` (`<group>/consumequeue`)."""

    def __init__(self, disk: Disk, directory: str, file_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes

    def read(self, topic: str, queue: int, first: int, count: int) -> QueueUnits | None:
        """Written units from `first` on: at least one, at most `count`, of one file. None if
        retention removed the first one. Raises OSError, LogDamaged."""
        offset = first * UNIT_BYTES
        inside = offset % self._file_bytes
        length = min(count * UNIT_BYTES, self._file_bytes - inside)
        path = f"{self._directory}/{topic}/{queue}/{file_name(offset - inside)}"
        units = self._units(path, inside, length)
        if units is not None and int(units["size"].max(initial=0)) == _BLANK_BYTES != int(
            units["size"][0]
        ):
            # Retention blanks from the front during this read: units that it has passed by now are
            # blank from the first one on.
            units = self._units(path, inside, length)
        if units is None:
            return None
        sizes = units["size"].astype(np.int32)
        if not len(units) or int(sizes[0]) == _BLANK_BYTES:
            return None
        if not bool((sizes > 0).all()) or int(sizes.max()) == _BLANK_BYTES:
            raise LogDamaged(
                f"{path} does not hold what was dispatched from unit {first} on: restart the node,"
                " which rebuilds it"
            )
        return QueueUnits(
            first,
            units["physical_offset"].astype(np.int64),
            sizes,
            units["tags_code"].astype(np.int64),
        )

    def _units(self, path: str, inside: int, length: int) -> NDArray[np.void] | None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None
        try:
            data = file.pread(inside, length)
        finally:
            file.close()
        return np.frombuffer(data, QUEUE_UNIT, len(data) // UNIT_BYTES)
