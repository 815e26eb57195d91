"""A log without its first files: what is still answered, what a start makes of it, and consume
queues and snapshots that go with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.layout import Columns
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import (
    Damaged,
    DerivedLost,
    LogFenced,
    NoSpace,
    UnknownFormat,
    Unusable,
)
from ledgermq.storage.files.real_disk import RealDisk, RealFile
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.begin import Begin, read_begin, write_begin
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.queues.consume_queue import PRE_BLANK
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import FILE_BYTES, append, make_identity, new_log, reopen, sync
from tests.storage.queues.written_queues import WrittenQueues

DISK = RealDisk()
ME = make_identity()
UNITS = 10


def filled(directory: Path, disk: FaultyDisk | None = None) -> EntryLog:
    """Some files of entries of three terms, all of them synced."""
    log = new_log(directory, disk)
    for term in (1, 2, 3):
        append(log, 25, term=term)
    sync(log)
    sync(log)
    return log


def first_of(log: EntryLog, number: int) -> int:
    """The first entry of a file, counted from position 0."""
    return next(
        index
        for index in range(log.begin_index, log.end_index + 1)
        if log.pos_of(index) >= number * FILE_BYTES
    )


def told(log: EntryLog) -> list[object]:
    """Everything a log answers, from the entry before its begin on."""
    begin = range(log.begin_index - 1, log.end_index + 1)
    kept = range(log.begin_index, log.end_index + 1)
    words = [(log.term_at(index), log.chain_at(index)) for index in begin]
    return [
        words,
        log.term_runs(),
        [bytes(log.read(index, 300).data) for index in kept],
        [log.pos_of(index) for index in kept],
    ]


def names(directory: Path, kind: str) -> list[int]:
    return [int(path.name) for path in sorted((directory / kind).iterdir()) if path.name.isdigit()]


def test_trim_leaves_entries_from_the_begin_on_unchanged(tmp_path: Path) -> None:
    """Terms, chain, positions and bytes of what is kept do not change, for the living log and the
    next one; the rest is off the disk."""
    whole = filled(tmp_path / "whole")
    log = filled(tmp_path / "log")
    begin = first_of(log, 3)
    removed = log.trim(begin)
    assert (log.begin_index, log.begin_pos) == (begin, 3 * FILE_BYTES)
    assert (log.begin_term, log.begin_chain) == (
        whole.term_at(begin - 1),
        whole.chain_at(begin - 1),
    )
    assert (
        names(tmp_path / "log", "data")[0] == 3 * FILE_BYTES
        and names(tmp_path / "log", "index")[0] == begin * 32 // 512 * 512
    )
    assert len(removed) == 3 + begin * 32 // 512 and log.trim(begin) == []
    before = told(log)
    assert before[1] == [
        (max(begin, first), term) for first, term in whole.term_runs() if first + 25 > begin
    ]
    for index in range(begin, log.end_index + 1):
        assert bytes(log.read(index, 500).data) == bytes(whole.read(index, 500).data)
    log.flush_mark()
    log.close()
    for clean in (True, False):
        again = reopen(tmp_path / "log", clean=clean)
        assert told(again) == before and (again.begin_index, again.begin_pos) == (
            begin,
            3 * FILE_BYTES,
        )
        assert again.report.row == ("clean" if clean else "unclean-all-marked")
        again.close()


def test_a_trimmed_log_goes_on(tmp_path: Path) -> None:
    """Appending, cutting, further trims and their chain work as in a whole log."""
    log = filled(tmp_path)
    log.trim(first_of(log, 2))
    append(log, 40, term=4)
    sync(log)
    log.truncate_from(log.end_index - 5)
    log.trim(first_of(log, 5))
    chain = log.begin_chain
    index = log.begin_index
    while index <= log.end_index:
        entries = log.read(index, 900)
        chain = verify_range(
            bytes(entries.data), index, entries.term, entries.pos, chain
        ).last_chain
        index = entries.last_index + 1
    assert chain == log.end_chain
    with pytest.raises(AssertionError):
        log.truncate_from(log.begin_index)
    with pytest.raises(AssertionError):
        log.trim(log.begin_index + 1)


def test_view_taken_before_a_trim_keeps_its_bytes(tmp_path: Path) -> None:
    """A view that was handed out before a trim keeps its bytes after it."""
    log = filled(tmp_path)
    held = log.read(0, 2000)
    copy = bytes(held.data)
    log.trim(first_of(log, 3))
    sync(log)
    assert bytes(held.data) == copy


def test_trim_syncs_mark_and_begin_before_removing_files(tmp_path: Path) -> None:
    """Mark first, then the begin, then files from the front; the names are made durable with the
    next sync."""
    disk = FaultyDisk(RealDisk())
    log = filled(tmp_path, disk)
    begin = first_of(log, 2)
    disk.trace.clear()
    log.trim(begin)
    steps = [event[0] for event in disk.trace if event[0] in ("replace_file", "unlink", "sync_dir")]
    assert steps[0] == "replace_file" and set(steps[1:]) == {"unlink"}
    assert log.dirty
    sync(log)
    assert {str(event[1]) for event in disk.trace if event[0] == "sync_dir"} >= {
        f"{tmp_path}/data",
        f"{tmp_path}/index",
    }


def test_trim_without_room_is_refused_and_repeatable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk refuses a trim, and the same trim succeeds when there is room again."""
    log = filled(tmp_path)
    before = told(log)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(RealDisk, "replace_file", full)
        with pytest.raises(NoSpace, match="trimming resumes by itself"):
            log.trim(first_of(log, 2))
    assert told(log) == before and log.fenced is None
    assert log.trim(first_of(log, 2))


