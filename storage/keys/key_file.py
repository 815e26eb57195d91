"""One key index file in RocketMQ's format (format §14.1): header, hash slots, units, and the chains
through them.

The bytes are handled here: how a batch of keys becomes units and slots with vector operations, how
a chain is walked, how the slot table is rebuilt from the units. `key_index.py` decides which file a
key belongs to, what is durable, and what a key means.

The slot table of the file being written is in memory (4 bytes per slot). Units are written at once;
slots and header when the file is synced or full, in the order units, slots, header. On disk, slots
and header may therefore be older than the units, or newer than the units that survived a power cut:
the table is a function of the units, and is rebuilt from the durable ones at every start.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.types import I32, I64
from ledgermq.storage.files.errors import DerivedLost
from ledgermq.storage.files.ports import Disk, DiskFile
from ledgermq.storage.keys.bloom import Bloom

HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = HEADER.size
SLOT_BYTES = 4
UNIT = struct.Struct(">iqii")
UNIT_BYTES = UNIT.size
UNITS = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert HEADER_BYTES == 40 and UNIT_BYTES == UNITS.itemsize == 20
SECONDS_MAX = (1 << 31) - 1
SLOTS_A_GROUP = 1024
"""Slots are written in groups of this many: one page."""
LOAD_UNITS = 1 << 15
WRITE_GROUPS = 256
FILTER_KEYS_MIN = 1 << 16
"""The filter of the file being written starts with this capacity, and doubles."""


@dataclass(frozen=True, slots=True)
class KeyNote:
    """What is known about a file without opening it. `first_index` and `first_rows`: the file
    begins behind the first `first_rows` keys of the log from entry `first_index` on. `count` is
    RocketMQ's indexCount: the number of the next unit, 1 in an empty file."""

    name: str
    slots: int
    units: int
    first_index: int
    first_rows: int
    count: int = 1
    used: int = 0
    begin_ms: int = 0
    end_ms: int = 0
    begin_pos: int = 0
    end_pos: int = 0

    @property
    def file_bytes(self) -> int:
        return self.unit_at(self.units)

    @property
    def room(self) -> int:
        """Free units; unit 0 is never used."""
        return self.units - self.count

    def unit_at(self, number: int) -> int:
        return HEADER_BYTES + self.slots * SLOT_BYTES + number * UNIT_BYTES

    def header(self) -> bytes:
        return HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_pos, self.end_pos, self.used, self.count
        )


