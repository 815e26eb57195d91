"""A second, slow encoder of entries, written from docs/format.md with struct only. Tests compare
the vector encoder with it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import crc32c


@dataclass(frozen=True)
class PlainMessage:
    """All values that determine the bytes of an entry, except its place in the chain."""

    topic: str
    queue: int
    body: bytes
    properties: bytes
    born_ms: int
    queue_offset: int
    store_ms: int
    store_host: str = "0.0.0.0:0"
    channel: int = 0
    origin: int = 0
    flag: int = 0
    sysflag: int = 0


def host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return bytes(int(part) for part in address.split(".")) + struct.pack(">i", int(port))


def plain_record(m: PlainMessage, physical_offset: int) -> bytes:
    topic = m.topic.encode()
    v2 = len(topic) > 127
    record = b"".join(
        (
            struct.pack(
                ">Iii", 0xDAA320AB if v2 else 0xDAA320A7, zlib.crc32(m.body) & 0x7FFFFFFF, m.queue
            ),
            struct.pack(">iqqi", m.flag, m.queue_offset, physical_offset, m.sysflag),
            struct.pack(">q", m.born_ms),
            host("0.0.0.0:0"),
            struct.pack(">q", m.store_ms),
            host(m.store_host),
            struct.pack(">iq", 0, m.origin),
            struct.pack(">i", len(m.body)),
            m.body,
            struct.pack(">h" if v2 else ">b", len(topic)),
            topic,
            struct.pack(">h", len(m.properties)),
            m.properties,
        )
    )
    return struct.pack(">i", len(record) + 4) + record


def plain_entry(
    m: PlainMessage, index: int, term: int, pos: int, prev_chain: int
) -> tuple[bytes, int]:
    """The entry and its chain CRC."""
    record = plain_record(m, pos + 48)
    head = struct.pack(">iiqqqi", 1, 48 + len(record), index, term, pos, m.channel)
    body_crc = crc32c.crc32c(record)
    chain = crc32c.crc32c(head + struct.pack(">I", body_crc), prev_chain)
    return head + struct.pack(">IIi", chain, body_crc, len(record)) + record, chain


def plain_entries(
    messages: list[PlainMessage], *, first_index: int, term: int, pos: int, prev_chain: int
) -> tuple[bytes, int]:
    """Consecutive entries, and the chain CRC of the last one."""
    out, chain = b"", prev_chain
    for i, message in enumerate(messages):
        entry, chain = plain_entry(message, first_index + i, term, pos + len(out), chain)
        out += entry
    return out, chain
