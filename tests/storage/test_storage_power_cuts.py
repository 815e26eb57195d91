"""The entry log and the slots on the forgetful disk: what a power cut, a killed process and a
failed sync leave is always explained."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.types import HardState, Identity
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.errors import LogFenced
from ledgermq.storage.files.ports import PAGE_BYTES
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log import log_recovery
from ledgermq.storage.log.durability import SyncJob
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import MODES, make_writer
from ledgermq.storage.state.hard_state import HardStateFile
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import HOST, append, make_batch, make_identity, new_log

ROOT = "/data/n1/g1"
IDENTITY: Identity = make_identity()


class Life:
    """A log whose owner appends, truncates, syncs, crashes and starts again, with everything it
    ever promised."""

    def __init__(self, seed: int, mode: str) -> None:
        self.chance = random.Random(seed)
        self.mode = mode
        self.commits: list[Callable[[], object]] = []
        """What the pool's commit runner was asked to do and has not done yet."""
        self.disk = ForgetfulDisk()
        self.disk.any_names = True
        self.disk.mkdirs(ROOT)
        EntryLog.create(self.disk, ROOT, IDENTITY)
        self.log = self.open(clean=True)
        self.job: SyncJob | None = None
        self.term = 1
        self.number = 0
        self.seen: set[tuple[int, int]] = set()
        """(index, chain CRC) of every entry ever appended"""
        self.trace: list[str] = []

    def open(self, *, clean: bool) -> EntryLog:
        self.commits = []
        writer = make_writer(
            self.mode,
            buffers=self.chance.randint(1, 6),
            buffer_bytes=2 * PAGE_BYTES,
            submit=self.commits.append,
        )
        return EntryLog.open(self.disk, ROOT, IDENTITY, clean=clean, writer=writer)

    def commit(self) -> None:
        """The pool's commit runner gets its turn."""
        while self.commits:
            self.commits.pop()()

    def write_back(self) -> None:
        """The kernel stores some dirty pages as they are now; later writes to them are lost, or
        not, for themselves."""
        self.disk.write_back(self.chance)

    def append(self) -> None:
        self.term += self.chance.random() < 0.2
        count, size = self.chance.randint(1, 8), self.chance.choice([10, 200, 700, 3000])
        batch = make_batch(count, size, first=self.number)
        self.number += count
        for entries in self.log.append_leader(
            self.term, batch, np.arange(count), 1, HOST, new_file=self.chance.random() < 0.1
        ):
            for index in range(entries.first_index, entries.last_index + 1):
                self.seen.add((index, self.log.chain_at(index)))

    def truncate(self) -> None:
        if self.log.end_index >= 0:
            self.log.truncate_from(
                self.chance.randint(max(0, self.log.end_index - 12), self.log.end_index)
            )
            self.term += 1

    def begin(self) -> None:
        if self.job is None:
            self.job = self.log.begin_sync(idle=self.chance.random() < 0.3)

    def finish(self) -> None:
        if self.job is not None:
            job, self.job = self.job, None
            job.run()
            self.log.finish_sync(job, None)

    def fail(self) -> None:
        """A sync fails, the node stops, and starts again on the same machine."""
        self.begin()
        if self.job is None:
            return
        job, self.job = self.job, None
        left = self.chance.randint(0, 2)

        def broken(path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.EIO, "made to fail", path)

        self.disk.on_sync = broken
        try:
            job.run()
        except OSError as error:
            with pytest.raises(LogFenced):
                self.log.finish_sync(job, error)
            self.start(power_cut=self.chance.random() < 0.5)
        else:
            self.disk.on_sync = None
            self.log.finish_sync(job, None)

    def stop(self) -> None:
        """A clean stop, possibly followed by a power cut: nothing may be missing."""
        self.finish()
        self.log.flush_mark()
        end = self.log.end_index
        self.log.close()
        self.start(power_cut=self.chance.random() < 0.5, clean=True)
        assert self.log.end_index == end
        assert self.log.report.row in ("clean", "empty")

    def kill(self) -> None:
        end = self.log.end_index, self.log.end_chain
        self.start(power_cut=False)
        # What a pool has not copied yet dies with the process.
        assert (self.log.end_index, self.log.end_chain) == end or self.mode == "pool"

    def cut_power(self) -> None:
        if self.job is not None and self.chance.random() < 0.5:
            self.job.run()
        self.start(power_cut=True)

    def start(self, *, power_cut: bool, clean: bool = False) -> None:
        durable = (
            [(index, self.log.chain_at(index)) for index in range(self.log.durable_index + 1)]
            if self.log.fenced is None
            else []
        )
        self.job = None
        if power_cut:
            self.disk.power_cut(self.chance)
        self.disk = self.disk.successor()
        self.log = self.open(clean=clean)
        assert self.log.fenced is None, self.log.report
        assert self.log.end_index + 1 >= len(durable), (len(durable), self.log.report)
        assert self.log.durable_index == self.log.end_index
        for index, chain in durable:
            assert self.log.chain_at(index) == chain
        self.check()

    def check(self) -> None:
        """The log is whole, made of entries that were once appended, marked to its end, and zero
        behind it."""
        log, index, chain = self.log, 0, self.log.chain_at(-1)
        while index <= log.end_index:
            entries = log.read(index, 1 << 20)
            chain = verify_range(
                bytes(entries.data), index, entries.term, entries.pos, chain
            ).last_chain
            index = entries.last_index + 1
        assert chain == log.end_chain
        assert all((i, log.chain_at(i)) in self.seen for i in range(log.end_index + 1))
        for path in self.disk.files():
            if path.startswith(f"{ROOT}/data/") and not path.endswith(".alloc"):
                base = int(PurePosixPath(path).name)
                assert not any(self.disk.read_file(path)[max(0, log.end_pos - base) :])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(25))
