"""Key index files and their recorded position (docs/format.md §14): bytes in, columns and plain
values out. Nothing here judges."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.reading.decode import I64, read_sealed_json
from ledgermq.audit.reading.files import AnyFile, exists, names_in, open_file

KEY_HEADER = struct.Struct(">qqqqii")
KEY_UNIT = np.dtype([("hash", ">i4"), ("pos", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
SLOT_BYTES = 4
NAME_BYTES = 17
UNITS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class KeyNote:
    """The position's record of one file: it begins behind the first `first_rows` keys of the log
    from entry `first_index` on; `count` is the number of its next unit."""

    name: str
    slots: int
    units: int
    first_index: int
    first_rows: int
    count: int
    used: int
    begin_ms: int
    end_ms: int
    begin_pos: int
    end_pos: int

    @property
    def full(self) -> bool:
        return self.count >= self.units

    @property
    def file_bytes(self) -> int:
        return self.unit_at(self.units)

    def unit_at(self, number: int) -> int:
        """The offset of a unit in the file."""
        return KEY_HEADER.size + self.slots * SLOT_BYTES + number * KEY_UNIT.itemsize

    def header(self) -> bytes:
        """The header of a file with exactly these units."""
        return KEY_HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_pos, self.end_pos, self.used, self.count
        )


@dataclass(frozen=True, slots=True)
class KeyPosition:
    """The valid extent of a key index: `next_index` is the first entry whose keys are not all in
    it; `rows` of them are."""

    log_id: str
    next_index: int
    rows: int
    chain: int | None
    store_ms: int
    notes: tuple[KeyNote, ...]


KEYS = {"v", "log_id", "next", "rows", "chain", "store_ms", "files"}


def read_position(root: str) -> KeyPosition | None:
    """The position of a replica's key index; None if there is none. Raises ValueError if it is
    invalid, OSError."""
    path = f"{root}/state/keyindex"
    if not exists(path):
        return None
    value = read_sealed_json(path)
    if value is None:
        raise ValueError("the text does not have the checksum it should have")
    return _position(value)


def _position(value: dict[str, Any]) -> KeyPosition:
    numbers = all(isinstance(value.get(key), int) for key in ("next", "rows", "store_ms"))
    chain = value.get("chain")
    files = value.get("files")
    named = (
        isinstance(value.get("log_id"), str)
        and (chain is None or isinstance(chain, int))
        and isinstance(files, list)
    )
    if value.get("v") != 1 or not numbers or not named or value.keys() != KEYS:
        raise ValueError("it lacks a key or has one too many, or has another version")
    assert isinstance(files, list)
    width = len(fields(KeyNote))
    for row in files:
        if (
            not isinstance(row, list)
            or len(row) != width
            or not isinstance(row[0], str)
            or not all(isinstance(n, int) for n in row[1:])
        ):
            raise ValueError("a row of its files is invalid")
    notes = tuple(KeyNote(*row) for row in files)
    if any(note.slots < 1 or note.units < 2 or not 1 <= note.count <= note.units for note in notes):
        raise ValueError("a row of its files has impossible numbers")
    return KeyPosition(
        log_id=value["log_id"],
        next_index=value["next"],
        rows=value["rows"],
        chain=chain,
        store_ms=value["store_ms"],
        notes=notes,
    )


def key_file_names(root: str) -> list[str]:
    """The files with names of key index files, in order."""
    return [
        name
        for name in names_in(f"{root}/index")
        if len(name) == NAME_BYTES and name.isascii() and name.isdigit()
    ]


def read_key_units(
    file: AnyFile, note: KeyNote, first: int = 1, end: int | None = None
) -> Iterator[tuple[I64, NDArray[np.void]]]:
    """Units `first` … `end` − 1 (the end that the position names): (numbers, units). Ends early
    with the file. Raises OSError."""
    stop = note.count if end is None else end
    for number in range(first, stop, UNITS_AT_ONCE):
        count = min(UNITS_AT_ONCE, stop - number)
        data = file.pread(count * KEY_UNIT.itemsize, note.unit_at(number))
        units = np.frombuffer(data, KEY_UNIT, len(data) // KEY_UNIT.itemsize)
        if len(units):
            yield np.arange(number, number + len(units)), units
        if len(units) < count:
            return


def open_key_file(root: str, name: str) -> AnyFile:
    """Raises OSError."""
    return open_file(f"{root}/index/{name}")
