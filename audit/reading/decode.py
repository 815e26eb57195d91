"""The auditor's own decoder of docs/format.md: bytes in, NumPy columns and plain values out.

Nothing here judges, and no code is shared with the writer: the same document is implemented twice.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import crc32c as _crc32c
import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.reading.files import AnyFile, names_in, read_at, read_if_there

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
Flags = NDArray[np.bool_]

HEADER_BYTES = 48
RECORD_FIXED_BYTES = 88
ENTRY_BYTES_MIN = HEADER_BYTES + 91
INDEX_UNIT_BYTES = 32
QUEUE_UNIT_BYTES = 20
PAGE = 4096
LOG_CHECKPOINT = re.compile(
    rb"endIndex=(0|-?[1-9][0-9]{0,18})\ncommittedIndex=(0|-?[1-9][0-9]{0,18})\n"
)
BLANK_MAGIC = -1
ENTRY_MAGIC = 1
RECORD_V1, RECORD_V2 = 0xDAA320A7, 0xDAA320AB
NOT_JSON = (ValueError, RecursionError)
"""What `json.loads` raises for a text that is not JSON, or is nested too deeply."""

_HEADER_FIELDS = [
    ("magic", ">i4"),
    ("size", ">i4"),
    ("index", ">i8"),
    ("term", ">i8"),
    ("pos", ">i8"),
    ("channel", ">i4"),
    ("chain_crc", ">u4"),
    ("body_crc", ">u4"),
    ("body_size", ">i4"),
]
_RECORD_FIELDS = [
    ("total_size", ">i4"),
    ("record_magic", ">u4"),
    ("record_crc", ">i4"),
    ("queue", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("physical_offset", ">i8"),
    ("sys_flag", ">i4"),
    ("born_ms", ">i8"),
    ("born_host", ">i8"),
    ("store_ms", ">i8"),
    ("store_host", ">i8"),
    ("reconsume_times", ">i4"),
    ("prepared_offset", ">i8"),
    ("body_bytes", ">i4"),
]
PREFIX = np.dtype(_HEADER_FIELDS + _RECORD_FIELDS)
INDEX_UNIT = np.dtype(
    {
        "names": ["magic", "pos", "size", "index", "term"],
        "formats": [">i4", ">i8", ">i4", ">i8", ">i8"],
        "itemsize": 32,
    }
)
QUEUE_UNIT = np.dtype([("pos", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
HEADER = struct.Struct(">iiqqqiIIi")
assert PREFIX.itemsize == HEADER_BYTES + RECORD_FIXED_BYTES and HEADER.size == HEADER_BYTES


crc32c: Callable[..., int] = _crc32c.crc32c
"""CRC-32C as the package computes it, for loops in which another function call would be
noticeable."""


def crc(data: bytes | memoryview, start: int = 0) -> int:
    """CRC-32C, continued from `start`."""
    return crc32c(data, start)


# ---------------------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True, slots=True)
class Stain:
    """Nonzero bytes where zeros are expected: first … last, and whether they look like a stray
    change rather than a torn write."""

    first: int
    last: int
    stray: bool


SECTOR = 512
_STRAY_MAX = 16


def find_stain(file: AnyFile, start: int, end: int, step: int = 8 << 20) -> Stain | None:
    """The nonzero bytes in start … end − 1; None if there are none.

    A disk writes whole sectors: a torn write leaves a record at `start` or at a sector boundary, or
    fills a large part of a sector. Anything sparser is called stray.
    """
    first = last = -1
    stray = False
    head = int.from_bytes(file.pread(4, start), "big", signed=True)
    for begin, stop in file.stretches(start, end):
        for offset in range(begin, stop, step):
            data = np.frombuffer(file.pread(min(step, stop - offset), offset), np.uint8)
            if len(data) % 8 == 0 and not data.view(np.uint64).any():
                continue
            places = np.flatnonzero(data) + offset
            if not len(places):
                continue
            first = int(places[0]) if first < 0 else first
            last = int(places[-1])
            sectors, counts = np.unique(places // SECTOR, return_counts=True)
            lowest = places[np.searchsorted(places, sectors * SECTOR)]
            own = sectors == start // SECTOR
            plausible = np.where(
                own, head in (ENTRY_MAGIC, BLANK_MAGIC), lowest == sectors * SECTOR
            )
            stray = stray or bool(((counts < _STRAY_MAX) & ~plausible).any())
    return None if first < 0 else Stain(first, last, stray)


def last_nonzero(file: AnyFile, length: int, step: int = 1 << 20) -> int:
    """The place of the last nonzero byte of a file; −1 if there is none."""
    for begin, stop in reversed(list(file.stretches(0, length))):
        while stop > begin:
            start = max(begin, stop - step)
            data = np.frombuffer(file.pread(stop - start, start), np.uint8)
            places = np.flatnonzero(data)
            if len(places):
                return start + int(places[-1])
            stop = start
    return -1


def read_space(directory: str, file_bytes: int, start: int, end: int) -> bytes:
    """Bytes start … end − 1 of a sequence of equally long files named by offset; shorter if a file
    is missing or short."""
    parts: list[bytes] = []
    while start < end:
        base = start - start % file_bytes
        stop = min(end, base + file_bytes)
        try:
            data = read_at(f"{directory}/{base:020d}", start - base, stop - start)
        except FileNotFoundError:
            break
        parts.append(data)
        if len(data) < stop - start:
            break
        start = stop
    return b"".join(parts)


def numbered_files(directory: str) -> list[tuple[int, str]]:
    """The files of a directory whose name is an offset of 20 digits, in order."""
    return sorted(
        (int(name), name)
        for name in names_in(directory)
        if len(name) == 20 and name.isascii() and name.isdigit()
    )


# -------------------------------------------------------------------------------------------------------------- columns


def gather(window: bytes, offsets: I64) -> NDArray[np.void]:
    """Header and fixed record part of the entries at `offsets`, all of which must lie inside the
    window."""
    data = np.frombuffer(window, np.uint8)
    strided = np.lib.stride_tricks.as_strided(
        data, (len(data) - PREFIX.itemsize + 1, PREFIX.itemsize), (1, 1), writeable=False
    )
    rows: NDArray[np.void] = strided[offsets].view(PREFIX)[:, 0]
    return rows


def chain_inputs(rows: NDArray[np.void], body_crcs: NDArray[np.uint32]) -> bytes:
    """For each entry the 40 bytes that its chain CRC covers: header[0:36] and the actual CRC of its
    body."""
    inputs = np.empty((len(rows), 40), np.uint8)
    inputs[:, :36] = rows.view(np.uint8).reshape(len(rows), PREFIX.itemsize)[:, :36]
    inputs[:, 36:] = body_crcs.astype(">u4").view(np.uint8).reshape(len(rows), 4)
    return inputs.tobytes()


def body_crcs(window: bytes, offsets: I64, sizes: I64) -> NDArray[np.uint32]:
    """The recomputed CRCs of the bodies of the entries at `offsets`."""
    view = memoryview(window)
    bodies = np.stack((offsets + HEADER_BYTES, offsets + sizes), axis=1)
    return np.array([crc32c(view[start:end]) for start, end in bodies.tolist()], np.uint32)


def chain_crcs(inputs: bytes, before: Sequence[int]) -> I64:
    """The recomputed chain CRCs of entries with these `chain_inputs`, each from the value before
    it."""
    view = memoryview(inputs)
    return np.array(
        [crc32c(view[40 * at : 40 * at + 40], start) for at, start in enumerate(before)], np.int64
    )


@lru_cache(maxsize=65536)
def tags_code(tag: bytes) -> int:
    """Java's String.hashCode over the UTF-16 code units of the tag."""
    units = np.frombuffer(tag.decode("utf-8", "replace").encode("utf-16-be"), ">u2")
    value = 0
    for unit in units.tolist():
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def properties_are_whole(text: bytes) -> bool:
    """Whether a property string is a sequence of name 01 value 02; the empty string is."""
    return not text or (
        text[-1] == 2
        and all(part.count(b"\x01") == 1 and part[0] != 1 for part in text[:-1].split(b"\x02"))
    )


