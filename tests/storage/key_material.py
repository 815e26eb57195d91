"""Material for tests of the key index: a log of messages with keys on any disk, and RocketMQ's
index file, written key by key."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.keys.lookup import Lookup
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_reader import Limits, LogReader
from tests.storage.log_material import HOST, make_identity

ROOT = "/g1"
LOG = f"{ROOT}/dledger-n1"
DATA_BYTES, INDEX_BYTES = 1 << 16, 32 * 64
BEGIN_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Message:
    """One message to send. `topic` is the stored one."""

    message_id: str | None = None
    keys: Sequence[str] = ()
    topic: str = "t"
    ms: int = BEGIN_MS
    tag: str | None = None
    body: bytes = b"body"
    user: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names under which RocketMQ indexes the message."""
        if self.topic.startswith("rmq_sys_ledgermq"):
            return []
        return [name for name in [self.message_id, *" ".join(self.keys).split(" ")] if name]


class KeyLog:
    """A log, its key index, and lookups over both, on one disk."""

    def __init__(self, disk: Disk | None = None, *, slots: int = 7, units: int = 20) -> None:
        self.disk: Disk = disk or ForgetfulDisk()
        self.slots, self.units = slots, units
        self.identity = make_identity(data_file_bytes=DATA_BYTES, index_file_bytes=INDEX_BYTES)
        self.messages: list[tuple[int, Message]] = []
        """(physical offset, message) of each appended message."""
        for directory in (LOG, f"{ROOT}/state"):
            self.disk.mkdirs(directory)
        EntryLog.create(self.disk, LOG, self.identity)
        self.open(clean=True)

    def open(self, *, clean: bool) -> None:
        self.log = EntryLog.open(self.disk, LOG, self.identity, clean=clean)
        self.reader = LogReader(self.disk, LOG, DATA_BYTES, INDEX_BYTES)
        self.index = KeyIndex(
            self.disk, ROOT, self.identity.log_id, slots=self.slots, units=self.units
        )
        self.index.start(self.log.begin_index, self.log.end_index, self.log.chain_at)
        self.lookup = Lookup(self.reader, self.index)
        self.limit()

    def limit(self) -> None:
        self.reader.limits = Limits(
            self.log.begin_index, self.log.end_index + 1, self.log.end_pos, self.log.begin_pos
        )

    def send(self, *messages: Message) -> None:
        """Append one batch for each store time, without indexing it."""
        for message in messages:
            fields = Fields(
                message_id=message.message_id,
                tag=message.tag,
                keys=tuple(message.keys),
                user=message.user,
            )
            draft = Draft(message.topic, 0, message.body, encode(fields), message.ms)
            at = np.array([self.log.end_index + 1])
            (entries,) = self.log.append_leader(1, encode_entries([draft]), at, message.ms, HOST)
            self.messages.append((entries.pos + 48, message))
        self.limit()

    def make_durable(self) -> None:
        self.log.flush_mark()

    def catch_up(self, max_bytes: int = 1 << 20) -> None:
        """Index as many messages as the limits allow."""
        assert self.index.load(iter(lambda: None, 0))
        while self.index.next_index < self.reader.limits.end_index:
            piece = self.reader.read(self.index.next_index, max_bytes)
            assert piece is not None
            self.index.append(piece)

    def files(self) -> dict[str, bytes]:
        """Name and content of every index file."""
        return {
            name: self.disk.read_file(f"{ROOT}/index/{name}")
            for name in self.disk.listdir(f"{ROOT}/index")
        }

    def position(self) -> dict[str, object]:
        value: dict[str, object] = json.loads(self.disk.read_file(f"{ROOT}/state/keyindex"))
        return value


def java_hash(text: str) -> int:
    raw = text.encode("utf-16-be")
    value = 0
    for unit in struct.unpack(f">{len(raw) // 2}H", raw):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class OfficialFile:
    """An index file as RocketMQ's class writes it, one key at a time (formats reference, section
    7)."""

    def __init__(self, name: str, slots: int, units: int, end: tuple[int, int] = (0, 0)) -> None:
        self.name, self.slots, self.units = name, slots, units
        self.data = bytearray(40 + 4 * slots + 20 * units)
        self.end_ms, self.end_pos = end
        self.begin_ms, self.begin_pos = end
        self.used, self.count = 0, 1

    def put(self, key: str, position: int, ms: int) -> bool:
        if self.count >= self.units:
            return False
        if self.count <= 1:
            self.begin_ms, self.begin_pos = ms, position
        signed = java_hash(key)
        hash_ = 0 if signed == -(1 << 31) else abs(signed)
        at = 40 + hash_ % self.slots * 4
        (old,) = struct.unpack_from(">i", self.data, at)
        seconds = (
            0 if self.begin_ms <= 0 else min(max((ms - self.begin_ms) // 1000, 0), (1 << 31) - 1)
        )
        struct.pack_into(
            ">iqii", self.data, 40 + 4 * self.slots + 20 * self.count, hash_, position, seconds, old
        )
        struct.pack_into(">i", self.data, at, self.count)
        self.used += old == 0
        self.count += 1
        self.end_ms, self.end_pos = ms, position
        struct.pack_into(
            ">qqqqii",
            self.data,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_pos,
            self.end_pos,
            self.used,
            self.count,
        )
        return True


def official_files(log: KeyLog) -> dict[str, bytes]:
    """The index files that RocketMQ would write for the messages of a log."""
    files: list[OfficialFile] = []
    last = 0
    for position, message in log.messages:
        for name in message.names:
            while not files or not files[-1].put(f"{message.topic}#{name}", position, message.ms):
                end = (files[-1].end_ms, files[-1].end_pos) if files else (0, 0)
                last = max(last + 1, message.ms)
                moment = datetime.fromtimestamp(last // 1000, UTC)
                files.append(
                    OfficialFile(
                        f"{moment:%Y%m%d%H%M%S}{last % 1000:03d}", log.slots, log.units, end
                    )
                )
    return {file.name: bytes(file.data) for file in files}
