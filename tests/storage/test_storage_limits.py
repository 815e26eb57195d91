"""Exhausted descriptors, maps or memory do not count as a disk failure: the store refuses and
continues, or stops with its own status."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ledgermq.proto.entries.layout import record_columns
from ledgermq.storage.files.errors import Exhausted, LogFenced, NoSpace, Unusable, explain
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.entry_log import EntryLog
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import append, log_bytes, make_identity, new_log, reopen, sync
from tests.storage.queues.written_queues import WrittenQueues

LIMITS = ("EMFILE", "ENFILE", "ENOMEM")


@pytest.mark.parametrize("name", LIMITS)
def test_a_log_that_cannot_make_its_next_file_refuses_and_goes_on(
    tmp_path: Path, name: str
) -> None:
    """Nothing of the batch is appended, what was acknowledged stays, and the same call succeeds
    once the limit is gone."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 3)
    sync(log)
    disk.fail_creation(errno_of=name)
    with pytest.raises(Exhausted, match="ulimit -n") as refused:
        while True:
            append(log, 5)
    assert isinstance(refused.value, NoSpace), "who handles a full disk handles this too"
    end = log.end_index
    assert log.fenced is None
    with pytest.raises(Exhausted):
        append(log, 5)
    assert log.end_index == end
    sync(log)
    disk.heal()
    append(log, 50)
    sync(log)
    assert log.durable_index == end + 50
    log.close()
    assert reopen(tmp_path / "log", clean=False).end_index == end + 50


@pytest.mark.parametrize("name", LIMITS)
def test_a_log_that_cannot_open_its_files_refuses_before_it_writes(
    tmp_path: Path, name: str
) -> None:
    """A file that exists but cannot be opened is found out before the first byte of the batch."""
    log = new_log(tmp_path / "log")
    append(log, 10)
    log.close()
    disk = FaultyDisk(RealDisk())
    log = reopen(tmp_path / "log", clean=False, disk=disk)
    for file in list(log._data._open.values()):
        file.close()
    log._data._open.clear()
    disk.fail_opening(errno_of=name)
    written = log_bytes(tmp_path / "log")
    with pytest.raises(Exhausted):
        append(log, 1)
    assert log_bytes(tmp_path / "log") == written
    disk.heal()
    append(log, 1)
    assert (log.fenced, log.end_index) == (None, 10)


def test_a_sync_that_could_not_begin_is_no_failed_sync(tmp_path: Path) -> None:
    """Without a descriptor for the directory the log stops as well, for its names are not durable;
    but the disk is not to blame."""
    for error, exit_code, words in (
        (OSError(errno.EMFILE, "Too many open files"), 79, "ulimit -n"),
        (OSError(errno.EIO, "Input/output error"), 73, "check the disk"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 73, "check the disk"),
    ):
        log = new_log(tmp_path / f"log{error.errno}")
        append(log, 1)
        job = log.begin_sync()
        assert job is not None
        with pytest.raises(LogFenced, match=words) as fenced:
            log.finish_sync(job, error)
        assert fenced.value.exit_code == exit_code
        assert log.durable_index == -1, "nothing is acknowledged on it"
        with pytest.raises(LogFenced):
            append(log, 1)


