"""Recovery and the index: whichever unit is wrong, the log is the list of the entries that were appended, and the units are made again."""

from __future__ import annotations

import pytest

from ledgermq.proto.layout import HEADER_BYTES
from ledgermq.sim.disk import ForgetfulDisk
from ledgermq.storage import log_recovery
from ledgermq.storage.entry_log import EntryLog
from tests.storage.test_storage_entry_reads import IDENTITY, ROOT, SIZE, TERMS, Entry, written

RUNS = [(index, term) for index, term in enumerate(TERMS) if not index or term != TERMS[index - 1]]
FIELDS = {"magic": 0, "pos": 4, "size": 12, "index": 16, "term": 24}
"""The offset of each field in a unit of 32 bytes: i32 magic, i64 pos, i32 size, i64 index, i64 term (docs/format.md §5)."""
WIDTHS = {"magic": 4, "pos": 8, "size": 4, "index": 8, "term": 8}


def closed() -> tuple[ForgetfulDisk, list[Entry]]:
    """A log of which everything lies below its mark."""
    log, entries, disk = written()
    log.flush_mark()
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
    return next(index for index, entry in enumerate(entries) if entry.pos // SIZE == entries[-1].pos // SIZE)


LAST_FILE = _first_of_last_file()


@pytest.mark.parametrize("what", FIELDS)
def test_a_wrong_unit_is_made_again(what: str) -> None:
    """After an unclean stop, of every entry: its header tells what is right. The next open finds nothing to do."""
    for index in range(len(TERMS)):
        disk, entries = closed()
        spoil(disk, index, what)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
        check(log, entries, units=True)
        assert log.report.rebuilt_units > 0, (index, what)
        log.close()
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
        check(log, entries, units=True)
        assert log.report.rebuilt_units == 0
        log.close()


@pytest.mark.parametrize("mask", [1, 2, 4])
@pytest.mark.parametrize("what", FIELDS)
def test_a_wrong_unit_is_made_again_after_a_clean_stop_too(what: str, mask: int) -> None:
    """Although few headers are read then: a term that contradicts no neighbour would make this replica claim entries of another term, and a
    size at the end of a file a blank that is not there."""
    for index in range(len(TERMS)):
        disk, entries = closed()
        spoil(disk, index, what, mask)
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=True)
        check(log, entries, units=True)
        assert log.report.rebuilt_units > 0, (index, what)
        log.close()


@pytest.mark.parametrize("what", ["", *FIELDS])
@pytest.mark.parametrize("clean", [False, True])
def test_terms_of_older_files_are_right_whichever_unit_is_wrong(what: str, clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found by bisection over units that agree with their headers; if one of these does not, the whole file is looked at."""
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


@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24, 44])
def test_a_damaged_header_below_the_mark_fences(offset: int) -> None:
    """Of every entry, with and without its unit as a second witness: nothing is changed, and the reason names an entry or a file."""
    for index in range(len(TERMS)):
        disk, entries = closed()
        pos = entries[index].pos
        disk.flip(f"{ROOT}/data/{pos - pos % SIZE:020d}", pos % SIZE + offset + 3)
        before = {path: disk.read_file(path) for path in disk.files()}
        log = EntryLog.open(disk, ROOT, IDENTITY, clean=False)
        assert log.fenced is not None and log.fenced.exit_code == 75, (index, offset)
        assert "restore this replica from its peers" in str(log.fenced) and f"synced up to entry {len(entries) - 1}" in str(log.fenced)
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
