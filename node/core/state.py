"""Derived state on the disk: consume queues and the snapshot, opened so that they agree with the log, and saved when it is worth it.

The log is the only truth. A snapshot counts only if its index, term and chain CRC are those of the log; consume queues are cut to
what it says and dispatched again from there. Without one, everything is rebuilt from the log's beginning. A snapshot is written when
enough was applied since the last one, and at stop, always after the consume queues were synced.
"""

from __future__ import annotations

from typing import Any, Protocol

from ledgermq.node.core.machine import SNAPSHOT_VERSION, Machine
from ledgermq.node.core.ranges import cut
from ledgermq.proto.types import Identity, Range
from ledgermq.storage.checkpoints import StoreCheckpoint, read_store_checkpoint, write_store_checkpoint
from ledgermq.storage.consume_queue import ConsumeQueues
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import DerivedLost, is_no_space
from ledgermq.storage.snapshot import discard_snapshot, read_snapshot, write_snapshot

SNAPSHOT_BYTES = 64 << 20
_UNSURE_UNITS = 1 << 16
"""After an unclean stop the queues may hold this many units of entries that the log itself lost."""


class Log(Protocol):
    """The entry log, as far as derived state reads it."""

    begin_index: int
    end_index: int

    def read(self, first_index: int, max_bytes: int) -> Range: ...

    def read_record(self, physical_offset: int, size: int) -> bytes:
        """One message record of an entry in the log."""
        ...


class StateStore:
    """The derived state of one replica: `machine`, and its files below the group's directory."""

    def __init__(self, disk: Disk, directory: str, identity: Identity, log: Log, *, snapshot_bytes: int = SNAPSHOT_BYTES) -> None:
        self._disk = disk
        self._root = directory
        self._directory = f"{directory}/state"
        self._log_id = identity.log_id
        self._snapshot_bytes = snapshot_bytes
        self._saved_index = -1
        self._saved_pos = 0
        self.snapshots = 0
        self.queues = ConsumeQueues(disk, f"{directory}/consumequeue", identity.consume_queue_file_bytes)
        self.machine = Machine(self.queues, log.read_record)

    @classmethod
    def open(
        cls, disk: Disk, directory: str, identity: Identity, log: Log, *, clean: bool, snapshot_bytes: int = SNAPSHOT_BYTES
    ) -> StateStore:
        """The state as of the newest snapshot that agrees with the log; what the log holds beyond it is for the caller to apply.

        `clean` says that the last owner stopped in good order. Raises OSError.
        """
        store = cls(disk, directory, identity, log, snapshot_bytes=snapshot_bytes)
        disk.mkdirs(store._directory)
        snapshot = read_snapshot(disk, store._directory)
        if snapshot is not None and store._agrees(snapshot, log):
            beyond = log.end_index - snapshot["applied_index"] + (0 if clean else _UNSURE_UNITS)
            try:
                store.queues.start(_queue_ends(snapshot), beyond)
            except DerivedLost:
                pass
            else:
                store.machine.restore(snapshot)
                store._saved_index, store._saved_pos = store.machine.applied_index, store.machine.applied_end_pos
                return store
        discard_snapshot(disk, store._directory)
        store.queues.discard()
        store.queues.start({}, 0)
        return store

    def _agrees(self, snapshot: dict[str, Any], log: Log) -> bool:
        """Is the snapshot of this log, and of an entry the log still has?"""
        if snapshot.get("v") != SNAPSHOT_VERSION or snapshot.get("log_id") != self._log_id:
            return False
        index = snapshot["applied_index"]
        if not log.begin_index <= index <= log.end_index:
            return False
        entry = cut(log.read(index, 1), index)
        return (entry.term, entry.end_pos, entry.last_chain) == (
            snapshot["applied_term"],
            snapshot["applied_end_pos"],
            snapshot["chain_crc"],
        )

    def save_if_due(self) -> None:
        """Write a snapshot if much was applied since the last one. Raises OSError, but for a full disk: the next one will do."""
        if self.machine.applied_end_pos - self._saved_pos >= self._snapshot_bytes:
            self.save()

    def save(self) -> None:
        """Write a snapshot of the present state. Raises OSError, but for a full disk."""
        machine = self.machine
        self._saved_pos = machine.applied_end_pos
        if machine.applied_index == self._saved_index:
            return
        try:
            self.queues.sync()
            write_snapshot(self._disk, self._directory, machine.export(self._log_id))
        except OSError as error:
            if is_no_space(error):
                return
            raise
        self._saved_index = machine.applied_index
        self.snapshots += 1

    def close(self, *, log_durable: bool) -> None:
        """Save and close. `log_durable`: everything applied is on stable storage in this replica's own log."""
        self.save()
        before = read_store_checkpoint(self._disk, self._root)
        physical_ms = self.machine.store_ms if log_durable else before.physical_ms
        try:
            write_store_checkpoint(self._disk, self._root, StoreCheckpoint(physical_ms, self.machine.store_ms))
        except OSError as error:
            if not is_no_space(error):
                raise
        self.queues.close()


def _queue_ends(snapshot: dict[str, Any]) -> dict[str, dict[int, int]]:
    return {topic: {int(queue): end for queue, end in queues.items()} for topic, queues in snapshot["queues"].items()}
