"""How long the start of a log takes: after a clean stop, after SIGKILL, and with the index files gone. Medians as JSON.

`python bench/recovery.py [--directory DIR] [--log-mib 128] [--file-mib 64] [--body-bytes 100] [--repeat 5] [--drop-caches]`

The budget is stated for `--log-mib 1024`. A SIGKILL leaves the page cache whole and the last batch above the mark; `--drop-caches` (root)
empties the page cache before each start. A directory in memory is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ledgermq.storage.entry_log import EntryLog
from ledgermq.storage.real_disk import RealDisk

sys.path.insert(0, str(Path(__file__).parent))

from storage_append import BORN_MS, HOST, IN_MEMORY, Inputs, file_system, new_identity, new_log


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
        Path("/proc/sys/vm/drop_caches").write_text("1")
    begin = time.perf_counter()
    log = EntryLog.open(RealDisk(), str(directory), new_identity(file_mib), clean=clean, submit=lambda job: None)
    return time.perf_counter() - begin, log


def stop(log: EntryLog, *, clean: bool) -> None:
    if clean:
        log.flush_mark()
    log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--log-mib", type=int, default=128)
    parser.add_argument("--file-mib", type=int, default=64)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--drop-caches", action="store_true")
    options = parser.parse_args()
    if file_system(options.directory) in IN_MEMORY:
        sys.exit(f"{options.directory} is in memory and keeps nothing: name a directory on a disk with --directory")
    work = Path(tempfile.mkdtemp(prefix="ledgermq-bench-", dir=options.directory))
    results: dict[str, list[float]] = {"killed_s": [], "clean_s": [], "index_gone_s": []}
    rows = {}
    try:
        messages = fill(work / "log", options.log_mib, options.file_mib, options.body_bytes)
        mark = (work / "log/syncedmark").read_bytes()
        for _ in range(options.repeat):
            for name in results:
                clean = name == "clean_s"
                if not clean:
                    (work / "log/syncedmark").write_bytes(mark)
                if name == "index_gone_s":
                    shutil.rmtree(work / "log/index")
                    (work / "log/index").mkdir()
                seconds, log = start(work / "log", options.file_mib, clean=clean, drop_caches=options.drop_caches)
                results[name].append(seconds)
                rows[name] = f"{log.report.row}, {log.report.checked_files} files"
                assert log.fenced is None and log.end_index + 1 == messages
                stop(log, clean=True)
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        print(
            json.dumps(
                {
                    "bench": "recovery",
                    "python": platform.python_version(),
                    "file_system": file_system(work),
                    "settings": settings,
                    "messages": messages,
                    "rows": rows,
                    **{name: round(statistics.median(values), 3) for name, values in results.items()},
                },
                indent=1,
            )
        )
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
