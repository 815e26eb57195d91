"""Every question to an entry log, for every entry, against the list of the entries that were
appended: as appended, opened again, and trimmed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.types import SyncedMark
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files import mapped_files, memory
from ledgermq.storage.files.errors import Exhausted, LogDamaged
from ledgermq.storage.files.ports import PAGE_BYTES, DiskFile
from ledgermq.storage.log import entry_log
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import MODES, make_writer
from ledgermq.storage.log.synced_mark import SyncedMarkFile
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import HOST, make_batch, make_identity, sync

ROOT, SIZE = "/log", PAGE_BYTES
IDENTITY = make_identity(data_file_bytes=SIZE, index_file_bytes=32 * 8)
TERMS = [1] * 7 + [2] * 5 + [5, 6, 6, 6]
BODIES = [500, 520, 900, 480, 700, 510, 530, 1500, 490, 500, 610, 620, 630, 480, 2000, 470]


@dataclass(frozen=True)
class Entry:
    term: int
    pos: int
    data: bytes
    prev_chain: int
    chain: int


def with_log() -> ForgetfulDisk:
    """A disk with an empty log."""
    disk = ForgetfulDisk()
    disk.mkdirs(ROOT)
    EntryLog.create(disk, ROOT, IDENTITY)
    return disk


def written(
    terms: Sequence[int] = TERMS, bodies: Sequence[int] = BODIES
) -> tuple[EntryLog, list[Entry], ForgetfulDisk]:
    disk = with_log()
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=True)
    entries = []
    for index, (term, body) in enumerate(zip(terms, bodies, strict=True)):
        (one,) = log.append_leader(
            term, make_batch(1, body, first=index), np.array([index]), 1_700_000_000_500, HOST
        )
        entries.append(Entry(term, one.pos, bytes(one.data), one.prev_chain, one.last_chain))
    sync(log)
    return log, entries, disk


STATES = ("appended", "opened", "trimmed", "trimmed and opened")


def log_in(state: str) -> tuple[EntryLog, list[Entry], int, ForgetfulDisk]:
    """A log, all entries that were ever appended to it, and the one with which it begins."""
    log, entries, disk = written()
    begin = 0
    if "trimmed" in state:
        begin = next(index for index, entry in enumerate(entries) if entry.pos == 2 * SIZE)
        log.flush_mark()
        log.trim(begin)
    if "opened" in state:
        log.flush_mark()
        log.close()
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=True)
    return log, entries, begin, disk


def expected(entries: list[Entry], first: int, most: int) -> int:
    """The number of entries of one term and one file that a read returns."""
    count, size = 1, len(entries[first].data)
    while first + count < len(entries):
        after = entries[first + count]
        size += len(after.data)
        if (
            after.term != entries[first].term
            or after.pos // SIZE != entries[first].pos // SIZE
            or size > most
        ):
            break
        count += 1
    return count


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("units", [1, 2, 4096])
def test_every_read_of_a_log(state: str, units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one entry, then as many as fit, of the same term and file; `units`: how many it
    looks up at once."""
    monkeypatch.setattr(entry_log, "UNITS_A_READ", units)
    log, entries, begin, _ = log_in(state)
    for first in range(begin, len(entries)):
        sizes = np.cumsum([len(entry.data) for entry in entries[first:]]).tolist()
        for most in {0, 1, *(size + more for size in sizes[:4] for more in (-1, 0, 1)), 10 * SIZE}:
            found = log.read(first, most)
            count = min(expected(entries, first, most), units)
            whole = entries[first : first + count]
            assert (found.first_index, found.last_index, found.term, found.pos) == (
                first,
                first + count - 1,
                whole[0].term,
                whole[0].pos,
            )
            assert bytes(found.data) == b"".join(entry.data for entry in whole)
            assert (found.prev_chain, found.last_chain) == (whole[0].prev_chain, whole[-1].chain)
            assert found.sizes.tolist() == [len(entry.data) for entry in whole]
            assert found.starts.tolist() == [entry.pos - whole[0].pos for entry in whole]


