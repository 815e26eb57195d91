"""The parts that every role of one core uses. The core creates each part once; a role object takes
from here what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.raft.config import RaftConfig
from ledgermq.raft.effects import Outbox
from ledgermq.raft.election_timer import ElectionTimer
from ledgermq.raft.isr import Isr
from ledgermq.raft.log_state import LogState
from ledgermq.raft.membership import Membership
from ledgermq.raft.reads import Reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The shared parts; each is the only writer of its fields."""

    config: RaftConfig
    log: LogState
    membership: Membership
    isr: Isr
    timer: ElectionTimer
    reads: Reads
    outbox: Outbox
