"""Five ways of storing the same messages behind one interface, compared by `storage_modes`.

Each store makes a batch durable with one sync before `write` returns, returns a message by queue
and offset and by key, and is complete after its process was killed. The exception is `memory`,
which stores nothing durably: it shows the upper limit.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from importlib import metadata
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import rocksdict

from bench.tools.drafts import drafts
from bench.tools.page_tree import PageTree
from ledgermq.proto.entries import layout
from ledgermq.proto.entries.entry_encoding import encode_entries, host_bytes
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore, exists
from ledgermq.storage.keys.key_index import SLOTS, UNITS, KeyIndex
from ledgermq.storage.keys.lookup import Lookup
from ledgermq.storage.log.log_reader import Limits, LogReader
from ledgermq.storage.state.identity import mint

CLUSTER = "00000000-0000-4000-8000-000000000001"
TOPIC = "orders"
HOST = host_bytes("127.0.0.1", 8081)
SNAPSHOT_EVERY_BYTES = 64 << 20
LOG_FILE_BYTES = 64 << 20
KEY_SLOTS, KEY_UNITS = SLOTS, UNITS
JOURNAL_FILE_BYTES = 32 << 20
DIRTY_PAGES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages as columns; `first` is the number of the first message."""

    first: int
    queues: list[int]
    offsets: list[int]
    tags: list[str]
    keys: list[str]
    bodies: list[bytes]
    born_ms: int


class Store(Protocol):
    """An open store."""

    def write(self, batch: Batch) -> None:
        """Write the batch. It is durable when this returns."""
        ...

    def read(self, queue: int, offset: int, count: int) -> Sequence[bytes]:
        """The bodies of the messages from `offset` to `offset + count − 1` of a queue."""
        ...

    def by_key(self, key: str) -> Sequence[bytes]:
        """The bodies of all messages with this key."""
        ...

    def close(self) -> None: ...


class LedgerStore:
    """Our storage: entry log, consume queues and key index, with a node's snapshots."""

    def __init__(self, directory: Path) -> None:
        disk, root = RealDisk(), str(directory / "g1")
        who = mint(CLUSTER, "g1", "n1", CLUSTER, 1, data_file_bytes=LOG_FILE_BYTES)
        if not exists(disk, root):
            GroupStore.create(disk, root, who)
        self._background = ThreadPoolExecutor(1)
        self._store = GroupStore.open(
            disk, root, who, submit=lambda work: (self._background.submit(work), None)[1]
        )
        self._log, self._queues = self._store.log, self._store.queues
        snapshot = self._store.read_snapshot()
        applied = -1 if snapshot is None else snapshot["applied_index"]
        known = {} if snapshot is None else snapshot["queues"]
        offsets = {
            topic: {int(queue): end for queue, end in ends.items()} for topic, ends in known.items()
        }
        self._queues.start(offsets, self._log.end_index - applied)
        self._keys = KeyIndex(disk, root, who.log_id, slots=KEY_SLOTS, units=KEY_UNITS)
        self._keys.start(0, self._log.end_index, self._log.chain_at)
        self._keys.load(repeat(None))
        self._follow(
            applied + 1, lambda entries: self._queues.append(layout.record_columns(entries))
        )
        self._follow(self._keys.next_index, self._keys.append)
        self._reader = LogReader(
            disk, self._store.log_directory, who.data_file_bytes, who.index_file_bytes
        )
        self._lookup = Lookup(self._reader, self._keys)
        self._snapshot_pos = self._log.end_pos
        self._limit()

    def _follow(self, index: int, derive: Callable[[Any], None]) -> None:
        while index <= self._log.end_index:
            entries = self._log.read(index, 1 << 20)
            derive(entries)
            index = entries.last_index + 1

    def write(self, batch: Batch) -> None:
        unsealed = encode_entries(
            drafts(
                TOPIC,
                batch.bodies,
                born_ms=batch.born_ms,
                queues=batch.queues,
                tags=batch.tags,
                keys=batch.keys,
            )
        )
        ranges = self._log.append_leader(
            1, unsealed, np.array(batch.offsets, np.int64), batch.born_ms, HOST
        )
        job = self._log.begin_sync()
        assert job is not None
        job.run()
        self._log.finish_sync(job, None)
        for entries in ranges:
            self._queues.append(layout.record_columns(entries))
            self._keys.append(entries)
        self._limit()
        if self._log.end_pos - self._snapshot_pos >= SNAPSHOT_EVERY_BYTES:
            self._snapshot()

    def _limit(self) -> None:
        self._reader.limits = Limits(0, self._log.end_index + 1, self._log.end_pos)

    def _snapshot(self) -> None:
        self._snapshot_pos = self._log.end_pos
        self._queues.sync()
        self._keys.sync()
        end = {
            "applied_index": self._log.end_index,
            "applied_term": self._log.end_term,
            "chain_crc": self._log.end_chain,
        }
        value = {
            "log_id": self._store.identity.log_id,
            **end,
            "queues": self._queues.next_offsets(),
        }
        self._store.write_snapshot(value)

    def read(self, queue: int, offset: int, count: int) -> Sequence[bytes]:
        units = self._queues.read(TOPIC, queue, offset, count)
        places = zip(units.physical_offsets.tolist(), units.sizes.tolist(), strict=True)
        return [decode_record(self._log.record_at(place, size)).body for place, size in places]

    def by_key(self, key: str) -> Sequence[bytes]:
        return [decode_record(found.record).body for found in self._lookup.each_by_key(TOPIC, key)]

    def close(self) -> None:
        self._log.flush_mark()
        self._snapshot()
        self._keys.close()
        self._store.close()
        self._background.shutdown()