# ------------------------------------------------------------------------------------------------------- small files


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a two-slot file: its number, its state, and its fields."""

    number: int
    state: str  # intact, empty, damaged
    sequence: int
    fields: tuple[Any, ...]


MARK = (b"LMSM", struct.Struct(">36siqqqI"))
"""log id, zero, term, index, end position, chain CRC"""
HARD_STATE = (b"LMHS", struct.Struct(">qi64s"))
"""term, length of the vote, vote"""
SLOT_FILE_BYTES = 2 * PAGE
_SLOT_HEAD = struct.Struct(">4siQ")


def slot_bytes(kind: tuple[bytes, struct.Struct]) -> int:
    return _SLOT_HEAD.size + kind[1].size + 4


def read_slots(data: bytes, kind: tuple[bytes, struct.Struct]) -> list[Slot]:
    """Both slots of a two-slot file."""
    magic, body = kind
    slots = []
    for number in (0, 1):
        raw = data[number * PAGE : number * PAGE + slot_bytes(kind)]
        if len(raw) < slot_bytes(kind) or not any(raw):
            slots.append(
                Slot(number, "empty" if len(raw) == slot_bytes(kind) else "damaged", 0, ())
            )
            continue
        magic_word, version, sequence = _SLOT_HEAD.unpack_from(raw)
        fields = body.unpack_from(raw, _SLOT_HEAD.size)
        intact = (
            magic_word == magic
            and version == 1
            and int.from_bytes(raw[-4:], "big") == crc(raw[:-4])
            and _can_be(kind, fields)
        )
        slots.append(Slot(number, "intact" if intact else "damaged", sequence, fields))
    return slots


def _can_be(kind: tuple[bytes, struct.Struct], fields: tuple[Any, ...]) -> bool:
    """Whether the content of a slot is valid: a vote is text with zeros behind its length, the word
    behind the mark's log id is zero."""
    if kind == MARK:
        return bool(fields[0].isascii()) and fields[1] == 0
    length, vote = fields[1:]
    try:
        name = vote[: max(length, 0)].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return length == len(vote[:length]) and not any(vote[length:]) and "\0" not in name