@pytest.mark.parametrize("state", STATES)
def test_every_question_about_an_entry(state: str) -> None:
    """Term, chain and place, also of the entry before the begin and of the end; what lies outside
    is no question."""
    log, entries, begin, _ = log_in(state)
    for index in range(begin, len(entries)):
        entry = entries[index]
        assert (log.term_at(index), log.chain_at(index), log.pos_of(index)) == (
            entry.term,
            entry.chain,
            entry.pos,
        )
        record = entry.pos + HEADER_BYTES
        assert log.index_at(record) == index
        body = entry.data[HEADER_BYTES:]
        assert (
            bytes(log.record_at(record, len(body)))
            == bytes(log.whole_record_at(record, len(body)))
            == body
        )
        assert log.is_verified(entry.pos) is (state in ("appended", "trimmed"))
    last = entries[-1]
    assert (log.begin_index, log.begin_pos, log.end_index) == (
        begin,
        entries[begin].pos,
        len(entries) - 1,
    )
    assert (log.end_pos, log.end_term, log.end_chain) == (
        last.pos + len(last.data),
        last.term,
        last.chain,
    )
    assert log.pos_of(len(entries)) == log.end_pos
    if begin:
        assert (log.term_at(begin - 1), log.chain_at(begin - 1)) == (
            entries[begin - 1].term,
            entries[begin - 1].chain,
        )
        assert (log.begin_term, log.begin_chain) == (
            entries[begin - 1].term,
            entries[begin - 1].chain,
        )
    else:
        assert log.term_at(-1) == -1 and log.chain_at(-1) == entries[0].prev_chain
    runs = [
        (index, TERMS[index])
        for index in range(begin, len(TERMS))
        if index == begin or TERMS[index] != TERMS[index - 1]
    ]
    assert log.term_runs() == runs
    for outside in (begin - 2, begin - 1, len(entries), len(entries) + 1):
        for ask in (
            log.term_at,
            log.pos_of,
            log.truncate_from,
            log.trim,
            lambda index: log.read(index, 1),
        ):
            if (outside == begin - 1 and ask == log.term_at) or (
                outside == len(entries) and ask == log.pos_of
            ):
                continue
            with pytest.raises(AssertionError, match="is not in"):
                ask(outside)


@pytest.mark.parametrize("spoilt", [3, 6])
def test_a_damaged_unit_leads_to_no_other_entry(spoilt: int) -> None:
    """A read that needs it is refused, and says what to do."""
    log, entries, _, _ = log_in("appended")
    units = log._index.get(spoilt, 1).copy()
    units["index"] += 1
    log._index.put(spoilt, units)
    for index in range(len(entries)):
        if index == spoilt:
            with pytest.raises(LogDamaged, match=f"the index unit of entry {index} is damaged"):
                log.pos_of(index)
        else:
            assert log.pos_of(index) == entries[index].pos
    with pytest.raises(
        LogDamaged, match=f"the index units of entry {spoilt} and after are damaged"
    ):
        log.read(spoilt, 0)


@pytest.mark.parametrize("index", [0, 5, 15])
def test_a_damaged_record_or_header_of_an_older_entry_is_noticed(index: int) -> None:
    """A process that did not write them looks before it answers."""
    log, entries, _, disk = log_in("opened")
    entry = entries[index]
    record, size = entry.pos + HEADER_BYTES, len(entry.data) - HEADER_BYTES
    path = f"{ROOT}/data/{entry.pos - entry.pos % SIZE:020d}"
    disk.flip(path, (record + size - 1) % SIZE)
    with pytest.raises(LogDamaged, match=f"the message at {record} is not what was stored there"):
        log.whole_record_at(record, size)
    assert len(log.record_at(record, size)) == size
    for offset in (8, 15):  # first and last byte of the index in the header
        disk.flip(path, (entry.pos + offset) % SIZE)
        with pytest.raises(
            LogDamaged, match=f"the header of the entry at {entry.pos} is not what was stored there"
        ):
            log.index_at(record)
        disk.flip(path, (entry.pos + offset) % SIZE)
    assert log.index_at(record) == index


