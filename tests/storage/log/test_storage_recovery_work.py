"""What a start costs: bounded by the unsealed end of the log, however many files lie before it.
Counted, not timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tools.sparse_log import ENTRIES_A_FILE, FILE_BYTES, INDEX_FILE_BYTES, make_sparse_log
from ledgermq.storage.files.mapped_files import OPEN_FILES_MAX
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.entry_log import EntryLog
from tests.storage.faulty_disk import FaultyDisk

FILES = 1000
A_FILE_READS = 16
"""Below the last file, so many small reads a file are allowed: its first header, the probes for its
terms."""


@pytest.mark.parametrize("clean", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_log_of_a_thousand_files_opens_by_its_end(tmp_path: Path, clean: bool) -> None:
    """1,000 full files of 1 GiB: a few small reads for each of them, only the last is read through,
    and few are open at once."""
    identity = make_sparse_log(tmp_path / "log", FILES, unmarked=0 if clean else 5)
    disk = FaultyDisk(RealDisk())
    log = EntryLog.open(
        disk, str(tmp_path / "log"), identity, clean=clean, submit=lambda work: None
    )
    assert log.fenced is None
    assert log.end_index == FILES * ENTRIES_A_FILE + (9 if clean else 14)
    assert log.report.row == ("clean" if clean else "unmarked-entries")
    assert [first for first, _ in log.term_runs()] == [
        number * ENTRIES_A_FILE for number in range(0, FILES + 1, 100)
    ]
    reads = [event for event in disk.trace if event[0] == "pread"]
    last = f"{FILES * FILE_BYTES:020d}"
    before = [
        event for event in reads if "/data/" in str(event[1]) and not str(event[1]).endswith(last)
    ]
    assert len(before) <= A_FILE_READS * FILES
    assert max(int(str(event[3])) for event in before) <= 64, (
        "only headers are read in files before the last"
    )
    assert disk.bytes_read <= (0 if clean else FILE_BYTES + INDEX_FILE_BYTES) + (16 << 20)
    assert disk.opened <= 4 * FILES
    assert disk.open_files_most <= 2 * OPEN_FILES_MAX + 16
    assert log.report.checked_files == 1
    log.close()