def walk(
    file: DiskFile, note: KeyNote, number: int, hash_: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    """Physical offsets in a chain, newest first, whose message may have been stored in begin … end
    (units have a resolution of seconds)."""
    timed = note.begin_ms > 0
    while 0 < number < note.count:
        data = file.pread(note.unit_at(number), UNIT_BYTES)
        unit_hash, position, seconds, previous = UNIT.unpack(data)
        at_ms = note.begin_ms + seconds * 1000
        if timed and at_ms + 999 < begin_ms and seconds < SECONDS_MAX:
            return
        if unit_hash == hash_ and (not timed or at_ms <= end_ms):
            yield position
        number = previous if previous < number else 0


def slot_of(file: DiskFile, note: KeyNote, hash_: int) -> int:
    """The newest unit in the slot of a hash, read from a finished file."""
    return int.from_bytes(
        file.pread(HEADER_BYTES + hash_ % note.slots * SLOT_BYTES, SLOT_BYTES), "big", signed=True
    )


def read_units(file: DiskFile, note: KeyNote, first: int, count: int) -> NDArray[np.void]:
    data = file.pread(note.unit_at(first), count * UNIT_BYTES)
    if len(data) != count * UNIT_BYTES:
        raise DerivedLost(f"{file.path} ends before its unit {first + count}")
    return np.frombuffer(data, UNITS)


def build_filter(
    file: DiskFile, note: KeyNote, capacity: int, keep_going: Iterable[None]
) -> Bloom | None:
    """The filter over a file's units, one piece per step of `keep_going`; None if that ends
    first."""
    made, first = Bloom(capacity), 1
    for _ in keep_going:
        if first >= note.count:
            return made
        units = read_units(file, note, first, min(LOAD_UNITS, note.count - first))
        made.add(units["hash"].astype(np.int32))
        first += len(units)
    return None


class KeyFileWriter:
    """The file being written. One thread appends; `newest` may be called by other threads."""

    def __init__(self, disk: Disk, directory: str, note: KeyNote, *, new: bool) -> None:
        self.note = note
        self.path = f"{directory}/{note.name}"
        self.filter = Bloom(min(FILTER_KEYS_MIN, note.units))
        self._lock = threading.Lock()
        self._table = np.zeros(note.slots, np.int32)
        self._dirty = np.zeros(-(-note.slots // SLOTS_A_GROUP), np.bool_)
        self._file = (
            disk.create(self.path, note.file_bytes, allocate=False) if new else disk.open(self.path)
        )
        if new:
            self._file.pwrite(0, note.header())

    def newest(self, hash_: int) -> tuple[KeyNote, int]:
        """The state of the file, and the newest unit that may lead to this hash; 0 for none."""
        with self._lock:
            return self.note, int(self._table[hash_ % self.note.slots]) if self.filter.may_have(
                hash_
            ) else 0

    def append(self, hashes: I32, positions: I64, store_ms: I64) -> None:
        """Write one unit per key; the caller has checked that there is room. If the write fails,
        nothing is changed."""
        note, count = self.note, len(hashes)
        assert 0 < count <= note.room
        if note.count == 1:
            note = replace(note, begin_ms=int(store_ms[0]), begin_pos=int(positions[0]))
        self._have_filter(note.count + count)
        previous, slots, last = self._chain(note.count, hashes)
        units = np.empty(count, UNITS)
        units["hash"] = hashes
        units["position"] = positions
        units["seconds"] = (
            np.clip((store_ms - note.begin_ms) // 1000, 0, SECONDS_MAX) if note.begin_ms > 0 else 0
        )
        units["previous"] = previous
        self._file.pwrite(note.unit_at(note.count), units.tobytes())
        used = note.used + int((self._table[slots] == 0).sum())
        with self._lock:
            self._table[slots] = last
            self.filter.add(hashes)
            self.note = replace(
                note,
                count=note.count + count,
                used=used,
                end_ms=int(store_ms[-1]),
                end_pos=int(positions[-1]),
            )
        self._dirty[slots // SLOTS_A_GROUP] = True

    def _chain(self, first: int, hashes: I32) -> tuple[I32, I64, I32]:
        """For the units from `first` on: the previous unit in the slot of each; then every affected
        slot and its newest unit."""
        slots = (hashes % self.note.slots).astype(np.int64)
        order = np.argsort(slots, kind="stable")
        slots, numbers = slots[order], (first + order).astype(np.int32)
        begins = np.ones(len(slots), np.bool_)
        begins[1:] = slots[1:] != slots[:-1]
        ends = np.roll(begins, -1)
        before = np.empty(len(slots), np.int32)
        before[1:] = numbers[:-1]
        before[begins] = self._table[slots[begins]]
        previous = np.empty(len(slots), np.int32)
        previous[order] = before
        return previous, slots[ends], numbers[ends]

    def _have_filter(self, units: int) -> None:
        if units <= self.filter.capacity:
            return
        capacity = self.filter.capacity
        while capacity < units:
            capacity = min(2 * capacity, self.note.units)
        made = build_filter(self._file, self.note, capacity, _for_ever())
        assert made is not None
        with self._lock:
            self.filter = made

    def load(self, keep_going: Iterable[None]) -> bool:
        """Build slot table and filter from the units. Raises DerivedLost if the units are not
        valid; returns False if `keep_going` ends first."""
        note, first, position = self.note, 1, 0
        capacity = self.filter.capacity
        while capacity < note.count:
            capacity = min(2 * capacity, note.units)
        self.filter = Bloom(capacity)
        for _ in keep_going:
            if first >= note.count:
                self._mark_used()
                self.note = replace(note, used=int(np.count_nonzero(self._table)))
                return True
            units = read_units(self._file, note, first, min(LOAD_UNITS, note.count - first))
            hashes, positions = units["hash"].astype(np.int32), units["position"].astype(np.int64)
            if (
                int(hashes.min()) < 0
                or int(positions[0]) < position
                or bool((np.diff(positions) < 0).any())
            ):
                raise DerivedLost(f"{self.path} does not hold units from {first} on")
            previous, slots, last = self._chain(first, hashes)
            if not np.array_equal(units["previous"], previous):
                raise DerivedLost(f"{self.path} has broken chains from unit {first} on")
            self._table[slots] = last
            self.filter.add(hashes)
            first, position = first + len(units), int(positions[-1])
        return False

    def _mark_used(self) -> None:
        """Write every slot that is or was in use with the next flush: the page cache may show slots
        of a former process that are not on the medium."""
        step = WRITE_GROUPS * SLOTS_A_GROUP
        for first in range(0, self.note.slots, step):
            mine = self._table[first : first + step]
            stored = np.frombuffer(
                self._file.pread(HEADER_BYTES + first * SLOT_BYTES, len(mine) * SLOT_BYTES),
                np.int32,
            )
            self._dirty[(first + np.flatnonzero((mine != 0) | (stored != 0))) // SLOTS_A_GROUP] = (
                True
            )

    def erase_rest(self) -> bool:
        """Blank units of a former process above the recorded position; returns whether there were
        any. If the group gets further entries, the same units are written again; if not, a clean
        stop would leave these in the file."""
        at, erased = self.note.unit_at(self.note.count), False
        while at < self.note.file_bytes:
            rest = self._file.pread(at, min(LOAD_UNITS * UNIT_BYTES, self.note.file_bytes - at))
            if not np.frombuffer(rest, np.uint8).any():
                break
            self._file.pwrite(at, bytes(len(rest)))
            at, erased = at + len(rest), True
        return erased

    def flush(self) -> None:
        """Write slots and header."""
        groups = np.flatnonzero(self._dirty)
        for run in (
            np.split(groups, np.flatnonzero(np.diff(groups) != 1) + 1) if len(groups) else ()
        ):
            for low in range(int(run[0]), int(run[-1]) + 1, WRITE_GROUPS):
                high = min(low + WRITE_GROUPS, int(run[-1]) + 1)
                slots = self._table[low * SLOTS_A_GROUP : high * SLOTS_A_GROUP]
                self._file.pwrite(
                    HEADER_BYTES + low * SLOTS_A_GROUP * SLOT_BYTES, slots.astype(">i4").tobytes()
                )
        self._file.pwrite(0, self.note.header())
        self._dirty[:] = False

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def _for_ever() -> Iterator[None]:
    while True:
        yield