def test_a_write_at_the_limit_stops_with_its_own_status(tmp_path: Path) -> None:
    """After a failure in the middle of a write, the contents are unknown: the log stops and names
    the limit, and the next start recovers."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    append(log, 3)
    sync(log)
    disk.fail_writes_after(0, errno_of="ENOMEM")
    with pytest.raises(LogFenced, match="max_map_count") as fenced:
        append(log, 1)
    assert fenced.value.exit_code == 79
    log.close()
    assert reopen(tmp_path / "log", clean=False).end_index >= 2


def test_dispatching_at_the_limit_resumes(tmp_path: Path) -> None:
    """Consume queues that cannot be opened are filled later, without a gap."""
    log = new_log(tmp_path / "log")
    append(log, 30)
    columns = record_columns(log.read(0, 1 << 20))
    disk = FaultyDisk(RealDisk())
    queues = WrittenQueues(disk, str(tmp_path / "queues"), 20 * 10)
    queues.start({}, 0)
    disk.fail_creation(errno_of="EMFILE")
    with pytest.raises(Exhausted, match="resumes by itself"):
        queues.append(columns)
    disk.heal()
    queues.append(columns)
    units = queues.read("t", 0, 0, 100)
    assert np.array_equal(units.physical_offsets, columns.physical_offsets)


def test_a_start_at_the_limit_says_so(tmp_path: Path) -> None:
    """Status 79 and the names of the limits, not a word about permissions."""
    root = str(tmp_path / "g1")
    GroupStore.create(RealDisk(), root, make_identity())
    disk = FaultyDisk(RealDisk())
    disk.fail_opening(errno_of="EMFILE")
    with pytest.raises(Exhausted, match="ulimit -n") as refused:
        GroupStore.open(disk, root, make_identity())
    assert refused.value.exit_code == 79
    disk.heal()
    GroupStore.open(disk, root, make_identity()).close()


@pytest.mark.parametrize(
    ("name", "kind", "exit_code", "words"),
    [
        ("EROFS", Unusable, 71, "mount it writable again"),
        ("EACCES", Unusable, 71, "permissions"),
        ("EIO", LogFenced, 73, "kernel's log"),
        ("ENODEV", LogFenced, 73, "reattach"),
        ("ENXIO", LogFenced, 73, "reattach"),
        ("ESTALE", LogFenced, 73, "reattach"),
        ("ENOSPC", NoSpace, 74, "free disk space"),
        ("EDQUOT", NoSpace, 74, "free disk space"),
        ("EMFILE", Exhausted, 79, "ulimit -n"),
        ("ENFILE", Exhausted, 79, "ulimit -n"),
        ("ENOMEM", Exhausted, 79, "vm.max_map_count"),
    ],
)
def test_every_failure_of_a_start_is_explained(
    name: str, kind: type[Exception], exit_code: int, words: str
) -> None:
    """Each errno has its status and its advice."""
    error = explain("/data", OSError(getattr(errno, name), "text"))
    assert (type(error), error.exit_code) == (kind, exit_code)
    assert words in str(error) and "text" in str(error)


REAL = """
import os, resource, sys
from pathlib import Path
from ledgermq.storage.files.errors import Exhausted
from tests.storage.log_material import append, new_log, reopen, sync
from tests.storage.queues.written_queues import WrittenQueues

directory = Path(sys.argv[1])
log = new_log(directory)
append(log, 3)
sync(log)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
refused = None
for _ in range(100):
    try:
        append(log, 5)
    except Exhausted as error:
        refused = error
        break
assert refused is not None and "ulimit -n" in str(refused), refused
assert log.fenced is None
end = log.end_index
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
append(log, 50)
sync(log)
log.close()
assert reopen(directory, clean=False).end_index == end + 50
"""


@pytest.mark.slow
def test_a_real_limit_of_descriptors_refuses_and_passes(tmp_path: Path) -> None:
    """The same with RLIMIT_NOFILE of a real process, lowered while the log is in use and raised
    again."""
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0


def test_a_log_uses_few_descriptors(tmp_path: Path) -> None:
    """However many files a log has, reading all of it keeps few of them open."""
    disk = FaultyDisk(RealDisk())
    log = new_log(tmp_path / "log", disk)
    for _ in range(60):
        append(log, 150)
        sync(log)
    log.flush_mark()
    log.close()
    opened = EntryLog.open(disk, str(tmp_path / "log"), make_identity(), clean=True)
    index = 0
    while index <= opened.end_index:
        index = opened.read(index, 4096).last_index + 1
    assert len(opened._data.bases) > 300
    assert disk.open_files_most < 200
    opened.close()
