"""Recovery: the decision table row by row, and what it does to bytes, at every kind of crash and
damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from ledgermq.storage.files.errors import Damaged, LogFenced, Unusable
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log import log_recovery
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_decision import ROWS, Above, Act, Below, decide
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import (
    FILE_BYTES,
    append,
    content,
    log_bytes,
    make_identity,
    new_log,
    reopen,
    sync,
)

pytestmark = pytest.mark.usefixtures("each_mode")


def expected_row(clean: bool, below: Below, above: Above) -> tuple[str, Act]:
    """The expected result by rule: damage refuses; otherwise the entries above decide."""
    if below is Below.DAMAGED:
        return "corrupt", Act.REFUSE
    if above is Above.NOTHING:
        if below is Below.NOTHING:
            return "empty", Act.KEEP
        return ("clean" if clean else "unclean-all-marked"), Act.KEEP
    return {
        Above.ENTRIES: ("unmarked-entries", Act.REWRITE),
        Above.TORN: ("torn", Act.CUT),
        Above.GARBAGE: ("garbage", Act.CUT),
        Above.BLANK: ("lone-blank", Act.CUT),
    }[above]


@pytest.mark.parametrize(("clean", "below", "above"), list(product([True, False], Below, Above)))
def test_the_table_is_total(clean: bool, below: Below, above: Above) -> None:
    """Every combination of facts has exactly one row, and it is the intended one."""
    row = decide(clean, below, above)
    assert (row.label, row.act) == expected_row(clean, below, above)


def test_every_row_is_reached() -> None:
    """No row is dead."""
    reached = {decide(*facts).label for facts in product([True, False], Below, Above)}
    assert reached == {row.label for row in ROWS}


# One test per row, on real files


def marked_log(directory: Path, marked: int = 30, above: int = 0) -> EntryLog:
    """A log with `marked` entries at or below the mark and `above` synced but unmarked ones."""
    log = new_log(directory)
    if marked:
        append(log, marked)
        sync(log)
        job = log.begin_sync(idle=True)
        assert job is not None
        job.run()
        log.finish_sync(job, None)
    if above:
        append(log, above, term=2)
    return log


def change(directory: Path, pos: int, data: bytes) -> None:
    """Overwrite bytes of the log at an absolute position, behind its back."""
    path = directory / "data" / f"{pos - pos % FILE_BYTES:020d}"
    with open(path, "r+b") as file:
        file.seek(pos % FILE_BYTES)
        file.write(data)


def flip(directory: Path, pos: int) -> None:
    old = log_bytes(directory)[pos]
    change(directory, pos, bytes([old ^ 0x55]))


@pytest.mark.parametrize("clean", [True, False])
def test_row_empty(tmp_path: Path, clean: bool) -> None:
    """A log that never had an entry opens empty and takes the first one."""
    new_log(tmp_path / "log").close()
    log = reopen(tmp_path / "log", clean=clean)
    assert (log.report.row, log.end_index, log.durable_index, log.term_runs()) == (
        "empty",
        -1,
        -1,
        [],
    )
    append(log, 1)


def test_row_clean(tmp_path: Path) -> None:
    """After a clean stop nothing is written and the mark is the end."""
    log = marked_log(tmp_path / "log")
    log.flush_mark()
    log.close()
    disk = FaultyDisk(RealDisk())
    log = reopen(tmp_path / "log", clean=True, disk=disk)
    assert (log.report.row, log.end_index, log.durable_index) == ("clean", 29, 29)
    assert {str(path).rsplit("/", 1)[-1] for _, path in disk.names("pwrite", "sync")} <= {
        "syncedmark"
    }


def test_row_unclean_all_marked(tmp_path: Path) -> None:
    """Without anything above the mark an unclean start finds the same log."""
    marked_log(tmp_path / "log").close()
    before = log_bytes(tmp_path / "log")
    log = reopen(tmp_path / "log", clean=False)
    assert (log.report.row, log.end_index, log.report.rewritten_bytes) == (
        "unclean-all-marked",
        29,
        0,
    )
    assert log_bytes(tmp_path / "log") == before


@pytest.mark.parametrize("marked", [0, 30])
def test_row_unmarked_entries(tmp_path: Path, marked: int) -> None:
    """Valid entries above the mark are written again in place and synced, and then marked, before
    the log can be used."""
    log = marked_log(tmp_path / "log", marked, above=40)
    mark_pos, end_pos = log.synced_mark.end_pos, log.end_pos
    log.close()
    before = log_bytes(tmp_path / "log")
    disk = FaultyDisk(RealDisk())
    log = reopen(tmp_path / "log", clean=False, disk=disk)
    assert (log.report.row, log.end_index, log.durable_index) == (
        "unmarked-entries",
        marked + 39,
        marked + 39,
    )
    assert log_bytes(tmp_path / "log")[: len(before)] == before
    assert not disk.names("view"), "recovery must not read through maps"
    events = [(event[0], *event[1:]) for event in disk.trace if event[0] in ("pwrite", "sync")]
    written: set[int] = set()
    for operation, path, *where in events:
        if operation == "pwrite" and "/data/" in str(path):
            base = int(str(path).rsplit("/", 1)[-1])
            offset, length = where
            written |= set(
                range(base + int(str(offset)), base + int(str(offset)) + int(str(length)))
            )
    holes = set(range(mark_pos, end_pos)) - written
    assert all(before[pos] == 0 for pos in holes), "only the zeros of blanks need no rewriting"
    data_syncs = [
        i
        for i, event in enumerate(events)
        if event[0] == "sync" and "/data/" in str(event[1]) and ".alloc" not in str(event[1])
    ]
    mark_writes = [
        i
        for i, event in enumerate(events)
        if event[0] == "pwrite" and "syncedmark" in str(event[1])
    ]
    assert data_syncs and max(data_syncs) < mark_writes[-1]
    assert log.synced_mark.index == log.end_index


def test_row_torn(tmp_path: Path) -> None:
    """A hole above the mark cuts there, although valid records follow it."""
    log = marked_log(tmp_path / "log", 5, above=40)
    hole = log.pos_of(20)
    log.close()
    change(tmp_path / "log", hole + 100, bytes(60))
    log = reopen(tmp_path / "log", clean=False)
    assert (log.report.row, log.end_index, log.end_pos) == ("torn", 19, hole)
    assert "entry 20" in log.report.reason
    assert not any(log_bytes(tmp_path / "log")[hole:])
    assert log.report.erased_bytes > 0
    append(log, 5, term=3)


def test_row_garbage(tmp_path: Path) -> None:
    """Bytes above the mark that begin no entry are erased, wherever they lie."""
    for where in (0, 1, 700, 3000):
        directory = tmp_path / f"log{where}"
        log = marked_log(directory, 30)
        end = log.end_pos
        log.close()
        change(directory, end + where, b"garbage")
        log = reopen(directory, clean=False)
        assert (log.report.row, log.end_index) == ("garbage", 29)
        assert not any(log_bytes(directory)[end:])


def test_row_garbage_after_a_clean_stop(tmp_path: Path) -> None:
    """A clean stop does not excuse bytes behind the end."""
    log = marked_log(tmp_path / "log")
    end = log.end_pos
    log.flush_mark()
    log.close()
    change(tmp_path / "log", end, b"x")
    log = reopen(tmp_path / "log", clean=True)
    assert (log.report.row, log.end_pos) == ("garbage", end)
    assert not any(log_bytes(tmp_path / "log")[end:])


def test_row_lone_blank(tmp_path: Path) -> None:
    """A blank whose entry was never written is erased, and the same entry can be appended again."""
    log = marked_log(tmp_path / "log", 15)
    end = log.end_pos
    append(log, 1, body_bytes=3000)
    assert log.end_pos > FILE_BYTES
    length = log.end_pos - FILE_BYTES
    want = log_bytes(tmp_path / "log")
    log.close()
    change(tmp_path / "log", FILE_BYTES, bytes(length))
    log = reopen(tmp_path / "log", clean=False)
    assert (log.report.row, log.end_index, log.end_pos) == ("lone-blank", 14, end)
    assert not any(log_bytes(tmp_path / "log")[end:])
    append(log, 1, body_bytes=3000)
    assert log_bytes(tmp_path / "log")[: len(want)] == want


def damages() -> list[tuple[str, Callable[[Path, EntryLog], None]]]:
    """Ways to lose something at or below the mark that an unclean start looks at."""

    def header(offset: int) -> Callable[[Path, EntryLog], None]:
        return lambda directory, log: flip(directory, log.pos_of(20) + offset)

    def marked_header(offset: int) -> Callable[[Path, EntryLog], None]:
        return lambda directory, log: flip(directory, log.pos_of(log.end_index) + offset)

    def remove(base: int) -> Callable[[Path, EntryLog], None]:
        return lambda directory, log: (directory / "data" / f"{base:020d}").unlink()

    def blank(offset: int) -> Callable[[Path, EntryLog], None]:
        def act(directory: Path, log: EntryLog) -> None:
            last = next(i for i in range(log.end_index) if log.pos_of(i + 1) == FILE_BYTES)
            unit = log.read(last, 1)
            flip(directory, unit.end_pos + offset)

        return act

    return [
        *[(f"header byte {offset}", header(offset)) for offset in (3, 7, 15, 23, 31, 47)],
        *[
            (f"marked header byte {offset}", marked_header(offset))
            for offset in (3, 7, 15, 23, 31, 36, 39, 47)
        ],
        ("first file missing", remove(0)),
        ("middle file missing", remove(FILE_BYTES)),
        (
            "last file missing",
            lambda directory, log: remove(log.end_pos - log.end_pos % FILE_BYTES)(directory, log),
        ),
        ("blank magic", blank(0)),
        ("blank length", blank(7)),
        ("blank filler", blank(9)),
        ("zeroed page", lambda directory, log: change(directory, log.pos_of(20), bytes(500))),
    ]


@pytest.mark.parametrize(("what", "spoil"), damages(), ids=[what for what, _ in damages()])
def test_row_corrupt(tmp_path: Path, what: str, spoil: Callable[[Path, EntryLog], None]) -> None:
    """Damage at or below the mark: nothing is touched, the log opens fenced, and its exit code is
    the one for damage."""
    log = marked_log(tmp_path / "log", 60)
    mark = log.synced_mark
    spoil(tmp_path / "log", log)
    for path in sorted((tmp_path / "log/data").iterdir()):
        if int(path.name) >= log.end_pos:
            path.unlink()
    log.close()
    before = content(tmp_path / "log")
    log = reopen(tmp_path / "log", clean=False)
    assert log.report.row == "corrupt"
    assert log.fenced is not None
    assert log.fenced.exit_code == 75
    assert "restore this replica" in str(log.fenced)
    with pytest.raises(LogFenced):
        append(log, 1)
    assert (log.end_index, log.end_term) == (mark.index, mark.term)
    log.close()
    assert content(tmp_path / "log") == before


def test_torn_everywhere(tmp_path: Path) -> None:
    """Wherever the tail of the last batch is lost, the log ends with the last whole entry before
    it."""
    log = marked_log(tmp_path / "log", 10, above=25)
    ends = [log.read(i, 1).end_pos for i in range(35)]
    whole = log_bytes(tmp_path / "log")
    mark_pos, end_pos = ends[9], log.end_pos
    log.close()
    files = {
        name: data
        for name, data in content(tmp_path / "log").items()
        if not name.endswith(".alloc")
    }
    for cut in [*range(mark_pos, end_pos, 97), *ends[9:], *[end - 1 for end in ends[10:]]]:
        for name, data in files.items():
            (tmp_path / "log" / name).write_bytes(data)
        for base in range(0, len(whole), FILE_BYTES):
            kept = whole[base : base + FILE_BYTES][: max(0, cut - base)]
            change(tmp_path / "log", base, kept.ljust(FILE_BYTES, b"\0"))
        log = reopen(tmp_path / "log", clean=False)
        left = [end for end in ends if end <= cut or not any(whole[cut:end])]
        assert log.fenced is None
        assert (log.end_index, log.end_pos) == (len(left) - 1, left[-1]), cut
        assert not any(log_bytes(tmp_path / "log")[log.end_pos :])
        log.close()


def test_flipped_bytes_are_torn_above_the_mark_and_never_truncate_below_it(tmp_path: Path) -> None:
    """A flipped byte anywhere: above the mark the log ends before it; below it nothing is ever cut
    off."""
    log = marked_log(tmp_path / "log", 30, above=30)
    mark = log.synced_mark
    ends = [log.read(i, 1).end_pos for i in range(60)]
    log.close()
    files = content(tmp_path / "log")
    chance = random.Random(7)
    for pos in chance.sample(range(ends[-1]), 120):
        for name, data in files.items():
            (tmp_path / "log" / name).write_bytes(data)
        flip(tmp_path / "log", pos)
        log = reopen(tmp_path / "log", clean=False)
        if pos < mark.end_pos:
            assert log.fenced is not None or log.end_index == 59, pos
        else:
            good = len([end for end in ends if end <= pos])
            # A byte of a blank takes the entry behind the blank along.
            assert (log.fenced, log.end_index) == (None, good - 1), pos
        log.close()


def test_recovery_can_be_interrupted_anywhere(tmp_path: Path) -> None:
    """A crash after any write of recovery: the next recovery comes to the same log."""
    log = marked_log(tmp_path / "log", 10, above=30)
    torn = log.pos_of(30)
    log.close()
    change(tmp_path / "log", torn + 5, b"\xff\xff")
    files = content(tmp_path / "log")
    writes = 0
    while True:
        for name in content(tmp_path / "log"):
            (tmp_path / "log" / name).unlink()
        for name, data in files.items():
            (tmp_path / "log" / name).write_bytes(data)
        disk = FaultyDisk(RealDisk())
        disk.fail_writes_after(writes, errno_of="EIO")
        try:
            log = reopen(tmp_path / "log", clean=False, disk=disk)
        except OSError:
            log = reopen(tmp_path / "log", clean=False)
            assert (log.end_index, log.end_pos) == (29, torn), writes
            assert not any(log_bytes(tmp_path / "log")[torn:])
            log.close()
            writes += 1
            continue
        log.close()
        break
    assert writes > 5


def test_truncation_can_be_interrupted_anywhere(tmp_path: Path) -> None:
    """A crash after any write of a truncation: the log then ends somewhere between the cut and its
    old end, and is never corrupt."""
    log = marked_log(tmp_path / "log", 60)
    log.close()
    files = content(tmp_path / "log")
    for writes in range(100):
        for name in content(tmp_path / "log"):
            (tmp_path / "log" / name).unlink()
        for name, data in files.items():
            (tmp_path / "log" / name).write_bytes(data)
        disk = FaultyDisk(RealDisk())
        log = reopen(tmp_path / "log", clean=True, disk=disk)
        disk.fail_writes_after(writes, errno_of="EIO")
        done = True
        try:
            log.truncate_from(12)
        except LogFenced:
            done = False
        log = reopen(tmp_path / "log", clean=False)
        assert log.fenced is None, (writes, log.report)
        assert 11 <= log.end_index <= 59
        if done:
            assert log.end_index == 11
            assert writes > 4
            return
    raise AssertionError("the truncation never finished")


# Files


def test_files_behind_a_gap_above_the_mark_go_away(tmp_path: Path) -> None:
    """Only an interrupted truncation leaves a gap; the files behind it were being removed."""
    log = marked_log(tmp_path / "log", 5, above=100)
    log.close()
    (tmp_path / "log/data" / f"{2 * FILE_BYTES:020d}").unlink()
    log = reopen(tmp_path / "log", clean=False)
    assert log.report.row == "torn"
    assert log.end_pos < 2 * FILE_BYTES
    assert log.report.removed_files >= 1
    append(log, 100, term=5)


def test_only_one_empty_file_stays_behind_the_end(tmp_path: Path) -> None:
    """After a cut over many files one of them is kept as the next, zeroed; the others go."""
    log = marked_log(tmp_path / "log", 5, above=100)
    hole = log.pos_of(7)
    log.close()
    change(tmp_path / "log", hole, b"\xff\xff")
    log = reopen(tmp_path / "log", clean=False)
    assert (log.report.row, log.end_pos) == ("torn", hole)
    assert sorted(int(path.name) for path in (tmp_path / "log/data").iterdir()) == [0, FILE_BYTES]
    assert log.report.removed_files > 3


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("units", [False, True])
def test_a_file_that_ended_early_is_recovered(
    tmp_path: Path, clean: bool, marked: bool, units: bool
) -> None:
    """Below and above the mark, and from the entries alone when the index is lost."""
    log = marked_log(tmp_path / "log", 3)
    append(log, 2, new_file=True)
    if marked:
        log.flush_mark()
    assert (log.pos_of(3), log.end_index) == (FILE_BYTES, 4)
    log.close()
    if not units:
        for path in (tmp_path / "log/index").iterdir():
            path.unlink()
    before = log_bytes(tmp_path / "log")
    log = reopen(tmp_path / "log", clean=clean)
    assert log.fenced is None and (log.end_index, log.pos_of(3)) == (4, FILE_BYTES), log.report
    assert log_bytes(tmp_path / "log") == before


@pytest.mark.parametrize("lost", ["blank", "entry", "both"])
def test_an_early_end_is_recovered_whole_or_not_at_all(tmp_path: Path, lost: str) -> None:
    """Whichever of blank and entry a power cut loses, the log ends before the blank, and goes on in
    the same file."""
    log = marked_log(tmp_path / "log", 3)
    end = log.end_pos
    append(log, 1, new_file=True)
    log.close()
    if lost != "entry":
        change(tmp_path / "log", end, bytes(8))
    if lost != "blank":
        change(tmp_path / "log", FILE_BYTES, bytes(FILE_BYTES))
    log = reopen(tmp_path / "log", clean=False)
    assert log.fenced is None and (log.end_index, log.end_pos) == (2, end), log.report
    assert not any(log_bytes(tmp_path / "log")[end:])
    append(log, 1)
    assert log.pos_of(3) == end


def test_unfinished_files_are_removed(tmp_path: Path) -> None:
    """A file that was being prepared is not read."""
    marked_log(tmp_path / "log", 5).close()
    (tmp_path / "log/data/next.alloc").write_bytes(b"half")
    reopen(tmp_path / "log", clean=False).close()
    assert not [
        name
        for name in content(tmp_path / "log")
        if name.endswith("next.alloc") and len(content(tmp_path / "log")[name]) == 4
    ]


def test_strange_files_are_refused(tmp_path: Path) -> None:
    """A file of another length or name stops the start with a sentence."""
    marked_log(tmp_path / "log", 5).close()
    stranger = tmp_path / "log/data/notes.txt"
    stranger.write_text("?")
    with pytest.raises(Damaged, match="move it away"):
        reopen(tmp_path / "log", clean=False)
    stranger.unlink()
    (tmp_path / "log/data" / ("0" * 20)).write_bytes(b"short")
    with pytest.raises(Damaged, match="instead of 4096"):
        reopen(tmp_path / "log", clean=False)


def test_mark_of_another_log_is_refused(tmp_path: Path) -> None:
    """A directory whose mark names another log is not ours."""
    marked_log(tmp_path / "log", 5).close()
    path = tmp_path / "log/syncedmark"
    path.unlink()
    from ledgermq.proto.types import SyncedMark
    from ledgermq.storage.log.synced_mark import SyncedMarkFile

    other = "11111111-2222-3333-4444-555555555555"
    SyncedMarkFile.create(RealDisk(), str(path), other, SyncedMark()).close()
    with pytest.raises(Unusable, match="its own data directory"):
        reopen(tmp_path / "log", clean=True)


# The index


def index_damages() -> list[tuple[str, Callable[[Path], None]]]:
    def remove_all(directory: Path) -> None:
        for path in (directory / "index").iterdir():
            path.unlink()

    def write(pos: int, data: bytes) -> Callable[[Path], None]:
        def act(directory: Path) -> None:
            path = directory / "index" / f"{pos - pos % 512:020d}"
            with open(path, "r+b") as file:
                file.seek(pos % 512)
                file.write(data)

        return act

    def shorten(directory: Path) -> None:
        (directory / "index" / ("0" * 20)).write_bytes(b"short")

    return [
        ("all gone", remove_all),
        ("first gone", lambda directory: (directory / "index" / ("0" * 20)).unlink()),
        ("middle gone", lambda directory: (directory / "index" / f"{1024:020d}").unlink()),
        ("short", shorten),
        ("zeros", write(32 * 20, bytes(64))),
        ("position", write(32 * 33 + 11, b"\x01")),
        ("last unit", write(32 * 59 + 4, b"\x01")),
        ("term", write(32 * 33 + 31, b"\x07")),
        ("behind the end", write(32 * 61, b"\x01")),
    ]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("what", "spoil"), index_damages(), ids=[what for what, _ in index_damages()]
)
def test_the_index_is_rebuilt_from_the_log(
    tmp_path: Path, what: str, spoil: Callable[[Path], None], clean: bool
) -> None:
    """Index files that are missing or wrong are made again, byte for byte, below and above the
    mark."""
    log = marked_log(tmp_path / "log", 40, above=20)
    if clean:
        log.flush_mark()
    log.close()
    want = {
        name: data
        for name, data in content(tmp_path / "log").items()
        if name.startswith("index/") and any(data)
    }
    spoil(tmp_path / "log")
    log = reopen(tmp_path / "log", clean=clean)
    assert (log.fenced, log.end_index, log.term_runs()) == (None, 59, [(0, 1), (40, 2)])
    found = {
        name: data
        for name, data in content(tmp_path / "log").items()
        if name.startswith("index/") and any(data)
    }
    assert found == want
    for index in range(60):
        log.read(index, 1)


def test_terms_of_old_files_are_found_by_bisection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files before the last ones are not read through, and their term runs are still exact."""
    monkeypatch.setattr(log_recovery, "STRUCTURE_BYTES", 1)
    log = new_log(tmp_path / "log")
    for term, count in ((1, 3), (2, 1), (5, 40), (6, 1), (7, 1), (9, 70), (10, 2), (12, 60)):
        append(log, count, term=term)
    runs = log.term_runs()
    log.flush_mark()
    log.close()
    disk = FaultyDisk(RealDisk())
    log = reopen(tmp_path / "log", clean=True, disk=disk)
    assert log.term_runs() == runs
    assert (log.report.checked_files, log.report.row) == (1, "clean")
    log.close()
    (tmp_path / "log/index" / f"{1024:020d}").unlink()
    log = reopen(tmp_path / "log", clean=True)
    assert log.term_runs() == runs
    assert log.report.rebuilt_units > 0
    log.read(40, 1)


def test_wrong_units_of_an_old_file_are_noticed_by_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When bisection meets a unit that the log denies, that file is checked and its units
    rebuilt."""
    monkeypatch.setattr(log_recovery, "STRUCTURE_BYTES", 1)
    log = new_log(tmp_path / "log")
    for term in range(1, 9):
        append(log, 10, term=term)
    runs = log.term_runs()
    last_of_first_file = next(i for i in range(80) if log.pos_of(i + 1) == FILE_BYTES)
    log.flush_mark()
    log.close()
    path = tmp_path / "log/index" / f"{32 * last_of_first_file // 512 * 512:020d}"
    with open(path, "r+b") as file:
        file.seek(32 * last_of_first_file % 512)
        file.write(bytes(32))
    log = reopen(tmp_path / "log", clean=True)
    assert log.term_runs() == runs
    assert log.report.rebuilt_units == last_of_first_file + 1
    log.read(last_of_first_file, 1)


def test_identity_sizes_matter(tmp_path: Path) -> None:
    """Opening with another file size is refused, not guessed."""
    marked_log(tmp_path / "log", 5).close()
    with pytest.raises(Damaged):
        reopen(tmp_path / "log", clean=True, identity=make_identity(data_file_bytes=8192))
