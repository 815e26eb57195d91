"""The controller's files of one node as one object in the store (format §21): definitions of
topics, groups and users, which no log holds.

This module reads the files as of one moment, packs and unpacks them. It does not know what they
mean.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, UnknownFormat
from ledgermq.storage.files.mapped_files import UNFINISHED
from ledgermq.storage.files.ports import Disk

VERSION = 1
FILE_BYTES_MAX = 256 << 20
"""No file of the controller comes near this size."""


@dataclass(frozen=True, slots=True)
class ControllerFiles:
    """The files of `node` by name, as of `made_ms`."""

    cluster_id: str
    node: str
    made_ms: int
    files: Mapping[str, bytes]


def read_files(disk: Disk, directory: str) -> dict[str, bytes] | None:
    """The content of every finished file; None if one vanished during the reading."""
    try:
        return {
            name: disk.read_file(f"{directory}/{name}")
            for name in disk.listdir(directory)
            if not name.endswith(UNFINISHED)
        }
    except FileNotFoundError:
        return None


def fingerprint(files: Mapping[str, bytes]) -> str:
    """The same for the same files."""
    summed = hashlib.sha256()
    for name, data in sorted(files.items()):
        summed.update(f"{name} {len(data)} ".encode() + data)
    return summed.hexdigest()


def pack(held: ControllerFiles) -> bytes:
    files = {
        name: base64.b64encode(zlib.compress(data)).decode("ascii")
        for name, data in held.files.items()
    }
    return sealed_json.encode(
        {
            "v": VERSION,
            "cluster_id": held.cluster_id,
            "node": held.node,
            "made_ms": held.made_ms,
            "files": files,
        }
    )


def _inflated(packed: bytes) -> bytes:
    """Raises ValueError. Whoever may write to the store may have written this."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, FILE_BYTES_MAX)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"a file is no whole zlib stream of at most {FILE_BYTES_MAX} bytes")
    return data


def unpack(data: bytes, key: str) -> ControllerFiles:
    """Raises Damaged, UnknownFormat."""
    value = sealed_json.decode(data, key)
    if value.get("v") != VERSION:
        raise UnknownFormat(
            f"{key} was written by another version of LedgerMQ: use the program that wrote it"
        )
    try:
        files = {name: _inflated(base64.b64decode(text)) for name, text in value["files"].items()}
        return ControllerFiles(value["cluster_id"], value["node"], value["made_ms"], files)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise Damaged(f"{key} lacks fields, or has unknown ones ({error})") from error
