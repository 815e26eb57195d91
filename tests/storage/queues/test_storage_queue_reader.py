"""Reads of units concurrent with their writer: written units are returned piece by piece, trimmed
ones are reported, and unwritten ones are damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgermq.proto.entries.layout import Columns
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.real_disk import RealDisk, RealFile
from ledgermq.storage.queues.consume_queue import PRE_BLANK, UNIT_BYTES
from ledgermq.storage.queues.queue_reader import QueueReader
from tests.storage.queues.written_queues import WrittenQueues

FILE_BYTES = 200


def filled(path: Path, count: int) -> tuple[WrittenQueues, QueueReader]:
    disk = RealDisk()
    disk.mkdirs(str(path))
    queues = WrittenQueues(disk, str(path), FILE_BYTES)
    numbers = np.arange(count)
    zeros = np.zeros(count, np.int32)
    sizes = (numbers + 91).astype(np.int32)
    queues.append(
        Columns(
            ("t",),
            zeros,
            zeros,
            numbers,
            numbers - 5,
            numbers * 1000 + 48,
            sizes,
            numbers * 0,
            zeros,
        )
    )
    return queues, QueueReader(disk, str(path), FILE_BYTES)


def test_units_come_up_to_the_end_of_a_file(tmp_path: Path) -> None:
    """Ten units a file; the next file is another read."""
    queues, reader = filled(tmp_path, 25)
    assert queues.written_offset("t", 0) == 25 and queues.written_offset("t", 1) == 0
    units = reader.read("t", 0, 7, 18)
    assert units is not None and units.first == 7
    assert units.physical_offsets.tolist() == [7048, 8048, 9048] and units.sizes.tolist() == [
        98,
        99,
        100,
    ]
    more = reader.read("t", 0, 10, 4)
    assert more is not None and more.tags_codes.tolist() == [5, 6, 7, 8]


def test_trimmed_units_are_told(tmp_path: Path) -> None:
    """A file that is gone, and units that were blanked in the first file that stays."""
    queues, reader = filled(tmp_path, 25)
    queues.trim(13_048)
    assert reader.read("t", 0, 2, 5) is None and reader.read("t", 0, 12, 5) is None
    kept = reader.read("t", 0, 13, 5)
    assert kept is not None and kept.first == 13


def test_units_that_were_never_written_are_damage(tmp_path: Path) -> None:
    """The caller knows what is written: zeros there were something else once."""
    _, reader = filled(tmp_path, 25)
    with pytest.raises(LogDamaged):
        reader.read("t", 0, 24, 3)


class TornFile:
    """Its first read finds the front as it was before something happened, and the rest as it is
    afterwards."""

    def __init__(self, file: RealFile, happens: list[Callable[[], None]]) -> None:
        self._file = file
        self._happens = happens

    def pread(self, offset: int, length: int) -> bytes:
        before = self._file.pread(offset, length)
        for happen in self._happens:
            happen()
        self._happens.clear()
        return before[:UNIT_BYTES] + self._file.pread(offset, length)[UNIT_BYTES:]

    def close(self) -> None:
        self._file.close()


class TornDisk(RealDisk):
    """Whose files are read while something happens, once."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = [happens]

    def open(self, path: str) -> Any:
        return TornFile(super().open(path), self._happens)


def test_a_reader_that_retention_passes_finds_no_damage(tmp_path: Path) -> None:
    """The units it asked for are blanked while it reads, from the front: it has seen the first as
    they were. They are gone, and no more."""
    queues, _ = filled(tmp_path, 25)
    reader = QueueReader(TornDisk(lambda: queues.trim(17_048) and None), str(tmp_path), FILE_BYTES)
    assert reader.read("t", 0, 12, 8) is None


def test_a_blank_among_units_that_stays_is_damage(tmp_path: Path) -> None:
    """Retention blanks no unit behind one that it leaves."""
    _, reader = filled(tmp_path, 25)
    with (tmp_path / "t" / "0" / f"{200:020d}").open("r+b") as file:
        file.seek(3 * UNIT_BYTES)
        file.write(PRE_BLANK)
    with pytest.raises(LogDamaged):
        reader.read("t", 0, 12, 8)