def test_lives_on_a_forgetful_disk(seed: int, mode: str) -> None:
    """What was durable stays, what comes back was once appended, and no crash looks like damage,
    whichever way bytes reach the files."""
    life = Life(seed, mode)
    often = (
        [life.append] * 6
        + [life.begin] * 3
        + [life.finish] * 3
        + [life.truncate] * 2
        + [life.write_back] * 2
    )
    often += [life.commit] * 2 * (mode == "pool")
    acts = [*often, life.cut_power, life.kill, life.stop, life.fail]
    for _ in range(80):
        act = life.chance.choice(acts)
        life.trace.append(act.__name__)
        act()


@pytest.mark.parametrize("seed", range(30))
def test_hard_state_survives_power_cuts(seed: int) -> None:
    """A saved term and vote are never forgotten; an interrupted save leaves the old or the new."""
    chance = random.Random(seed)
    disk = ForgetfulDisk()
    disk.mkdirs("/d")
    state = HardStateFile.create(disk, "/d/hardstate")
    for term in range(1, 30):
        new = HardState(term, chance.choice([None, "n1", "n2"]))
        old = state.value
        if chance.random() < 0.5:
            state.save(new)
            allowed = {new}
        else:
            disk.on_sync = lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "cut", path))
            with pytest.raises(OSError, match="cut"):
                state.save(new)
            allowed = {old, new}
        if chance.random() < 0.8:
            disk.power_cut(chance)
        disk = disk.successor()
        state = HardStateFile.open(disk, "/d/hardstate")
        assert state.value in allowed
        disk.power_cut(chance)
        disk = disk.successor()
        again = HardStateFile.open(disk, "/d/hardstate")
        assert again.value == state.value, "what was once read must not be forgotten"
        state = again


@pytest.mark.parametrize("seed", range(20))
def test_creation_survives_power_cuts(seed: int) -> None:
    """A power cut while a replica is made leaves a directory that is made anew, or a whole one."""
    chance = random.Random(seed)
    disk = ForgetfulDisk()
    disk.mkdirs("/data/n1")
    left = chance.randint(0, 12)

    def stop(path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EACCES, "stopped here", path)

    disk.on_sync = stop
    done = True
    try:
        GroupStore.create(disk, ROOT, IDENTITY)
    # whatever the interruption became: only what is on the disk afterwards counts
    except Exception:
        done = False
    disk.power_cut(chance)
    disk = disk.successor()
    if not disk.exists(f"{ROOT}/identity.json"):
        assert not done
        GroupStore.create(disk, ROOT, IDENTITY)
    store = GroupStore.open(disk, ROOT, IDENTITY)
    assert (store.log.end_index, store.hard_state.value) == (-1, HardState())
    store.close()