def test_failed_sync_of_the_mark_fences_a_trim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any failed sync fences the log, that of a full disk as well: what the mark's file holds is
    unknown then (I9)."""
    log = filled(tmp_path)
    before = names(tmp_path, "data")

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    log.durability._mark.write(log.durability.allowed)
    monkeypatch.setattr(RealFile, "sync", full)
    with pytest.raises(LogFenced, match="check the disk"):
        log.trim(first_of(log, 2))
    assert log.fenced is not None and names(tmp_path, "data") == before


def test_an_interrupted_trim_is_finished(tmp_path: Path) -> None:
    """Files before the begin that came back, or never went, go with the next start, whichever they
    are."""
    log = filled(tmp_path / "log")
    shutil.copytree(tmp_path / "log", tmp_path / "old")
    log.trim(first_of(log, 3))
    before = told(log)
    log.flush_mark()
    log.close()
    for kind, bases in (("data", (0, 2 * FILE_BYTES)), ("index", (512,))):
        for base in bases:
            shutil.copy(tmp_path / "old" / kind / f"{base:020d}", tmp_path / "log" / kind)
    again = reopen(tmp_path / "log", clean=True)
    assert again.fenced is None and told(again) == before and again.report.removed_files == 3
    assert names(tmp_path / "log", "data")[0] == 3 * FILE_BYTES


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_missing_first_file_is_damage_unless_it_was_trimmed(
    tmp_path: Path, trimmed: bool
) -> None:
    """Nothing is touched, and the message says which file is missing and what the begin file
    says."""
    log = filled(tmp_path)
    if trimmed:
        log.trim(first_of(log, 2))
    first = names(tmp_path, "data")[0]
    log.flush_mark()
    log.close()
    (tmp_path / "data" / f"{first:020d}").unlink()
    again = reopen(tmp_path, clean=True)
    assert again.fenced is not None and again.fenced.exit_code == 75
    assert f"that at {first} is missing" in str(again.fenced)
    assert ("the begin file says" if trimmed else "no begin file says") in str(again.fenced)
    with pytest.raises(LogFenced):
        append(again, 1)


def test_a_begin_of_another_history_is_damage(tmp_path: Path) -> None:
    """The first entry must continue what the begin file says of the one before it."""
    log = filled(tmp_path)
    begin = first_of(log, 2)
    log.trim(begin)
    log.flush_mark()
    log.close()
    found = read_begin(DISK, str(tmp_path), ME.log_id)
    for wrong in (
        Begin(begin, found.pos, found.term, found.chain ^ 1),
        Begin(begin - 1, found.pos, found.term, found.chain),
    ):
        write_begin(DISK, str(tmp_path), ME.log_id, wrong)
        again = reopen(tmp_path, clean=True)
        assert again.fenced is not None and again.fenced.exit_code == 75
        again.close()


def test_a_begin_file_that_cannot_be_believed_is_refused(tmp_path: Path) -> None:
    """Damaged, of another version, of another log: each has its own exit code and says what to
    do."""
    log = filled(tmp_path)
    log.trim(first_of(log, 2))
    log.close()
    path = tmp_path / "begin"
    good = sealed_json.decode(path.read_bytes(), "begin")
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(Damaged, match="restore this replica from its peers"):
            reopen(tmp_path, clean=True)
    for key, value, error in (("v", 2, UnknownFormat), ("log_id", "0" * 36, Unusable)):
        path.write_bytes(sealed_json.encode({**good, key: value}))
        with pytest.raises(error):
            reopen(tmp_path, clean=True)


def test_a_mark_from_before_the_begin_is_raised_to_it(tmp_path: Path) -> None:
    """After slot damage an old mark is used: entries before the begin were synced anyway, the rest
    are verified and kept."""
    log = filled(tmp_path)
    old = (tmp_path / "syncedmark").read_bytes()
    for _ in range(3):
        append(log, 30, term=4)
        sync(log)
    log.trim(first_of(log, 6))
    before = told(log)
    log.close()
    (tmp_path / "syncedmark").write_bytes(old)
    again = reopen(tmp_path, clean=False)
    assert again.fenced is None and again.report.row == "unmarked-entries" and told(again) == before


# Consume queues


def queues(directory: Path) -> WrittenQueues:
    DISK.mkdirs(f"{directory}/consumequeue")
    return WrittenQueues(DISK, f"{directory}/consumequeue", 20 * UNITS)


def columns(*rows: tuple[str, int]) -> Columns:
    """(topic, queue offset) rows in log order: the place of each follows from its number."""
    topics = tuple(dict.fromkeys(topic for topic, _ in rows))
    return Columns(
        topics=topics,
        topic_of=np.array([topics.index(topic) for topic, _ in rows], np.int32),
        queues=np.zeros(len(rows), np.int32),
        queue_offsets=np.array([offset for _, offset in rows], np.int64),
        tags_codes=np.array([offset * 7 for _, offset in rows], np.int64),
        physical_offsets=np.arange(len(rows), dtype=np.int64) * 100 + 48,
        sizes=np.full(len(rows), 52, np.int32),
        origins=np.zeros(len(rows), np.int64),
        flags=np.zeros(len(rows), np.int32),
    )


ROWS = (
    [("busy", at) for at in range(25)]
    + [("idle", at) for at in range(3)]
    + [("busy", 25 + at) for at in range(20)]
    + [("late", 0)]
)


def bytes_of(directory: Path) -> dict[str, bytes]:
    root = directory / "consumequeue"
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def kept(rows: list[tuple[str, int]], begin: int) -> Columns:
    """What the log still has: the rows from number `begin` on."""
    whole = columns(*rows)
    fields = {
        name: getattr(whole, name)[begin:]
        for name in whole.__dataclass_fields__
        if name not in ("rows", "topics")
    }
    topics = tuple(dict.fromkeys(topic for topic, _ in rows[begin:]))
    fields["topic_of"] = np.array([topics.index(topic) for topic, _ in rows[begin:]], np.int32)
    return Columns(topics=topics, **fields)


@pytest.mark.parametrize("begin", [0, 1, 10, 25, 26, 27, 28, 33, 47, 48, 49])
def test_a_trimmed_queue_and_a_rebuilt_one_have_equal_bytes(tmp_path: Path, begin: int) -> None:
    """Whatever the begin is: minimums from the snapshot and entries from the log give the files
    that trimming leaves."""
    trimmed, rebuilt = queues(tmp_path / "a"), queues(tmp_path / "b")
    trimmed.append(columns(*ROWS))
    trimmed.trim(begin * 100)
    trimmed.append(columns(*ROWS, ("idle", 3), ("busy", 45)))
    rebuilt.begin_again(trimmed.minimums())
    rebuilt.append(kept([*ROWS, ("idle", 3), ("busy", 45)], begin))
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert (rebuilt.next_offsets(), rebuilt.minimums()) == (
        trimmed.next_offsets(),
        trimmed.minimums(),
    )
    for topic in ("busy", "idle", "late"):
        low = trimmed.min_offset(topic, 0)
        wanted = [
            place * 100 + 48
            for place, row in enumerate([*ROWS, ("idle", 3), ("busy", 45)])
            if row[0] == topic and place >= begin
        ]
        assert trimmed.read(topic, 0, 0, 100).physical_offsets.tolist() == wanted
        assert trimmed.read(topic, 0, 0, 100).first == low


def test_steps_and_one_leap_leave_the_same(tmp_path: Path) -> None:
    """A queue trimmed often equals one that was trimmed once, empty spells included."""
    steps, leap = queues(tmp_path / "a"), queues(tmp_path / "b")
    for each in (steps, leap):
        each.append(columns(*ROWS))
    for begin in (5, 26, 30, 49):
        steps.trim(begin * 100)
    leap.trim(4900)
    assert (
        bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b") and steps.minimums() == leap.minimums()
    )
    assert steps.minimums() == {
        "busy": {0: (45, (4748, 52, 308))},
        "idle": {0: (3, (2748, 52, 14))},
        "late": {0: (1, (4848, 52, 0))},
    }


def test_below_a_minimum_lie_pre_blanks(tmp_path: Path) -> None:
    """What RocketMQ's classes expect: no file wholly below, (0, 2147483647, 0) in the rest of the
    first, and an empty queue's last unit."""
    queue = queues(tmp_path)
    queue.append(columns(*ROWS))
    removed = queue.trim(2800)
    assert [path.rpartition("/")[2] for path in removed] == [f"{base:020d}" for base in (0, 200)]
    files = bytes_of(tmp_path)
    assert (
        files[f"busy/0/{400:020d}"][:100]
        == PRE_BLANK * 5
        == bytes.fromhex("00000000000000007fffffff0000000000000000") * 5
    )
    assert files[f"busy/0/{400:020d}"][100:108] == (2848).to_bytes(8, "big")
    assert files[f"idle/0/{0:020d}"][:60] == PRE_BLANK * 2 + (2748).to_bytes(8, "big") + (
        52
    ).to_bytes(4, "big") + (14).to_bytes(8, "big")


