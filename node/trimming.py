"""Carrying out a trim on one replica: the record is committed everywhere, the files go here once this replica can do without them.

What it waits for: both snapshots it keeps cover the trim record (so whatever start follows, derived state is never asked of entries that
are gone), and no pin on this node's files lies below the new begin. Snapshots are asked for ahead of their time. Files go one a turn, the
log first, then consume queues and key index: each step can be interrupted and is finished by the next life. Owned by the engine's thread.
"""

from __future__ import annotations

from typing import Protocol

from ledgermq.node import metrics
from ledgermq.node.core.machine import Machine
from ledgermq.node.core.pins import PinBook
from ledgermq.node.core.retention_facts import Placed, first_at
from ledgermq.node.logs import get_logger

log = get_logger()


class TrimmedLog(Placed, Protocol):
    """What is needed of the entry log."""

    begin_index: int
    begin_pos: int

    def trim(self, begin_index: int) -> list[str]: ...


class Derived(Protocol):
    """Consume queues or the key index: what names places in the log."""

    def trim(self, begin_pos: int) -> object: ...


class Trimming:
    """One replica's outstanding removals."""

    def __init__(self, group: str, machine: Machine, trimmed: TrimmedLog, derived: list[Derived], pins: PinBook, file_bytes: int) -> None:
        self._group = group
        self._machine = machine
        self._log = trimmed
        self._derived = derived
        self._pins = pins
        self._file_bytes = file_bytes
        self._derived_pos = 0
        """Where consume queues and key index begin. At first unknown: an earlier life may have ended before it trimmed them."""

    @property
    def pending(self) -> bool:
        """Files are on disk that the records have trimmed."""
        return self._log.begin_index < self._machine.begin_index

    def wants_snapshot(self, snapshot_index: int) -> bool:
        """A trim waits for the older snapshot, which ends at `snapshot_index`."""
        return self.pending and snapshot_index < self._machine.retained.trim_index

    def obstacle(self, snapshot_index: int, now_ns: int) -> str | None:
        """For people: what a pending trim waits for; None when nothing is pending."""
        if not self.pending:
            return None
        if self.wants_snapshot(snapshot_index):
            return f"two snapshots that cover entry {self._machine.retained.trim_index}; the older one ends at {snapshot_index}"
        held = [pin for pin in self._pins.pins(now_ns) if pin.pos < self._machine.begin_pos]
        return held[0].detail if held else "its turn"

    def step(self, snapshot_index: int, now_ns: int) -> None:
        """Remove at most one file, or what follows from the last one. Raises OSError, StorageError."""
        if self.pending:
            self._remove_one(snapshot_index, now_ns)
        elif self._derived_pos < self._machine.begin_pos:
            self._derived_pos = self._machine.begin_pos
            for derived in self._derived:
                derived.trim(self._derived_pos)
            log.info("log trimmed", group=self._group, begin_index=self._log.begin_index, begin_pos=self._derived_pos)

    def _remove_one(self, snapshot_index: int, now_ns: int) -> None:
        if self.wants_snapshot(snapshot_index):
            return
        base = self._log.begin_pos + self._file_bytes
        pinned = self._pins.lowest(now_ns)
        if pinned is not None and pinned < base:
            return
        last = base >= self._machine.begin_pos
        begin = self._machine.begin_index if last else first_at(self._log, self._log.begin_index, base)
        for path in self._log.trim(begin):
            log.info("log file removed", group=self._group, file=path)
        metrics.FILES_TRIMMED.labels(self._group).inc()