@pytest.mark.parametrize("mode", MODES)
def test_units_of_sealed_files_survive_a_power_cut(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A start looks at few units of old files, so they must be durable before the mark passes a
    file: none is lost, and none made again."""
    monkeypatch.setattr(log_recovery, "STRUCTURE_BYTES", 1)
    life = Life(0, mode)
    for number in range(12):
        batch = make_batch(7, 200, first=7 * number)
        life.log.append_leader(1, batch, np.arange(7), 1, HOST)
        life.begin()
        life.finish()
    places = [life.log.pos_of(index) for index in range(84)]
    life.disk.power_cut_keeping(frozenset())
    log = life.open(clean=False)
    assert log.end_index == 83
    assert [log.pos_of(index) for index in range(84)] == places
    assert log.report.rebuilt_units <= 20, "at most those of the last file"


def test_truncated_entries_stay_gone_after_a_failed_sync_and_power_cut() -> None:
    """The zeros of a truncation whose sync failed are in the cache only; the next start writes them
    again, so a later power cut finds nothing behind the end."""
    life = Life(0, "pwrite")
    batch = make_batch(6, 100)
    life.log.append_leader(1, batch, np.arange(6), 1, HOST)
    life.begin()
    life.finish()
    life.log.truncate_from(3)

    def broken(path: str) -> None:
        raise OSError(errno.EIO, "made to fail", path)

    job = life.log.begin_sync()
    assert job is not None
    life.disk.on_sync = broken
    with pytest.raises(OSError, match="made to fail"):
        job.run()
    life.disk = life.disk.successor()
    log = life.open(clean=False)
    assert log.end_index == 2
    life.disk.power_cut_keeping(frozenset())
    log = life.open(clean=False)
    assert log.end_index == 2, "entries that were cut off came back"


def test_units_that_recovery_made_survive_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery advances the mark over the entries it found. Their units must be durable first,
    because their files are not checked again."""
    monkeypatch.setattr(log_recovery, "STRUCTURE_BYTES", 1)
    life = Life(0, "pwrite")
    for number in range(12):
        life.log.append_leader(1, make_batch(7, 200, first=7 * number), np.arange(7), 1, HOST)
    places = [life.log.pos_of(index) for index in range(84)]
    life.disk = life.disk.successor()
    assert life.open(clean=False).report.rewritten_bytes > 0
    life.disk.power_cut_keeping(frozenset())
    log = life.open(clean=False)
    assert [log.pos_of(index) for index in range(84)] == places
    assert log.report.rebuilt_units <= 20, "at most those of the last file"


def test_names_of_index_files_found_after_a_kill_become_durable() -> None:
    """A killed process left names that no sync covered: after a start and a good stop a power cut
    takes none of them."""
    for seed in range(12):
        life = Life(seed, "pwrite")
        life.log.append_leader(1, make_batch(40, 10), np.arange(40), 1, HOST)
        life.disk = life.disk.successor()
        log = life.open(clean=False)
        log.flush_mark()
        log.close()
        life.disk.power_cut(life.chance)
        assert life.open(clean=True).report.row == "clean"


def test_a_log_file_is_durable_before_it_gets_its_name(tmp_path: Path) -> None:
    """A power cut never finds a log file that is shorter than its name promises."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 100)
    log.close()
    events = [
        (str(name), str(path))
        for name, path in disk.names("create", "sync", "rename")
        if "/data/" in str(path)
    ]
    named = [at for at, (name, _) in enumerate(events) if name == "rename"]
    assert len(named) > 3
    assert all([name for name, _ in events[at - 2 : at]] == ["create", "sync"] for at in named)
