"""Making damage consistent: everything that docs/format.md says is a function of other bytes,
computed again for bytes that were changed.

Each function is one level: it writes what belongs to it into the files of one replica, whatever the
other levels did before. The code is written from docs/format.md with `struct`, `zlib` and the
CRC-32C package; it shares nothing with the product or the auditor.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c

from tests.audit.fuzz.anatomy import (
    BODY_AT,
    HARD_STATE_BYTES,
    MARK_BYTES,
    PAGE,
    QUEUE_UNIT,
    UNIT,
    Anatomy,
    Entry,
)
from tests.audit.fuzz.clusters import Image

CHUNK = 1 << 20


@dataclass(slots=True)
class Files:
    """The files of one replica while they are changed."""

    image: Image
    one: Anatomy
    changed: dict[str, bytearray] = field(default_factory=dict)

    def __getitem__(self, path: str) -> bytes | bytearray:
        return self.changed.get(path, self.image.get(path, b""))

    def edit(self, path: str) -> bytearray:
        if path not in self.changed:
            self.changed[path] = bytearray(self.image[path])
        return self.changed[path]

    def replace(self, path: str, data: bytes) -> None:
        if bytes(self[path]) != data:
            self.changed[path] = bytearray(data)

    def put(self, path: str, at: int, data: bytes) -> None:
        if self[path][at : at + len(data)] != data:
            self.edit(path)[at : at + len(data)] = data

    def word(self, path: str, at: int) -> int:
        return int.from_bytes(self[path][at : at + 4], "big")

    @property
    def changes(self) -> dict[str, bytes | None]:
        """What differs from the image."""
        return {
            path: bytes(data) for path, data in self.changed.items() if data != self.image.get(path)
        }


Level = Callable[[Files, int], None]
"""Told the row of the entry that was changed."""


def record(files: Files, row: int) -> None:
    """BODYCRC: the CRC-32 of the message's body."""
    entry = files.one.entries[row]
    raw = files[entry.path]
    length = int.from_bytes(
        files.image[entry.path][entry.at + BODY_AT - 4 : entry.at + BODY_AT], "big"
    )
    if length:
        body = raw[entry.at + BODY_AT : entry.at + BODY_AT + length]
        files.put(entry.path, entry.at + 56, struct.pack(">i", zlib.crc32(body) & 0x7FFFFFFF))


def body(files: Files, row: int) -> None:
    """bodyCrc: the CRC-32C of the entry's body."""
    entry = files.one.entries[row]
    raw = files[entry.path][entry.at + 48 : entry.at + entry.size]
    files.put(entry.path, entry.at + 40, struct.pack(">I", crc32c.crc32c(bytes(raw))))


def chain(files: Files, row: int) -> None:
    """chainCrc of this entry alone."""
    entry = files.one.entries[row]
    if row:
        before = files.one.entries[row - 1]
        former = files.word(before.path, before.at + 36)
    else:
        begin = files.image.get(f"{files.one.log}/begin")
        former = (
            crc32c.crc32c(files.one.identity["log_id"].encode())
            if begin is None
            else int(json.loads(begin)["chain"])
        )
    head = bytes(
        files[entry.path][entry.at : entry.at + 36]
        + files[entry.path][entry.at + 40 : entry.at + 44]
    )
    files.put(entry.path, entry.at + 36, struct.pack(">I", crc32c.crc32c(head, former)))


def later(files: Files, row: int) -> None:
    """chainCrc of every later entry."""
    for following in range(row + 1, len(files.one.entries)):
        chain(files, following)


def units(files: Files, row: int) -> None:
    """The index unit and the consume queue unit of this entry, at their places."""
    one, entry = files.one, files.one.entries[row]
    raw = files[entry.path][entry.at : entry.at + entry.size]
    magic, size, index, term, pos = struct.unpack_from(">iiqqq", raw)
    base, at = divmod(entry.index * UNIT, int(one.identity["index_file_bytes"]))
    path = f"{one.log}/index/{base * int(one.identity['index_file_bytes']):020d}"
    files.put(path, at, struct.pack(">iqiqq", magic, pos, size, index, term))
    base, at = divmod(
        entry.queue_offset * QUEUE_UNIT, int(one.identity["consume_queue_file_bytes"])
    )
    path = f"{one.root}/consumequeue/{entry.topic}/{entry.queue}/{base * int(one.identity['consume_queue_file_bytes']):020d}"
    if any(files.image.get(path, b"")[at : at + QUEUE_UNIT]):
        code = bytes(files[path][at + 12 : at + 20])
        tag = _tag(files.image[entry.path][entry.at : entry.at + entry.size], raw)
        files.put(
            path,
            at,
            bytes(raw[76:84] + raw[48:52]) + (code if tag is None else struct.pack(">q", tag)),
        )