def test_queue_files_below_the_minimum_may_be_missing_at_start(tmp_path: Path) -> None:
    """Files below it may be missing; files above it may not; a trim that was interrupted is
    finished by the next."""
    queue = queues(tmp_path)
    queue.append(columns(*ROWS))
    steps = queue.trimming(2800, [])
    next(steps)
    ends, lows = queue.next_offsets(), queue.minimums()
    queue.sync()
    queue.close()
    again = queues(tmp_path)
    again.start(ends, 5, lows)
    assert again.read("busy", 0, 0, 9).first == 25 and f"busy/0/{0:020d}" not in bytes_of(tmp_path)
    again.trim(2800)
    whole = queues(tmp_path / "whole")
    whole.append(columns(*ROWS))
    whole.trim(2800)
    assert bytes_of(tmp_path) == bytes_of(tmp_path / "whole")
    (tmp_path / "consumequeue/busy/0" / f"{600:020d}").unlink()
    with pytest.raises(DerivedLost):
        queues(tmp_path).start(ends, 5, lows)


def test_a_trim_that_has_begun_ends_where_it_began(tmp_path: Path) -> None:
    """Another trim record may be applied between the steps; entries below its minimal offsets are
    not covered by every snapshot yet."""
    queue, once = queues(tmp_path / "a"), queues(tmp_path / "b")
    for each in (queue, once):
        each.append(columns(*ROWS))
    once.trim(1200)
    steps = queue.trimming(1200, [])
    queue.raise_minimums(4900)
    assert list(steps) and queue.min_offset("busy", 0) == 45
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_steps_go_as_far_as_the_minimums_were_when_they_began(tmp_path: Path) -> None:
    """A later trim may be decided before the first step is taken: what it needs stays until its own
    steps."""
    queue = queues(tmp_path)
    queue.append(columns(*ROWS))
    steps = queue.trimming(1500, [])
    queue.raise_minimums(4000)
    assert sum(steps) > 0
    assert f"busy/0/{200:020d}" in bytes_of(tmp_path) and queue.min_offset("busy", 0) == 37


