"""Recovery and the index: whichever unit is wrong, the log is the list of the entries that were
appended, and the units are made again."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import product

import pytest

from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.types import SyncedMark
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files import mapped_files
from ledgermq.storage.files.ports import DiskFile
from ledgermq.storage.log import log_recovery
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.log.synced_mark import SyncedMarkFile
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log.test_storage_entry_reads import (
    BODIES,
    IDENTITY,
    ROOT,
    SIZE,
    TERMS,
    Entry,
    written,
)

RUNS = [(index, term) for index, term in enumerate(TERMS) if not index or term != TERMS[index - 1]]
FIELDS = {"magic": 0, "pos": 4, "size": 12, "index": 16, "term": 24}
"""The offset of each field in a unit of 32 bytes: i32 magic, i64 pos, i32 size, i64 index, i64 term
(docs/format.md §5)."""
WIDTHS = {"magic": 4, "pos": 8, "size": 4, "index": 8, "term": 8}


def closed(
    terms: Sequence[int] = TERMS, bodies: Sequence[int] = BODIES, *, begin: int = 0
) -> tuple[ForgetfulDisk, list[Entry]]:
    """A log of which everything lies below its mark, trimmed to its begin."""
    log, entries, disk = written(terms, bodies)
    log.flush_mark()
    log.trim(begin)
    log.close()
    return disk, entries


def spoil(disk: ForgetfulDisk, index: int, what: str, mask: int = 1) -> None:
    """The last byte of a field of a unit."""
    place = index * 32
    path = f"{ROOT}/index/{place - place % IDENTITY.index_file_bytes:020d}"
    disk.flip(path, place % IDENTITY.index_file_bytes + FIELDS[what] + WIDTHS[what] - 1, mask)


def check(log: EntryLog, entries: list[Entry], *, units: bool) -> None:
    assert log.fenced is None and log.term_runs() == RUNS
    assert (log.end_index, log.end_chain) == (len(entries) - 1, entries[-1].chain)
    for index, entry in enumerate(entries):
        if units or index >= LAST_FILE:
            assert (log.pos_of(index), log.chain_at(index)) == (entry.pos, entry.chain)
            assert bytes(log.read(index, 0).data) == entry.data


def _first_of_last_file() -> int:
    _, entries, _ = written()
    return next(
        index for index, entry in enumerate(entries) if entry.pos // SIZE == entries[-1].pos // SIZE
    )


LAST_FILE = _first_of_last_file()


@pytest.mark.parametrize("what", FIELDS)
def test_a_wrong_unit_is_made_again(what: str) -> None:
    """After an unclean stop, of every entry: its header tells what is right. The next open finds
    nothing to do."""
    for index in range(len(TERMS)):
        disk, entries = closed()
        spoil(disk, index, what)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
        check(log, entries, units=True)
        assert log.report.rebuilt_units > 0, (index, what)
        assert disk.unsynced_pages() == []
        log.close()
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
        check(log, entries, units=True)
        assert log.report.rebuilt_units == 0
        log.close()


@pytest.mark.parametrize("mask", [1, 2, 4])
@pytest.mark.parametrize("what", FIELDS)
def test_a_wrong_unit_is_made_again_after_a_clean_stop_too(what: str, mask: int) -> None:
    """Although few headers are read then: a term that contradicts no neighbour would make this
    replica claim entries of another term, and a size at the end of a file a blank that is not
    there."""
    for index in range(len(TERMS)):
        disk, entries = closed()
        spoil(disk, index, what, mask)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=True)
        check(log, entries, units=True)
        assert log.report.rebuilt_units > 0, (index, what)
        log.close()


@pytest.mark.parametrize("what", ["", *FIELDS])
@pytest.mark.parametrize("clean", [False, True])
def test_terms_of_older_files_are_right_whichever_unit_is_wrong(
    what: str, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found by bisection over units that agree with their headers; if one of these does
    not, the whole file is looked at."""
    monkeypatch.setattr(log_recovery, "STRUCTURE_BYTES", 1)
    for index in range(len(TERMS) if what else 1):
        disk, entries = closed()
        if what:
            spoil(disk, index, what)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
        check(log, entries, units=not what)
        assert log.report.checked_files >= 1
        if not what:
            assert log.report.checked_files == 1
        log.close()


@pytest.mark.parametrize("clean", [False, True])
def test_missing_index_files_are_made_again(clean: bool) -> None:
    """Then every file of the log is looked at."""
    disk, entries = closed()
    for path in [path for path in disk.files() if "/index/" in path][:1]:
        disk.vanish(path)
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
    check(log, entries, units=True)
    assert log.report.checked_files == entries[-1].pos // SIZE + 1
    log.close()


