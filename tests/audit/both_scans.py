"""The law of the compiled scan beside the Python scan: for any bytes their reports are equal, and
the compiled one takes files in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import Scan
from ledgermq.audit.reading.native import KERNEL, PYTHON, SCAN, Kernel
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.run.jobs import audit

built = pytest.mark.skipif(
    KERNEL is None, reason="ledgermq-native is not built, does not fit, or is switched off"
)


class Counting:
    """A kernel that counts what it was asked and what it took."""

    def __init__(self, kernel: Kernel | None) -> None:
        assert kernel is not None
        self.kernel, self.asked, self.taken, self.grown = kernel, 0, 0, 0

    def scan(self, window: bytes, **given: Any) -> Any:
        found = self.kernel.scan(window, **given)
        self.asked += 1
        self.taken += found is not None
        return found

    def find(self, window: bytes, *, pos: int, room: int) -> Any:
        return self.kernel.find(window, pos=pos, room=room)

    def grow_tree(self, towers: Sequence[tuple[int, bytes]], data: bytes) -> Any:
        self.grown += 1
        return self.kernel.grow_tree(towers, data)


def report_of(task: LogFile, kernel: Kernel | None, window_bytes: int) -> dict[str, Any]:
    work = Scan(task, None, kernel)
    for _ in work.columns(window_bytes):
        pass
    told = asdict(work.report)
    assert told.pop("scanned_by") == (PYTHON if kernel is None else SCAN)
    return told


def differences(
    tasks: Sequence[LogFile], kernel: Kernel | None, window_bytes: int = 4 << 20
) -> list[str]:
    """What breaks the law in these files."""
    found = []
    for task in tasks:
        counting = Counting(kernel)
        here, there = report_of(task, None, window_bytes), report_of(task, counting, window_bytes)
        found += [
            f"{task.name} {key}: {here[key]} and {there[key]}"
            for key in here
            if here[key] != there[key]
        ]
        clean = here["entries"] and not here["flaws"] and here["prev_chain"] is not None
        # A negative queue offset is no flaw of the file: the comparison of queues finds it. The
        # kernel leaves it to the Python scan.
        usual = all(
            run["first"] >= 0 and not run["waiting"] and not run["blanks"] for run in here["queues"]
        )
        if clean and usual and not counting.taken:
            found.append(f"{task.name} is in order, and the kernel took nothing")
    return found


def tasks_of(base: Path, deep: bool = False) -> list[LogFile]:
    """Every log file of the replicas below `base`."""
    found = audit([str(path.parent) for path in sorted(base.glob("*/node.json"))])
    replicas: list[Replica] = [one for group in found.groups for one in group.replicas]
    return [task for one in replicas for task in one.tasks(deep)]
