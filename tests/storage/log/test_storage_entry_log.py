"""The entry log: placing, appending as leader and follower, reading, truncating, group commit,
fencing, a full disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.types import Range
from ledgermq.storage.files.errors import BadRange, LogDamaged, LogFenced, NoSpace
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.index_files import make_units
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import (
    APPEND,
    FILE_BYTES,
    HOST,
    append,
    content,
    log_bytes,
    make_batch,
    make_identity,
    new_log,
    reopen,
    sync,
)

ENTRY_EXTRA = 48 + 91 + 1 + 7
"""What an entry of `make_batch` has besides its body: header, record, topic, properties."""

pytestmark = pytest.mark.usefixtures("each_mode")


def all_ranges(log: EntryLog, max_bytes: int = 1 << 20) -> list[Range]:
    ranges, index = [], log.begin_index
    while index <= log.end_index:
        ranges.append(log.read(index, max_bytes))
        index = ranges[-1].last_index + 1
    return ranges


def check_whole(log: EntryLog) -> None:
    """Everything the log says about itself agrees with its bytes."""
    chain = log.chain_at(-1)
    for entries in all_ranges(log, 700):
        verified = verify_range(
            bytes(entries.data), entries.first_index, entries.term, entries.pos, chain
        )
        assert (verified.prev_chain, verified.last_chain) == (
            entries.prev_chain,
            entries.last_chain,
        )
        assert verified.starts.tolist() == entries.starts.tolist()
        assert verified.sizes.tolist() == entries.sizes.tolist()
        chain = entries.last_chain
        for index, start in zip(
            range(entries.first_index, entries.last_index + 1), entries.starts.tolist(), strict=True
        ):
            assert log.term_at(index) == entries.term
            assert log.pos_of(index) == entries.pos + start
            assert log.index_at(entries.pos + start + 48) == index
            with pytest.raises(LogDamaged):
                log.index_at(entries.pos + start + 48 + 3)
        assert log.chain_at(entries.last_index) == entries.last_chain
    assert log.end_chain == chain
    assert log.pos_of(log.end_index + 1) == log.end_pos


def test_index_units_are_dledgers() -> None:
    """The units of the two entries of the golden vectors, byte by byte."""
    units = make_units(0, 1, np.array([0, 53]), np.array([53, 54], np.int32))
    assert units.tobytes().hex() == (
        "00000001" "0000000000000000" "00000035" "0000000000000000" "0000000000000001"
        "00000001" "0000000000000035" "00000036" "0000000000000001" "0000000000000001"
    )  # fmt: skip


def test_append_gives_ranges_that_verify(tmp_path: Path) -> None:
    """A batch over several files comes back as one sealed range per file, in order and without a
    gap."""
    log = new_log(tmp_path / "log")
    ranges = log.append_leader(1, make_batch(60), np.arange(60), 1_700_000_000_500, HOST)
    assert (ranges[0].first_index, ranges[0].pos) == (0, 0)
    assert ranges[-1].last_index == log.end_index == 59
    assert len(ranges) == len({entries.pos // FILE_BYTES for entries in ranges}) == 4
    chain = log.chain_at(-1)
    for entries in ranges:
        assert (
            verify_range(entries.data, entries.first_index, 1, entries.pos, chain).last_chain
            == entries.last_chain
        )
        chain = entries.last_chain
        assert entries.pos // FILE_BYTES == (entries.end_pos + 8 - 1) // FILE_BYTES
    check_whole(log)


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_an_entry_leaves_room_for_a_blank(tmp_path: Path, spare: int) -> None:
    """An entry that would leave less than eight bytes goes to the next file, behind a blank over
    the whole rest."""
    log = new_log(tmp_path / "log")
    append(log, 1, body_bytes=1000)
    rest = FILE_BYTES - log.end_pos
    append(log, 1, body_bytes=rest - 8 - ENTRY_EXTRA - spare)
    data = log_bytes(tmp_path / "log")
    if spare >= 0:
        assert log.end_pos == FILE_BYTES - 8 - spare
        assert log.pos_of(1) == FILE_BYTES - rest
    else:
        assert log.pos_of(1) == FILE_BYTES
        assert data[FILE_BYTES - rest : FILE_BYTES] == b"\xff\xff\xff\xff" + rest.to_bytes(
            4, "big"
        ) + bytes(rest - 8)
    check_whole(log)


def test_the_largest_entry_fills_a_file(tmp_path: Path) -> None:
    """An entry of the file's length less eight fits; one byte more is a programming error and
    appends nothing."""
    log = new_log(tmp_path / "log")
    append(log, 1, body_bytes=FILE_BYTES - 8 - ENTRY_EXTRA)
    append(log, 1, body_bytes=FILE_BYTES - 8 - ENTRY_EXTRA)
    with pytest.raises(AssertionError, match="larger than a log file"):
        append(log, 1, body_bytes=FILE_BYTES - 7 - ENTRY_EXTRA)
    assert log.end_index == 1
    check_whole(log)


def test_follower_is_byte_identical(tmp_path: Path) -> None:
    """Ranges read from one log, verified and appended to another, give the same files: data and
    index."""
    leader = new_log(tmp_path / "leader")
    follower = new_log(tmp_path / "follower")
    for term, count, size in ((1, 3, 10), (1, 50, 100), (4, 1, 3000), (5, 40, 333)):
        append(leader, count, term=term, body_bytes=size)
    for entries in all_ranges(leader, 2000):
        sent = bytes(entries.data)
        verified = verify_range(
            sent, entries.first_index, entries.term, entries.pos, entries.prev_chain
        )
        assert follower.append_range(verified) is verified
    check_whole(follower)
    assert log_bytes(tmp_path / "follower") == log_bytes(tmp_path / "leader")
    assert follower.term_runs() == leader.term_runs() == [(0, 1), (53, 4), (54, 5)]
    ours, theirs = content(tmp_path / "leader"), content(tmp_path / "follower")
    assert {k: v for k, v in ours.items() if k.startswith("index/")} == {
        k: v for k, v in theirs.items() if k.startswith("index/")
    }


def misfits() -> list[tuple[str, Callable[[Range], Range]]]:
    return [
        ("index", lambda entries: replace(entries, first_index=entries.first_index + 1)),
        ("chain", lambda entries: replace(entries, prev_chain=entries.prev_chain ^ 1)),
        ("term", lambda entries: replace(entries, term=0)),
        ("position", lambda entries: replace(entries, pos=entries.pos + 8)),
        ("two files on", lambda entries: replace(entries, pos=2 * FILE_BYTES)),
    ]


@pytest.mark.parametrize(("what", "spoil"), misfits())
def test_a_range_that_does_not_continue_is_refused(
    tmp_path: Path, what: str, spoil: Callable[[Range], Range]
) -> None:
    """Wrong index, chain, term or place: nothing is appended."""
    leader = new_log(tmp_path / "leader")
    append(leader, 5)
    follower = new_log(tmp_path / "follower")
    follower.append_range(leader.read(0, 500))
    before = content(tmp_path / "follower"), follower.end_index
    with pytest.raises(BadRange):
        follower.append_range(spoil(leader.read(follower.end_index + 1, 1 << 20)))
    assert (content(tmp_path / "follower"), follower.end_index) == before
    follower.append_range(leader.read(follower.end_index + 1, 1 << 20))
    check_whole(follower)


def test_a_range_that_skips_the_blank_is_refused(tmp_path: Path) -> None:
    """When the next entry does not fit, only the next file is its place."""
    leader = new_log(tmp_path / "leader")
    append(leader, 1, body_bytes=3000)
    append(leader, 1, body_bytes=3000)
    follower = new_log(tmp_path / "follower")
    follower.append_range(leader.read(0, 1))
    with pytest.raises(BadRange):
        follower.append_range(replace(leader.read(1, 1), pos=follower.end_pos))
    follower.append_range(leader.read(1, 1))
    assert follower.end_pos == leader.end_pos


def test_a_file_may_end_early(tmp_path: Path) -> None:
    """The blank is the rest of the file; a follower has the same bytes; an empty log begins no
    second file."""
    leader, follower = new_log(tmp_path / "leader"), new_log(tmp_path / "follower")
    append(leader, 2, new_file=True)
    assert leader.pos_of(0) == 0
    end = leader.end_pos
    append(leader, 30, new_file=True)
    assert leader.pos_of(2) == FILE_BYTES
    blank = (-1).to_bytes(4, "big", signed=True) + (FILE_BYTES - end).to_bytes(4, "big")
    assert log_bytes(tmp_path / "leader")[end:FILE_BYTES] == blank.ljust(FILE_BYTES - end, b"\0")
    while follower.end_index < leader.end_index:
        follower.append_range(leader.read(follower.end_index + 1, 1000))
    assert log_bytes(tmp_path / "follower") == log_bytes(tmp_path / "leader")
    check_whole(follower)


def test_which_entries_are_in_the_file_being_written(tmp_path: Path) -> None:
    """All up to an early end are not; the first one behind it is; what was trimmed is in no
    file."""
    log = new_log(tmp_path)
    append(log, 2)
    assert [log.is_in_last_file(index) for index in range(2)] == [True, True]
    append(log, 2, new_file=True)
    assert [log.is_in_last_file(index) for index in range(4)] == [False, False, True, True]
    append(log, 1, new_file=True)
    sync(log)
    log.trim(2)
    assert [log.is_in_last_file(index) for index in range(5)] == [False, False, False, False, True]
    log.trim(4)
    assert [log.is_in_last_file(index) for index in range(5)] == [False, False, False, False, True]


def test_early_end_of_a_file_is_cut_with_the_next_file(tmp_path: Path) -> None:
    """A new leader that has not seen it continues in the old file; a follower that has is cut back
    and follows."""
    old, new, follower = (new_log(tmp_path / name) for name in ("old", "new", "follower"))
    append(old, 2)
    for log in (new, follower):
        log.append_range(old.read(0, 1 << 20))
    append(old, 3, new_file=True)
    follower.append_range(old.read(2, 1 << 20))
    sync(follower)
    sync(follower)
    append(new, 4, term=2)
    follower.truncate_from(2)
    assert follower.end_pos == new.pos_of(2)
    follower.append_range(new.read(2, 1 << 20))
    assert log_bytes(tmp_path / "follower") == log_bytes(tmp_path / "new").ljust(
        2 * FILE_BYTES, b"\0"
    )
    check_whole(follower)


def test_an_early_end_waits_until_the_next_file_is_there(tmp_path: Path) -> None:
    """To create a file takes as long as to write it, so neither a leader nor a follower waits for
    that in a turn."""
    jobs: list[Callable[[], object]] = []

    def waiting(name: str) -> EntryLog:
        new_log(tmp_path / name).close()
        log = EntryLog.open(
            RealDisk(),
            str(tmp_path / name),
            make_identity(),
            clean=True,
            submit=jobs.append,
            writer=APPEND.writer(),
        )
        APPEND.logs[str(tmp_path / name)] = log
        return log

    leader, follower = waiting("leader"), waiting("follower")
    append(leader, 1)
    follower.append_range(leader.read(0, 1 << 20))
    jobs.clear()
    with pytest.raises(NoSpace, match="not there yet"):
        append(leader, 1, new_file=True, control=True)
    assert not leader.prepare_next() and leader.end_index == 0
    jobs.pop()()
    assert not jobs, "one file is made at a time"
    append(leader, 1, new_file=True, control=True)
    entries = leader.read(1, 1 << 20)
    with pytest.raises(NoSpace, match="not there yet"):
        follower.append_range(entries)
    jobs.pop()()
    follower.append_range(entries)
    assert log_bytes(tmp_path / "follower") == log_bytes(tmp_path / "leader")


def test_read_stops_at_bytes_terms_and_files(tmp_path: Path) -> None:
    """A range has at least one entry, no more than asked for, one term, one file."""
    log = new_log(tmp_path / "log")
    append(log, 10, term=1)
    append(log, 3, term=2)
    append(log, 10, term=3)
    size = 100 + ENTRY_EXTRA
    assert len(log.read(0, 1)) == 1
    assert len(log.read(0, 3 * size - 1)) == 2
    assert len(log.read(0, 3 * size)) == 3
    assert (log.read(0, 1 << 30).last_index, log.read(10, 1 << 30).last_index) == (9, 12)
    per_file = (FILE_BYTES - 8) // size
    assert log.read(13, 1 << 30).last_index == per_file - 1
    assert log.read(per_file, 1 << 30).pos == FILE_BYTES
    for index in (-1, 23):
        with pytest.raises(AssertionError):
            log.read(index, 1)


def test_only_known_bytes_come_from_the_map(tmp_path: Path) -> None:
    """The hot tail is a view of the map; what another process wrote is read with system calls."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 5)
    sync(log)
    assert log.read(0, 1 << 20).data.readonly
    assert disk.names("view")
    log.flush_mark()
    log.close()
    log = reopen(tmp_path / "log", clean=True, disk=disk)
    append(log, 5)
    sync(log)
    disk.trace.clear()
    cold = log.read(0, 5 * (100 + ENTRY_EXTRA))
    assert not disk.names("view")
    assert len(cold) == 5
    log.read(5, 1)
    assert disk.names("view")
    check_whole(log)