@pytest.mark.parametrize("clean", [False, True])
def test_an_older_file_without_units_is_looked_at(
    clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no index file behind them tells that one is missing."""
    monkeypatch.setattr(log_recovery, "STRUCTURE_BYTES", 1)
    disk, entries = closed([1] * 24, [470] * 24)
    for path in [path for path in disk.files() if "/index/" in path][1:]:
        disk.vanish(path)
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
    read_through(log, entries)
    log.close()


@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24, 44])
def test_a_damaged_header_below_the_mark_fences(offset: int) -> None:
    """Of every entry, with and without its unit as a second witness: nothing is changed, and the
    reason names an entry or a file."""
    for index in range(len(TERMS)):
        disk, entries = closed()
        pos = entries[index].pos
        disk.flip(f"{ROOT}/data/{pos - pos % SIZE:020d}", pos % SIZE + offset + 3)
        before = {path: disk.read_file(path) for path in disk.files()}
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
        assert log.fenced is not None and log.fenced.exit_code == 75, (index, offset)
        runs = log.term_runs()
        assert runs and (runs == RUNS[: len(runs)] or runs == [(len(TERMS) - 1, TERMS[-1])])
        assert "restore this replica from its peers" in str(
            log.fenced
        ) and f"synced up to entry {len(entries) - 1}" in str(log.fenced)
        log.close()
        assert {path: disk.read_file(path) for path in disk.files()} == before


def test_a_body_that_changed_is_noticed_where_its_unit_is_wrong_too() -> None:
    """Without the unit as a second witness the entry has to match its CRCs."""
    disk, entries = closed()
    pos = entries[3].pos
    disk.flip(f"{ROOT}/data/{pos - pos % SIZE:020d}", pos % SIZE + HEADER_BYTES + 200)
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
    assert log.fenced is None, "bodies below the mark are left to the audit"
    log.close()
    spoil(disk, 3, "pos")
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
    assert log.fenced is not None and "entry 3" in str(log.fenced)
    log.close()


@pytest.mark.parametrize("clean", [False, True])
def test_a_damaged_blank_is_noticed_where_a_unit_is_wrong_too(clean: bool) -> None:
    """Below the mark it fences, as it does where the units are right. Its filler is left alone
    after a clean stop."""
    _, entries = closed()
    for first in range(1, len(TERMS)):
        end = entries[first - 1].pos + len(entries[first - 1].data)
        if entries[first].pos == end:
            continue
        for unit, offset in product((None, first - 1), (0, 7, 8, entries[first].pos - end - 1)):
            disk, _ = closed()
            if unit is not None:
                spoil(disk, unit, "pos")
            disk.flip(path_of(end), (end + offset) % SIZE)
            log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
            assert (log.fenced is None) is (clean and offset >= 8)
            log.close()


# Logs of few entries, and of many files


def path_of(pos: int, kind: str = "data", size: int = SIZE) -> str:
    return f"{ROOT}/{kind}/{pos - pos % size:020d}"


def read_through(log: EntryLog, entries: list[Entry], begin: int = 0) -> None:
    assert log.fenced is None and (log.begin_index, log.end_index) == (begin, len(entries) - 1)
    for index in range(begin, len(entries)):
        entry = entries[index]
        assert (log.term_at(index), log.chain_at(index), bytes(log.read(index, 0).data)) == (
            entry.term,
            entry.chain,
            entry.data,
        )


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(("count", "begin"), [(1, 0), (3, 2)])
def test_the_only_entry_of_a_log_is_checked(count: int, begin: int, clean: bool) -> None:
    """The first one ever, or the one that a trim has left."""
    disk, entries = closed([101] * count, [1500] * count, begin=begin)
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
    assert log.report.row == ("clean" if clean else "unclean-all-marked")
    read_through(log, entries, begin)
    log.flush_mark()
    log.close()
    disk.flip(path_of(entries[-1].pos), entries[-1].pos % SIZE + 11)
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
    assert log.fenced is not None and log.fenced.exit_code == 75
    log.close()


MISSING = {
    "no file": "there is no log file",
    "first file": f"the first log file begins at {2 * SIZE}",
}


@pytest.mark.parametrize("missing", ["", *MISSING])
@pytest.mark.parametrize("marked", [-1, 0, 1, 2])
def test_missing_file_behind_the_begin_is_damage_despite_a_low_mark(
    marked: int, missing: str
) -> None:
    """Even if its mark says less, because a slot was lost: a missing file is damage then, too."""
    disk, entries = closed([7, 7, 8, 8, 9], [1500] * 5, begin=2)
    disk.vanish(f"{ROOT}/syncedmark")
    mark = (
        SyncedMark(7, marked, SIZE // 2, entries[marked].chain)
        if marked >= 0
        else SyncedMark(chain_crc=entries[0].prev_chain)
    )
    if marked == 2:
        mark = SyncedMark(8, 2, entries[3].pos, entries[2].chain)
    SyncedMarkFile.create(disk, f"{ROOT}/syncedmark", IDENTITY.log_id, mark).close()
    for pos in {"": [], "first file": [SIZE], "no file": [SIZE, 2 * SIZE]}[missing]:
        disk.vanish(path_of(pos))
    for path in [path for path in disk.files() if "/data/" in path and missing == "no file"]:
        disk.vanish(path)
    before = {path: disk.read_file(path) for path in disk.files()}
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
    if missing:
        assert f"{MISSING[missing]}, that at {SIZE} is missing (the begin file says" in str(
            log.fenced
        )
        assert {path: disk.read_file(path) for path in disk.files()} == before
    else:
        assert log.report.row == "unmarked-entries"
        read_through(log, entries, begin=2)
    log.close()


def test_a_missing_first_file_of_a_log_that_was_never_trimmed_is_named() -> None:
    disk, _ = closed()
    disk.vanish(path_of(0))
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=True)
    assert (
        f"the first log file begins at {SIZE}, that at 0 is missing (no begin file says that it was"
        " trimmed)" in str(log.fenced)
    )
    log.close()


FILES = 9
EACH = [101, 101, 102, 105, 105, 105, 106, 110, 110]
"""The terms of a log with one entry in each file."""


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("structure", [1, SIZE, SIZE + 1, 3 * SIZE, 100 * SIZE])
def test_the_last_files_are_checked_entry_by_entry(
    clean: bool, structure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as hold so many bytes; if index files were missing, all of them. However many files
    there are, few are open at once."""
    monkeypatch.setattr(log_recovery, "STRUCTURE_BYTES", structure)
    monkeypatch.setattr(mapped_files, "OPEN_FILES_MAX", 1)
    for suspect in ("", "missing", "strange"):
        disk, entries = closed(EACH, [3000] * FILES)
        assert [entry.pos for entry in entries] == list(range(0, FILES * SIZE, SIZE))
        if suspect == "missing":
            disk.vanish(path_of(0, "index", IDENTITY.index_file_bytes))
        elif suspect:
            disk.create(f"{ROOT}/index/strange", 1, allocate=False).close()
        watched = FaultyDisk(disk)
        log = EntryLog.open(watched, ROOT, IDENTITY, clean=clean)
        assert log.report.checked_files == (FILES if suspect else min(FILES, -(-structure // SIZE)))
        assert watched.open_files_most <= 8
        read_through(log, entries)
        log.close()


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24, 44])
def test_the_header_that_begins_a_file_is_looked_at(
    offset: int, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every file, however old, and after a clean stop too."""
    monkeypatch.setattr(log_recovery, "STRUCTURE_BYTES", 1)
    for index in range(FILES):
        disk, entries = closed(EACH, [3000] * FILES)
        disk.flip(path_of(entries[index].pos), offset + 3)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
        assert log.fenced is not None and log.fenced.exit_code == 75
        log.close()


def test_a_page_that_cannot_be_read_is_damage_and_any_other_failure_is_a_failure() -> None:
    """Below the mark, before anything was written: a limit of the system is no damage."""
    disk, entries = closed()
    disk.break_page(path_of(entries[3].pos), 0)
    log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
    assert (
        log.fenced is not None
        and log.fenced.exit_code == 75
        and "the disk cannot read it" in str(log.fenced)
    )
    log.close()

    class Refusing(FaultyDisk):
        def open(self, path: str) -> DiskFile:
            if "/data/" in path:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().open(path)

    with pytest.raises(OSError, match="Too many open files"):
        EntryLog.open(Refusing(closed()[0]), ROOT, IDENTITY, clean=False)


# Above the mark


def unmarked() -> tuple[ForgetfulDisk, list[Entry], int]:
    """A log without a mark, and its end."""
    log, entries, disk = written()
    log.close()
    return disk, entries, entries[-1].pos + len(entries[-1].data)


@pytest.mark.parametrize("far", [False, True])
def test_recovery_counts_rewritten_and_erased_bytes_and_closes_files(far: bool) -> None:
    """Entries from the mark on; behind the end everything from the first byte that is not zero to
    the end of its file, unless the file is removed. The names that are gone are durable."""
    disk, entries, end = unmarked()
    stray = 100
    last = base = end - end % SIZE
    while disk.exists(path_of(base)):
        base += SIZE
    for number in range(3):
        disk.create(path_of(base + number * SIZE), SIZE, allocate=True).close()
    disk.flip(*((path_of(base + SIZE), 5) if far else (path_of(end), (end + stray) % SIZE)))
    watched = FaultyDisk(disk)
    log = EntryLog.open(watched, ROOT, IDENTITY, clean=False)
    read_through(log, entries)
    assert log.report.rewritten_bytes == sum(len(entry.data) for entry in entries)
    assert log.report.erased_bytes == (0 if far else last + SIZE - end - stray)
    names = watched.names("unlink", "sync_dir")
    unlinked = max(
        at
        for at, (operation, path) in enumerate(names)
        if operation == "unlink" and path_of(base) == path
    )
    assert ("sync_dir", f"{ROOT}/data") in names[unlinked:] and not log.dirty
    assert log.report.removed_files == (base - last) // SIZE + 3 - 2
    log.close()
    assert watched.open_files == 0


def test_bytes_that_read_differently_a_second_time_stop_the_start() -> None:
    """The medium has returned others than the cache: nothing that was verified can be relied on."""
    disk, entries, _ = unmarked()

    class Unsteady(log_recovery.Recovery):
        def _rewrite(self, end: Point) -> None:
            disk.flip(path_of(entries[-1].pos), entries[-1].pos % SIZE + HEADER_BYTES + 200)
            super()._rewrite(end)

    class Log(EntryLog):
        recovery_type = Unsteady

    with pytest.raises(
        OSError, match=f"reads differently a second time, from entry {len(entries) - 1} on"
    ):
        Log.open(disk, ROOT, IDENTITY, clean=False)


# Behind the end


@pytest.mark.parametrize("clean", [False, True])
def test_how_much_is_looked_at_behind_the_end(clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a clean stop a window, of the log and of the index, otherwise everything."""
    monkeypatch.setattr(log_recovery, "CLEAN_WINDOW_BYTES", 64)
    for behind in (0, 63, 64, 200):
        disk, entries = closed()
        end = entries[-1].pos + len(entries[-1].data)
        disk.flip(path_of(end), (end + behind) % SIZE)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
        assert log.report.row == ("garbage" if behind < 64 or not clean else "clean")
        check(log, entries, units=True)
        log.close()
    for behind in (0, 1, 2, 5):
        disk, entries = closed()
        unit = 32 * (len(entries) + behind)
        path = path_of(unit, "index", IDENTITY.index_file_bytes)
        if not disk.exists(path):
            disk.create(path, IDENTITY.index_file_bytes, allocate=False).close()
        disk.flip(path, unit % IDENTITY.index_file_bytes)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=clean)
        assert any(disk.read_file(path)[unit % IDENTITY.index_file_bytes :]) is (
            clean and behind >= 2
        )
        log.close()


@pytest.mark.parametrize(
    ("again", "chunk"), list(product([0, 100, 2000, 3 * SIZE], [300, 2 * SIZE]))
)
def test_space_behind_the_end_is_zeroed_again_after_an_unclean_stop(
    again: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it reads as zeros: older bytes may be on the medium. So many bytes, as far as there
    are files."""
    monkeypatch.setattr(log_recovery, "ZERO_AGAIN_BYTES", again)
    monkeypatch.setattr(log_recovery, "CHUNK_BYTES", chunk)
    for clean in (True, False):
        disk, entries = closed()
        end = entries[-1].pos + len(entries[-1].data)
        last = (
            max(
                int(path[-20:])
                for path in disk.files()
                if "/data/" in path and path[-20:].isdigit()
            )
            + SIZE
        )
        watched = FaultyDisk(disk)
        log = EntryLog.open(watched, ROOT, IDENTITY, clean=clean)
        at = end
        for _, path, offset, length in [
            event for event in watched.trace if event[0] == "pwrite" and "/data/" in str(event[1])
        ]:
            assert (path, offset) == (path_of(at), at % SIZE) and 0 < int(str(length)) <= chunk
            at += int(str(length))
        assert at == (end if clean else min(end + again, last))
        assert disk.unsynced_pages() == []
        log.close()
