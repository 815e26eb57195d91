"""Consistent logs with another history: entries are omitted, repeated, exchanged, invented or
altered, and everything else is adjusted: positions, both CRCs, index units, consume queue units,
the synced mark.

A faulty writer or a forger leaves such a log; no checksum detects it. There are two degrees: `kept`
keeps the index and queue offset of every entry, so the log contradicts itself; `renumbered` counts
them anew, so only the other replicas differ. The module has its own writer of docs/format.md.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import crc32c

from tests.audit.fuzz.anatomy import PAGE, QUEUE_UNIT, UNIT, Anatomy, Entry, numbered
from tests.audit.fuzz.clusters import Image
from tests.audit.fuzz.damage import (
    DERIVED,
    DIVERGENCE,
    EXTRA,
    MISSING,
    REORDERED,
    Changes,
    Mutation,
)

MIRRORED = {MISSING: EXTRA, EXTRA: MISSING}
"""An entry that the majority lacks is an extra entry of the minority."""


@dataclass(frozen=True, slots=True)
class Raw:
    """An entry before it gets its position."""

    entry: Entry
    channel: int
    record: bytes
    tags_code: bytes
    filed: bool


Edit = Callable[[random.Random, list[Raw], int], list[Raw] | None]


def _drop(rng: random.Random, raws: list[Raw], at: int) -> list[Raw] | None:
    """Omit an entry, but not the last one: a log without it would only lag."""
    if at + 1 == len(raws):
        return None
    return raws[:at] + raws[at + 1 :]


def _repeat(rng: random.Random, raws: list[Raw], at: int) -> list[Raw] | None:
    """Repeat an entry, but not the last one: the other replicas could have lost the copy."""
    if at + 1 == len(raws):
        return None
    return [*raws[: at + 1], *raws[at:]]


def _exchange(rng: random.Random, raws: list[Raw], at: int) -> list[Raw] | None:
    if (
        at + 1 >= len(raws)
        or raws[at].entry.term != raws[at + 1].entry.term
        or raws[at].record == raws[at + 1].record
    ):
        return None
    return [*raws[:at], raws[at + 1], raws[at], *raws[at + 2 :]]


def _alter(rng: random.Random, raws: list[Raw], at: int) -> list[Raw] | None:
    """Alter the body and adjust BODYCRC; only for messages, whose bodies are not parsed as JSON."""
    one = raws[at]
    length = struct.unpack_from(">i", one.record, 84)[0]
    if not length or one.entry.topic.startswith("rmq_sys_"):
        return None
    body = bytearray(one.record[88 : 88 + length])
    body[rng.randrange(length)] ^= rng.randrange(1, 256)
    crc = struct.pack(">i", zlib.crc32(body) & 0x7FFFFFFF)
    record = one.record[:8] + crc + one.record[12:88] + bytes(body) + one.record[88 + length :]
    return [*raws[:at], replace(one, record=record), *raws[at + 1 :]]


EDITS: dict[str, tuple[Edit, str]] = {
    "entry left out": (_drop, MISSING),
    "entry repeated": (_repeat, EXTRA),
    "entries exchanged": (_exchange, REORDERED),
    "entry altered": (_alter, DIVERGENCE),
}


def raws_of(image: Image, one: Anatomy) -> list[Raw]:
    units = {spot.index: spot for spot in one.spots["queue tags code"]}
    found = []
    for entry in one.entries:
        data = image[entry.path][entry.at : entry.at + entry.size]
        unit = units.get(entry.index)
        code = bytes(8) if unit is None else image[unit.path][unit.start : unit.stop]
        found.append(
            Raw(entry, struct.unpack_from(">i", data, 32)[0], data[48:], code, unit is not None)
        )
    return found


def rewrite(
    rng: random.Random, image: Image, one: Anatomy, name: str, at: int, *, renumbered: bool
) -> tuple[Changes, list[Mutation]] | None:
    """Make the edit at the entry `at` of a replica. Returns None if it is not possible there."""
    edit, klass = EDITS[name]
    if (
        one.entries[0].index
        or len(one.entries) < 4
        or one.entries[at].index > _committed(image, one)
    ):
        # Uncommitted entries may be replaced.
        return None
    raws = edit(rng, raws_of(image, one), at)
    if raws is None:
        return None
    changes, places = _lay(image, one, raws, renumbered=renumbered)
    path, start, stop = places[min(at + (edit is _repeat), len(places) - 1)]
    classes = (
        frozenset({klass, DIVERGENCE})
        if renumbered
        else frozenset({klass, MISSING, EXTRA, DERIVED})
    )
    return changes, [Mutation(one.node, path, start, stop, classes)]


def _lay(
    image: Image, one: Anatomy, raws: list[Raw], *, renumbered: bool
) -> tuple[Changes, list[tuple[str, int, int]]]:
    """Write everything that follows from the entries in their order. Also returns the position of
    each entry."""
    size = one.data_bytes
    space, index, queues, places = bytearray(), bytearray(), dict[tuple[str, int], bytearray](), []
    chain = crc32c.crc32c(one.identity["log_id"].encode())
    offsets: dict[tuple[str, int], int] = {}
    number = 0
    for number, raw in enumerate(raws):
        length = 48 + len(raw.record)
        rest = size - len(space) % size
        if length + 8 > rest:
            space += struct.pack(">ii", -1, rest) + bytes(rest - 8)
        key, pos = (raw.entry.topic, raw.entry.queue), len(space)
        offset = offsets.get(key, 0) if renumbered else raw.entry.queue_offset
        offsets[key] = offset + 1
        entry_index = number if renumbered else raw.entry.index
        record = raw.record[:20] + struct.pack(">qq", offset, pos + 48) + raw.record[36:]
        head = struct.pack(">iiqqqi", 1, length, entry_index, raw.entry.term, pos, raw.channel)
        body_crc = crc32c.crc32c(record)
        chain = crc32c.crc32c(head + struct.pack(">I", body_crc), chain)
        space += head + struct.pack(">IIi", chain, body_crc, len(record)) + record
        places.append((f"{one.log}/data/{pos - pos % size:020d}", pos % size, pos % size + length))
        _put(
            index,
            entry_index * UNIT,
            struct.pack(">iqiqq", 1, pos, length, entry_index, raw.entry.term),
        )
        if raw.filed:
            _put(
                queues.setdefault(key, bytearray()),
                offset * QUEUE_UNIT,
                struct.pack(">qi", pos + 48, len(record)) + raw.tags_code,
            )
    last = raws[-1].entry.term, number if renumbered else raws[-1].entry.index, len(space), chain
    changes: Changes = {}
    _files(image, changes, f"{one.log}/data", bytes(space), size)
    _files(image, changes, f"{one.log}/index", bytes(index), int(one.identity["index_file_bytes"]))
    for (topic, queue), data in queues.items():
        _files(
            image,
            changes,
            f"{one.root}/consumequeue/{topic}/{queue}",
            bytes(data),
            int(one.identity["consume_queue_file_bytes"]),
        )
    changes[f"{one.log}/syncedmark"] = slot(
        b"LMSM", one.identity["log_id"].encode() + struct.pack(">iqqqI", 0, *last)
    )
    changes[f"{one.log}/checkpoint"] = (
        f"endIndex={last[1]}\ncommittedIndex={min(last[1], _committed(image, one))}\n".encode()
    )
    derived = [
        path for path in image if path.startswith((f"{one.root}/index/", f"{one.root}/state/"))
    ]
    changes |= dict.fromkeys(
        (path for path in derived if not path.endswith((".json", "reserve"))), None
    )
    return changes, places


def _committed(image: Image, one: Anatomy) -> int:
    """The committed index according to the log checkpoint."""
    return int(image[f"{one.log}/checkpoint"].split(b"=")[-1])


def _put(space: bytearray, at: int, unit: bytes) -> None:
    space += bytes(max(0, at + len(unit) - len(space)))
    space[at : at + len(unit)] = unit


def _files(image: Image, changes: Changes, folder: str, data: bytes, size: int) -> None:
    names = {
        *numbered(image, folder),
        *(f"{folder}/{base:020d}" for base in range(0, len(data), size)),
    }
    for path in names:
        base = int(path[-20:])
        changes[path] = data[base : base + size].ljust(size, b"\0")


def slot(magic: bytes, body: bytes, sequence: int = 1) -> bytes:
    """A two-slot file with one value."""
    head = magic + struct.pack(">iQ", 1, sequence) + body
    return (head + struct.pack(">I", crc32c.crc32c(head))).ljust(PAGE, b"\0") + bytes(PAGE)


def sealed(value: dict[str, object]) -> bytes:
    """A JSON file with its checksum."""
    plain = {key: part for key, part in value.items() if key != "crc32c"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(
        {**plain, "crc32c": crc32c.crc32c(text)}, sort_keys=True, separators=(",", ":")
    ).encode()