def test_truncation_leaves_no_trace(tmp_path: Path) -> None:
    """After any truncation, the files equal those of a log that never had the entries, and
    appending continues from there."""
    for cut in range(0, 40, 3):
        plain, cut_log = tmp_path / f"plain{cut}", tmp_path / f"cut{cut}"
        log = new_log(plain)
        if cut:
            append(log, cut, term=1)
        append(log, 5, term=7, body_bytes=50)
        want = log_bytes(plain)
        log.close()
        log = new_log(cut_log)
        if cut:
            append(log, cut, term=1)
        append(log, 40, term=3, body_bytes=333)
        sync(log)
        log.truncate_from(cut)
        assert (log.end_index, log.durable_index) == (cut - 1, cut - 1)
        append(log, 5, term=7, body_bytes=50)
        check_whole(log)
        found = log_bytes(cut_log)
        assert found[: len(want)] == want[: len(found)]
        assert not any(found[len(want) :])
        sync(log)
        log.close()
        assert reopen(cut_log, clean=False).end_index == cut + 4


def test_truncation_lowers_the_mark_before_it_erases(tmp_path: Path) -> None:
    """The first byte is erased only after the lowered mark was synced, in both slots."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 20)
    log.flush_mark()
    disk.trace.clear()
    log.truncate_from(4)
    names = [
        (operation, str(path).rsplit("/", 2)[-1])
        for operation, path in disk.names("pwrite", "sync")
    ]
    mark = "syncedmark"
    assert names[:4] == [("pwrite", mark), ("sync", mark), ("pwrite", mark), ("sync", mark)]
    assert names[4][0] == "pwrite"
    assert log.synced_mark.index == 3
    disk.trace.clear()
    append(log, 4)
    log.truncate_from(4)
    assert (mark,) not in [(str(path).rsplit("/", 1)[-1],) for _, path in disk.names("sync")]


def test_sync_covers_entries_appended_before_it_began(tmp_path: Path) -> None:
    """Entries appended while a sync runs wait for the next one."""
    log = new_log(tmp_path / "log")
    append(log, 3)
    job = log.begin_sync()
    assert job is not None
    append(log, 2)
    job.run()
    log.finish_sync(job, None)
    assert (log.durable_index, log.end_index, log.dirty) == (2, 4, True)
    sync(log)
    assert (log.durable_index, log.dirty) == (4, False)
    assert log.begin_sync() is None


def test_truncation_under_a_sync_is_not_undone_by_its_end(tmp_path: Path) -> None:
    """A sync that began before a truncation makes nothing durable that was appended after it at the
    same index."""
    log = new_log(tmp_path / "log")
    append(log, 10, term=1)
    job = log.begin_sync()
    assert job is not None
    log.truncate_from(4)
    append(log, 6, term=2)
    job.run()
    log.finish_sync(job, None)
    assert (log.durable_index, log.end_index) == (3, 9)
    assert (job.index, job.term) == (3, 1)
    assert log.durability.allowed.index == 3
    sync(log)
    assert log.durable_index == 9
    log.close()
    assert reopen(tmp_path / "log", clean=False).term_runs() == [(0, 1), (4, 2)]


def test_truncation_under_a_sync_drops_files_safely(tmp_path: Path) -> None:
    """Files that go away while a sync holds them stay open until it ended."""
    log = new_log(tmp_path / "log")
    append(log, 200)
    job = log.begin_sync()
    assert job is not None
    log.truncate_from(1)
    job.run()
    log.finish_sync(job, None)
    sync(log)
    assert log.durable_index == 0
    append(log, 100, term=2)
    check_whole(log)


def test_the_mark_follows_one_batch_behind(tmp_path: Path) -> None:
    """The mark of a batch is written with the next one, at idle, and after a roll; never above what
    is durable."""
    log = new_log(tmp_path / "log")
    append(log, 2)
    sync(log)
    assert (log.synced_mark.index, log.durable_index, log.durability.mark_pending) == (-1, 1, True)
    append(log, 2)
    sync(log)
    assert (log.synced_mark.index, log.durable_index) == (1, 3)
    job = log.begin_sync(idle=True)
    assert job is not None
    job.run()
    log.finish_sync(job, None)
    assert (log.synced_mark.index, log.durability.mark_pending) == (3, False)
    assert log.begin_sync(idle=True) is None
    append(log, 30)
    sync(log)
    assert log.end_pos > FILE_BYTES
    sync(log)
    assert log.synced_mark.index == log.durable_index == 33


def test_one_sync_covers_files_directory_and_mark(tmp_path: Path) -> None:
    """A batch over several files: each of them, the directory with the new names, and the mark of
    the batch before."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 1)
    sync(log)
    append(log, 60)
    disk.trace.clear()
    sync(log)
    synced = {
        str(path).removeprefix(f"{tmp_path}/log/") for _, path in disk.names("sync", "sync_dir")
    }
    files = {f"data/{base:020d}" for base in range(0, log.end_pos, FILE_BYTES)}
    assert {*files, "data", "syncedmark"} <= synced