class SqliteStore:
    """The database: one table with an index on the key, a write-ahead log, and one durable
    transaction per batch."""

    def __init__(self, directory: Path) -> None:
        self._db = sqlite3.connect(directory / "messages.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS message (queue INTEGER, position INTEGER, born_ms INTEGER,"
            " tag TEXT, key TEXT, body BLOB, PRIMARY KEY (queue, position)) WITHOUT ROWID"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS by_key ON message (key)")

    def write(self, batch: Batch) -> None:
        born = [batch.born_ms] * len(batch.bodies)
        self._db.execute("BEGIN")
        rows = zip(
            batch.queues, batch.offsets, born, batch.tags, batch.keys, batch.bodies, strict=True
        )
        self._db.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def read(self, queue: int, offset: int, count: int) -> Sequence[bytes]:
        query = (
            "SELECT body FROM message WHERE queue = ? AND position >= ? AND position < ? ORDER BY"
            " position"
        )
        return [body for (body,) in self._db.execute(query, (queue, offset, offset + count))]

    def by_key(self, key: str) -> Sequence[bytes]:
        return [
            body for (body,) in self._db.execute("SELECT body FROM message WHERE key = ?", (key,))
        ]

    def close(self) -> None:
        self._db.close()


_PLACE = struct.Struct(">HQ")
_FIELDS = struct.Struct(">QBH")


def _pack(born_ms: int, tag: str, key: str, body: bytes) -> bytes:
    """One message in the format of the stores without a schema."""
    raw_tag, raw_key = tag.encode(), key.encode()
    return _FIELDS.pack(born_ms, len(raw_tag), len(raw_key)) + raw_tag + raw_key + body


def _body(record: bytes) -> bytes:
    _, tag, key = _FIELDS.unpack_from(record)
    return record[_FIELDS.size + tag + key :]


class RocksStore:
    """The LevelDB-like store: RocksDB with its default settings and one synced write batch per
    batch. Messages are stored by queue and offset, and each key refers to these positions."""

    def __init__(self, directory: Path) -> None:
        self._db = rocksdict.Rdict(str(directory / "rocks"), rocksdict.Options(raw_mode=True))
        self._durable = rocksdict.WriteOptions()
        self._durable.sync = True

    def write(self, batch: Batch) -> None:
        changes = rocksdict.WriteBatch(raw_mode=True)
        for queue, offset, tag, key, body in zip(
            batch.queues, batch.offsets, batch.tags, batch.keys, batch.bodies, strict=True
        ):
            place = _PLACE.pack(queue, offset)
            changes.put(b"m" + place, _pack(batch.born_ms, tag, key, body))
            changes.put(b"k" + key.encode() + b"\0" + place, b"")
        self._db.write(changes, self._durable)

    def read(self, queue: int, offset: int, count: int) -> Sequence[bytes]:
        if count == 1:
            return [_body(self._db[b"m" + _PLACE.pack(queue, offset)])]
        found = []
        rows = self._db.iter()
        rows.seek(b"m" + _PLACE.pack(queue, offset))
        while len(found) < count and rows.valid():
            found.append(_body(rows.value()))
            rows.next()
        return found

    def by_key(self, key: str) -> Sequence[bytes]:
        prefix = b"k" + key.encode() + b"\0"
        found = []
        rows = self._db.iter()
        rows.seek(prefix)
        while rows.valid() and rows.key().startswith(prefix):
            found.append(_body(self._db[b"m" + rows.key()[len(prefix) :]]))
            rows.next()
        return found

    def close(self) -> None:
        self._db.close()


_RECORD = struct.Struct(">II")


class JournalStore:
    """The KahaDB-like store: an append-only journal with one sync per batch, and a page index with
    occasional checkpoints. After the process was killed, the part of the journal after the last
    checkpoint is replayed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tree = PageTree(directory)
        self._files: dict[int, int] = {}
        self._end = self._replay(self._tree.position)

    def _file(self, number: int) -> int:
        if number not in self._files:
            self._files[number] = os.open(
                self._directory / f"journal-{number}", os.O_RDWR | os.O_CREAT, 0o644
            )
        return self._files[number]

    def _replay(self, position: int) -> int:
        while True:
            number, inside = divmod(position, JOURNAL_FILE_BYTES)
            file = self._file(number)
            data = os.pread(file, JOURNAL_FILE_BYTES - inside, inside)
            at = 0
            while at + _RECORD.size <= len(data):
                length, checksum = _RECORD.unpack_from(data, at)
                record = data[at + _RECORD.size : at + _RECORD.size + length]
                if not length or len(record) < length or zlib.crc32(record) != checksum:
                    break
                self._index(record, position + at)
                at += _RECORD.size + length
            if not (self._directory / f"journal-{number + 1}").exists():
                return position + at
            position = (number + 1) * JOURNAL_FILE_BYTES

    def _index(self, record: bytes, at: int) -> None:
        place = record[: _PLACE.size]
        _, tag, key = _FIELDS.unpack_from(record, _PLACE.size)
        begin = _PLACE.size + _FIELDS.size + tag
        self._tree.put(_place_key(place), at)
        self._tree.put(_key_key(record[begin : begin + key], place), at)

    def write(self, batch: Batch) -> None:
        pieces, index, at = [], [], self._end
        for queue, offset, tag, key, body in zip(
            batch.queues, batch.offsets, batch.tags, batch.keys, batch.bodies, strict=True
        ):
            place = _PLACE.pack(queue, offset)
            record = place + _pack(batch.born_ms, tag, key, body)
            pieces.append(_RECORD.pack(len(record), zlib.crc32(record)) + record)
            index.append((_place_key(place), _key_key(key.encode(), place), at))
            at += len(pieces[-1])
        data = b"".join(pieces)
        if self._end % JOURNAL_FILE_BYTES + len(data) > JOURNAL_FILE_BYTES:
            moved = -self._end % JOURNAL_FILE_BYTES
            self._end += moved
            index = [(place, key, at + moved) for place, key, at in index]
        number, inside = divmod(self._end, JOURNAL_FILE_BYTES)
        os.pwrite(self._file(number), data, inside)
        os.fdatasync(self._file(number))
        self._end += len(data)
        for by_place, by_key, at in index:
            self._tree.put(by_place, at)
            self._tree.put(by_key, at)
        if len(self._tree.dirty) >= DIRTY_PAGES_MAX:
            self._tree.checkpoint(self._end)

    def _at(self, position: int) -> bytes:
        number, inside = divmod(position, JOURNAL_FILE_BYTES)
        data = os.pread(self._file(number), 4096, inside)
        length, _ = _RECORD.unpack_from(data)
        if len(data) < _RECORD.size + length:
            data = os.pread(self._file(number), _RECORD.size + length, inside)
        return data[_RECORD.size + _PLACE.size : _RECORD.size + length]

    def read(self, queue: int, offset: int, count: int) -> Sequence[bytes]:
        first, stop = (
            _place_key(_PLACE.pack(queue, offset)),
            _place_key(_PLACE.pack(queue, offset + count)),
        )
        return [_body(self._at(at)) for at in self._tree.scan(first, stop)]

    def by_key(self, key: str) -> Sequence[bytes]:
        raw = key.encode()
        first = _key_key(raw, bytes(_PLACE.size))
        found = []
        for at in self._tree.scan(first, first[:-8] + b"\xff" * 8):
            record = self._at(at)
            _, tag, length = _FIELDS.unpack_from(record)
            if record[_FIELDS.size + tag : _FIELDS.size + tag + length] == raw:
                found.append(_body(record))
        return found

    def close(self) -> None:
        self._tree.checkpoint(self._end)
        self._tree.close()
        for file in self._files.values():
            os.close(file)


def _place_key(place: bytes) -> bytes:
    return b"\0" + place.rjust(15, b"\0")


def _key_key(key: bytes, place: bytes) -> bytes:
    """Seven bytes of the key's hash, followed by the low bytes of queue and offset, which
    distinguish equal keys."""
    return b"\1" + blake2b(key, digest_size=7).digest() + place[:2] + place[-6:]


class MemoryStore:
    """Lists and a dictionary: the cost of the interpreter alone."""

    def __init__(self, directory: Path) -> None:
        self._queues: dict[int, list[tuple[int, str, str, bytes]]] = {}
        self._keys: dict[str, list[tuple[int, int]]] = {}

    def write(self, batch: Batch) -> None:
        for queue, offset, tag, key, body in zip(
            batch.queues, batch.offsets, batch.tags, batch.keys, batch.bodies, strict=True
        ):
            self._queues.setdefault(queue, []).append((batch.born_ms, tag, key, body))
            self._keys.setdefault(key, []).append((queue, offset))

    def read(self, queue: int, offset: int, count: int) -> Sequence[bytes]:
        return [row[3] for row in self._queues[queue][offset : offset + count]]

    def by_key(self, key: str) -> Sequence[bytes]:
        return [self._queues[queue][offset][3] for queue, offset in self._keys.get(key, ())]

    def close(self) -> None:
        pass


STORES: dict[str, type[Any]] = {
    "ledger": LedgerStore,
    "database": SqliteStore,
    "leveldb": RocksStore,
    "journal": JournalStore,
    "memory": MemoryStore,
}


def versions() -> dict[str, str]:
    """A description of each store with its version."""
    return {
        "ledger": f"LedgerMQ {metadata.version('ledgermq')}, entry log, consume queues, key index",
        "database": f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL",
        "leveldb": (
            f"RocksDB by rocksdict {metadata.version('rocksdict')}, defaults, synced batches"
        ),
        "journal": "journal and B+tree index in the manner of KahaDB (bench/tools/stores.py)",
        "memory": "lists and a dictionary, nothing kept",
    }
