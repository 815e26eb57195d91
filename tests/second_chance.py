"""Tests of real processes share two cores: what failed beside others runs once more, alone and in a row.

`python -m tests.second_chance BESIDE OPTION...` runs pytest with the options BESIDE (one word) and OPTION..., then what failed with
OPTION... only. Nothing is hidden: the first failures stay in the output as they were, and what passed alone is named in capitals at
the end. More than `FAILURES_MAX` are no bad luck, and a test that fails twice is not either: both are red, and so is everything that is
no failure of a test (nothing collected, an error while collecting, an interrupt). Decision: docs/decisions/2026-11-22-second-chance.md.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FAILURES_MAX = 3
TESTS_FAILED = 1
FAILED = "v/cache/lastfailed"
"""Where pytest notes failures of tests (and of modules, without `::`), below the directory of its cache."""


def run(beside: Sequence[str], options: Sequence[str]) -> int:
    """The exit status of it all."""
    with tempfile.TemporaryDirectory() as cache:
        status = pytest("-o", f"cache_dir={cache}", *beside, *options)
        file = Path(cache, FAILED)
        failed = list(json.loads(file.read_text())) if file.exists() else []
    if status != TESTS_FAILED or not 0 < len(failed) <= FAILURES_MAX or not all("::" in name for name in failed):
        return status
    print(f"\nOnce more, alone: {len(failed)} that failed beside others", flush=True)
    status = pytest(*options, *failed)
    if status == 0:
        for name in failed:
            print(f"FAILED BESIDE OTHERS, PASSED ALONE: {name}", flush=True)
    return status


def pytest(*options: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(run(shlex.split(sys.argv[1]), sys.argv[2:]))
