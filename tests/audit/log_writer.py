"""A minimal second writer of docs/format.md for the auditor's tests: plain `struct`, one entry at a
time, no code of the product.

Options make it write wrongly (`seed_text`, `shift`) or stop uncleanly.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import crc32c

CLUSTER = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
RAFT = "rmq_sys_ledgermq_raft"
STORAGE = "rmq_sys_ledgermq_storage"
CREATED = 1_700_000_000_000


def checksum(data: bytes, start: int = 0) -> int:
    return crc32c.crc32c(data, start)


def sealed(value: dict[str, object]) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(
        {**value, "crc32c": checksum(text)}, sort_keys=True, separators=(",", ":")
    ).encode()


def java_hash(tag: str) -> int:
    value = 0
    for at in range(0, len(tag.encode("utf-16-be")), 2):
        value = (31 * value + int.from_bytes(tag.encode("utf-16-be")[at : at + 2], "big")) % (
            1 << 32
        )
    return value - (1 << 32) if value >= 1 << 31 else value


@dataclass(frozen=True)
class Message:
    """One message to write."""

    topic: str
    body: bytes
    queue: int = 0
    tag: str = ""
    key: str = ""
    channel: int = 0
    time: int = CREATED
    term: int = 1
    flag: int = 0
    sysflag: int = 0
    group: str = ""


@dataclass(frozen=True)
class Placed:
    """A written entry and its position."""

    index: int
    term: int
    pos: int
    size: int
    chain: int
    message: Message
    queue_offset: int


def membership(voters: tuple[str, ...]) -> Message:
    body = json.dumps(
        {"learners": {}, "v": 1, "voters": {name: {} for name in sorted(voters)}},
        sort_keys=True,
        separators=(",", ":"),
    )
    return Message(RAFT, body.encode(), tag="membership", channel=1, term=0)


def election(term: int, leader: str, time: int = CREATED) -> Message:
    return Message(
        RAFT,
        json.dumps({"leader": leader, "term": term, "v": 1}).encode(),
        tag="term-start",
        term=term,
        time=time,
    )


@dataclass
class Writer:
    """Writes one replica of a broker group."""

    node_dir: Path
    group: str = "g1"
    voters: tuple[str, ...] = ("n1", "n2", "n3")
    data_bytes: int = 8192
    index_bytes: int = 1024
    queue_bytes: int = 200
    seed_text: str | None = None
    shift: int = 0
    entries: list[Placed] = field(default_factory=list)
    blanks: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = self.node_dir.name
        self.root = self.node_dir / self.group
        self.log = self.root / f"dledger-{self.node}"
        self.log_id = str(uuid.uuid5(uuid.UUID(CLUSTER), self.group))
        self.space = bytearray()
        self.pos = 0
        self.chain = self.seed
        self.offsets: dict[tuple[str, int], int] = {}

    @property
    def seed(self) -> int:
        return checksum((self.seed_text or self.log_id).encode())

    def append(self, message: Message) -> Placed:
        index, at = len(self.entries), self.pos
        queue_key = (message.topic, message.queue)
        offset = self.offsets.get(queue_key, 0)
        size = 48 + len(self.record(message, offset, 0))
        rest = self.data_bytes - at % self.data_bytes
        if size + 8 > rest:
            self.blanks.append((at, rest))
            self.space += struct.pack(">ii", -1, rest) + bytes(rest - 8)
            at += rest
        body = self.record(message, offset, at + 48)
        head = struct.pack(
            ">iiqqqi", 1, size, index, message.term, at + self.shift, message.channel
        )
        body_crc = checksum(body)
        self.chain = checksum(head + struct.pack(">I", body_crc), self.chain)
        self.space += head + struct.pack(">IIi", self.chain, body_crc, len(body)) + body
        self.offsets[queue_key] = offset + 1
        placed = Placed(index, message.term, at, size, self.chain, message, offset)
        self.entries.append(placed)
        self.pos = at + size
        return placed

    @staticmethod
    def record(message: Message, offset: int, pos: int) -> bytes:
        properties = b""
        if not message.topic.rpartition("@")[2].startswith("rmq_sys_"):
            properties += b"UNIQ_KEY\x01" + message.key.encode() + b"\x02"
        if message.tag:
            properties += b"TAGS\x01" + message.tag.encode() + b"\x02"
        if message.group:
            properties += b"__SHARDINGKEY\x01" + message.group.encode() + b"\x02"
        topic = message.topic.encode()
        wide = len(topic) > 127
        total = (92 if wide else 91) + len(message.body) + len(topic) + len(properties)
        crc = zlib.crc32(message.body) & 0x7FFFFFFF if message.body else 0
        magic = 0xDAA320AB if wide else 0xDAA320A7
        fixed = struct.pack(
            ">iIiiiqqi",
            total,
            magic,
            crc,
            message.queue,
            message.flag,
            offset,
            pos,
            message.sysflag,
        )
        fixed += struct.pack(
            ">q8sq8siq",
            message.time,
            bytes(8),
            message.time,
            b"\x7f\0\0\1" + struct.pack(">i", 8081),
            0,
            0,
        )
        name = struct.pack(">h" if wide else ">b", len(topic)) + topic
        return (
            fixed
            + struct.pack(">i", len(message.body))
            + message.body
            + name
            + struct.pack(">h", len(properties))
            + properties
        )

    # ------------------------------------------------------------------------------------------------------------ files

    def finish(
        self,
        *,
        committed: int | None = None,
        clean: bool = True,
        mark: int | None = None,
        snapshot: bool = True,
    ) -> Writer:
        """Write all files as a node leaves them. `committed`: the last dispatched entry; `mark`:
        the synced index."""
        committed = len(self.entries) - 1 if committed is None else committed
        marked = (
            self.entries[len(self.entries) - 1 if mark is None else mark] if self.entries else None
        )
        self.write_log()
        self.write_queues(committed)
        point = (
            (marked.term, marked.index, marked.pos + marked.size, marked.chain)
            if marked
            else (-1, -1, 0, self.seed)
        )
        body = self.log_id.encode() + struct.pack(">iqqqI", 0, *point)
        (self.log / "syncedmark").write_bytes(
            self.slot(b"LMSM", 6, body) + self.slot(b"LMSM", 7, body)
        )
        vote = struct.pack(">qi64s", max((e.term for e in self.entries), default=0), 2, b"n1")
        (self.log / "hardstate").write_bytes(self.slot(b"LMHS", 1, vote) + bytes(4096))
        (self.log / "checkpoint").write_bytes(
            f"endIndex={len(self.entries) - 1}\ncommittedIndex={committed}\n".encode()
        )
        self.identities()
        if not clean:
            (self.root / "abort").write_text("123")
        if snapshot and committed >= 0:
            self.write_snapshot(committed)
        return self

    def write_log(self) -> Writer:
        """Write log files and index files alone."""
        self.write_space(self.log / "data", bytes(self.space), self.data_bytes, ahead=True)
        units = b"".join(
            struct.pack(">iqiqq", 1, e.pos, e.size, e.index, e.term) for e in self.entries
        )
        self.write_space(self.log / "index", units, self.index_bytes)
        return self

    def begin_of(self, file: int) -> Placed:
        """The first entry of a log file."""
        return next(entry for entry in self.entries if entry.pos >= file * self.data_bytes)

    def trim_record(self, file: int) -> Message:
        """The record of a leader that trims everything before a file."""
        begin = self.begin_of(file)
        before = self.entries[begin.index - 1]
        fields = {
            "begin": begin.index,
            "pos": begin.pos,
            "term": before.term,
            "chain": before.chain,
            "from": 0,
            "v": 1,
        }
        body = {
            **fields,
            "files": [[base * self.data_bytes, None] for base in range(file)],
            "reason": "time",
        }
        term, time = self.entries[-1].term, self.entries[-1].message.time
        return Message(
            STORAGE, json.dumps(body, sort_keys=True).encode(), tag="trim", term=term, time=time
        )

    def trim(self, file: int) -> Placed:
        """After `finish`: remove the log and index files before a file, and write the begin
        file."""
        begin = self.begin_of(file)
        before = self.entries[begin.index - 1]
        value = {
            "v": 1,
            "log_id": self.log_id,
            "index": begin.index,
            "pos": begin.pos,
            "term": before.term,
            "chain": before.chain,
        }
        (self.log / "begin").write_bytes(sealed(value))
        first_unit = begin.index * 32 // self.index_bytes * self.index_bytes
        for folder, limit in ((self.log / "data", begin.pos), (self.log / "index", first_unit)):
            for path in folder.iterdir():
                if path.name.isdigit() and int(path.name) < limit:
                    path.unlink()
        return begin

    def decide(self, file: int) -> None:
        """After `finish`: record a trim to a file in the snapshot, whether it is carried out or
        not."""
        begin = self.begin_of(file)
        path = self.root / "state" / "snapshot"
        snapshot = json.loads(path.read_bytes())
        del snapshot["crc32c"]
        snapshot["retained"] = {"begin_index": begin.index, "begin_pos": begin.pos}
        snapshot["members"] = {
            "index": 0,
            "voters": {name: {} for name in sorted(self.voters)},
            "learners": {},
        }
        snapshot["minimums"] = {}
        for topic, queue in self.queues_before(begin.index):
            low, last = self.low(topic, queue, begin.index)
            snapshot["minimums"].setdefault(topic, {})[str(queue)] = [low, last]
        path.write_bytes(sealed(snapshot))

    def queues_before(self, begin: int) -> list[tuple[str, int]]:
        return sorted(
            {(entry.message.topic, entry.message.queue) for entry in self.entries[:begin]}
        )

    def low(self, topic: str, queue: int, begin: int) -> tuple[int, list[int] | None]:
        """The minimal offset of a queue, and the unit before it if no message of it is kept."""
        kept = [e for e in self.entries if (e.message.topic, e.message.queue) == (topic, queue)]
        low = next((e.queue_offset for e in kept if e.index >= begin), None)
        last = kept[-1]
        return (
            (low, None)
            if low is not None
            else (len(kept), [last.pos + 48, last.size - 48, java_hash(last.message.tag)])
        )

    def trim_queues(self, file: int) -> None:
        """Remove the queue files below the minimal offsets of a trim."""
        begin = self.begin_of(file).index
        for topic, queue in self.queues_before(begin):
            low, last = self.low(topic, queue, begin)
            floor = (low - (last is not None)) * 20
            for path in sorted((self.root / "consumequeue" / topic / str(queue)).iterdir()):
                base = int(path.name)
                if base + self.queue_bytes <= floor:
                    path.unlink()
                elif base < floor:
                    blank = struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * ((floor - base) // 20)
                    path.write_bytes(blank + path.read_bytes()[floor - base :])

    def identities(self) -> None:
        node = {
            "format_version": 1,
            "cluster_id": CLUSTER,
            "node": self.node,
            "created_ms": CREATED,
        }
        (self.node_dir / "node.json").write_bytes(sealed(node))
        identity: dict[str, object] = {
            "format_version": 1,
            "cluster_id": CLUSTER,
            "group": self.group,
            "log_id": self.log_id,
            "replica": self.node,
            "incarnation": str(uuid.uuid5(uuid.UUID(CLUSTER), self.node)),
            "data_file_bytes": self.data_bytes,
            "index_file_bytes": self.index_bytes,
            "consume_queue_file_bytes": self.queue_bytes,
            "created_ms": CREATED,
        }
        (self.root / "identity.json").write_bytes(sealed(identity))

    def write_snapshot(self, applied: int) -> None:
        last = self.entries[applied]
        queues: dict[str, dict[str, int]] = {}
        for entry in self.entries[: applied + 1]:
            queues.setdefault(entry.message.topic, {})[str(entry.message.queue)] = (
                entry.queue_offset + 1
            )
        value: dict[str, object] = {
            "v": 3,
            "log_id": self.log_id,
            "applied_index": applied,
            "applied_term": last.term,
            "applied_end_pos": last.pos + last.size,
            "chain_crc": last.chain,
            "store_ms": last.message.time,
            "queues": queues,
            "topics": {},
            "groups": {},
            "delivery": {},
        }
        (self.root / "state").mkdir(exist_ok=True)
        (self.root / "state" / "snapshot").write_bytes(sealed(value))

    def write_queues(self, committed: int) -> None:
        spaces: dict[tuple[str, int], bytearray] = {}
        for entry in self.entries[: committed + 1]:
            unit = struct.pack(
                ">qiq", entry.pos + 48, entry.size - 48, java_hash(entry.message.tag)
            )
            spaces.setdefault((entry.message.topic, entry.message.queue), bytearray()).extend(unit)
        for (topic, queue), data in spaces.items():
            self.write_space(
                self.root / "consumequeue" / topic / str(queue), bytes(data), self.queue_bytes
            )

    @staticmethod
    def slot(magic: bytes, sequence: int, body: bytes) -> bytes:
        head = magic + struct.pack(">iQ", 1, sequence) + body
        return (head + struct.pack(">I", checksum(head))).ljust(4096, b"\0")

    @staticmethod
    def write_space(folder: Path, data: bytes, file_bytes: int, ahead: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        count = len(data) // file_bytes + 1 + ahead
        for number in range(count):
            base = number * file_bytes
            with open(folder / f"{base:020d}", "wb") as file:
                file.write(data[base : base + file_bytes])
                file.truncate(file_bytes)
