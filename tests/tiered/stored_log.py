"""A log of several files in a store in memory, made once by a real replica, and readers over it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.replica.maintenance.tiering import Tiering
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered import manifests
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import StoreFailure
from ledgermq.storage.tiered.range_cache import RangeCache
from ledgermq.storage.tiered.stored_parts import Ranges
from ledgermq.storage.tiered.tier_reader import LocalBegin, TierReader
from tests.node.replica.test_node_retention import Stage
from tests.tiered.fake_store import FakeStore

SIZE = 64 << 10
FILES = 5
QUEUES = 3
RARE = "rare"
"""A topic with messages in the first and in the last file only."""


def topic(name: str, queues: int) -> TopicConfig:
    return TopicConfig("", name, TopicKind.NORMAL, queues, Permission.READ_WRITE, 1)


@dataclass
class StoredLog:
    """What the replica wrote: entries in log order, and where the files lie in the store."""

    objects: dict[str, bytes]
    files: list[FileManifest]
    entries: list[bytes]
    log_id: str
    behind: Begin

    @property
    def where(self) -> str:
        return manifests.folder("g1", self.log_id)

    def queue(self, name: str, queue: int) -> list[bytes]:
        """The entries of one queue in the stored files."""
        last = self.files[-1].last
        records = [
            (entry, decode_record(entry[HEADER_BYTES:])) for entry in self.entries[: last + 1]
        ]
        return [entry for entry, record in records if (record.topic, record.queue) == (name, queue)]

    def local(self, name: str, queue: int) -> LocalBegin:
        """The local log begins behind the stored files."""
        return LocalBegin(len(self.queue(name, queue)), self.behind.pos)


def make_log(directory: Path) -> StoredLog:
    """Five sealed files with three topics, all stored."""
    stage = Stage(directory, files=0, tiered={"url": "s3://fake/log"})
    driver = stage.driver
    assert (
        driver.call(lambda token: Configure(token, [topic("t", QUEUES), topic(RARE, 1)]))
        == Configured()
    )
    sent = 0

    def produce(name: str, queues: int) -> None:
        nonlocal sent
        drafts = []
        for queue in range(queues):
            fields = Fields(
                message_id=f"id-{sent}", keys=(f"key{sent % 7}",), tag="even" if sent % 2 else "odd"
            )
            drafts.append(Draft(name, queue, b"%06d" % sent * 60, encode(fields), 1))
            sent += 1
        assert isinstance(driver.call(lambda token: Produce(token, drafts)), Produced)

    produce(RARE, 1)
    while driver.group.store.log.end_pos < (FILES - 1) * SIZE + 1000:
        produce("t", QUEUES)
    produce(RARE, 1)
    while driver.group.store.log.end_pos < FILES * SIZE + 1000:
        produce("t", QUEUES)
    store = FakeStore()
    tiering = Tiering(stage.config, RealDisk(), {"g1": driver.hosted}, stage.engine, store)  # type: ignore[arg-type]
    stage.check(4)
    asyncio.run(tiering.check("g1"))
    log = driver.group.store.log
    entries = []
    while len(entries) <= log.end_index:
        found = log.read(len(entries), 1 << 20)
        entries += [
            bytes(found.data[s : s + n])
            for s, n in zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
        ]
    reader = tiering.reader("g1")
    assert reader is not None and reader.whole and len(reader.files) == FILES
    made = StoredLog(
        dict(store.objects),
        list(reader.files),
        entries,
        driver.identity.log_id,
        reader.files[-1].behind,
    )
    asyncio.run(tiering.stop())
    stage.close()
    return made


class Now(Executor):
    """Runs what is submitted at once."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **kwargs))
        return done


@dataclass
class Told:
    """What a reader tells its owner."""

    wrongs: list[str] = field(default_factory=list)
    bytes: int = 0
    failures: list[str] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        self.wrongs.append(what)

    def fetched(self, size: int) -> None:
        self.bytes += size

    def not_stored(self, error: StoreFailure) -> None:
        self.failures.append(str(error))


def another_reader(reader: TierReader, cache: RangeCache) -> TierReader:
    """A reader of the same files that has nothing of them in memory."""
    parts = reader._parts
    again = TierReader(Ranges(parts._store, cache, Now()), parts._where, SIZE, parts._events)
    again.link_files(reader.files, whole=reader.whole)
    again.problem = reader.problem
    return again


class Reading:
    """A reader over a copy of the store."""

    def __init__(self, log: StoredLog, directory: Path, cache_bytes: int = 64 << 20) -> None:
        self.log = log
        self.store = FakeStore()
        self.store.objects = dict(log.objects)
        self.told = Told()
        self.cache = RangeCache(RealDisk(), str(directory / "cache"), cache_bytes)
        self.reader = self.again()

    def again(self) -> TierReader:
        """A reader that has nothing in memory."""
        self.reader = TierReader(
            Ranges(self.store, self.cache, Now()), self.log.where, SIZE, self.told
        )
        self.reader.link_files(tuple(self.log.files), whole=True)
        self.reader.problem = ""
        return self.reader

    def queue(self, name: str, queue: int, first: int = 0, max_bytes: int = 20_000) -> list[bytes]:
        """All entries of a queue from an offset on, read as a client reads them."""
        return list(self.each(name, queue, first, max_bytes))

    def each(self, name: str, queue: int, first: int, max_bytes: int) -> Iterator[bytes]:
        local = self.log.local(name, queue)
        while first < local.offset:
            found = self.reader.entries(name, queue, first, local, max_bytes)
            assert found is not None and found.first == first
            data, at = b"".join(found.pieces), 0
            for size in found.sizes.tolist():
                yield data[at : at + size]
                at += size
            first += len(found.sizes)

    def key(self, ending: str, number: int = 0) -> str:
        """An object of one of the files, the oldest first."""
        return [key for key in self.store.keys(ending) if self.log.where in key][number]