def _tag(was: bytes, now: bytes | bytearray) -> int | None:
    """The hash of the tag, if it is another one."""
    at = was.rfind(b"TAGS\x01")
    if at < 0 or was.find(b"TIMER_OUT_MS\x01") >= 0:
        return None
    value = bytes(now[at + 5 : was.find(b"\x02", at)])
    text = value.decode("utf-8", "replace").encode("utf-16-be")
    found = 0
    for place in range(0, len(text), 2):
        found = (31 * found + int.from_bytes(text[place : place + 2], "big")) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


def ends(files: Files, row: int) -> None:
    """What repeats a chain CRC or a term beside the log: synced mark, snapshots, position of the
    key index; each with its own checksum."""
    one = files.one
    points = {entry.index: (entry.path, entry.at) for entry in one.entries}

    def of(index: int) -> tuple[int, int] | None:
        if index not in points:
            return None
        path, at = points[index]
        return int.from_bytes(files[path][at + 16 : at + 24], "big", signed=True), files.word(
            path, at + 36
        )

    mark = f"{one.log}/syncedmark"
    for at in (0, PAGE):
        found = (
            of(struct.unpack_from(">q", files[mark], at + 64)[0])
            if any(files[mark][at : at + 4])
            else None
        )
        if found is not None:
            files.put(mark, at + 56, struct.pack(">q", found[0]))
            files.put(mark, at + 80, struct.pack(">I", found[1]))
            slot_crc(files, mark, at, MARK_BYTES)
    for name in ("state/snapshot", "state/snapshot.previous", "state/keyindex"):
        path = f"{one.root}/{name}"
        value = _parsed(files[path])
        if value is None:
            continue
        key = name == "state/keyindex"
        index = value["next"] - 1 if key else value["applied_index"]
        found = of(index) if isinstance(index, int) else None
        if found is not None:
            value |= (
                {"chain": found[1]} if key else {"chain_crc": found[1], "applied_term": found[0]}
            )
            files.replace(path, sealed(value))


def noted(files: Files, row: int) -> None:
    """The digests and the roots that the node noted of its own complete files."""
    path = f"{files.one.root}/state/digests"
    value = json.loads(files.image[path])
    for name, made in (("digests", _digest), ("roots", _root)):
        if name in value:
            value[name] = {base: made(files, int(base)) for base in value[name]}
    files.replace(path, sealed(value))


def seals(files: Files, row: int) -> None:
    """The digests and the roots in seal records, and all that follows from other records: CRCs, the
    chain up to the end, the snapshots."""
    one = files.one
    for number, entry, was, _now in seal_records(files):
        base = int(was["base"])
        if (
            f"{one.log}/data/{base:020d}" not in files.image
            or (digest := _digest(files, base)) == was["sha256"]
        ):
            continue
        raw = files.image[entry.path][entry.at : entry.at + entry.size]
        files.put(entry.path, entry.at + raw.index(b'"sha256":"') + 10, digest.encode())
        if "tree" in was:
            files.put(
                entry.path, entry.at + raw.index(b'"root":"') + 8, _root(files, base).encode()
            )
        for level in (record, body, chain, later):
            level(files, number)
    if retained(files):
        ends(files, row)


def retained(files: Files) -> bool:
    """What the snapshots repeat of the seal records, as these are now; whether any of them is
    another one. A record that cannot be read any more leaves the snapshots as they are, and so does
    a root that is none with regard to the leaves."""
    others = [
        (was, now)
        for _number, _entry, was, now in seal_records(files)
        if now is not None and now != was
    ]
    for name in ("snapshot", "snapshot.previous") if others else ():
        path = f"{files.one.root}/state/{name}"
        text = bytes(files[path])
        for was, now in others:
            # A record without its digest, because the name of the field was altered, says nothing
            # about it.
            digest = str(now.get("sha256", was["sha256"]))
            text = text.replace(_as_retained(was), _as_retained(now)).replace(
                was["sha256"].encode(), digest.encode()
            )
        value = _parsed(text)
        if value is None:
            continue
        if "tree" in value["retained"]:
            leaves = base64.b64decode(value["retained"]["tree"]["leaves"])
            for was, now in others:
                leaves = leaves.replace(_leaf(was), _leaf(now))
            value["retained"]["tree"]["leaves"] = base64.b64encode(leaves).decode()
        files.replace(path, sealed(value))
    return bool(others)


def seal_records(
    files: Files,
) -> Iterator[tuple[int, Entry, dict[str, Any], dict[str, Any] | None]]:
    """The row and entry of every seal record, what it said, and what it says now; None if it cannot
    be read any more."""
    for number, entry in enumerate(files.one.entries):
        raw = files.image[entry.path][entry.at : entry.at + entry.size]
        if b"TAGS\x01seal\x02" in raw:
            start, stop = raw.index(b'{"'), raw.rindex(b"}") + 1
            yield (
                number,
                entry,
                json.loads(raw[start:stop]),
                _parsed(files[entry.path][entry.at + start : entry.at + stop]),
            )


