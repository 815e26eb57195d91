"""The three append modes: which file operations they make and when, what readers see, and that the
first failure ends appending."""

from __future__ import annotations

import errno
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files import memory
from ledgermq.storage.files.errors import Exhausted, LogFenced
from ledgermq.storage.files.mapped_files import Submit, Warmth, run_now
from ledgermq.storage.files.ports import Disk, DiskFile
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import (
    COPY_LEAST_BYTES,
    MODES,
    REMEMBERED_SYNCS,
    SHORT_SYNC_S,
    AtOnceIfSlow,
    PoolWriter,
    make_writer,
)
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import append, make_identity, sync

SIZE = 1 << 16
IDENTITY = make_identity(data_file_bytes=SIZE, index_file_bytes=32 * 1024)


def never(work: Callable[[], object]) -> None:
    """A commit runner that does not come to it."""


def open_log(
    disk: Disk, mode: str, directory: str = "/log", *, submit: Submit = never, buffers: int = 2
) -> EntryLog:
    disk.mkdirs(directory)
    EntryLog.create(disk, directory, IDENTITY)
    return EntryLog.open(
        disk,
        directory,
        IDENTITY,
        clean=True,
        writer=make_writer(mode, buffers=buffers, buffer_bytes=20_000, submit=submit),
    )


