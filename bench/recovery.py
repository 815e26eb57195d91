"""How long the start of a 1 GiB log takes: after a clean stop, after SIGKILL, and with the index files gone.

A SIGKILL leaves the page cache whole and the last batch above the mark. Both sizes of log files are measured: that of `serve` and that
of `up`. `cold` empties the page cache before each start; that needs root and is left out otherwise.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from bench.storage_append import BORN_MS, HOST, Inputs, new_identity, new_log
from ledgermq.storage.entry_log import EntryLog
from ledgermq.storage.real_disk import RealDisk

NAME, RUNS, DURABLE = "recovery", 1, True
LOG_MIB = 1024
BODY_BYTES = 100
STARTS = 5
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def fill(directory: Path, log_mib: int, file_mib: int, body_bytes: int) -> int:
    """Write a log of the wanted size and leave it as a SIGKILL would: the last batch unmarked. Returns the number of messages."""
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


def start(directory: Path, file_mib: int, *, clean: bool, drop_caches: bool) -> tuple[float, EntryLog]:
    if drop_caches:
        os.sync()
        DROP_CACHES.write_text("1")
    begin = time.perf_counter()
    log = EntryLog.open(RealDisk(), str(directory), new_identity(file_mib), clean=clean, submit=lambda job: None)
    return time.perf_counter() - begin, log


def stop(log: EntryLog, *, clean: bool) -> None:
    if clean:
        log.flush_mark()
    log.close()


def run(directory: Path) -> dict[str, Any]:
    cold = {"cold_1024_mib_files": one(directory / "cold", 1024, drop_caches=True)} if os.access(DROP_CACHES, os.W_OK) else {}
    files = {f"files_of_{mib}_mib": one(directory / str(mib), mib, drop_caches=False) for mib in (1024, 64)}
    return {"log_mib": LOG_MIB, "body_bytes": BODY_BYTES, "starts_each": STARTS, **files, **cold}


def one(directory: Path, file_mib: int, *, drop_caches: bool) -> dict[str, Any]:
    """Median times to start one log again and again."""
    results: dict[str, list[float]] = {"clean_s": [], "killed_s": [], "index_gone_s": []}
    rows = {}
    messages = fill(directory / "log", LOG_MIB, file_mib, BODY_BYTES)
    mark = (directory / "log/syncedmark").read_bytes()
    for number in range(STARTS):
        for name, times in results.items():
            if name == "index_gone_s" and number:
                continue  # the slow one, which no budget is about, once
            clean = name == "clean_s"
            if not clean:
                (directory / "log/syncedmark").write_bytes(mark)
            if name == "index_gone_s":
                shutil.rmtree(directory / "log/index")
                (directory / "log/index").mkdir()
            seconds, log = start(directory / "log", file_mib, clean=clean, drop_caches=drop_caches)
            times.append(seconds)
            rows[name] = f"{log.report.row}, {log.report.checked_files} files"
            assert log.fenced is None and log.end_index + 1 == messages
            stop(log, clean=True)
    shutil.rmtree(directory)
    return {"messages": messages, "rows": rows, **{name: round(statistics.median(values), 3) for name, values in results.items()}}