def test_a_sync_that_finds_a_trimmed_file_gone_passes_over_it(tmp_path: Path) -> None:
    """A snapshot's sync may run while files go: what was trimmed need not be durable."""
    queue = queues(tmp_path)
    queue.append(columns(*ROWS))
    job = queue.begin_sync()
    queue.trim(2800)
    assert job is not None
    job.run()


# Snapshots


def test_a_snapshot_that_found_no_room_for_its_name_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former one was renamed already: it is the previous one, and the next attempt leaves it
    so."""
    GroupStore.create(DISK, f"{tmp_path}/g1", ME)
    store = GroupStore.open(DISK, f"{tmp_path}/g1", ME)
    append(store.log, 20)
    sync(store.log)

    def value(index: int) -> dict[str, object]:
        word = store.log.chain_at(index)
        return {
            "log_id": ME.log_id,
            "applied_index": index,
            "applied_term": 1,
            "chain_crc": word,
            "queues": {},
            "minimums": {},
        }

    for index in (3, 5):
        store.write_snapshot(value(index))

    def full(disk: RealDisk, old: str, new: str) -> None:
        if old.endswith(".tmp"):
            raise OSError(28, "No space left on device", new)
        os.rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(RealDisk, "rename", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                store.write_snapshot(value(9))
    store.write_snapshot(value(9))
    assert store.durable_snapshot_index == 5 and store.read_snapshot() == value(9)
    assert store.durable_snapshot_index == 5


def test_two_generations_are_kept(tmp_path: Path) -> None:
    """A damaged newest one falls back to the previous, and never becomes the previous; both
    together say how far a trim may go."""
    GroupStore.create(DISK, f"{tmp_path}/g1", ME)
    store = GroupStore.open(DISK, f"{tmp_path}/g1", ME)
    append(store.log, 40)
    sync(store.log)

    def value(index: int) -> dict[str, object]:
        word = store.log.chain_at(index)
        return {
            "log_id": ME.log_id,
            "applied_index": index,
            "applied_term": 1,
            "chain_crc": word,
            "queues": {},
            "minimums": {},
        }

    assert store.durable_snapshot_index == -1
    store.write_snapshot(value(5))
    assert store.durable_snapshot_index == -1
    for index in (9, 9, 12):
        store.write_snapshot(value(index))
    assert store.durable_snapshot_index == 9
    newest = Path(store.state_directory, "snapshot")
    newest.write_bytes(newest.read_bytes()[:-3])
    assert store.read_snapshot() == value(9) and store.durable_snapshot_index == -1
    store.write_snapshot(value(20))
    assert store.durable_snapshot_index == 9 and store.read_snapshot() == value(20)
    store.log.trim(first_of(store.log, 1))
    assert store.log.begin_index > 10 and store.read_snapshot() == value(20)
    newest.unlink()
    with pytest.raises(Damaged, match="restore this replica from peers or a backup"):
        store.read_snapshot()
    with pytest.raises(AssertionError):
        store.discard_derived()
