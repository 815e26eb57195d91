"""Measures the file system under a node: how full it is and how many bytes the node uses by kind;
logs when a watermark is crossed.

Retention decides about the consequences. While a disk stays above a watermark, one line is logged
every ten minutes.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from ledgermq.node.replica.retention.retention_rules import Level, Space, Watermarks
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.storage.files.ports import Disk

QUIET_S = 600.0
KINDS = ("log", "index", "consume-queue", "key-index", "state", "other")
_REMEDY = {
    Level.WARN: "add space, or keep less: retention.hours, retention.max_bytes",
    Level.DELETE: (
        "log files go before their time once the disks of a majority of a group's replicas are as"
        " full; add space, or keep less"
    ),
    Level.REFUSE: (
        "this node takes no messages, and leads only what no other node can lead; free space, and"
        " see: ledgermq why-kept"
    ),
}

log = get_logger()


class DiskWatch:
    """One per node."""

    def __init__(self, node: str, disk: Disk, directory: str, marks: Watermarks) -> None:
        self._node = node
        self._disk = disk
        self._directory = directory
        self._marks = marks
        self._said: dict[Level, float] = {}
        self._former = Level.FINE

    def space(self) -> Space:
        """The present state of the file system. May be called from any thread."""
        return Space(
            self._node,
            self._disk.total_bytes(self._directory),
            self._disk.free_bytes(self._directory),
        )

    def warn(self, space: Space, now_s: float) -> Level:
        """Set the metric, and log a warning if it is due; returns the level."""
        level = self._marks.level(space.total, space.free)
        metrics.DISK_LEVEL.set(level)
        former, self._former = self._former, level
        if level < former is Level.REFUSE:
            log.info("disk takes messages again", free_bytes=space.free, directory=self._directory)
        if level is not Level.FINE and now_s - self._said.get(level, -QUIET_S) >= QUIET_S:
            self._said[level] = now_s
            used = round((space.total - space.free) * 100 / space.total, 1)
            say = log.error if level is Level.REFUSE else log.warning
            fields = {
                "used_percent": used,
                "free_bytes": space.free,
                "directory": self._directory,
                "remedy": _REMEDY[level],
            }
            say("disk nearly full", severity=level.name.lower(), **fields)
        return level


def used_by_kind(root: str) -> dict[str, int]:
    """Bytes of allocated blocks below a broker group's directory, by kind; all kinds are present.
    Tolerates files that vanish meanwhile. May be called from any thread."""
    used: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    for parent, _, files in os.walk(root):
        kind = kind_of(Path(parent).relative_to(root).parts)
        for name in files:
            try:
                used[kind] += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return dict(used)


def kind_of(parts: tuple[str, ...]) -> str:
    """The kind of files in a directory, by its path inside the group's (format §1)."""
    if len(parts) > 1 and parts[0].startswith("dledger-"):
        return {"data": "log", "index": "index"}.get(parts[1], "other")
    first = parts[0] if parts else ""
    return {"consumequeue": "consume-queue", "index": "key-index", "state": "state"}.get(
        first, "other"
    )