def data_events(disk: FaultyDisk) -> list[str]:
    """What was done to files of the log's data, without the making of the next one."""
    return [
        str(event[0])
        for event in disk.trace
        if "/data/" in str(event[1]) and ".alloc" not in str(event[1])
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lock_memory", [False, True])
def test_writer_follows_its_append_and_lock_settings(
    mode: str, lock_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are faulted in ahead, through a writable map only where the map is written; memory is
    locked, and a refusal told, as set."""
    monkeypatch.setattr(memory, "lock", lambda area: None)
    said: list[str] = []
    together = AtOnceIfSlow(0, "none")
    writer = make_writer(
        mode,
        lock_memory=lock_memory,
        refused=said.append,
        together=together,
        buffers=2,
        buffer_bytes=4096,
    )
    assert writer.mode == mode and writer.together is together
    assert writer.warmth == Warmth(
        populate=True, stores=mode == "map", lock=lock_memory, refused=said.append
    )
    assert writer.locked_bytes == (8192 if lock_memory and mode == "pool" else 0)
    writer.close()
    assert writer.locked_bytes == 0


def test_each_mode_appends_in_its_own_way() -> None:
    """`pwrite` writes, `map` stores, `pool` touches no file before the sync, which copies first."""
    expected = {
        "pwrite": (["pwrite"], ["sync"]),
        "map": (["store"], ["sync"]),
        "pool": ([], ["pwrite", "sync"]),
    }
    for mode in MODES:
        disk = FaultyDisk(ForgetfulDisk())
        log = open_log(disk, mode)
        append(log, 1)
        disk.trace.clear()
        append(log, 10)
        appended = data_events(disk)
        disk.trace.clear()
        sync(log)
        assert (appended, data_events(disk)) == expected[mode]


@pytest.mark.parametrize("mode", MODES)
def test_a_finished_sync_means_the_medium(mode: str) -> None:
    """Nothing else than the end of a sync moves the durable index, and then every byte is on the
    medium, also when more came meanwhile."""
    disk = ForgetfulDisk()
    log = open_log(disk, mode)
    append(log, 20)
    want, middle = bytes(log.read(0, SIZE).data), log.end_pos
    job = log.begin_sync()
    assert job is not None
    append(log, 20)
    job.run()
    log.finish_sync(job, None)
    assert (log.durable_index, log.end_index) == (19, 39)
    path = f"/log/data/{0:020d}"
    assert disk.on_medium(path, 0, middle) == want
    rest = bytes(log.read(20, SIZE).data)
    sync(log)
    assert disk.on_medium(path, 0, log.end_pos) == want + rest


@pytest.mark.parametrize("mode", MODES)
def test_read_across_a_start_includes_pooled_bytes(mode: str) -> None:
    """What was there at a start and what was appended since are one range to a reader, wherever the
    newer bytes are."""
    disk = ForgetfulDisk()
    log = open_log(disk, mode)
    append(log, 3)
    sync(log)
    log.flush_mark()
    log.close()
    log = EntryLog.open(
        disk,
        "/log",
        IDENTITY,
        clean=False,
        writer=make_writer(mode, buffers=2, buffer_bytes=20_000, submit=never),
    )
    append(log, 3)
    entries = log.read(0, SIZE)
    assert verify_range(bytes(entries.data), 0, entries.term, 0, entries.prev_chain).last_index == 5


class Model:
    """A pool over two files and the bytes that readers must see."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.works: list[Callable[[], object]] = []
        self.disk = FaultyDisk(ForgetfulDisk())
        self.disk.mkdirs("/d")
        self.files: list[DiskFile] = [
            self.disk.create(f"/d/{name}", 4000, allocate=True) for name in "ab"
        ]
        self.wanted = [bytearray(4000), bytearray(4000)]
        self.pool = PoolWriter(
            chance.randint(1, 4), chance.choice([50, 300, 1000]), self.works.append
        )
        self.at = [0, 0]

    def write(self) -> None:
        which = self.chance.random() < 0.2
        length = min(self.chance.choice([1, 30, 400, 2500]), 4000 - self.at[which])
        data = self.chance.randbytes(length)
        self.pool.write(self.files[which], self.at[which], data)
        self.wanted[which][self.at[which] : self.at[which] + length] = data
        self.at[which] += length

    def back(self) -> None:
        """Go back as a truncation does: drain everything, then continue writing at an earlier
        position."""
        which = self.chance.random() < 0.5
        self.pool.drain()
        self.at[which] = self.chance.randint(0, self.at[which])

    def drain(self) -> None:
        mark = self.pool.taken()
        before = [bytes(wanted) for wanted in self.wanted]
        self.pool.drain(mark)
        assert [file.pread(0, 4000) for file in self.files] == before

    def copy(self) -> None:
        while self.works:
            self.works.pop()()

    def look(self) -> None:
        which = self.chance.random() < 0.5
        low, high = sorted(self.chance.sample(range(4001), 2))
        held = self.pool.held(self.files[which], low, high - low)
        found = self.files[which].pread(low, high - low) if held is None else held
        assert found == self.wanted[which][low:high]


@pytest.mark.parametrize("seed", range(15))
def test_readers_of_a_pool_see_every_byte_at_once(seed: int) -> None:
    """However writes, copies and drains meet: a read finds what was written last, and a drained
    file holds it."""
    model = Model(random.Random(seed))
    acts = [model.write] * 4 + [model.look] * 4 + [model.copy, model.drain, model.back]
    for _ in range(150):
        model.chance.choice(acts)()
    model.drain()
    assert model.pool.held(model.files[0], 0, 4000) is None


def test_without_a_free_buffer_the_writer_copies_itself() -> None:
    """It neither waits for a runner that never comes nor loses a byte."""
    disk = FaultyDisk(ForgetfulDisk())
    disk.mkdirs("/d")
    file = disk.create("/d/a", SIZE, allocate=True)
    pool = PoolWriter(2, 100, never)
    pool.write(file, 0, b"x" * 200)
    assert not disk.names("pwrite")
    pool.write(file, 200, b"y")
    assert len(disk.names("pwrite")) == 2
    pool.write(file, 201, b"z" * 5000)
    pool.drain()
    assert file.pread(0, 5201) == b"x" * 200 + b"y" + b"z" * 5000


def test_commit_runner_is_called_once_above_the_copy_threshold() -> None:
    """Small pieces wait for the next sync; above a number of bytes the runner is called, once until
    it has started."""
    works: list[Callable[[], object]] = []
    disk = ForgetfulDisk()
    disk.mkdirs("/d")
    file = disk.create("/d/a", SIZE, allocate=True)
    pool = PoolWriter(4, SIZE, works.append)
    pool.write(file, 0, bytes(COPY_LEAST_BYTES - 1))
    assert works == []
    for offset in range(3):
        pool.write(file, COPY_LEAST_BYTES - 1 + offset, b"x")
    assert len(works) == 1
    works.pop()()
    assert pool.held(file, 0, COPY_LEAST_BYTES + 2) is None
    pool.write(file, COPY_LEAST_BYTES + 2, bytes(COPY_LEAST_BYTES))
    assert len(works) == 1


@pytest.mark.parametrize("mode", MODES)
def test_the_first_failed_write_is_the_last(mode: str) -> None:
    """A write that fails, in the writer or in the sync that copies for it, fences; nothing is
    written or synced afterwards."""
    disk = FaultyDisk(ForgetfulDisk())
    log = open_log(disk, mode)
    append(log, 3)
    sync(log)
    append(log, 1)
    disk.fail_writes_after(0, errno_of="EIO")
    if mode == "pool":
        with pytest.raises(OSError, match="made to fail"):
            log._writer.drain()
    with pytest.raises(LogFenced) as fenced:
        append(log, 1)
    assert fenced.value.exit_code == 73
    disk.heal()
    disk.trace.clear()
    acts: list[Callable[[], object]] = [
        lambda: append(log, 1),
        log.begin_sync,
        log.flush_mark,
        lambda: log.truncate_from(0),
    ]
    for act in acts:
        with pytest.raises(LogFenced):
            act()
    assert log.durable_index == 2
    log.close()
    assert not [event for event in disk.trace if event[0] in ("pwrite", "store", "sync")]


def test_append_without_a_map_is_refused_unwritten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At the limit of maps or descriptors an append is refused as a whole, and the log continues
    when a map is possible again."""
    log = open_log(RealDisk(), "map", str(tmp_path / "log"))
    append(log, 1)
    assert log._data.at(0).swap_out()
    end = log.end_index

    def none(fd: int, size: int, path: str, *, writable: bool) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as limit:
        limit.setattr(memory, "map_file", none)
        with pytest.raises(Exhausted, match=r"max_map_count.*resumes by itself"):
            append(log, 1)
    assert log.fenced is None and log.end_index == end
    append(log, 1)
    assert log.end_index == end + 1


def test_failed_copy_fails_the_sync_and_fences() -> None:
    """What could not be copied cannot be durable: the job fails before it touches the medium, and
    the log is fenced."""
    disk = FaultyDisk(ForgetfulDisk())
    log = open_log(disk, "pool")
    append(log, 3)
    job = log.begin_sync()
    assert job is not None
    disk.trace.clear()
    disk.fail_writes_after(0, errno_of="EIO")
    with pytest.raises(OSError, match="made to fail") as failure:
        job.run()
    assert not disk.names("sync", "sync_dir")
    disk.heal()
    with pytest.raises(OSError, match="made to fail"):
        log._writer.drain()
    with pytest.raises(LogFenced):
        log.finish_sync(job, failure.value)
    assert log.durable_index == -1


def test_a_failed_commit_reaches_the_next_append_and_the_next_sync() -> None:
    """The runner cannot report its failure, so the next append or sync raises it."""
    for meet in ("append", "sync"):
        disk = FaultyDisk(ForgetfulDisk())
        works: list[Callable[[], object]] = []
        log = open_log(disk, "pool", submit=works.append, buffers=4)
        append(log, 150)
        disk.fail_writes_after(0, errno_of="EIO")
        works.pop()()
        disk.heal()
        if meet == "append":
            with pytest.raises(LogFenced, match="made to fail"):
                append(log, 1)
        else:
            job = log.begin_sync()
            assert job is not None
            with pytest.raises(OSError, match="made to fail"):
                job.run()


def test_closed_pool_refuses_use_and_releases_buffers() -> None:
    """Its buffers are released; a late commit does nothing, and a late sync raises an error."""
    works: list[Callable[[], object]] = []
    disk = FaultyDisk(ForgetfulDisk())
    disk.mkdirs("/d")
    file = disk.create("/d/a", SIZE, allocate=True)
    pool = PoolWriter(2, SIZE, works.append)
    pool.write(file, 0, bytes(COPY_LEAST_BYTES))
    pool.close()
    works.pop()()
    assert not disk.names("pwrite") and pool.locked_bytes == 0
    uses: list[Callable[[], object]] = [pool.drain, lambda: pool.write(file, 0, b"x")]
    for use in uses:
        with pytest.raises(OSError, match="closed"):
            use()
    pool.close()


def test_locked_buffers_are_counted_and_a_refusal_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All buffers are locked or none; without permission to lock, the pool works unlocked and logs
    what to do."""
    locked: list[object] = []
    monkeypatch.setattr(memory, "lock", locked.append)
    pool = PoolWriter(3, 4096, run_now, lock_memory=True)
    assert (len(locked), pool.locked_bytes) == (3, 3 * 4096)
    assert PoolWriter(3, 4096, run_now).locked_bytes == 0

    def refuse(area: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory, "lock", refuse)
    said: list[str] = []
    pool = PoolWriter(3, 4096, run_now, lock_memory=True, refused=said.append)
    assert pool.locked_bytes == 0
    assert len(said) == 1 and "Cannot allocate memory" in said[0] and "CAP_IPC_LOCK" in said[0]


def test_syncs_of_a_commit_run_at_once_and_all_are_waited_for() -> None:
    """Two syncs meet although neither ends before the other began; a failure of either is the
    commit's, after both have ended."""
    both, ended = threading.Barrier(2), []
    together = AtOnceIfSlow(2, "test", itertools.count().__next__)

    def fine() -> None:
        both.wait(30)
        ended.append("fine")

    def broken() -> None:
        both.wait(30)
        ended.append("broken")
        raise OSError(errno.EIO, "made to fail")

    together([fine, fine])
    assert ended == ["fine"] * 2
    for order in ([fine, broken], [broken, fine]):
        ended.clear()
        with pytest.raises(OSError, match="made to fail"):
            together(order)
        assert sorted(ended) == ["broken", "fine"]
    together([])


def test_a_fast_disk_syncs_in_turn_until_every_recent_commit_was_slow() -> None:
    """No thread is woken for a sync that is shorter than that; one slow sync among fast ones is no
    slow disk."""
    now_s, took_s, names = 0.0, 0.0, []
    together = AtOnceIfSlow(2, "turn", lambda: now_s)

    def sync() -> None:
        nonlocal now_s
        names.append(threading.current_thread().name)
        if threading.current_thread() is threading.main_thread():
            now_s += took_s

    def commit(seconds: float) -> set[str]:
        nonlocal took_s
        took_s = seconds
        names.clear()
        together([sync, sync])
        return set(names)

    main = threading.main_thread().name
    fast, slow = SHORT_SYNC_S / 2, SHORT_SYNC_S * 10
    assert commit(slow) != {main}, "nothing is known of the disk yet"
    assert commit(fast) != {main}
    for _ in range(REMEMBERED_SYNCS):
        assert commit(slow) == {main}
    assert commit(slow) != {main}, "the disk is slow now"

    def broken() -> None:
        raise OSError(errno.EIO, "made to fail")

    commit(fast)
    with pytest.raises(OSError, match="made to fail"):
        together([sync, broken])


def test_the_threads_of_syncs_end_with_their_owner() -> None:
    """A log that is gone leaves no thread behind."""
    together = AtOnceIfSlow(2, "ends")
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("ends-")]
    assert len(threads) == 2 and all(thread.daemon for thread in threads), (
        "a process that ends does not wait for them"
    )
    del together
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_failed_sync_beside_others_fences(tmp_path: Path) -> None:
    """The mark's sync fails on a thread of its own: the batch is not durable."""
    disk = FaultyDisk(RealDisk())
    disk.mkdirs(str(tmp_path / "log"))
    EntryLog.create(disk, str(tmp_path / "log"), IDENTITY)
    log = EntryLog.open(
        disk,
        str(tmp_path / "log"),
        IDENTITY,
        clean=True,
        writer=make_writer("pwrite", together=AtOnceIfSlow(2, "test")),
    )
    append(log, 1)
    sync(log)
    append(log, 1)
    job = log.begin_sync()
    assert job is not None and len(job._files) == 2
    disk.syncs_fail = True
    with pytest.raises(OSError, match="Input/output") as failure:
        job.run()
    with pytest.raises(LogFenced):
        log.finish_sync(job, failure.value)
    assert log.durable_index == 0


@pytest.mark.parametrize("mode", MODES)
def test_threads_that_copy_sync_and_append(tmp_path: Path, mode: str) -> None:
    """With a real commit thread and a real sync thread beside the owner, every read verifies and
    every sync covers what it promised."""
    with ThreadPoolExecutor(1) as commits, ThreadPoolExecutor(1) as syncs:

        def submit(work: Callable[[], object]) -> None:
            commits.submit(work)

        log = open_log(RealDisk(), mode, str(tmp_path / "log"), submit=submit, buffers=2)
        job, running = None, None
        for number in range(200):
            append(log, 1 + number % 7, body_bytes=(10, 300, 3000)[number % 3])
            if running is None:
                job = log.begin_sync()
                running = None if job is None else syncs.submit(job.run)
            elif running.done():
                assert job is not None and running.result() is None
                log.finish_sync(job, None)
                running = None
            index = max(0, log.end_index - number % 40)
            entries = log.read(index, 5000)
            verify_range(bytes(entries.data), index, entries.term, entries.pos, entries.prev_chain)
        if running is not None:
            running.result()
            assert job is not None
            log.finish_sync(job, None)
        end = log.end_index, log.end_chain
        log.flush_mark()
        log.close()
    log = EntryLog.open(RealDisk(), str(tmp_path / "log"), IDENTITY, clean=False)
    assert (log.end_index, log.end_chain, log.report.row) == (*end, "unclean-all-marked")


def test_a_drain_waits_for_the_thread_that_copies() -> None:
    """A sync that finds a running copy does not return before its bytes are in the file."""
    disk = ForgetfulDisk()
    disk.mkdirs("/d")
    file = disk.create("/d/a", SIZE, allocate=True)
    entered, go = threading.Event(), threading.Event()
    write = file.pwrite

    def slow(offset: int, data: memoryview) -> None:
        entered.set()
        assert go.wait(30)
        write(offset, data)

    file.pwrite = slow  # type: ignore[method-assign, assignment]
    pool = PoolWriter(2, SIZE, never)
    pool.write(file, 0, b"under way")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pool.drain)
        assert entered.wait(30)
        second = threads.submit(pool.drain)
        assert bytes(pool.held(file, 0, 9) or b"") == b"under way"
        assert not second.done()
        go.set()
        first.result(30)
        second.result(30)
    assert file.pread(0, 9) == b"under way"
