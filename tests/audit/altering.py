"""Alters entries and recomputes their checksums up to a chosen level, on clusters of the auditor's
test writer."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator
from itertools import combinations
from pathlib import Path

from tests.audit.log_writer import Placed, Writer, checksum

HEADER, RECORD_CRC, LENGTH, BODY = 48, 8, 84, 88
CHAIN_AT, BODY_CRC_AT = 36, 40
LEVELS = ("record", "body", "chain", "later")
"""Checksums to recompute: the record's BODYCRC, the header's bodyCrc, the chain CRC of this entry,
and those of all later entries."""
PLACES = {
    "body": HEADER + BODY,
    "queue offset": HEADER + 27,
    "term": 23,
    "channel": 35,
    "bodyCrc": 43,
    "chainCrc": 39,
}
"""The offset of the altered byte within an entry."""


def levels() -> Iterator[tuple[str, ...]]:
    """All sets of checksums that can be recomputed; later chain CRCs require that of this entry."""
    for count in range(len(LEVELS) + 1):
        yield from (
            chosen
            for chosen in combinations(LEVELS, count)
            if "later" not in chosen or "chain" in chosen
        )


def log_bytes(writer: Writer) -> bytearray:
    """The bytes of all log files of a replica."""
    return bytearray(
        b"".join(path.read_bytes() for path in sorted((writer.log / "data").iterdir()))
    )


def put_log(writer: Writer, space: bytes) -> None:
    """Write back what `log_bytes` read."""
    for path in sorted((writer.log / "data").iterdir()):
        path.write_bytes(space[int(path.name) : int(path.name) + writer.data_bytes])


def alter(writer: Writer, entry: Placed, place: str, right: Collection[str]) -> set[int]:
    """Alter one byte of an entry and recompute the checksums in `right`. Returns the changed
    positions in the log."""
    space = log_bytes(writer)
    before = bytes(space)
    at = entry.pos
    space[at + PLACES[place]] ^= 1
    if "record" in right:
        length = struct.unpack_from(">i", space, at + HEADER + LENGTH)[0]
        body = bytes(space[at + HEADER + BODY : at + HEADER + BODY + length])
        struct.pack_into(">I", space, at + HEADER + RECORD_CRC, zlib.crc32(body) & 0x7FFFFFFF)
    if "body" in right:
        struct.pack_into(
            ">I", space, at + BODY_CRC_AT, checksum(bytes(space[at + HEADER : at + entry.size]))
        )
    chain = writer.entries[entry.index - 1].chain if entry.index else writer.seed
    for each in (
        writer.entries[entry.index :] if "later" in right else [entry] if "chain" in right else []
    ):
        chain = checksum(
            bytes(space[each.pos : each.pos + CHAIN_AT])
            + space[each.pos + BODY_CRC_AT : each.pos + BODY_CRC_AT + 4],
            chain,
        )
        struct.pack_into(">I", space, each.pos + CHAIN_AT, chain)
    put_log(writer, space)
    return {place for place in range(len(space)) if space[place] != before[place]}


def file_of(writer: Writer, pos: int) -> Path:
    return writer.log / "data" / f"{pos - pos % writer.data_bytes:020d}"
