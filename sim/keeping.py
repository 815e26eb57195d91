"""A simulated node's work outside its turns: snapshots, checkpoint files and trims, in the order in which a node does them.

This module imitates only a node's background thread: work decided after a turn leaves as a `Duty`, which the world runs later, or never if
the process ends before. The product's code does the writing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ledgermq.node.broker.group import Group
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.ports import Fenced
from ledgermq.node.replica.retention.pins import PinBook
from ledgermq.node.replica.retention.retention_facts import (
    FileBook,
    consumed_queues,
    consumer_pins,
    follower_pins,
    half_pin,
    snapshot_pin,
    timer_pin,
)
from ledgermq.node.replica.retention.retention_rules import TIME, Facts, LogFile, Pin, Rules, decide, lowest, trim_of
from ledgermq.node.replica.retention.trimming import Trimming
from ledgermq.proto.control import TrimRecord
from ledgermq.raft.config import MS
from ledgermq.storage.checkpoints import StoreCheckpoint
from ledgermq.storage.consume_queue import QueueSync
from ledgermq.storage.errors import NoSpace, is_no_space
from ledgermq.storage.file_digest import digest_and_root
from ledgermq.storage.mapped_files import file_name
from ledgermq.storage.store import GroupStore

Duty = Callable[[], None]
CHECKPOINT_EVERY_NS = 1_500 * MS
SNAPSHOT_EVERY_NS = 4_000 * MS
RETRY_NS = 500 * MS
_DUE_LONG_AGO = Rules(max_age_ms=1)


class CountedTrimming(Trimming):
    """A replica's removals, counted for the run."""

    files_removed = 0

    def file_removed(self, paths: list[str]) -> None:
        self.files_removed += 1


class _NoKeyIndex:
    """Stands for the key index, which simulated nodes do not have."""

    def trim(self, begin_pos: int) -> None:
        """Nothing to trim."""