def _as_retained(seal: dict[str, Any]) -> bytes:
    """A seal as a snapshot keeps it: without its version."""
    return json.dumps(
        {key: part for key, part in seal.items() if key != "v"},
        sort_keys=True,
        separators=(",", ":"),
    ).encode()


def _leaf(seal: dict[str, Any]) -> bytes:
    """The hash of a sealed file's leaf in the log tree."""
    try:
        root = bytes.fromhex(seal["tree"]["root"])
        places = seal["base"], seal["first"], seal["last"] - seal["first"] + 1, seal["end"]
        return hashlib.sha256(
            b"\0" + struct.pack(">8sQQQQ32s", b"LMQTREE1", *places, root)
        ).digest()
    except (KeyError, TypeError, ValueError, struct.error):
        return b""


def _digest(files: Files, base: int) -> str:
    data = bytes(files[f"{files.one.log}/data/{base:020d}"])
    parts = [hashlib.sha256(data[at : at + CHUNK]).digest() for at in range(0, len(data), CHUNK)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _root(files: Files, base: int) -> str:
    """The root of the tree over the entries of a log file."""
    path = f"{files.one.log}/data/{base:020d}"
    inside = [
        files[path][entry.at : entry.at + entry.size]
        for entry in files.one.entries
        if entry.path == path
    ]
    return _tree([hashlib.sha256(b"\0" + bytes(entry)).digest() for entry in inside]).hex()


def _tree(hashes: Sequence[bytes]) -> bytes:
    """RFC 6962, section 2.1."""
    if len(hashes) == 1:
        return hashes[0]
    split = 1 << (len(hashes) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _tree(hashes[:split]) + _tree(hashes[split:])).digest()


LEVELS: dict[str, Level] = {
    "record": record,
    "body": body,
    "chain": chain,
    "later": later,
    "units": units,
    "ends": ends,
    "noted": noted,
    "seals": seals,
}
"""Of bytes of an entry. Any subset of them, in this order, is a level of consistency."""


# Small files


def slot_crc(files: Files, path: str, at: int, size: int) -> None:
    """The checksum of a slot of the synced mark or the hard state."""
    files.put(
        path,
        at + size - 4,
        struct.pack(">I", crc32c.crc32c(bytes(files[path][at : at + size - 4]))),
    )


def slot_size(path: str) -> int:
    return MARK_BYTES if path.endswith("syncedmark") else HARD_STATE_BYTES


def bloom_crc(files: Files, path: str) -> None:
    """Both checksums of a filter."""
    files.put(path, 16, struct.pack(">I", crc32c.crc32c(bytes(files[path][32:]))))
    files.put(path, 28, struct.pack(">I", crc32c.crc32c(bytes(files[path][:24]))))


def sealed(value: dict[str, Any]) -> bytes:
    """A JSON file with its checksum."""
    plain = {key: part for key, part in value.items() if key != "crc32c"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(
        {**plain, "crc32c": crc32c.crc32c(text)}, sort_keys=True, separators=(",", ":")
    ).encode()


def resealed(data: bytes) -> bytes | None:
    """A JSON file whose text was changed, with the checksum of what it says now; None when it says
    nothing."""
    value = _parsed(data)
    return None if value is None else sealed(value)


def _parsed(data: bytes | bytearray) -> dict[str, Any] | None:
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def packed_texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """The columns of a snapshot that are deflated (or only base64), as (path, bytes)."""
    if isinstance(value, dict):
        for key, part in sorted(value.items()):
            yield from packed_texts(part, (*path, key))
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from packed_texts(part, (*path, at))
    elif isinstance(value, str) and len(value) >= 8:
        try:
            yield path, zlib.decompress(base64.b64decode(value, validate=True))
        except (ValueError, zlib.error):
            return


def with_packed(value: Any, path: tuple[Any, ...], raw: bytes) -> Any:
    """The same value with another column."""
    if not path:
        return base64.b64encode(zlib.compress(raw)).decode()
    if isinstance(value, dict):
        return {**value, path[0]: with_packed(value[path[0]], path[1:], raw)}
    return [
        with_packed(part, path[1:], raw) if at == path[0] else part for at, part in enumerate(value)
    ]


def row_at(one: Anatomy, path: str, at: int) -> int | None:
    """The row of the entry that a byte of a log file belongs to."""
    for row, entry in enumerate(one.entries):
        if _within(entry, path, at):
            return row
    return None


def _within(entry: Entry, path: str, at: int) -> bool:
    return entry.path == path and entry.at <= at < entry.at + entry.size
