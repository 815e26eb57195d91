"""Planted bugs: one broken rule each, put into the product's code by a subclass, to prove that the checkers find it.

Each class below breaks exactly the method that guards a rule. A bug the simulator cannot find within the default seeds is a defect of the
simulator, and `tests/sim/test_planted_bugs.py` says so.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from ledgermq.node.core.replica import RaftReplica
from ledgermq.node.core.replica_wire import Arrived
from ledgermq.proto.layout import HEADER_BYTES, BadEntry, chain_crc_at
from ledgermq.proto.types import Range
from ledgermq.raft.core import Core
from ledgermq.raft.messages import Extent
from ledgermq.sim.disk import ForgetfulDisk, Inode
from ledgermq.storage.entry_log import EntryLog


class Bug(str, Enum):
    """What is broken."""

    NONE = "none"
    VOTE_NOT_SYNCED = "vote-not-synced"
    ACK_BEFORE_SYNC = "ack-before-sync"
    OLD_TERM_COMMIT = "old-term-commit"
    TAIL_NOT_ERASED = "tail-not-erased"
    ABA_IN_SYNCED = "aba-in-synced"
    CHAIN_NOT_VERIFIED = "chain-not-verified"
    EARLY_ACK_ALONE = "early-ack-alone"
    LAZY_CALLED_DURABLE = "lazy-called-durable"


class ForgetsVotes(ForgetfulDisk):
    """Term and vote are written, not synced."""

    def sync_inode(self, inode: Inode, path: str) -> None:
        if not path.endswith("/hardstate"):
            super().sync_inode(inode, path)

    def successor(self) -> ForgetfulDisk:
        fresh = ForgetsVotes(capacity_bytes=self.capacity_bytes)
        fresh.take_over(self)
        return fresh


class AcksBeforeSync(Core):
    """Calls durable what was only received."""

    def _durable_claim(self) -> int:
        return self.log.end_index if self.leader == self.config.node else self.verified_index


class HoldsForAll(Core):
    """Takes its own copy for that of a majority. Only acknowledgements from memory rest on this rule."""

    def _early_claim(self) -> int:
        return self.log.end_index


class CallsLazyDurable(Core):
    """As if an entry that need not be synced yet were as good as synced."""

    def _durable_claim(self) -> int:
        claim = super()._durable_claim()
        lazy = self.log.end_index if self.leader == self.config.node else self.verified_index
        return lazy if claim >= self.urgent_index else claim


class CommitsOldTerms(Core):
    """Counts copies of entries of earlier terms (Raft paper, figure 8)."""

    def _may_commit(self, index: int) -> bool:
        return index >= 0


class BelievesEverySync(Core):
    """Takes a finished sync for durable entries that were replaced while it ran."""

    def _covered_by_sync(self, term: int, index: int) -> int:
        return min(index, self.log.end_index)


class LeavesTails(EntryLog):
    """Moves the end of the log back without erasing what lies behind it."""

    def _erase(self, end: int, index: int) -> None:
        """Nothing is erased."""


class TrustsPayloads(RaftReplica):
    """Appends what was pushed without recomputing a checksum or comparing chains."""

    def _verified(self, arrived: Arrived, extent: Extent) -> Range:
        data = bytearray(arrived.payload)
        starts: list[int] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 4 : at + 8], "big")
            if size < HEADER_BYTES or at + size > len(data):
                raise BadEntry(extent.first_index + len(starts), at, "no whole entry")
            starts.append(at)
            at += size
        last = extent.first_index + len(starts) - 1
        chain = chain_crc_at(data, starts[-1])
        sizes = np.diff(np.array([*starts, len(data)], np.int64)).astype(np.int32)
        columns = np.array(starts, np.int64), sizes
        return Range(extent.first_index, last, extent.term, arrived.pos, memoryview(data), *columns, arrived.prev_chain, chain)

    def _chains_agree(self, index: int, prev_chain: int, entries: Range | None) -> bool:
        return True


CORES: dict[Bug, type[Core]] = {
    Bug.ACK_BEFORE_SYNC: AcksBeforeSync,
    Bug.OLD_TERM_COMMIT: CommitsOldTerms,
    Bug.ABA_IN_SYNCED: BelievesEverySync,
    Bug.EARLY_ACK_ALONE: HoldsForAll,
    Bug.LAZY_CALLED_DURABLE: CallsLazyDurable,
}


def replica_type(bug: Bug) -> type[RaftReplica]:
    """RaftReplica with the bug in it."""
    if bug is Bug.CHAIN_NOT_VERIFIED:
        return TrustsPayloads
    core = CORES.get(bug)
    return RaftReplica if core is None else type("BrokenReplica", (RaftReplica,), {"core_type": core})


def disk_type(bug: Bug) -> type[ForgetfulDisk]:
    return ForgetsVotes if bug is Bug.VOTE_NOT_SYNCED else ForgetfulDisk


def log_type(bug: Bug) -> type[EntryLog]:
    return LeavesTails if bug is Bug.TAIL_NOT_ERASED else EntryLog
