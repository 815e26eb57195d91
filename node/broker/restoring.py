"""Restores derived state at a start: from the newest snapshot that agrees with the log, and from
the log where queue units are missing.

This module orders the attempts. The machine interprets a snapshot; the store knows which files may
be missing. Entries after the snapshot are applied later, by the group's turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.node.broker.machine import Machine
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.levels import FIRST_LEVEL, SNAPSHOTS, snapshot_version
from ledgermq.storage.files.errors import Damaged, DerivedLost, UnknownFormat
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.phases import Phases
from ledgermq.storage.state.snapshot import minimums, next_offsets

READ_BYTES = 1 << 20


def restore(store: GroupStore, machine: Machine, phases: Phases | None = None) -> str | None:
    """Bring machine and consume queues to the newest snapshot, or to an empty state if there is
    none. Returns why queues had to be rebuilt, or None. Raises Damaged (75) and UnknownFormat (76)
    if a trimmed log needs the snapshot and cannot use it, UnknownFormat if the group's level is
    above what this program reads; also NoSpace and OSError."""
    phases = phases or Phases()
    with phases.phase("snapshot"):
        snapshot = store.read_snapshot()
    level = FIRST_LEVEL if snapshot is None else snapshot.get("level", FIRST_LEVEL)
    if level > machine.level_max:
        what = (
            f"the snapshot in {store.state_directory} is of level {level}, this program reads up to"
            f" {machine.level_max}"
        )
        raise UnknownFormat(f"{what}: start the program that wrote it")
    if snapshot is not None and snapshot.get("v") not in SNAPSHOTS:
        if store.log.begin_index > 0:
            what = (
                f"the snapshot in {store.state_directory} has version {snapshot.get('v')}, this"
                f" program knows {snapshot_version(level)}"
            )
            raise UnknownFormat(f"{what}: start the program that wrote it")
        snapshot = None
    elif (
        snapshot is not None
        and snapshot["v"] != snapshot_version(level)
        and store.log.begin_index == 0
    ):
        # An older version does not contain everything that its log led to, and this log is still
        # complete.
        snapshot = None
    lost = None
    with phases.phase("queues"):
        if snapshot is None:
            store.discard_derived()
            store.queues.start({}, 0)
            return None
        try:
            store.start_queues(snapshot)
        except DerivedLost as error:
            lost = str(error)
            with store.rebuilding_queues():
                complete = _dispatch_again(store, snapshot)
            if not complete:
                store.discard_derived()
                store.queues.start({}, 0)
                return lost
    with phases.phase("snapshot"):
        machine.restore(snapshot)
    return lost


def _dispatch_again(store: GroupStore, snapshot: Mapping[str, Any]) -> bool:
    """Rebuild the consume queues to the snapshot's state, from its minimums and the entries still
    in the log. Returns False if snapshot and log contradict each other and the log alone is
    enough."""
    log, queues, applied = store.log, store.queues, int(snapshot["applied_index"])
    queues.begin_again(minimums(snapshot))
    index = log.begin_index
    while index <= applied:
        entries = cut(log.read(index, READ_BYTES), applied)
        queues.append(record_columns(entries))
        index = entries.last_index + 1
    if queues.next_offsets() == next_offsets(snapshot):
        return True
    if log.begin_index > 0:
        what = (
            f"the consume queues in {queues.directory} cannot be made again: log and snapshot"
            " contradict each other"
        )
        raise Damaged(f"{what}; restore this replica from its peers")
    return False
