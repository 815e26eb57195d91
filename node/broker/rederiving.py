"""Rebuilds the derived files of a stopped replica from its log, for repairs that removed damaged
ones.

Plain work over the disk port: open and recover the directory, apply the entries known to be
committed, write the queues and both snapshots, recover the key index, and close the directory
cleanly. This module does not decide which entries are right.
"""

from __future__ import annotations

import itertools

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.restoring import READ_BYTES, restore
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.types import Identity
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.state import checkpoints


def make_again(disk: Disk, root: str, found: Identity) -> int:
    """Returns the index up to which the state was derived, −1 for an empty log. Raises the errors
    of opening a directory, NoSpace, UnknownControlRecord and OSError."""
    store = GroupStore.open(disk, root, found)
    if store.log.fenced is not None:
        fenced = store.log.fenced
        store.abandon()
        raise LogDamaged(str(fenced))
    try:
        log = store.log
        machine = Machine(
            store.queues,
            lambda offset, size: bytes(log.whole_record_at(offset, size)),
            log.index_at,
        )
        restore(store, machine)
        noted = store.read_checkpoint()
        commit = min(-1 if noted is None else noted.committed_index, log.durable_index)
        while machine.applied_index < commit:
            machine.apply(cut(log.read(machine.applied_index + 1, READ_BYTES), commit))
        if machine.applied_index >= 0:
            sync = store.queues.begin_sync()
            if sync is not None:
                sync.run()
            # Write two generations: the beginning of a trimmed log must never depend on a single
            # file.
            for _ in range(2):
                store.write_snapshot(machine.export(found.log_id))
            checkpoints.write_log_checkpoint(
                disk,
                store.log_directory,
                checkpoints.LogCheckpoint(log.end_index, machine.applied_index),
            )
        _recover_key_index(store)
    except BaseException:
        # The files must be free for the next attempt, and a partial result must not look like a
        # clean stop.
        store.abandon()
        raise
    store.close()
    return machine.applied_index


def _recover_key_index(store: GroupStore) -> None:
    """Bring the key index to its position, as a clean stop leaves it. A killed node has written
    units and slots beyond the position, and the position may name files that the repair removed.
    The node itself indexes the entries beyond the position."""
    index = KeyIndex(store.disk, store.root, store.identity.log_id)
    try:
        index.start(store.log.begin_index, store.log.end_index, store.log.chain_at)
        index.load(itertools.repeat(None))
        index.sync()
    finally:
        index.close()