def test_the_first_failed_sync_fences_for_good(tmp_path: Path) -> None:
    """After it nothing is durable, nothing is accepted and nothing is synced again."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 3)
    job = log.begin_sync()
    assert job is not None
    disk.syncs_fail = True
    with pytest.raises(OSError, match="Input/output") as failure:
        job.run()
    with pytest.raises(LogFenced) as fenced:
        log.finish_sync(job, failure.value)
    assert fenced.value.exit_code == 73
    disk.heal()
    disk.trace.clear()
    acts: list[Callable[[], object]] = [
        lambda: append(log, 1),
        lambda: log.truncate_from(0),
        lambda: log.trim(0),
        log.begin_sync,
        log.flush_mark,
        lambda: log.append_range(log.read(0, 1)),
    ]
    for act in acts:
        with pytest.raises(LogFenced):
            act()
    assert log.durable_index == -1
    assert not disk.names("sync", "pwrite")


def test_a_failed_write_fences(tmp_path: Path) -> None:
    """What a failed write left behind is unknown, so the log goes no further."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 3)
    disk.fail_writes_after(0, errno_of="EIO")
    with pytest.raises(LogFenced, match="writing entry 3"):
        append(log, 1)
    assert (log.end_index, log.fenced is not None) == (2, True)


def test_full_disk_refuses_messages_and_keeps_room_for_control_records(tmp_path: Path) -> None:
    """No space: ordinary batches are refused whole, control records use the reserve, and writing
    resumes by itself."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 3)
    disk.free = 0
    disk.fail_creation(errno_of="ENOSPC")
    with pytest.raises(NoSpace, match="resumes by itself"):
        for _ in range(100):
            append(log, 1)
    full = log.end_index
    assert log.fenced is None
    with pytest.raises(NoSpace):
        append(log, 1)
    append(log, 1, control=True, topic="rmq_sys_x")
    assert log.end_index == full + 1
    with pytest.raises(NoSpace):
        for _ in range(20):
            append(log, 1, control=True, topic="rmq_sys_x")
    assert log.end_index > full + 1
    check_whole(log)
    disk.heal()
    append(log, 30)
    check_whole(log)
    sync(log)


def test_a_follower_takes_control_records_on_a_full_disk(tmp_path: Path) -> None:
    """A follower recognizes the records that may use its reserve by their topic."""
    leader = new_log(tmp_path / "leader")
    disk = FaultyDisk(RealDisk())
    follower = new_log(tmp_path / "follower", disk)
    size = 100 + ENTRY_EXTRA
    count = (FILE_BYTES - FILE_BYTES // 8) // size
    append(leader, count)
    follower.append_range(leader.read(0, 1 << 20))
    disk.free = 0
    disk.fail_creation(errno_of="ENOSPC")
    follower.close()
    for path in (tmp_path / "follower/data").iterdir():
        if path.name != "0" * 20:
            path.unlink()
    follower = reopen(tmp_path / "follower", clean=False, disk=disk)
    for topic in ("t", "rmq_sys_team@t"):
        append(leader, 1, topic=topic)
        with pytest.raises(NoSpace):
            follower.append_range(leader.read(count, 1 << 20))
        leader.truncate_from(count)
    append(leader, 1, term=2, topic="rmq_sys_ledgermq_raft")
    follower.append_range(leader.read(count, 1 << 20))
    check_whole(follower)


def test_range_with_messages_is_refused_whole_on_a_full_disk(tmp_path: Path) -> None:
    """Not even if it has control records, too."""
    leader, disk = new_log(tmp_path / "leader"), FaultyDisk(RealDisk())
    follower = new_log(tmp_path / "follower", disk)
    append(leader, (FILE_BYTES - FILE_BYTES // 8) // (100 + ENTRY_EXTRA))
    follower.append_range(leader.read(0, 1 << 20))
    disk.free = 0
    disk.fail_creation(errno_of="ENOSPC")
    full = 0
    while not full:
        for topic in ("rmq_sys_x", "t"):
            append(leader, 1, topic=topic)
        entries = leader.read(follower.end_index + 1, 2 * (108 + ENTRY_EXTRA))
        assert len(entries) <= 2
        try:
            follower.append_range(entries)
        except NoSpace:
            full = follower.end_index
    leader.truncate_from(full + 1)
    with pytest.raises(NoSpace):
        for _ in range(30):
            append(leader, 1, topic="rmq_sys_x")
            follower.append_range(leader.read(follower.end_index + 1, 1))
    assert follower.end_index > full and follower.fenced is None, (
        "there was room for control records"
    )


def test_a_follower_reserves_units_as_its_leader_does(tmp_path: Path) -> None:
    """With the same disk it comes as far, and not further."""
    identity = make_identity(data_file_bytes=1 << 20, index_file_bytes=32 * 64)
    source = new_log(tmp_path / "source", identity=identity)
    append(source, 220)
    ends = []
    for name in ("leader", "follower"):
        disk = FaultyDisk(RealDisk())
        log = new_log(tmp_path / name, disk, identity)
        append(log, 1)
        disk.fail_creation(errno_of="ENOSPC")
        with pytest.raises(NoSpace):
            for _ in range(200):
                if name == "leader":
                    append(log, 1)
                else:
                    log.append_range(source.read(log.end_index + 1, 1))
        assert log.fenced is None
        ends.append(log.end_index)
    assert ends[0] == ends[1] > 1


def test_the_index_has_a_reserve_too(tmp_path: Path) -> None:
    """A disk without a block left for index units refuses a batch before any of it was written, and
    takes control records."""
    disk = FaultyDisk(RealDisk())
    log = new_log(
        tmp_path / "log", disk, make_identity(data_file_bytes=1 << 20, index_file_bytes=32 * 64)
    )
    append(log, 1)
    before = log_bytes(tmp_path / "log")
    disk.fail_creation(errno_of="ENOSPC")
    with pytest.raises(NoSpace):
        append(log, 100)
    assert log_bytes(tmp_path / "log") == before
    append(log, 1, control=True)
    disk.heal()
    append(log, 200)
    check_whole(log)


def test_the_index_keeps_its_reserve_for_control_records(tmp_path: Path) -> None:
    """Ordinary batches stop while there is still a stretch of real index blocks, which control
    records may use up."""
    disk = FaultyDisk(RealDisk())
    units = 64
    log = new_log(
        tmp_path / "log", disk, make_identity(data_file_bytes=1 << 20, index_file_bytes=32 * units)
    )
    append(log, 1)
    disk.fail_creation(errno_of="ENOSPC")
    with pytest.raises(NoSpace):
        for _ in range(1000):
            append(log, 1)
    stopped = log.end_index
    with pytest.raises(NoSpace):
        for _ in range(1000):
            append(log, 1, control=True)
    assert log.end_index - stopped == units
    check_whole(log)


def test_a_failed_allocation_is_not_tried_again_at_once(tmp_path: Path) -> None:
    """Where the disk promises room and then has none, attempts that write until they fail wait for
    space to come back."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 3)
    disk.free = 10 * FILE_BYTES
    disk.fail_creation(errno_of="EDQUOT")
    for _ in range(60):
        try:
            append(log, 1)
        except NoSpace:
            continue
    attempts = len([path for operation, path in disk.names("create") if "/data/" in str(path)])
    assert attempts == 2
    assert not log.has_room
    disk.heal()
    disk.free = 10 * FILE_BYTES
    with pytest.raises(NoSpace):
        append(log, 30)
    assert not log.has_room
    disk.free = 12 * FILE_BYTES
    assert log.has_room
    append(log, 10)
    assert log.has_room, "the next file is there, or fits"
    check_whole(log)


