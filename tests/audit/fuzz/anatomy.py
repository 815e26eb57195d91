"""Where what lies in an undamaged data directory: every field of every entry, every unit, every
slot, every small file, as spots.

The fuzzer's own reading of docs/format.md, which may take for granted that what it reads is whole.
Nothing is changed here, and nothing of the product or of the auditor is used: a place that both got
wrong would else be right.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.audit.fuzz.clusters import Image

HEADER = (
    ("magic", 4),
    ("size", 4),
    ("index", 8),
    ("term", 8),
    ("pos", 8),
    ("channel", 4),
    ("chain-crc", 4),
    ("body-crc", 4),
    ("body-size", 4),
)
RECORD = (
    ("total-size", 4),
    ("magic", 4),
    ("crc", 4),
    ("queue", 4),
    ("flag", 4),
    ("queue-offset", 8),
    ("position", 8),
    ("sysflag", 4),
    ("born-time", 8),
    ("born-host", 8),
    ("store-time", 8),
    ("store-host", 8),
    ("reconsume-times", 4),
    ("origin", 8),
    ("body-length", 4),
)
FIXED = tuple((f"header {name}", width) for name, width in HEADER) + tuple(
    (f"record {name}", width) for name, width in RECORD
)
BODY_AT = sum(width for _, width in FIXED)
UNIT, QUEUE_UNIT, PAGE = 32, 20, 4096
MARK_BYTES, HARD_STATE_BYTES = 88, 96


@dataclass(frozen=True, slots=True)
class Spot:
    """Bytes `start` … `stop` − 1 of a file, of which `kind` says what they are. `index`: the entry
    they belong to or speak of."""

    kind: str
    path: str
    start: int
    stop: int
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it stands in its file."""

    index: int
    term: int
    path: str
    at: int
    size: int
    topic: str
    queue: int
    queue_offset: int
    chain: int


@dataclass(slots=True)
class Anatomy:
    """One replica of an image."""

    node: str
    root: str
    log: str
    identity: dict[str, Any]
    entries: list[Entry] = field(default_factory=list)
    blanks: list[tuple[str, int]] = field(default_factory=list)
    spots: dict[str, list[Spot]] = field(default_factory=lambda: defaultdict(list))
    end: tuple[str, int] = ("", 0)
    """The log file that holds the last entry, and the place behind it."""

    @property
    def data_bytes(self) -> int:
        return int(self.identity["data_file_bytes"])

    def put(self, kind: str, path: str, start: int, stop: int, index: int | None = None) -> None:
        if stop > start:
            self.spots[kind].append(Spot(kind, path, start, stop, index))


def anatomies(image: Image) -> list[Anatomy]:
    """Of every replica, by node."""
    roots = sorted(
        path.removesuffix("/identity.json") for path in image if path.endswith("/identity.json")
    )
    return [_anatomy(image, root) for root in roots]


def _anatomy(image: Image, root: str) -> Anatomy:
    node = root.partition("/")[0]
    found = Anatomy(
        node, root, f"{root}/dledger-{node}", json.loads(image[f"{root}/identity.json"])
    )
    _log(found, image)
    _index(found, image)
    _queues(found, image)
    _small(found, image)
    _keys(found, image)
    return found


def numbered(image: Image, folder: str) -> list[str]:
    return sorted(path for path in image if re.fullmatch(re.escape(folder) + r"/\d{20}", path))


def _log(found: Anatomy, image: Image) -> None:
    files = numbered(image, f"{found.log}/data")
    for path in files:
        data, at = image[path], 0
        while at + 8 <= len(data):
            magic, size = struct.unpack_from(">ii", data, at)
            if magic != 1:
                break
            _entry(found, path, data, at, size)
            at += size
            found.end = path, at
        if magic == -1:
            found.blanks.append((path, at))
            found.put("blank head", path, at, at + 8, found.entries[-1].index + 1)
            found.put("blank fill", path, at + 8, len(data), found.entries[-1].index + 1)
    path, at = found.end
    found.put("log tail", path, at, len(image[path]))
    for later in files[files.index(path) + 1 :]:
        found.put("log tail", later, 0, len(image[later]))
    for path in files:
        found.put("log file", path, 0, len(image[path]))


def _entry(found: Anatomy, path: str, data: bytes, at: int, size: int) -> None:
    index, term = struct.unpack_from(">qq", data, at + 8)
    place = at
    for name, width in FIXED:
        found.put(name, path, place, place + width, index)
        place += width
    body = struct.unpack_from(">i", data, at + BODY_AT - 4)[0]
    wide = data[at + 52 : at + 56] == b"\xda\xa3\x20\xab"
    topic_at = place + body
    width = 2 if wide else 1
    length = int.from_bytes(data[topic_at : topic_at + width], "big")
    found.put("record body", path, place, topic_at, index)
    found.put("record topic", path, topic_at, topic_at + width + length, index)
    found.put("record properties", path, topic_at + width + length, at + size, index)
    topic = data[topic_at + width : topic_at + width + length].decode()
    queue, queue_offset = (
        struct.unpack_from(">i", data, at + 60)[0],
        struct.unpack_from(">q", data, at + 68)[0],
    )
    found.entries.append(
        Entry(
            index,
            term,
            path,
            at,
            size,
            topic,
            queue,
            queue_offset,
            struct.unpack_from(">I", data, at + 36)[0],
        )
    )


