"""The record of `make verify`, which goes on where it ended: `python -m tests.verify` prints it.

As a plugin of pytest (`-p tests.verify`) it keeps in `.verify/STATE/` which tests passed, and leaves
them out when they are asked for again; what fails is written down at once, not at the end of an hour.
STATE is the commit and, if files differ from it, a digest of the difference: nothing is carried over
to other code. `python -m tests.verify --once NAME COMMAND…` does the same for a command.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, SKIPPED, BEFORE = "passed", "failed", "skipped", "before"
"""Files of a state: lines of seconds and test, texts of failures, reasons, and what had passed when
the running session began."""
SESSION = "VERIFY_STATE"
"""Tells the processes of a session its state. Nodes that tests start inherit it, and read what
begins with LEDGERMQ_ as their configuration."""


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def state() -> Path:
    """The directory of the record of the code as it is now. Files that git does not know count,
    too."""
    commit = git("rev-parse", "--short=12", "HEAD").decode().strip()
    changed = git("diff", "--binary", "HEAD") + b"".join(
        name + (ROOT / name.decode()).read_bytes()
        for name in git("ls-files", "-z", "--others", "--exclude-standard").split(b"\0")
        if name
    )
    return (
        ROOT
        / ".verify"
        / (f"{commit}-{hashlib.sha256(changed).hexdigest()[:12]}" if changed else commit)
    )


def key(name: str) -> str:
    """A test that runs without ledgermq-native is another one."""
    return f"pure {name}" if os.environ.get("LEDGERMQ_PURE") == "1" else name


def known(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    return {line.partition("\t")[2] for line in path.read_text().splitlines()}


class Recorder:
    """What one session adds to the record."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seconds: Counter[str] = Counter()
        self._called: set[str] = set()
        self._failed: set[str] = set()

    def _add(self, name: str, line: str) -> None:
        with (self._directory / name).open("a") as file:
            file.write(line + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._seconds[name] += report.duration
        if report.failed:
            self._failed.add(name)
            self._add(FAILED, f"=== {key(name)} ({report.when})\n{report.longreprtext}\n")
        elif report.skipped:
            self._add(SKIPPED, f"{key(name)}\t{report.longreprtext}")
        elif report.when == "call":
            self._called.add(name)
        if report.when == "teardown" and name in self._called - self._failed:
            self._add(PASSED, f"{self._seconds[name]:.1f}\t{key(name)}")


def passed_before() -> set[str]:
    return known(Path(os.environ[SESSION]) / BEFORE)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    directory = state()
    directory.mkdir(parents=True, exist_ok=True)
    # All workers leave out the same tests, whenever they start and whatever was edited meanwhile.
    os.environ[SESSION] = str(directory)
    passed = directory / PASSED
    (directory / BEFORE).write_text(passed.read_text() if passed.is_file() else "")
    config.pluginmanager.register(Recorder(directory))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    before = passed_before()
    if done := [item for item in items if key(item.nodeid) in before]:
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if key(item.nodeid) not in before]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A session whose tests have all passed before is no failure."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and passed_before():
        session.exitstatus = pytest.ExitCode.OK


def once(name: str, command: list[str]) -> int:
    """Run a command, unless it ended with 0 before; returns its exit status."""
    directory = state()
    directory.mkdir(parents=True, exist_ok=True)
    if name in known(directory / PASSED):
        print(f"{name}: passed before")
        return 0
    began = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    seconds = time.monotonic() - began
    line = f"{seconds:.1f}\t{name}" if status == 0 else f"=== {name} (exit status {status})\n"
    with (directory / (PASSED if status == 0 else FAILED)).open("a") as file:
        file.write(line + "\n")
    return status


def told(directory: Path) -> list[str]:
    """The record of a state in lines."""
    passed, failed = directory / PASSED, directory / FAILED
    lines = passed.read_text().splitlines() if passed.is_file() else []
    rows = [(float(seconds), name) for seconds, _, name in (line.partition("\t") for line in lines)]
    texts = failed.read_text().splitlines() if failed.is_file() else []
    failures = dict.fromkeys(line[4:] for line in texts if line.startswith("=== "))
    mended = {name for _, name in rows}
    return [
        f"{directory.name}: {len(rows):,} passed in {sum(seconds for seconds, _ in rows):,.0f} s",
        *(f"{seconds:8.0f} s  {name}" for seconds, name in sorted(rows, reverse=True)[:20]),
        *(f"FAILED {line}" for line in failures if line.rpartition(" (")[0] not in mended),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.verify", description=__doc__)
    parser.add_argument("--once", metavar="NAME", help="run a command unless it passed before")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    if chosen.once:
        return once(chosen.once, chosen.command)
    print("\n".join(told(state())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