def test_a_prepared_file_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    """A file gets its final name only when a power cut can no longer lose its length or blocks."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 100)
    events = [
        (operation, str(path).rsplit("/log/", 1)[-1])
        for operation, path in disk.names("create", "sync", "rename")
    ]
    data = [event for event in events if event[1].startswith("data/")]
    assert len(data) >= 9
    assert [operation for operation, _ in data] == ["create", "sync", "rename"] * (len(data) // 3)
    assert all(name == "data/next.alloc" for operation, name in data if operation != "rename")


class ManualRunner:
    """A background runner that works only on request."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def __call__(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


@pytest.mark.parametrize("works", [True, False])
def test_the_next_file_is_made_ahead_or_at_need(tmp_path: Path, works: bool) -> None:
    """One file is prepared in the background; if it is not there in time the owner makes it, and
    the late job does nothing."""
    runner = ManualRunner()
    disk = RealDisk()
    identity = make_identity()
    disk.mkdirs(str(tmp_path / "log"))
    EntryLog.create(disk, str(tmp_path / "log"), identity)
    log = EntryLog.open(disk, str(tmp_path / "log"), identity, clean=True, submit=runner)
    for _ in range(100):
        append(log, 1)
        assert len(runner.jobs) <= 1 or not works
        if works:
            runner.work()
        spare = [path.name for path in (tmp_path / "log/data").iterdir()]
        assert len(spare) * FILE_BYTES <= log.end_pos + 3 * FILE_BYTES
    runner.work()
    check_whole(log)
    log.flush_mark()
    log.close()
    assert sorted(
        path.name for path in (tmp_path / "log/data").iterdir() if path.suffix == ".alloc"
    ) in ([], ["next.alloc"])
    assert reopen(tmp_path / "log", clean=True).end_index == 99