class Keeper:
    """One process's work outside its turns; `after_turn` is called after every turn."""

    def __init__(self, store: GroupStore, machine: Machine, group: Group, now_ns: int) -> None:
        self._store = store
        self._machine = machine
        self._group = group
        self._book = FileBook(store.log, machine, store.identity.data_file_bytes)
        self.pins = PinBook()
        self.trimming = CountedTrimming(machine, store.log, store.queues, _NoKeyIndex(), self.pins, store.identity.data_file_bytes)
        self._states: list[tuple[int, dict[str, Any]]] = []
        """Index and state of exports that no checker has compared yet."""
        self.busy = False
        """Whether a duty is in progress."""
        self._exported: tuple[int, dict[str, Any], QueueSync | None, int] | None = None
        self._snapshot_index = machine.applied_index
        self._snapshot_wanted = False
        self._next_checkpoint_ns = now_ns + CHECKPOINT_EVERY_NS
        self._next_snapshot_ns = now_ns + SNAPSHOT_EVERY_NS
        self._rest_ns = 0
        self._clean_again_ns = 0
        self._checkpointed = -1

    def after_turn(self, now_ns: int) -> Duty | None:
        """Carries out trims; returns a file to be written later. Raises Fenced, LogFenced."""
        duty = None if self.busy else self._keep(now_ns)
        self._clean(now_ns)
        return duty

    def take_states(self) -> list[tuple[int, dict[str, Any]]]:
        """Applied index and state of every snapshot taken since the last call."""
        states, self._states = self._states, []
        return states

    def _may_be_kept(self, index: int) -> bool:
        """A snapshot must not contain more than the durable log."""
        return index <= self._group.replicator.durable_index

    def _snapshot_on_disk(self) -> int:
        """The log below this index is not needed."""
        return self._store.durable_snapshot_index

    def _keep(self, now_ns: int) -> Duty | None:
        if self._exported is None and self._snapshot_due(now_ns):
            self._begin_snapshot(now_ns)
        if self._exported is not None and self._may_be_kept(self._exported[0]):
            _, value, sync, copies = self._exported
            self._exported = None
            self.busy = True
            return lambda: self._write_snapshot(value, sync, copies)
        if now_ns < self._next_checkpoint_ns:
            return None
        self._next_checkpoint_ns = now_ns + CHECKPOINT_EVERY_NS
        commit_index = min(self._group.replicator.commit_index, self._group.replicator.durable_index)
        if commit_index == self._checkpointed:
            return None
        self._checkpointed = commit_index
        self.busy = True
        stamps = StoreCheckpoint(self._machine.store_ms, self._machine.store_ms, 0)
        return lambda: self._hint(lambda: self._store.write_checkpoints(commit_index, stamps))

    def _snapshot_due(self, now_ns: int) -> bool:
        if not self._machine.settled:
            return False
        if self._retention_waits():
            return now_ns >= self._rest_ns
        return now_ns >= self._next_snapshot_ns and self._machine.applied_index > self._snapshot_index

    def _retention_waits(self) -> bool:
        older = self._snapshot_on_disk()
        return self.trimming.wants_snapshot(older) or (self._snapshot_wanted and older < self._machine.applied_index)

    def _begin_snapshot(self, now_ns: int) -> None:
        try:
            sync = self._store.queues.begin_sync()
        except NoSpace:
            self._rest_ns = self._next_snapshot_ns = now_ns + RETRY_NS
            return
        copies = 2 if self._retention_waits() else 1
        value = self._machine.export(self._store.identity.log_id)
        self._rest_ns = now_ns + RETRY_NS
        self._next_snapshot_ns = now_ns + SNAPSHOT_EVERY_NS
        self._snapshot_wanted = False
        self._snapshot_index = self._machine.applied_index
        self._exported = self._snapshot_index, value, sync, copies
        self._states.append((self._snapshot_index, value))

    def _write_snapshot(self, value: dict[str, Any], sync: QueueSync | None, copies: int) -> None:
        if sync is not None:
            try:
                sync.run()
            except OSError as error:
                raise Fenced(f"the consume queues could not be synced: {error}") from error
        for _ in range(copies):
            self._hint(lambda: self._store.write_snapshot(value))

    def _hint(self, write: Duty) -> None:
        """A full disk does not stop the node; any other failure does."""
        try:
            write()
        except OSError as error:
            if not is_no_space(error):
                raise Fenced(f"a file of the replica's state could not be written: {error}") from error

    def _clean(self, now_ns: int) -> None:
        if now_ns < self._clean_again_ns:
            return
        try:
            self.trimming.step(self._snapshot_on_disk(), now_ns)
        except NoSpace:
            self._clean_again_ns = now_ns + RETRY_NS
        except OSError as error:
            if not is_no_space(error):
                raise Fenced(f"what a trim leaves could not be removed: {error}") from error
            self._clean_again_ns = now_ns + RETRY_NS

    def sealed_files(self) -> Iterator[tuple[LogFile, str, str]]:
        """The sealed files that have no seal, each with its digest and the root of its entries tree, as a node computes them; a file that
        the disk does not give is left out."""
        for file in self._book.sealed_from(self._machine.begin_pos):
            if file.base in self._machine.seals:
                continue
            path = f"{self._store.log_directory}/data/{file_name(file.base)}"
            with contextlib.suppress(OSError):
                yield file, *digest_and_root(self._store.disk, path, file.end_pos - file.base, lambda length: None)

    def trim_record(
        self, members: tuple[str, ...], node: str, most: int, now_ms: int, patience_ms: int = 0, *, stored: bool = False
    ) -> TrimRecord | None:
        """For the leader: the record to trim the oldest `most` files, decided as a node's retention does if every file is due and every
        digest known; with `stored`, as if the object store had them. Members that were silent for `patience_ms` are not waited for (0: all
        are). None if everything is pinned; if it waits for a snapshot, one is requested."""
        book, machine = self._book, self._machine
        while not book.advance():
            continue
        status = self._group.status()
        snapshot_index = self._snapshot_on_disk()
        pins: list[Pin] = list(follower_pins(book, members, node, status.peers, status.end_index, patience_ms))
        pins += [snapshot_pin(book, node, snapshot_index), *half_pin(machine), *timer_pin(machine)]
        pins += () if stored else consumer_pins(machine, consumed_queues(machine))
        files = book.files()
        bases = frozenset(file.base for file in files)
        verdicts = decide(_DUE_LONG_AGO, Facts(now_ms + 2, files, lowest(pins), 0, bases))
        if any(verdict.due == TIME and {pin.kind for pin in verdict.pins} == {"snapshot"} for verdict in verdicts[:most]):
            self._snapshot_wanted = True
        return trim_of(verdicts[:most], {}, stored=stored)
