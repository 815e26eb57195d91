"""The durability of a log by itself: what each sync covers, what its outcome means, and what is
closed when, in every small state."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import SyncedMark
from ledgermq.storage.files.errors import LogFenced
from ledgermq.storage.log.durability import Durability, Fence, SyncJob

MARKS = [SyncedMark(1 + index // 4, index, 100 * index, index) for index in range(10)]


@dataclass(eq=False)
class File:
    """A file that notes what happens to it."""

    name: str
    log: list[str] = field(default_factory=list)

    def sync(self) -> None:
        self.log.append(f"sync {self.name}")

    def close(self) -> None:
        self.log.append(f"close {self.name}")


class Mark:
    """The synced mark, and its file."""

    def __init__(self, value: SyncedMark, log: list[str]) -> None:
        self.value, self.unsynced, self.log, self.file = value, False, log, File("mark", log)
        self.slots = self
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None

    def write(self, value: SyncedMark) -> None:
        if self.write_error is not None:
            raise self.write_error
        self.value, self.unsynced = value, True
        self.log.append(f"mark {value.index}")

    def sync(self) -> None:
        if self.sync_error is not None:
            raise self.sync_error
        self.synced()

    def synced(self) -> None:
        self.unsynced = False
        self.log.append("mark synced")

    def write_and_sync(self, value: SyncedMark) -> None:
        self.write(value)
        self.sync()

    def lower(self, value: SyncedMark) -> None:
        self.value = value
        self.log.append(f"lower {value.index}")

    def close(self) -> None:
        self.log.append("close mark")


@dataclass
class Files:
    """Log or index files: their directory, and whether names in it changed."""

    directory: str
    names_changed: bool = False


class Index:
    def __init__(self) -> None:
        self.files, self.dirty = Files("index"), dict[File, None]()


class Writer:
    """Holds ten bytes that no file has."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def taken(self) -> int:
        return 10

    def drain(self, mark: int) -> None:
        self.log.append(f"drain {mark}")

    def together(self, syncs: Sequence[Callable[[], object]]) -> None:
        self.log.append("together")
        for sync in syncs:
            sync()


class Log:
    """A durability of which entry 5 is the last one that recovery found; `mark` is on disk,
    `allowed` may be."""

    def __init__(self, mark: int = 5, allowed: int = 5) -> None:
        self.log: list[str] = []
        self.data, self.index, self.fence = Files("data"), Index(), Fence()
        self.mark = Mark(MARKS[mark], self.log)
        parts: Any = self, (self.data, self.index), self.mark, Writer(self.log), self.fence
        self.made = Durability(*parts, 5)
        self.made._allow(MARKS[allowed])

    def sync_dir(self, path: str) -> None:
        self.log.append(f"sync directory {path}")

    def file(self, name: str) -> Any:
        return File(name, self.log)

    def begin(self, index: int = 7, *, idle: bool = False) -> SyncJob:
        self.made.dirty[self.file("a")] = None
        job = self.made.begin(MARKS[index], idle=idle)
        assert job is not None
        return job

    def said(self) -> list[str]:
        said, self.log[:] = list(self.log), []
        return said


def test_sync_covers_dirty_files_lagging_mark_and_changed_names() -> None:
    """All files with unsynced bytes, the mark if it lags, the index and the names of files where
    they changed. If there is nothing else, a lagging mark is a reason only after the end of a file,
    or if the node is idle."""
    for lags, idle, due, dirty, data_names, index_names, rolled in product((False, True), repeat=7):
        log = Log(mark=4 if lags else 5)
        made = log.made
        log.index.dirty[log.file("i")] = None
        made.mark_due = lags and due
        if dirty:
            made.dirty[log.file("a")] = made.dirty[log.file("b")] = None
        log.data.names_changed, log.index.files.names_changed = data_names, index_names
        if rolled:
            made.file_ended()
        assert made.is_dirty is (dirty or data_names)
        assert (made.mark_pending, made.mark_due, made.marked) == (
            lags,
            lags and due,
            MARKS[4 if lags else 5],
        )
        job = made.begin(MARKS[7], idle=idle)
        if not dirty and not data_names and not (lags and (idle or due)):
            assert job is None and made.job is None and log.said() == []
            assert (len(log.index.dirty), log.index.files.names_changed) == (1, index_names)
            continue
        assert (
            job is not None and made.job is job and (job.number, job.term, job.index) == (1, 2, 7)
        )
        assert log.said() == (["mark 5"] if lags else [])
        assert (made.dirty, made.mark_due, len(log.index.dirty)) == ({}, False, 0 if rolled else 1)
        assert not log.data.names_changed and not log.index.files.names_changed
        job.run()
        names = ["a", "b"] * dirty + ["mark"] * lags + ["i"] * rolled
        directories = ["directory data"] * data_names + ["directory index"] * index_names
        assert log.said() == [
            "drain 10",
            "together",
            *(f"sync {name}" for name in (*names, *directories)),
        ]
        made.finish(job, None)
        assert (made.job, made.index, made.allowed, made.mark_pending) == (None, 7, MARKS[7], True)
        assert made.mark_due is rolled
        assert log.said() == (["mark synced"] if lags else [])