def test_random_histories_agree_with_a_model(tmp_path: Path) -> None:
    """Appends, truncations, syncs, clean and unclean restarts from a seed: the log is always what
    the model says."""
    chance = random.Random(20_261_121)
    for round_number in range(6):
        directory = tmp_path / f"log{round_number}"
        log = new_log(directory)
        model: list[tuple[int, int]] = []
        term = 1
        for _ in range(60):
            act = chance.choice(
                ["append", "append", "append", "cut", "sync", "clean", "crash", "idle"]
            )
            if act == "append":
                term += chance.random() < 0.3
                size, count = chance.choice([10, 100, 900, 3500]), chance.randint(1, 12)
                append(log, count, term=term, body_bytes=size, new_file=chance.random() < 0.1)
                model += [(term, size)] * count
            elif act == "cut" and model:
                at = chance.randrange(max(0, len(model) - 20), len(model))
                log.truncate_from(at)
                del model[at:]
            elif act == "sync":
                sync(log)
            elif act == "idle" and (job := log.begin_sync(idle=True)) is not None:
                job.run()
                log.finish_sync(job, None)
            elif act in ("clean", "crash"):
                if act == "clean":
                    log.flush_mark()
                log.close()
                log = reopen(directory, clean=act == "clean")
                assert log.fenced is None, log.report
                assert log.report.row in ("clean", "empty") or act == "crash"
                assert log.durable_index == log.end_index
            assert log.end_index == len(model) - 1
            assert log.synced_mark.index <= log.durable_index <= log.end_index
        check_whole(log)
        assert [log.term_at(i) for i in range(len(model))] == [its_term for its_term, _ in model]
        log.close()


def test_verify_catches_a_change_after_reading(tmp_path: Path) -> None:
    """What the map shows after a truncation is not what was read before: receivers verify, so
    nothing of it gets further."""
    log = new_log(tmp_path / "log")
    append(log, 5)
    sync(log)
    entries = log.read(0, 1 << 20)
    log.truncate_from(2)
    with pytest.raises(BadEntry):
        verify_range(entries.data, 0, 1, 0, entries.prev_chain)
