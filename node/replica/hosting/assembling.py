"""Builds the replica of a broker group on an opened store: its derived state as of the snapshot,
and its replicator as of the log.

The same in a node and in the simulator, which passes other classes and its own settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ledgermq.node.broker.flush import LazySync
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.members.member_forms import as_raft
from ledgermq.node.broker.ports import reading
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.raft.config import Chance, RaftConfig
from ledgermq.storage.group.store import GroupStore

M = TypeVar("M", bound=Machine)


def machine_of(store: GroupStore, machine_type: type[M]) -> M:
    """An empty state that reads messages of the log, in place: a caller that keeps one must copy
    it."""

    def record(offset: int, size: int) -> memoryview:
        with reading():
            return store.log.whole_record_at(offset, size)

    def index_at(offset: int) -> int:
        with reading():
            return store.log.index_at(offset)

    return machine_type(store.queues, record, index_at)


def replica_of(
    store: GroupStore,
    machine: Machine,
    config: RaftConfig,
    chance: Chance,
    clock_ns: Callable[[], int],
    *,
    store_host: bytes,
    admitted: bool,
    lazy: LazySync,
    replica_type: type[RaftReplica] = RaftReplica,
) -> RaftReplica:
    """The replicator, after the state was restored. What the snapshot covers and what the
    checkpoint notes is committed, as far as it is durable here. Raises Unreadable, LogDamaged."""
    checkpoint, members = store.read_checkpoint(), machine.members
    noted = -1 if checkpoint is None else min(checkpoint.committed_index, store.log.durable_index)
    return replica_type(
        store.identity.group,
        config,
        store.log,
        store.hard_state,
        chance,
        now_ns=clock_ns(),
        store_host=store_host,
        commit_index=max(0, machine.applied_index, noted),
        admitted=admitted,
        lazy=lazy,
        # Those of the applied index need not be read from the log again.
        members=None if members is None else (machine.applied_index, as_raft(members)),
    )