def test_jobs_are_numbered_and_one_is_under_way() -> None:
    log = Log()
    first = log.begin()
    with pytest.raises(AssertionError, match="already under way"):
        log.made.begin(MARKS[8], idle=False)
    with pytest.raises(AssertionError, match="still under way"):
        log.made.close()
    log.made.finish(first, None)
    second = log.begin(8)
    assert second.number == 2
    with pytest.raises(AssertionError, match="not the one"):
        log.made.finish(first, None)
    log.made.give_up()
    assert (log.made.job, log.made.index) == (None, 7)
    log.said()
    log.made.close()
    assert log.said() == ["close mark"]


@pytest.mark.parametrize(
    ("error", "said", "status"),
    [
        (
            OSError(errno.EIO, "broken"),
            "a sync of the log failed .*check the disk",
            ExitCode.SYNC_FAILED,
        ),
        (
            OSError(errno.ENOMEM, "no memory"),
            "a sync of the log failed .*check the disk",
            ExitCode.SYNC_FAILED,
        ),
        (OSError(errno.EMFILE, "too many"), "a sync of the log could not begin", ExitCode.LIMIT),
    ],
)
def test_a_failed_sync_ends_the_log(error: OSError, said: str, status: ExitCode) -> None:
    """Nothing that it was to cover counts, and every later call says so."""
    log = Log()
    job, file = log.begin(), log.file("gone")
    log.made.retire(file)
    log.said()
    with pytest.raises(LogFenced, match=said) as failed:
        log.made.finish(job, error)
    assert (failed.value.exit_code, log.said()) == (status, ["close gone"])
    assert (log.made.index, log.made.allowed, log.made.job) == (5, MARKS[5], None)
    with pytest.raises(LogFenced, match=said):
        log.fence.require_open()


@pytest.mark.parametrize(
    ("name", "status"), [("ENOSPC", ExitCode.SYNC_FAILED), ("ENOMEM", ExitCode.LIMIT)]
)
def test_a_mark_that_cannot_be_written_ends_the_log(name: str, status: ExitCode) -> None:
    log = Log(mark=4)
    log.mark.write_error = OSError(getattr(errno, name), "made to fail")
    with pytest.raises(
        LogFenced, match=r"writing the synced mark failed: .*made to fail"
    ) as failed:
        log.begin()
    assert (
        failed.value.exit_code == status
        and log.fence.error is failed.value
        and log.made.job is None
    )


def test_open_fence_raises_no_error() -> None:
    Fence().require_open()


@pytest.mark.parametrize("cut", range(10))
def test_entries_cut_during_a_sync_are_not_durable(cut: int) -> None:
    """Neither the last durable entry nor the mark that is allowed lies behind the cut."""
    log = Log()
    job = log.begin()
    log.made.cut(MARKS[cut])
    low, high = min(5, cut), min(7, cut)
    assert (log.made.index, log.made.allowed) == (low, MARKS[low])
    assert (job.index, job.term) == (high, MARKS[high].term)
    log.made.finish(job, None)
    assert (log.made.index, log.made.allowed) == (high, MARKS[high])


def test_sync_below_the_durable_index_lowers_no_index() -> None:
    """The same mark, and one with other bytes for the same entry: the later one counts."""
    log = Log()
    job = log.begin(4)
    log.made.finish(job, None)
    assert (log.made.index, log.made.allowed) == (5, MARKS[5])
    same = SyncedMark(9, 5, 555, 55)
    log.made.dirty[log.file("a")] = None
    again = log.made.begin(same, idle=False)
    assert again is not None
    log.made.finish(again, None)
    assert (log.made.index, log.made.allowed) == (5, same)
    log.made.cut(MARKS[5])
    assert log.made.allowed == same, "nothing behind it was cut off"