def _index(found: Anatomy, image: Image) -> None:
    file_bytes = int(found.identity["index_file_bytes"])
    files = numbered(image, f"{found.log}/index")
    for entry in found.entries:
        base, at = divmod(entry.index * UNIT, file_bytes)
        path = f"{found.log}/index/{base * file_bytes:020d}"
        for name, start, stop in (
            ("magic", 0, 4),
            ("pos", 4, 12),
            ("size", 12, 16),
            ("index", 16, 24),
            ("term", 24, 32),
        ):
            found.put(f"index {name}", path, at + start, at + stop, entry.index)
    end = (found.entries[-1].index + 1) * UNIT
    for path in files:
        base = int(path[-20:])
        found.put("index tail", path, max(end - base, 0), file_bytes)
        found.put("index file", path, 0, file_bytes)


def _queues(found: Anatomy, image: Image) -> None:
    file_bytes = int(found.identity["consume_queue_file_bytes"])
    applied = _applied(found, image)
    ends: dict[str, int] = {}
    for entry in found.entries:
        folder = f"{found.root}/consumequeue/{entry.topic}/{entry.queue}"
        if entry.index > applied:
            continue
        base, at = divmod(entry.queue_offset * QUEUE_UNIT, file_bytes)
        path = f"{folder}/{base * file_bytes:020d}"
        ends[folder] = (entry.queue_offset + 1) * QUEUE_UNIT
        for name, start, stop in (("position", 0, 8), ("size", 8, 12), ("tags code", 12, 20)):
            found.put(f"queue {name}", path, at + start, at + stop, entry.index)
    for folder, end in sorted(ends.items()):
        for path in numbered(image, folder):
            found.put("queue tail", path, max(end - int(path[-20:]), 0), file_bytes)
            found.put("queue file", path, 0, file_bytes)


def _applied(found: Anatomy, image: Image) -> int:
    text = image.get(f"{found.root}/state/snapshot")
    return -1 if text is None else int(json.loads(text)["applied_index"])


SMALL = {
    "snapshot": "{root}/state/snapshot",
    "older snapshot": "{root}/state/snapshot.previous",
    "identity": "{root}/identity.json",
    "node": "{node}/node.json",
    "peers": "{root}/state/peers.json",
    "boots": "{root}/state/boots.json",
    "begin": "{log}/begin",
    "store checkpoint fill": "{root}/checkpoint",
    "log checkpoint": "{log}/checkpoint",
}


def _small(found: Anatomy, image: Image) -> None:
    places = {"root": found.root, "node": found.node, "log": found.log}
    for kind, pattern in SMALL.items():
        path = pattern.format(**places)
        if path in image:
            found.put(kind, path, 24 if kind == "store checkpoint fill" else 0, len(image[path]))
    for kind, used in (("mark", MARK_BYTES), ("hardstate", HARD_STATE_BYTES)):
        path = f"{found.log}/{'syncedmark' if kind == 'mark' else kind}"
        for slot in range(2):
            found.put(f"{kind} slot", path, slot * PAGE, slot * PAGE + used)
            found.put(f"{kind} fill", path, slot * PAGE + used, (slot + 1) * PAGE)
        found.put(f"{kind} file", path, 0, 2 * PAGE)


def _keys(found: Anatomy, image: Image) -> None:
    """The key index: what its position says of each file, and where its slots and units lie."""
    path = f"{found.root}/state/keyindex"
    if path not in image:
        return
    found.put("key position", path, 0, len(image[path]))
    for name, slots, units, _, _, count, *_ in json.loads(image[path])["files"]:
        file, first = f"{found.root}/index/{name}", 40 + 4 * slots
        found.put("key header", file, 0, 40)
        for number in range(slots):
            found.put("key slot", file, 40 + 4 * number, 44 + 4 * number)
        for number in range(1, count):
            found.put(
                "key unit", file, first + QUEUE_UNIT * number, first + QUEUE_UNIT * (number + 1)
            )
        found.put("key tail", file, first + QUEUE_UNIT * count, first + QUEUE_UNIT * units)
        found.put("key file", file, 0, len(image[file]))
        bloom = f"{found.root}/state/bloom/{name}"
        if bloom in image:
            found.put("key filter", bloom, 0, len(image[bloom]))


def everything(found: list[Anatomy]) -> Iterator[str]:
    """The kinds of spots that any of these replicas has."""
    yield from sorted({kind for one in found for kind in one.spots})