def test_an_empty_log() -> None:
    disk = with_log()
    created = SyncedMarkFile.open(disk, f"{ROOT}/syncedmark", IDENTITY.log_id).value
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=True)
    assert created == SyncedMark(chain_crc=log.end_chain)
    assert (
        log.begin_index,
        log.begin_pos,
        log.end_index,
        log.end_pos,
        log.end_term,
        log.durable_index,
    ) == (0, 0, -1, 0, -1, -1)
    assert (
        log.synced_mark == SyncedMark(chain_crc=log.end_chain)
        and log.chain_at(-1) == log.end_chain
        and log.term_runs() == []
    )
    assert log.fenced is None and not log.dirty


SHAPES = {
    "several in a file": (TERMS, BODIES),
    "one in a file": ([1, 1, 2, 3, 3, 3, 6], [3000] * 7),
}


@pytest.mark.parametrize("erase", [100, 1 << 20])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("state", ["appended", "opened"])
def test_truncated_log_equals_its_prefix_with_zeros_behind(
    state: str, shape: str, erase: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes behind the end are zero, in one more file at most, and durable with the next sync,
    as is what is appended then."""
    monkeypatch.setattr(entry_log, "ERASE_BYTES", erase)
    terms = SHAPES[shape][0]
    for cut in range(len(terms)):
        log, entries, disk = written(*SHAPES[shape])
        if state == "opened":
            log.flush_mark()
            log.close()
        watched = FaultyDisk(disk)
        if state == "opened":
            log = EntryLog.open(watched, ROOT, IDENTITY, clean=True)
        log.truncate_from(cut)
        end = entries[cut - 1].pos + len(entries[cut - 1].data) if cut else 0
        before = entries[cut - 1] if cut else Entry(-1, 0, b"", 0, entries[0].prev_chain)
        assert (log.end_index, log.end_pos, log.end_term, log.end_chain) == (
            cut - 1,
            end,
            before.term,
            before.chain,
        )
        assert log.durable_index <= cut - 1 and log.synced_mark.index <= cut - 1
        assert log.term_runs() == [
            (index, terms[index])
            for index in range(cut)
            if not index or terms[index] != terms[index - 1]
        ]
        stored = b"".join(
            disk.read_file(path)
            for path in disk.files()
            if "/data/" in path and path[-20:].isdigit()
        )
        assert not any(stored[end:]) and len(stored) <= end - end % SIZE + 2 * SIZE
        units = b"".join(disk.read_file(path) for path in disk.files() if "/index/" in path)
        assert not any(units[32 * cut :])
        assert log.is_verified(0) is (state == "appended" or not end)
        (one,) = log.append_leader(
            7, make_batch(1, 480, first=99), np.array([99]), 1_700_000_000_500, HOST
        )
        assert (one.first_index, one.prev_chain, one.term) == (cut, before.chain, 7)
        assert bytes(log.read(cut, 0).data) == bytes(one.data) and log.term_at(cut) == 7
        assert log.is_verified(one.pos)
        sync(log)
        assert log.durable_index == cut and not [
            path for path, _ in disk.unsynced_pages() if "/data/" in path
        ]
        log.close()
        assert watched.open_files == 0


def test_after_every_trim_the_log_begins_there() -> None:
    """With the term and the chain of the entry before. No file that is gone stays open."""
    terms, bodies = SHAPES["one in a file"]
    for begin in range(len(terms)):
        log, entries, disk = written(terms, bodies)
        log.flush_mark()
        log.close()
        watched = FaultyDisk(disk)
        log = EntryLog.open(watched, ROOT, IDENTITY, clean=True)
        for index in range(len(terms)):
            log.read(index, 0)
        data = [path for path in log.trim(begin) if "/data/" in path]
        assert data == [f"{ROOT}/data/{number * SIZE:020d}" for number in range(begin)]
        for _ in range(2):
            assert (log.begin_index, log.begin_pos) == (begin, begin * SIZE)
            assert (
                log.begin_term == (terms[begin - 1] if begin else -1)
                and log.begin_chain == entries[begin].prev_chain
            )
            runs = [
                (index, terms[index])
                for index in range(begin, len(terms))
                if index == begin or terms[index] != terms[index - 1]
            ]
            assert log.term_runs() == runs
            log.flush_mark()
            log.close()
            assert watched.open_files == 0
            log = EntryLog.open(watched, ROOT, IDENTITY, clean=True)
        log.close()


@pytest.mark.parametrize("mode", MODES)
def test_truncation_drops_buffered_bytes(mode: str) -> None:
    """It does not come back behind the end."""
    disk = with_log()
    writer = make_writer(mode, buffers=4, buffer_bytes=SIZE, submit=lambda work: None)
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=True, writer=writer)
    for index in range(4):
        log.append_leader(
            1, make_batch(1, 700, first=index), np.array([index]), 1_700_000_000_500, HOST
        )
    log.truncate_from(1)
    (one,) = log.append_leader(
        2, make_batch(1, 100, first=9), np.array([9]), 1_700_000_000_500, HOST
    )
    sync(log)
    stored = disk.read_file(f"{ROOT}/data/{0:020d}")
    assert stored[one.pos : one.end_pos] == bytes(one.data) and not any(stored[one.end_pos :])
    log.close()


# Stopping, and files that are open


@pytest.mark.parametrize("mode", MODES)
def test_closed_log_releases_files_and_keeps_buffered_bytes(mode: str) -> None:
    """Whatever its writer had buffered is in its files, as after the end of a process; a sync that
    was given up is no obstacle."""
    disk = with_log()
    watched = FaultyDisk(disk)
    writer = make_writer(mode, buffers=2, buffer_bytes=3 * SIZE, submit=lambda work: None)
    log = EntryLog.open(watched, ROOT, IDENTITY, clean=True, writer=writer)
    for index in range(5):
        log.append_leader(
            1, make_batch(1, 1500, first=index), np.array([index]), 1_700_000_000_500, HOST
        )
    log.read(0, SIZE)
    assert log.begin_sync() is not None
    log.give_up()
    end = log.end_index, log.end_chain
    log.close()
    assert watched.open_files == 0
    if mode == "pool":
        with pytest.raises(OSError, match="the pool is closed"):
            writer.drain()
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
    assert (log.end_index, log.end_chain) == end
    log.close()


def fill(log: EntryLog) -> None:
    """Append until the next file is being made, and sync until nothing is left to do."""
    while log._data.upcoming is None:
        log.append_leader(9, make_batch(1, 480, first=99), np.array([99]), 1_700_000_000_500, HOST)
    settle(log)


def settle(log: EntryLog) -> None:
    while (job := log.begin_sync(idle=True)) is not None:
        job.run()
        log.finish_sync(job, None)


@pytest.mark.parametrize("cut", [None, 3])
def test_clean_stop_syncs_log_mark_and_index(cut: int | None) -> None:
    """The log, its mark and its index, also if only the index has changed since the last sync. No
    file is made any more."""
    works: list[Callable[[], None]] = []
    log, _, disk = written()
    log.flush_mark()
    log.close()
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=True, submit=works.append)
    if cut is not None:
        log.truncate_from(cut)
    fill(log)
    log.append_leader(9, make_batch(1, 100, first=99), np.array([99]), 1_700_000_000_500, HOST)
    settle(log)
    assert [path for path, _ in disk.unsynced_pages()], "units wait for the end of their file"
    log.append_leader(9, make_batch(1, 100, first=99), np.array([99]), 1_700_000_000_500, HOST)
    log.flush_mark()
    assert (
        disk.unsynced_pages() == [] and log.synced_mark.index == log.end_index == log.durable_index
    )
    for work in works:
        work()
    assert not disk.exists(f"{ROOT}/data/next.alloc")
    log.close()


def test_a_file_that_was_made_ahead_is_no_reason_for_a_sync() -> None:
    """It gets its name with the next one."""
    works: list[Callable[[], None]] = []
    log, _, disk = written()
    log.flush_mark()
    log.close()
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=True, submit=works.append)
    fill(log)
    while works:
        works.pop()()
    assert log._data.upcoming is not None and log._data.upcoming.ready
    assert log.begin_sync() is None
    end = log._data.end
    job = log.begin_sync(idle=True)
    assert job is not None and log._data.end == end + SIZE
    job.run()
    log.finish_sync(job, None)
    log.close()


def test_few_files_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log that is read or appended to file by file, and of its index."""
    monkeypatch.setattr(mapped_files, "OPEN_FILES_MAX", 1)
    log, entries, disk = written([1] * 40, [1500] * 40)
    log.flush_mark()
    log.close()
    watched = FaultyDisk(disk)
    log = EntryLog.open(watched, ROOT, IDENTITY, clean=False)
    watched.open_files_most = 0
    for index in range(len(entries)):
        assert bytes(log.read(index, 0).data) == entries[index].data
    assert 0 < watched.open_files_most <= 8
    watched.open_files_most = 0
    for number in range(40):
        log.append_leader(
            1, make_batch(1, 1500, first=number), np.array([number]), 1_700_000_000_500, HOST
        )
        sync(log)
        sync(log)
    assert watched.open_files_most <= 8
    log.close()


@pytest.mark.parametrize("mode", MODES)
def test_memory_of_the_end_of_a_log_is_locked_if_its_writer_asks_for_it(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that is written to and the next one, and the writer's buffers."""
    monkeypatch.setattr(memory, "lock", lambda area: None)
    log, entries, disk = written()
    log.flush_mark()
    log.close()
    for lock in (False, True):
        writer = make_writer(mode, lock_memory=lock, buffers=2, buffer_bytes=SIZE)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=True, writer=writer)
        files = [
            base for base in log._data.bases if base >= entries[-1].pos - entries[-1].pos % SIZE
        ]
        assert log.locked_bytes == ((len(files) + 2 * (mode == "pool")) * SIZE if lock else 0)
        assert log.mapped_bytes == (len(files) * SIZE if lock else 0)
        log.close()


def test_append_at_the_descriptor_limit_is_refused_unwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if only the second of its files cannot be opened."""

    class Refusing(FaultyDisk):
        refuses = False

        def open(self, path: str) -> DiskFile:
            if self.refuses and "/data/" in path:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().open(path)

    monkeypatch.setattr(mapped_files, "OPEN_FILES_MAX", 1)
    log, entries, disk = written()
    log.flush_mark()
    log.close()
    watched = Refusing(disk)
    log = EntryLog.open(watched, ROOT, IDENTITY, clean=True)
    if log._data.end < log.end_pos + SIZE:
        log._data.extend()
    log._data.at(log.end_pos)
    log._data.close_idle(lambda file: False)
    watched.refuses = True
    with pytest.raises(Exhausted, match="resumes by itself"):
        log.append_leader(9, make_batch(2, 1000, first=99), np.arange(2), 1_700_000_000_500, HOST)
    assert log.fenced is None and log.end_index == len(entries) - 1 and not log.durability.dirty
    watched.refuses = False
    assert (
        len(
            log.append_leader(
                9, make_batch(2, 1000, first=99), np.arange(2), 1_700_000_000_500, HOST
            )
        )
        == 2
    )
    log.close()
