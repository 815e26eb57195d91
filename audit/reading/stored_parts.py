"""What lies in an object store beside log files and their manifests (docs/format.md §21): index
parts, and what nodes stored of their definitions. Decoded independently of the nodes. Nothing of it
is judged here.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass

from ledgermq.audit.reading.decode import sealed_json
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.node_paths import STORE
from ledgermq.audit.reading.objects import listing, read_object

ROW, BLOCK_ROWS, HASH = 12, 4096, 32
DEFINITIONS = "controller"


@dataclass(frozen=True, slots=True)
class Definitions:
    """What a node stored of its definitions. `cluster_id`: None if the object is damaged."""

    key: str
    size: int
    cluster_id: str | None


def find_definitions() -> list[Definitions]:
    """Raises StoreLost."""
    definitions = []
    for key, size in sorted(listing(DEFINITIONS).items()):
        if key.count("/") == 1 and key.endswith(".json"):
            try:
                definitions.append(Definitions(key, size, _cluster_in(read_object(key))))
            except FileNotFoundError:
                # It was removed since it was listed.
                continue
    return definitions


def _cluster_in(raw: bytes) -> str | None:
    value = sealed_json(raw) or {}
    files, cluster_id = value.get("files"), value.get("cluster_id")
    if (
        value.get("v") != 1
        or not isinstance(cluster_id, str)
        or type(value.get("made_ms")) is not int
        or not isinstance(files, dict)
    ):
        return None
    try:
        for content in files.values():
            zlib.decompress(base64.b64decode(content))
    except (TypeError, ValueError, zlib.error):
        return None
    return cluster_id


@dataclass(frozen=True, slots=True)
class WrongPart:
    """What is wrong with an index part: the object, its first wrong bytes, and why."""

    key: str
    start: int
    end: int
    proof: str


def wrong_index(log_key: str) -> WrongPart | None:
    """What is wrong with the index part of a stored log file; None if nothing is, or if the file
    has none: older programs made none, and total retention may have removed it. Raises
    StoreLost."""
    stem = log_key.removesuffix(".log")
    head = f"{stem}.index"
    try:
        raw = read_object(head)
    except FileNotFoundError:
        return None
    value = sealed_json(raw)
    try:
        if value is None or value["v"] != 1:
            return WrongPart(head, 0, len(raw), "it does not have its checksum, or not its fields")
        chunks, blocks, size = (
            bytes.fromhex(value["chunks"]),
            bytes.fromhex(value["blocks"]),
            (value["rows"] + value["keys"]) * ROW,
        )
        sha256 = stem.rpartition("-")[2]
        if value["sha256"] != sha256 or hashlib.sha256(chunks).hexdigest() != sha256:
            return WrongPart(
                head,
                0,
                len(raw),
                f"its chunks are those of another file than the one with SHA-256 {sha256[:16]}…",
            )
        if len(blocks) != HASH * -(-size // (ROW * BLOCK_ROWS)):
            return WrongPart(
                head, 0, len(raw), f"it has {len(blocks) // HASH} digests for {size // ROW} rows"
            )
    except (KeyError, TypeError, ValueError) as error:
        return WrongPart(head, 0, len(raw), f"it lacks fields, or has unknown ones ({error!r})")
    return _wrong_rows(head, f"{stem}.rows", blocks, size)


def _wrong_rows(head: str, rows: str, blocks: bytes, size: int) -> WrongPart | None:
    """The first block of rows that does not have its digest."""
    step = ROW * BLOCK_ROWS
    if not size:
        return None
    try:
        file = open_file(f"{STORE}{rows}")
    except FileNotFoundError:
        try:
            read_object(head)
        except FileNotFoundError:
            # Total retention removes the head first.
            return None
        return WrongPart(rows, 0, size, f"it does not exist, and its head names {size // ROW} rows")
    for number in range(len(blocks) // HASH):
        start, end = number * step, min((number + 1) * step, size)
        data = file.pread(end - start, start)
        if hashlib.sha256(data).digest() != blocks[number * HASH : (number + 1) * HASH]:
            return WrongPart(
                rows, start, end, f"block {number} does not have the SHA-256 that its head names"
            )
    return None
