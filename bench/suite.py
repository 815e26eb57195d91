"""`python -m bench.suite [--quick]` (`make bench`) measures limits, native streams and peers in one
run, and writes one JSON file and one page.

The result is stored in bench/results/suite.json. `--publish` writes tables and plots of the last
result into docs/benchmarks.md without measuring anything. Only figures from an otherwise idle
machine are worth keeping: the result and the page include the load before the run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import peers
from bench.streams import native, native_page
from bench.tools import report

NAME = "suite"


def run(directory: Path, *, quick: bool, only: tuple[str, ...]) -> dict[str, Any]:
    plan = native.QUICK if quick else native.FULL
    found: dict[str, Any] = {
        "v": 1,
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": quick,
        "machine": report.machine(directory),
    }
    if "native" in only:
        found["native"] = native.run(directory, plan)
    if "peers" in only:
        few: dict[str, Any] = {"peers": ("ledgermq", "nats"), **peers.SHORT}
        found["peers"] = (
            peers.run(directory, **few) if quick else peers.run(directory, plan.seconds)
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.suite", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run a short version of every scenario, with only the fastest peer",
    )
    parser.add_argument(
        "--only",
        choices=("native", "peers"),
        action="append",
        help="run this part, keep the last result of the other",
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="do not measure; write the last result into docs/benchmarks.md",
    )
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="directory for data"
    )
    options = parser.parse_args()
    last = report.RESULTS / f"{NAME}.json"
    if options.publish:
        native_page.publish(json.loads(last.read_text()))
        return
    kind = report.file_system(options.directory)
    if kind in report.IN_MEMORY:
        sys.exit(
            f"{options.directory} is in memory ({kind}): choose a directory on a disk with"
            " --directory"
        )
    work = Path(tempfile.mkdtemp(prefix="ledgermq-bench-", dir=options.directory))
    began = time.monotonic()
    try:
        found = run(work, quick=options.quick, only=tuple(options.only or ("native", "peers")))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.only and last.exists():
        found = {**json.loads(last.read_text()), **found}
    print(report.save(NAME, found))
    print(native_page.text(found))
    report.say(f"the suite took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
