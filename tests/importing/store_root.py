"""Writes store roots in RocketMQ's layout with the standard library: plain commit log or DLedger,
optionally damaged.

It shares no code with the reader. Messages are given by keyword; positions, sizes and CRCs are
computed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BORN_MS = 1_700_000_000_000
V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194


def host(text: str, port: int) -> bytes:
    """Address bytes and port."""
    from ipaddress import ip_address

    return ip_address(text).packed + port.to_bytes(4, "big")


@dataclass(frozen=True)
class Put:
    """One message."""

    topic: str
    body: bytes
    queue: int = 0
    offset: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    sysflag: int = 0
    flag: int = 0
    born_ms: int = BORN_MS
    store_ms: int = BORN_MS + 1000
    born_host: str = "10.1.2.3"
    store_host: str = "10.9.8.7"
    reconsume_times: int = 0
    wide: bool = False
    open_end: bool = False
    """Omit the last separator of the properties, as RocketMQ did up to 5.1."""


def record(put: Put, position: int) -> bytes:
    """The record at `position`."""
    sysflag = (
        put.sysflag | (0x10 if ":" in put.born_host else 0) | (0x20 if ":" in put.store_host else 0)
    )
    text = "".join(f"{name}\x01{value}\x02" for name, value in put.properties.items())
    properties = (text[:-1] if put.open_end else text).encode()
    topic = put.topic.encode()
    tail = (
        (len(topic).to_bytes(2, "big") if put.wide else bytes([len(topic)]))
        + topic
        + len(properties).to_bytes(2, "big")
        + properties
    )
    middle = struct.pack(">iqqiq", put.queue, put.offset, position, sysflag, put.born_ms)
    rest = (
        struct.pack(">I", zlib.crc32(put.body) & 0x7FFFFFFF) + middle[:4] + struct.pack(">i", put.flag) + middle[4:]
        + host(put.born_host, 50000) + struct.pack(">q", put.store_ms) + host(put.store_host, 10911)
        + struct.pack(">iqi", put.reconsume_times, 0, len(put.body)) + put.body + tail
    )  # fmt: skip
    return struct.pack(">II", 8 + len(rest), V2 if put.wide else V1) + rest


class StoreRoot:
    """A store root under construction. `kind`: commitlog or dledger."""

    def __init__(
        self,
        path: Path,
        kind: str = "commitlog",
        file_bytes: int = 4096,
        first_file: int = 0,
        self_id: str = "n0",
    ) -> None:
        self.path = path
        self.kind = kind
        self.file_bytes = file_bytes
        self.base = first_file
        self.directory = (
            path / "commitlog" if kind == "commitlog" else path / f"dledger-{self_id}" / "data"
        )
        self.directory.mkdir(parents=True)
        (path / "config").mkdir(exist_ok=True)
        self.data = bytearray()
        self.index = 0
        self.term = 1
        self.positions: list[int] = []
        self._offsets: dict[tuple[str, int], int] = {}

    @property
    def end(self) -> int:
        return self.base + len(self.data)

    def put(self, put: Put) -> int:
        """Append a message. Returns the position of its record."""
        header = 48 if self.kind == "dledger" else 0
        size = header + len(record(put, 0))
        left = self.file_bytes - len(self.data) % self.file_bytes
        if size + 8 > left:
            filler = (
                struct.pack(">iI", left, BLANK)
                if self.kind == "commitlog"
                else struct.pack(">ii", -1, left)
            )
            self.data += filler + bytes(left - 8)
        position = self.end + header
        body = record(put, position)
        if header:
            self.data += struct.pack(
                ">iiqqqiiii", 1, size, self.index, self.term, self.end, 0, 0, 0, len(body)
            )
            self.index += 1
        self.data += body
        self.positions.append(position)
        return position

    def send(self, topic: str, body: bytes, queue: int = 0, **more: object) -> int:
        """Append a message with the next offset of its queue."""
        offset = self._offsets.get((topic, queue), 0)
        self._offsets[topic, queue] = offset + 1
        return self.put(Put(topic, body, queue, offset, **more))  # type: ignore[arg-type]

    def begin_queue(self, topic: str, queue: int, offset: int) -> None:
        """Let the queue begin at an offset, as after a deletion of older messages."""
        self._offsets[topic, queue] = offset

    def config(self, name: str, value: object, *, bare: bool = False) -> None:
        """Write a file of `config/`; `bare`: numeric keys without quotes, as fastjson writes
        them."""
        text = json.dumps(value, indent="\t")
        if bare:
            import re

            text = re.sub(r'"(-?\d+)":', r"\1:", text)
        (self.path / "config" / name).write_text(text)

    def topics(self, **topics: Mapping[str, object]) -> None:
        rows = {
            name: {
                "perm": 6,
                "readQueueNums": 4,
                "writeQueueNums": 4,
                "topicName": name,
                "attributes": {},
                **row,
            }
            for name, row in topics.items()
        }
        self.config("topics.json", {"dataVersion": {}, "topicConfigTable": rows})

    def groups(self, **groups: Mapping[str, object]) -> None:
        rows = {
            name: {"groupName": name, "retryMaxTimes": 16, "consumeEnable": True, **row}
            for name, row in groups.items()
        }
        self.config("subscriptionGroup.json", {"dataVersion": {}, "subscriptionGroupTable": rows})

    def offsets(self, table: Mapping[str, Mapping[int, int]]) -> None:
        self.config("consumerOffset.json", {"dataVersion": {}, "offsetTable": table}, bare=True)

    def queue_file(
        self, topic: str, queue: int, units: list[tuple[int, int, int]], first: int = 0
    ) -> None:
        """Write a consume queue of one file, from offset `first` on."""
        directory = self.path / "consumequeue" / topic / str(queue)
        directory.mkdir(parents=True)
        data = bytearray(6000)
        for place, unit in enumerate(units, first):
            struct.pack_into(">qiq", data, place * 20, *unit)
        (directory / f"{0:020d}").write_bytes(data)

    def write(self) -> Path:
        """Write the log files; the last one is padded with zeros."""
        for place in range(0, max(1, len(self.data)), self.file_bytes):
            piece = bytes(self.data[place : place + self.file_bytes])
            (self.directory / f"{self.base + place:020d}").write_bytes(
                piece + bytes(self.file_bytes - len(piece))
            )
        return self.path

    def overwrite(self, position: int, data: bytes) -> None:
        """Overwrite bytes of the log files."""
        base = self.base + (position - self.base) // self.file_bytes * self.file_bytes
        with (self.directory / f"{base:020d}").open("r+b") as file:
            file.seek(position - base)
            file.write(data)
