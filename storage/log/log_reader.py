"""Reading committed entries from threads other than the log's owner: own handles, `pread` only, and
only below a given position.

Everything below that position is committed and on this disk, and never changes again; a file
removed by retention is reported as gone. Any thread may read; the owner moves the limits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ledgermq.proto.entries.layout import INDEX_UNIT
from ledgermq.proto.types import I32, I64
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.ports import Disk

UNIT_BYTES = 32
UNITS_A_READ = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """The readable part: entries begin_index … end_index − 1, at the positions `begin_pos` …
    `end_pos`."""

    begin_index: int = 0
    end_index: int = 0
    end_pos: int = 0
    begin_pos: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive entries first_index … last_index of one log file."""

    first_index: int
    last_index: int
    pos: int
    data: memoryview
    starts: I64
    sizes: I32


class LogReader:
    """Reads the log in `directory` (`<group>/dledger-<node>`). The log's owner replaces `limits` as
    a whole."""

    def __init__(
        self, disk: Disk, directory: str, data_file_bytes: int, index_file_bytes: int
    ) -> None:
        self.limits = Limits()
        self._disk = disk
        self._directory = directory
        self._data_file_bytes = data_file_bytes
        self._index_file_bytes = index_file_bytes

    def read(self, first_index: int, max_bytes: int) -> Piece | None:
        """Entries from `first_index` on: at least one, then up to `max_bytes`, of one log file.
        None if the file is gone. Raises OSError, Damaged."""
        limits = self.limits
        assert first_index < limits.end_index, (
            f"entry {first_index} is not to be read: the limit is {limits.end_index}"
        )
        if first_index < limits.begin_index:
            return None
        inside = first_index * UNIT_BYTES % self._index_file_bytes
        wanted = min(
            limits.end_index - first_index,
            UNITS_A_READ,
            (self._index_file_bytes - inside) // UNIT_BYTES,
        )
        data = self._bytes_at(
            "index", self._index_file_bytes, first_index * UNIT_BYTES, wanted * UNIT_BYTES
        )
        if data is None:
            return None
        units = np.frombuffer(data, INDEX_UNIT, len(data) // UNIT_BYTES)
        if (
            len(units) < wanted
            or int(units["index"][0]) != first_index
            or int(units["index"][-1]) != first_index + wanted - 1
        ):
            raise LogDamaged(
                f"the index units of entry {first_index} and after are damaged: restart the node,"
                " which rebuilds them"
            )
        positions, sizes = units["pos"].astype(np.int64), units["size"].astype(np.int32)
        pos = int(positions[0])
        file_end = pos - pos % self._data_file_bytes + self._data_file_bytes
        count = max(
            1, int(np.searchsorted(positions + sizes, min(pos + max_bytes, file_end), side="right"))
        )
        length = int(positions[count - 1]) + int(sizes[count - 1]) - pos
        content = self._bytes_at("data", self._data_file_bytes, pos, length)
        if content is None:
            return None
        if len(content) != length:
            raise LogDamaged(
                f"the log file of entry {first_index} ends inside an entry: restart the node, which"
                " verifies it"
            )
        return Piece(
            first_index=first_index,
            last_index=first_index + count - 1,
            pos=pos,
            data=memoryview(content),
            starts=positions[:count] - pos,
            sizes=sizes[:count],
        )

    def record_bytes(self, pos: int, length: int) -> bytes | None:
        """Bytes of the log at a position, as far as they may be read and lie in one file; None if
        the file is gone."""
        length = min(
            length, self.limits.end_pos - pos, self._data_file_bytes - pos % self._data_file_bytes
        )
        return self._bytes_at("data", self._data_file_bytes, pos, length) if length > 0 else b""

    def _bytes_at(self, kind: str, file_bytes: int, offset: int, length: int) -> bytes | None:
        inside = offset % file_bytes
        try:
            file = self._disk.open(f"{self._directory}/{kind}/{file_name(offset - inside)}")
        except FileNotFoundError:
            return None
        try:
            return file.pread(inside, length)
        finally:
            file.close()