def test_which_files_are_busy_and_when_a_removed_one_is_closed() -> None:
    """A file that waits for a sync, or is being synced, is busy. A removed one is not synced any
    more; it stays open while a sync may use it."""
    log = Log()
    waiting, indexed, idle = log.file("waiting"), log.file("indexed"), log.file("idle")
    log.made.dirty[waiting] = log.index.dirty[indexed] = None
    assert [log.made.is_busy(file) for file in (waiting, indexed, idle)] == [True, True, False]
    job = log.made.begin(MARKS[7], idle=False)
    assert job is not None and not log.made.dirty
    assert [log.made.is_busy(file) for file in (waiting, indexed, idle)] == [True, True, False]
    log.made.retire(indexed)
    assert log.said() == [] and not log.index.dirty
    log.made.finish(job, None)
    assert log.said() == ["close indexed"] and not log.made.is_busy(waiting)
    log.made.dirty[waiting] = log.index.dirty[waiting] = None
    log.made.retire(waiting)
    assert log.said() == ["close waiting"] and not log.made.is_busy(waiting)
    log.made.finish(log.begin(8), None)
    assert "close indexed" not in log.said(), "it is closed once"


def test_a_durability_begins_with_the_mark_on_disk() -> None:
    """No sync has covered the end of a file yet."""
    log = Log(mark=4)
    parts: Any = log, (log.data, log.index), log.mark, Writer(log.log), log.fence
    fresh = Durability(*parts, 5)
    assert (fresh.allowed, fresh.index, fresh.dirty, fresh.job, fresh.mark_pending) == (
        MARKS[4],
        5,
        {},
        None,
        False,
    )
    fresh._allow(MARKS[5])
    assert fresh.mark_pending and not fresh.mark_due


def test_the_end_of_a_file_concerns_one_sync() -> None:
    """The next one neither covers the index again nor is followed by the mark at once."""
    log = Log()
    log.made.file_ended()
    log.made.finish(log.begin(), None)
    assert log.made.mark_due
    log.index.dirty[log.file("i")] = None
    log.made.finish(log.begin(8), None)
    assert not log.made.mark_due and len(log.index.dirty) == 1


def test_recovered_end_is_marked_once() -> None:
    """If it is marked already, nothing is written."""
    log = Log(mark=4, allowed=4)
    log.made.found(MARKS[6])
    assert (log.said(), log.made.allowed) == (["mark 6", "mark synced"], MARKS[6])
    log.made.found(MARKS[6])
    assert log.said() == []


def test_lower_writes_the_mark_at_once() -> None:
    log = Log()
    log.made.lower(MARKS[3])
    assert log.said() == ["lower 3"] and log.made.mark_pending


@pytest.mark.parametrize(("mark", "unsynced", "index", "said"), [
    (4, False, 4, []),
    (4, True, 4, ["mark 5", "mark synced"]),
    (4, False, 5, ["mark 5", "mark synced"]),
    (6, False, 5, []),
])  # fmt: skip
def test_a_mark_is_raised_when_it_has_to_be(
    mark: int, unsynced: bool, index: int, said: list[str]
) -> None:
    """Before entries below it are removed: it must be on stable storage, and not below them."""
    log = Log(mark=mark)
    log.mark.unsynced = unsynced
    log.made.raise_mark_to(index)
    assert log.said() == said
    assert log.made.mark_pending == (log.mark.value != log.made.allowed)


def test_mark_that_was_raised_is_due_no_more() -> None:
    log = Log()
    log.made.file_ended()
    log.made.finish(log.begin(), None)
    assert log.made.mark_due and log.made.mark_pending
    log.made.raise_mark_to(7)
    assert not log.made.mark_due and not log.made.mark_pending


def test_a_mark_that_cannot_be_raised() -> None:
    """A failed write has no effect; a failed sync ends the log, on a full disk, too."""
    log = Log(mark=4)
    log.mark.write_error = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"):
        log.made.raise_mark_to(5)
    log.fence.require_open()
    log.mark.write_error, log.mark.sync_error = None, OSError(errno.ENOSPC, "full")
    with pytest.raises(LogFenced, match="a sync of the synced mark failed") as failed:
        log.made.raise_mark_to(5)
    assert failed.value.exit_code == ExitCode.SYNC_FAILED and log.fence.error is failed.value
