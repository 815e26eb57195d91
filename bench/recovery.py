"""The start time of a 1 GiB log by phases: after a clean stop, after SIGKILL, and with missing
index files.

After SIGKILL the page cache is complete and the last batch is above the mark. Both log file sizes
are measured: that of `serve` and that of `up`. `sparse` is a log of 1,000 files of 1 GiB that
contain only their ends (bench/tools/sparse_log.py): steps that do not depend on content cost the
same as in a full one. `cold` empties the page cache before each start; that needs root and is
skipped otherwise.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from bench.storage_append import BORN_MS, HOST, Inputs, new_identity, new_log
from bench.tools.sparse_log import make_sparse_log
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.phases import Phases

NAME, RUNS, DURABLE = "recovery", 1, True
LOG_MIB = 1024
BODY_BYTES = 100
STARTS = 5
SPARSE_FILES = 1000
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def fill(directory: Path, log_mib: int, file_mib: int, body_bytes: int) -> int:
    """Write a log of this size and leave it as a SIGKILL would: the last batch above the mark.
    Returns the number of messages."""
    log = new_log(directory, new_identity(file_mib))
    inputs = Inputs(1000, body_bytes)
    while log.end_pos < log_mib << 20:
        log.append_leader(1, inputs.encode(), inputs.offsets, BORN_MS, HOST)
        if log.end_index % 50_000 == 49_999 and (job := log.begin_sync()) is not None:
            job.run()
            log.finish_sync(job, None)
    for _ in range(2):
        log.append_leader(1, inputs.encode(), inputs.offsets, BORN_MS, HOST)
        job = log.begin_sync()
        assert job is not None
        job.run()
        log.finish_sync(job, None)
    log.close()
    return log.end_index + 1


def start(
    directory: Path, file_mib: int, *, clean: bool, drop_caches: bool
) -> tuple[float, EntryLog, dict[str, float]]:
    """Seconds in total, the log, and seconds by phase."""
    if drop_caches:
        os.sync()
        DROP_CACHES.write_text("1")
    phases = Phases(time.perf_counter_ns)
    begin = time.perf_counter()
    log = EntryLog.open(
        RealDisk(),
        str(directory),
        new_identity(file_mib),
        clean=clean,
        submit=lambda job: None,
        phases=phases,
    )
    return time.perf_counter() - begin, log, phases.seconds


def stop(log: EntryLog, *, clean: bool) -> None:
    if clean:
        log.flush_mark()
    log.close()


def run(directory: Path) -> dict[str, Any]:
    cold = (
        {"cold_1024_mib_files": one(directory / "cold", 1024, drop_caches=True)}
        if os.access(DROP_CACHES, os.W_OK)
        else {}
    )
    files = {
        f"files_of_{mib}_mib": one(directory / str(mib), mib, drop_caches=False)
        for mib in (1024, 64)
    }
    sparse = {f"sparse_{SPARSE_FILES}_files": sparse_starts(directory / "sparse")}
    return {
        "log_mib": LOG_MIB,
        "body_bytes": BODY_BYTES,
        "starts_each": STARTS,
        **files,
        **cold,
        **sparse,
    }


def sparse_starts(directory: Path) -> dict[str, Any]:
    """Median start times of the log of many files after a kill and after a clean stop."""
    make_sparse_log(directory, SPARSE_FILES)
    mark = (directory / "syncedmark").read_bytes()
    results: dict[str, list[float]] = {"killed_s": [], "clean_s": []}
    phases: dict[str, dict[str, float]] = {}
    for _ in range(STARTS):
        (directory / "syncedmark").write_bytes(mark)
        for name, times in results.items():
            seconds, log, phases[name] = start(
                directory, 1024, clean=name == "clean_s", drop_caches=False
            )
            assert log.fenced is None
            times.append(seconds)
            stop(log, clean=True)
    shutil.rmtree(directory)
    return {
        "phases": phases,
        **{name: round(statistics.median(values), 3) for name, values in results.items()},
    }


def one(directory: Path, file_mib: int, *, drop_caches: bool) -> dict[str, Any]:
    """Median start times of one log."""
    results: dict[str, list[float]] = {"clean_s": [], "killed_s": [], "index_gone_s": []}
    rows = {}
    phases: dict[str, dict[str, float]] = {}
    messages = fill(directory / "log", LOG_MIB, file_mib, BODY_BYTES)
    mark = (directory / "log/syncedmark").read_bytes()
    for number in range(STARTS):
        for name, times in results.items():
            if name == "index_gone_s" and number:
                continue  # this slow case has no budget, so it runs once
            clean = name == "clean_s"
            if not clean:
                (directory / "log/syncedmark").write_bytes(mark)
            if name == "index_gone_s":
                shutil.rmtree(directory / "log/index")
                (directory / "log/index").mkdir()
            seconds, log, phases[name] = start(
                directory / "log", file_mib, clean=clean, drop_caches=drop_caches
            )
            times.append(seconds)
            rows[name] = f"{log.report.row}, {log.report.checked_files} files"
            assert log.fenced is None and log.end_index + 1 == messages
            stop(log, clean=True)
    shutil.rmtree(directory)
    return {
        "messages": messages,
        "rows": rows,
        "phases": phases,
        **{name: round(statistics.median(values), 3) for name, values in results.items()},
    }
