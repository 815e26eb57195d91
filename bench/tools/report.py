"""Shared code of the benchmarks: the description of the machine, medians over runs, the place for
results, and the test for a real disk.

A benchmark is a module with `NAME`, `RUNS`, `DURABLE` and `run(directory) -> dict`; it measures
once, and medians over runs are computed here.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
PACKAGES = ("grpcio", "protobuf", "numpy", "uvloop", "crc32c", "rocketmq-python-client")


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, its_kind, *_ = line.split(" ")
        if f"{path.absolute()}/".startswith(f"{mount.rstrip('/')}/") and len(mount) >= len(best):
            best, kind = mount, its_kind
    return kind


def machine(directory: Path) -> dict[str, Any]:
    """A description of the machine on which the figures were taken."""
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / (1 << 20)),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "file_system": file_system(directory),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def percentile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of all values do not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def medians(runs: Sequence[Any]) -> Any:
    """The same structure with the median of every number; other values are taken from the first
    run."""
    first = runs[0]
    if isinstance(first, dict):
        return {
            key: medians([run[key] for run in runs])
            for key in first
            if all(key in run for run in runs)
        }
    if isinstance(first, bool) or not isinstance(first, int | float):
        return first
    return _short(statistics.median(runs))


def _short(value: float) -> float:
    """Four significant digits, which is more than a run reproduces."""
    if isinstance(value, int) or value == 0:
        return value
    return round(value, max(0, 3 - math.floor(math.log10(abs(value)))))


def save(name: str, report: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def summarise(names: Sequence[str]) -> Path:
    """The medians of the last results of every benchmark in one file; benchmarks that never ran
    here keep their former values."""
    file = RESULTS / "summary.json"
    summary = json.loads(file.read_text())["benchmarks"] if file.exists() else {}
    for name in names:
        path = RESULTS / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            summary[name] = {key: result[key] for key in ("taken", "machine", "runs", "medians")}
    return save("summary", {"v": 1, "benchmarks": summary})


def parsed(output: str) -> dict[str, Any]:
    """The result of a program that prints one JSON line at its end."""
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def say(text: str) -> None:
    """Print progress to stderr, so that stdout has only results."""
    print(text, file=sys.stderr, flush=True)
