"""Kill points: run a scenario once to count its file operations, then once per operation with a
crash before it or half-way through it.

This module holds the disk that fails at a given operation, the owner of a store that records all
its promises, and the check that a recovered store keeps those promises. The tests define the
scenarios.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_sealing import chain_crc_at
from ledgermq.proto.entries.layout import HEADER_BYTES, record_columns
from ledgermq.proto.types import HardState, Identity
from ledgermq.sim.machine.disk import ForgetfulDisk, Killed
from ledgermq.storage.files.errors import DerivedLost
from ledgermq.storage.files.ports import Buffer, DiskFile
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.state import snapshot
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from tests.storage.log_material import HOST, make_batch, make_identity

ROOT = "/data/n1/g1"
LOG = f"{ROOT}/dledger-n1"
IDENTITY: Identity = make_identity()
SNAPSHOT = "snapshot"
DIVISIBLE = ("pwrite", "store", "create")
"""Operations that a kill can leave half done; all other operations are atomic."""


class KillFile:
    """One open file of a KillDisk."""

    def __init__(self, disk: KillDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path
        self.size = file.size

    def pread(self, offset: int, length: int) -> bytes:
        self._disk.look(length)
        return self._file.pread(offset, length)

    def pwrite(self, offset: int, data: Buffer) -> None:
        if self._disk.through_map and "/data/" in self.path:
            self.store(offset, data)
            return
        with self._disk.operation(
            "pwrite",
            self.path,
            lambda: self._file.pwrite(offset, memoryview(data)[: len(data) // 2]),
        ):
            self._file.pwrite(offset, data)

    def store(self, offset: int, data: Buffer) -> None:
        with self._disk.operation(
            "store", self.path, lambda: self._file.store(offset, memoryview(data)[: len(data) // 2])
        ):
            self._file.store(offset, data)

    def sync(self) -> None:
        with self._disk.operation("sync", self.path):
            self._file.sync()

    def view(self) -> memoryview:
        self._disk.look(0)
        return self._file.view()

    def close(self) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        """Forward the remaining methods of the port (locking, touching); they write nothing."""
        return getattr(self._file, name)


@dataclass
class Operation:
    """A context manager around one file operation; it does nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class KillDisk:
    """Forwards to a forgetful disk and raises Killed at operation number `at` (counted from 0),
    after half of it when `half`."""

    def __init__(
        self, disk: ForgetfulDisk, at: int = -1, *, half: bool = False, through_map: bool = False
    ) -> None:
        self.disk = disk
        self.through_map = through_map
        """Write to log files through their memory maps."""
        self.operations: list[tuple[str, str]] = []
        self.bytes_read = 0
        self._at = at
        self._half = half
        self._dead = False

    def look(self, length: int) -> None:
        if self._dead:
            raise Killed
        self.bytes_read += length

    def operation(
        self, name: str, path: str, half: Callable[[], object] | None = None
    ) -> Operation:
        self.look(0)
        number = len(self.operations)
        self.operations.append((name, path))
        if number == self._at:
            self._dead = True
            if self._half and half is not None:
                half()
            raise Killed
        return Operation()

    def open(self, path: str) -> DiskFile:
        self.look(0)
        return KillFile(self, self.disk.open(path))

    def create(self, path: str, size: int, *, allocate: bool) -> DiskFile:
        with self.operation(
            "create", path, lambda: self.disk.create(path, size // 2, allocate=allocate)
        ):
            return KillFile(self, self.disk.create(path, size, allocate=allocate))

    def exists(self, path: str) -> bool:
        self.look(0)
        return self.disk.exists(path)

    def file_size(self, path: str) -> int:
        self.look(0)
        return self.disk.file_size(path)

    def listdir(self, path: str) -> list[str]:
        self.look(0)
        return self.disk.listdir(path)

    def mkdirs(self, path: str) -> None:
        if not self.disk.exists(path):
            with self.operation("mkdirs", path):
                self.disk.mkdirs(path)

    def rename(self, old: str, new: str) -> None:
        with self.operation("rename", new):
            self.disk.rename(old, new)

    def unlink(self, path: str) -> None:
        with self.operation("unlink", path):
            self.disk.unlink(path)

    def sync_dir(self, path: str) -> None:
        with self.operation("sync_dir", path):
            self.disk.sync_dir(path)

    def read_file(self, path: str) -> bytes:
        self.look(0)
        return self.disk.read_file(path)

    def replace_file(self, path: str, data: bytes) -> None:
        """Replace the file in separate operations, so that a kill can occur between any two of
        them."""
        unfinished = path + ".tmp"
        if self.disk.exists(unfinished):
            self.disk.unlink(unfinished)
        file = self.create(unfinished, len(data), allocate=False)
        file.pwrite(0, data)
        file.sync()
        file.close()
        self.rename(unfinished, path)
        self.sync_dir(str(PurePosixPath(path).parent))

    def free_bytes(self, path: str) -> int:
        return self.disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self.disk.total_bytes(path)


@dataclass
class Promises:
    """What the owner of a store acknowledged, and what every recovered store must therefore
    contain."""

    entries: dict[int, int] = field(default_factory=dict)
    """index → chain CRC of each entry that was durable and not truncated since"""
    known: set[tuple[int, int]] = field(default_factory=set)
    """(index, chain CRC) of every entry whose write was started"""
    hard_states: set[HardState] = field(default_factory=lambda: {HardState()})
    """The hard states that may be found: the last saved one, and the one being saved when the
    process ended"""
    snapshots: set[int] = field(default_factory=lambda: {-1})
    """Applied indexes of snapshots that may be found; −1: no snapshot"""
    begins: set[int] = field(default_factory=lambda: {0})
    """Entries with which the log may begin: the result of the last trim, and that of a running
    trim"""
    created: bool = False


class Owner:
    """Uses one store as a node does, and records its promises."""

    def __init__(self, disk: KillDisk, promises: Promises) -> None:
        self.disk = disk
        self.promises = promises
        self.store: GroupStore

    @property
    def log(self) -> EntryLog:
        return self.store.log

    def create(self) -> None:
        GroupStore.create(self.disk, ROOT, IDENTITY)
        self.promises.created = True

    def open(self) -> None:
        """Recover the store and restore derived state. Afterwards all entries in the log count as
        durable."""
        self.store = GroupStore.open(self.disk, ROOT, IDENTITY)
        assert self.log.fenced is None, self.log.report
        self._promise()
        # A vote may have been granted on the basis of an entry that was read, so the entry must
        # stay.
        self.promises.hard_states = {self.store.hard_state.value}
        self.restore()

    def restore(self) -> None:
        """Restore as a node does: load the snapshot if it matches, cut the queues to it, and
        dispatch all later entries again."""
        value = self.store.read_snapshot()
        queues = self.store.queues
        self.applied = self.log.begin_index - 1
        if value is None:
            self.store.discard_derived()
            queues.start({}, 0)
        else:
            try:
                self.store.start_queues(value)
                self.applied = value["applied_index"]
            except DerivedLost:
                with self.store.rebuilding_queues():
                    queues.begin_again(snapshot.minimums(value))
                    self.dispatch()
        self.dispatch()

    def append(
        self, count: int, *, term: int = 1, body_bytes: int = 100, new_file: bool = False
    ) -> None:
        first = self.log.end_index + 1
        batch = make_batch(count, body_bytes, first=first)
        try:
            self.log.append_leader(
                term,
                batch,
                np.arange(first, first + count),
                1_700_000_000_500,
                HOST,
                new_file=new_file,
            )
        finally:
            chains = [chain_crc_at(batch.data, int(start)) for start in batch.starts]
            self.promises.known |= {(first + at, chain) for at, chain in enumerate(chains)}

    def sync(self, *, idle: bool = False) -> None:
        job = self.log.begin_sync(idle=idle)
        if job is not None:
            job.run()
            self.log.finish_sync(job, None)
            self._promise()

    def _promise(self) -> None:
        self.promises.entries = {
            index: self.log.chain_at(index)
            for index in range(self.log.begin_index, self.log.durable_index + 1)
        }

    def truncate(self, index: int) -> None:
        """Truncated entries were never committed, so they may be missing as soon as truncation
        starts."""
        for gone in [at for at in self.promises.entries if at >= index]:
            del self.promises.entries[gone]
        self.log.truncate_from(index)

    def save(self, state: HardState) -> None:
        self.promises.hard_states.add(state)
        self.store.hard_state.save(state)
        self.promises.hard_states = {state}

    def dispatch(self) -> None:
        while self.applied < self.log.end_index:
            entries = self.log.read(self.applied + 1, 1 << 20)
            self.store.queues.append(record_columns(entries))
            self.applied = entries.last_index

    def snapshot(self) -> None:
        """Save as a node does: sync the queues before the snapshot that depends on them."""
        value = {
            "log_id": IDENTITY.log_id,
            "applied_index": self.applied,
            "applied_term": self.log.term_at(self.applied),
            "chain_crc": self.log.chain_at(self.applied),
            "queues": {
                topic: {str(queue): end for queue, end in ends.items()}
                for topic, ends in self.store.queues.next_offsets().items()
            },
            "minimums": snapshot.export_minimums(self.store.queues.minimums()),
        }
        assert self.applied <= self.log.durable_index
        self.promises.snapshots.add(self.applied)
        self.store.queues.sync()
        self.store.write_snapshot(value)
        self.promises.snapshots = {self.applied}

    def trim(self, index: int) -> None:
        """Trim as a node does: save the trim in both snapshots before the first file is removed,
        then trim the log, then the queues."""
        pos = self.log.pos_of(index)
        self.store.queues.raise_minimums(pos)
        for _ in range(2):
            self.append(1, term=self.log.end_term)
            self.sync()
            self.dispatch()
            self.snapshot()
        assert self.store.durable_snapshot_index >= index
        self.promises.begins.add(index)
        for gone in [at for at in self.promises.entries if at < index]:
            del self.promises.entries[gone]
        self.log.trim(index)
        self.promises.begins = {index}
        self.store.queues.trim(pos)

    def first_of_file(self, number: int) -> int:
        """The first entry of the `number`-th existing log file."""
        base = self.log.begin_pos + number * IDENTITY.data_file_bytes
        return next(
            index
            for index in range(self.log.begin_index, self.log.end_index + 1)
            if self.log.pos_of(index) >= base
        )

    def checkpoint(self) -> None:
        self.store.write_checkpoints(self.log.durable_index, StoreCheckpoint(1, 2, 3))

    def close(self) -> None:
        everything = {
            index: self.log.chain_at(index)
            for index in range(self.log.begin_index, self.log.end_index + 1)
        }
        self.store.close()
        self.promises.entries = everything


Act = Callable[[Owner], None]


def run(
    base: ForgetfulDisk,
    promises: Promises,
    act: Act,
    at: int = -1,
    *,
    half: bool = False,
    through_map: bool = False,
) -> tuple[KillDisk, Promises, bool]:
    """Run `act` on copies. Returns the disk as the process left it, the promises, and whether `act`
    finished."""
    disk = KillDisk(copy.deepcopy(base), at, half=half, through_map=through_map)
    given = copy.deepcopy(promises)
    try:
        act(Owner(disk, given))
    except Killed:
        return disk, given, False
    return disk, given, True


def prepared(*acts: Act) -> tuple[ForgetfulDisk, Promises]:
    """A disk on which `acts` ran without a kill, and their promises."""
    disk, promises = ForgetfulDisk(), Promises()
    disk.mkdirs("/data/n1")
    disk.forgets_directories = disk.any_names = True
    owner = Owner(KillDisk(disk), promises)
    for act in acts:
        act(owner)
    return disk, promises


def crashes(
    base: ForgetfulDisk, promises: Promises, act: Act, stride: int = 1
) -> Iterator[tuple[str, ForgetfulDisk, Promises]]:
    """Every kill point of `act`: its name, the disk, and the promises made before it. The last one
    is the end of `act`."""
    whole, given, done = run(base, promises, act)
    assert done
    for at in range(0, len(whole.operations), stride):
        name, path = whole.operations[at]
        for half in (False, True) if name in DIVISIBLE else (False,):
            disk, told, done = run(base, promises, act, at, half=half)
            assert not done
            yield f"{at}{' half' if half else ''} {name} {path}", disk.disk, told
    yield "the end", whole.disk, given


def after_power_cut(disk: ForgetfulDisk, seed: int) -> ForgetfulDisk:
    cut = copy.deepcopy(disk)
    cut.power_cut(random.Random(seed))
    return cut


def verify(disk: ForgetfulDisk, promises: Promises) -> None:
    """Recover from `disk` and check the promises; then use the store, stop it cleanly, and check
    again."""
    if not disk.exists(f"{ROOT}/identity.json"):
        assert not promises.created, "the created replica is missing"
        GroupStore.create(disk, ROOT, IDENTITY)
    owner = Owner(KillDisk(disk), Promises())
    owner.open()
    log = owner.log
    assert log.begin_index in promises.begins, (
        f"the log begins with entry {log.begin_index} instead of {promises.begins}"
    )
    for index, chain in promises.entries.items():
        assert log.end_index >= index, (
            f"entry {index} was acknowledged and is missing: the log ends with {log.end_index}"
            f" ({log.report})"
        )
        assert log.chain_at(index) == chain, (
            f"entry {index} was acknowledged and has different content now"
        )
    for index in range(log.begin_index, log.end_index + 1):
        assert (
            index,
            log.chain_at(index),
        ) in promises.known, f"entry {index} has content that was never appended"
    assert owner.store.hard_state.value in promises.hard_states
    found = owner.store.read_snapshot()
    assert (-1 if found is None else found["applied_index"]) in promises.snapshots | {-1}
    check_log(disk, log)
    check_queues(owner)
    owner.append(3, term=log.end_term + 1)
    owner.sync()
    owner.dispatch()
    owner.close()
    end = log.end_index, log.end_chain
    owner.open()
    assert owner.log.report.row == "clean"
    assert (owner.log.end_index, owner.log.end_chain) == end
    check_queues(owner)
    owner.store.abandon()


def check_log(disk: ForgetfulDisk, log: EntryLog) -> None:
    """Check that every entry has valid CRCs, every unit has its position, and only zeros follow the
    end."""
    index, chain = log.begin_index, log.chain_at(log.begin_index - 1)
    while index <= log.end_index:
        entries = log.read(index, 1 << 20)
        chain = verify_range(
            bytes(entries.data), index, entries.term, entries.pos, chain
        ).last_chain
        index = entries.last_index + 1
    assert chain == log.end_chain
    for path in disk.files():
        if path.startswith(f"{LOG}/data/") and not path.endswith(".alloc"):
            base = int(PurePosixPath(path).name)
            assert not any(disk.read_file(path)[max(0, log.end_pos - base) :]), (
                f"{path} has bytes other than zero after the end"
            )


def check_queues(owner: Owner) -> None:
    """Check that the consume queue has one unit for every entry of the log, with the position of
    its record."""
    log, queues = owner.log, owner.store.queues
    count, low = log.end_index + 1, queues.min_offset("t", 0)
    assert low >= log.begin_index
    units = queues.read("t", 0, low, count - low)
    assert (queues.next_offset("t", 0), len(units)) == (count, count - low)
    for index in range(low, count):
        assert int(units.physical_offsets[index - low]) == log.pos_of(index) + HEADER_BYTES, (
            f"unit {index} has the wrong position"
        )
