"""`python -m bench [NAME…]`: run benchmarks, print medians, write bench/results/NAME.json.

`--list` lists them, `--runs N` overrides how often each is repeated, `--directory DIR` is the place
for data: benchmarks of durability refuse a directory in memory. `--quick` tries the short plan of a
benchmark that has one, and keeps no result. `--summary` collects the last results in one small
file, which docs/performance.md refers to.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.tools import report

MODULES = (
    "limits",
    "core_step",
    "storage_append",
    "dispatch",
    "key_lookup",
    "recovery",
    "storage_modes",
    "send",
    "flush_modes",
    "official",
    "receive",
    "delivery",
    "push_consumer",
    "polls",
    "reads",
    "failover",
    "replication",
    "repair",
    "import_store",
    "transfer",
    "catch_up",
    "memory",
    "sizes",
    "leases",
    "timers",
    "idle",
    "connections",
    "console_page",
    "audit_scan",
    "agreement",
    "stored_spark",
    "sim_speed",
    "workers",
    "starved",
    "groups",
    "peers",
)


def load() -> dict[str, ModuleType]:
    return {name: importlib.import_module(f"bench.{name}") for name in MODULES}


def measure(
    module: ModuleType, directory: Path, runs: int, plan: Mapping[str, Any]
) -> dict[str, Any]:
    """Run one benchmark several times, each in its own directory, which is removed afterwards.
    `plan`: options of its `run`."""
    results = []
    machine = report.machine(directory)
    for number in range(runs):
        work = Path(tempfile.mkdtemp(prefix=f"ledgermq-bench-{module.NAME}-", dir=directory))
        began = time.monotonic()
        try:
            results.append(module.run(work, **plan))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        report.say(
            f"{module.NAME}: run {number + 1} of {runs} took {time.monotonic() - began:.0f} s"
        )
    return {
        "v": 1,
        "benchmark": module.NAME,
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "runs": runs,
        "medians": report.medians(results),
        "all": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MODULES)}")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    parser.add_argument(
        "--summary",
        action="store_true",
        help="collect the medians of the last results in bench/results/summary.json",
    )
    parser.add_argument("--runs", type=int, help="how often each is repeated (default: its own)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="try the short plan of a benchmark that has one; keep no result",
    )
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="directory for data"
    )
    options = parser.parse_args()
    options.names = [name.replace("-", "_") for name in options.names]
    unknown = set(options.names) - set(MODULES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    modules = load()
    if options.list:
        for name, module in modules.items():
            print(f"{name:15} {(module.__doc__ or '').splitlines()[0]}")
        return
    if options.summary:
        print(report.summarise(MODULES))
        return
    chosen = [modules[name] for name in options.names or MODULES]
    unplanned = [name for name in options.names or MODULES if not hasattr(modules[name], "SHORT")]
    if options.quick and unplanned:
        parser.error(f"no short plan for {', '.join(unplanned)}; leave --quick out")
    kind = report.file_system(options.directory)
    if kind in report.IN_MEMORY and any(module.DURABLE for module in chosen):
        sys.exit(
            f"{options.directory} is in memory ({kind}) and keeps nothing: choose a directory on a"
            " disk with --directory"
        )
    for module in chosen:
        result = measure(
            module,
            options.directory,
            options.runs or module.RUNS,
            module.SHORT if options.quick else {},
        )
        print(
            json.dumps({key: result[key] for key in ("benchmark", "runs", "medians")}, indent=1),
            flush=True,
        )
        if hasattr(module, "table"):
            print(module.table(result["medians"]), flush=True)
        if not options.quick:
            report.save(module.NAME, result)


if __name__ == "__main__":
    main()
