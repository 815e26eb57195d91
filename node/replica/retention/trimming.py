"""Carries out a trim on one replica: the record is committed on all replicas, and each removes its
files as soon as it can do without them.

This module has the order of the steps and their conditions;
`node/replica/background/trim_reports.py` or the simulator reports them.

A trim waits until both snapshots of this replica cover the trim record (so that no later start
needs trimmed entries for derived state), and until no pin on this node's files lies below the new
begin. It requests a snapshot ahead of time. The work is done in pieces, one per turn: log files one
by one, then the consume queues; the key index trims itself on its thread. A stop may interrupt
between pieces, and the next run finishes the trim. Owned by the loop: its steps are part of turns.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.ports import Fenced
from ledgermq.node.replica.retention.pins import PinBook
from ledgermq.node.replica.retention.ports import TrimmedIndex
from ledgermq.node.replica.retention.retention_facts import first_at
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.queues.consume_queue import ConsumeQueues

STEP_BYTES = 256 << 10
"""Amount of consume queue data that is examined in one turn."""


class Trimming:
    """The pending removals of one replica."""

    def __init__(
        self,
        machine: Machine,
        trimmed: EntryLog,
        queues: ConsumeQueues,
        index: TrimmedIndex,
        pins: PinBook,
        file_bytes: int,
    ) -> None:
        self._machine = machine
        self._log = trimmed
        self._queues = queues
        self._index = index
        self._pins = pins
        self._file_bytes = file_bytes
        self._derived_pos = 0
        """Where consume queues and key index begin. Unknown at first: an earlier run may have ended
        before it trimmed them."""
        self._removed: list[str] = []
        self.steps: Iterator[int] | None = None
        """The trim of the consume queues in progress."""

    def file_removed(self, paths: list[str]) -> None:
        """Hook for the host of the replica: one log file was removed, with these names."""

    def trimmed(self, begin_index: int, begin_pos: int, consume_queue_files: int) -> None:
        """Hook for the host of the replica: the consume queues now begin with the log."""

    @property
    def pending(self) -> bool:
        """Whether trimmed files are still on disk."""
        return self._log.begin_index < self._machine.begin_index

    def wants_snapshot(self, snapshot_index: int) -> bool:
        """Whether a trim waits for the older snapshot, which ends at `snapshot_index`."""
        return self.pending and snapshot_index < self._machine.retained.trim_index

    def obstacle(self, snapshot_index: int, now_ns: int) -> str | None:
        """For operators: what a pending trim waits for; None if none is pending."""
        if not self.pending:
            return None
        if self.wants_snapshot(snapshot_index):
            return (
                f"two snapshots that cover entry {self._machine.retained.trim_index}; the older one"
                f" ends at {snapshot_index}"
            )
        held = [pin for pin in self._pins.pins(now_ns) if pin.pos < self._machine.begin_pos]
        return held[0].detail if held else "its turn"

    def step(self, snapshot_index: int, now_ns: int) -> None:
        """Remove at most one log file, or a part of the consume queues that refer to removed files.
        Raises OSError, StorageError, Fenced."""
        if self.steps is not None:
            self._trim_queues(self.steps)
        elif self.pending:
            self._remove_one(snapshot_index, now_ns)
        elif self._derived_pos < self._machine.begin_pos:
            self._index.trim(self._machine.begin_pos)
            self.steps = self._queues.trimming(self._machine.begin_pos, self._removed)
            self._derived_pos = self._machine.begin_pos

    def _trim_queues(self, steps: Iterator[int]) -> None:
        looked = 0
        self.steps = None
        former, self._derived_pos = self._derived_pos, 0
        # A failed trim of the queues begins again with the first queue.
        for size in steps:
            looked += size
            if looked >= STEP_BYTES:
                self.steps, self._derived_pos = steps, former
                return
        self._derived_pos = former
        removed, self._removed = self._removed, []
        self.trimmed(self._log.begin_index, self._derived_pos, len(removed))

    def _remove_one(self, snapshot_index: int, now_ns: int) -> None:
        if self.wants_snapshot(snapshot_index):
            return
        base = self._log.begin_pos + self._file_bytes
        pinned = self._pins.lowest(now_ns)
        if pinned is not None and pinned < base:
            return
        self._require_one_history()
        last = base >= self._machine.begin_pos
        begin = (
            self._machine.begin_index if last else first_at(self._log, self._log.begin_index, base)
        )
        self.file_removed(self._log.trim(begin))

    def _require_one_history(self) -> None:
        """Check I2: the files to remove must be the ones the leader decided about, because
        afterwards nothing is left to compare."""
        retained, before = self._machine.retained, self._machine.begin_index - 1
        own, recorded = (
            (self._log.term_at(before), self._log.chain_at(before)),
            (retained.begin_term, retained.begin_chain),
        )
        if own != recorded:
            differs = (
                f"entry {before} has term and chain CRC {own} here and {recorded} in the trim"
                " record (invariant I2)"
            )
            raise Fenced(f"{differs}: nothing is removed; audit the replicas")