def current(slots: Sequence[Slot]) -> Slot | None:
    """The current slot: the intact one with the highest sequence number."""
    return max(
        (slot for slot in slots if slot.state == "intact"),
        key=lambda slot: slot.sequence,
        default=None,
    )


def read_sealed_json(path: str) -> dict[str, Any] | None:
    """A JSON file with a checksum, decoded as `sealed_json`; None also if the file does not exist.
    Raises OSError."""
    raw = read_if_there(path)
    return None if raw is None else sealed_json(raw)


def sealed_json(raw: bytes) -> dict[str, Any] | None:
    """A JSON object with a checksum, without the checksum; None if the checksum or the exact form
    is wrong."""
    try:
        value = json.loads(raw)
    except NOT_JSON:
        return None
    if not isinstance(value, dict) or raw != _compact(value):
        return None
    claimed = value.pop("crc32c", None)
    return value if claimed == crc(_compact(value)) else None


def _compact(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


SNAPSHOT, OLDER_SNAPSHOT = "state/snapshot", "state/snapshot.previous"
SNAPSHOTS_AS_READ = OLDER_SNAPSHOT, SNAPSHOT
"""The order in which the two generations are read. A node may replace both meanwhile: read so, the
older one is never ahead of the other."""


def log_checkpoint(raw: bytes) -> tuple[int, int] | None:
    """(endIndex, committedIndex); None if the text has any other form."""
    match = LOG_CHECKPOINT.fullmatch(raw)
    if match is None:
        return None
    end_index, committed_index = match.groups()
    return int(end_index), int(committed_index)
