"""The results of one turn, collected by its stages."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.plan import NEVER_NS
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.raft.ha_control import HaRequest


@dataclass(slots=True)
class Turn:
    """What a turn was given, and what its stages have done so far."""

    now_ns: int
    now_ms: int
    done: list[Done] = field(default_factory=list)
    packets: list[tuple[str, PeerPacket]] = field(default_factory=list)
    sync: SyncTicket | None = None
    wake_at_ns: int = NEVER_NS
    replica_wake_at_ns: int = NEVER_NS
    commit_index: int = -1
    """As the replicator said last in this turn."""
    applied_bytes: int = 0
    changed: bool = False
    ha_requests: list[HaRequest] = field(default_factory=list)
    touched: bool = False
    """Rows of the delivery state changed, or the leader serves from this turn on: leases may have
    ended."""
    full: bool = False
    """Not even control records fit: this turn appends nothing more."""
    decides: bool = False
    """Something moved that the stages of the decisions depend on; see `Group.turn`."""
    appended: bool = False
    """Something was appended since the replicator was last asked for its output."""
    stalled: bool = False
    """The consume queues are out of space: this turn applies and accepts nothing more."""

    def wake(self, at_ns: int) -> None:
        self.wake_at_ns = min(self.wake_at_ns, at_ns)
