"""Leadership handovers of one broker group: the callers that wait for them, and the rule who should
lead.

The replicator carries out a handover. The preferred leader should lead; a replica whose disk is
full should not while another one has room, because as leader it refuses every send. Whoever should
lead gets leadership once it has kept up without a gap for `SETTLED_NS`, so that a node that has
just come back has time to settle. Leadership cannot flap: each time it comes back soon after a
handover, the next one waits twice as long, whatever the reason.
"""

from __future__ import annotations

from typing import ClassVar

from ledgermq.node.broker.calls.member_calls import HandedOver, HandingOver, HandOver, Prefer
from ledgermq.node.broker.calls.outcome import Done, Refused
from ledgermq.node.broker.part import Takers
from ledgermq.node.broker.ports import Replicator
from ledgermq.proto.types import Role
from ledgermq.raft.transfer import Cause

SECOND = 1_000_000_000
SETTLED_NS = 5 * SECOND
SETTLED_MAX_NS = 600 * SECOND
CALM_NS = 600 * SECOND
"""A later loss of leadership is not attributed to the handover."""
PATIENCE_NS = 2 * SECOND
LOOK_NS = SECOND // 20
"""How often a leader looks whether another replica should lead, apart from turns in which it
decides something anyway."""


class Preference:
    """When another replica should lead. Asked at least every `LOOK_NS` on a serving leader that has
    turns; time is monotonic."""

    def __init__(self) -> None:
        self.settled_ns = SETTLED_NS
        self._wanted: str | None = None
        self._since_ns: int | None = None
        self._tried_ns: int | None = None

    def due(self, now_ns: int, wanted: str | None) -> bool:
        """True once per period in which the same replica was wanted, and kept up, for long enough.
        None: there is none, another replica leads, or a handover is under way; the observation
        begins anew."""
        if wanted is None or wanted != self._wanted or self._since_ns is None:
            self._wanted, self._since_ns = wanted, now_ns
        if wanted is None or now_ns - self._since_ns < self.settled_ns:
            return False
        self._settle(now_ns)
        return True

    def _settle(self, now_ns: int) -> None:
        calm = self._tried_ns is None or now_ns - self._tried_ns >= CALM_NS + self.settled_ns
        self._tried_ns, self._since_ns = now_ns, None
        self.settled_ns = SETTLED_NS * 2 if calm else min(2 * self.settled_ns, SETTLED_MAX_NS)


class Handovers:
    """Handovers of one replica. Used only by the group's turns."""

    def __init__(self, node: str, replicator: Replicator, preferred: str | None) -> None:
        self._node = node
        self._replicator = replicator
        self._preferred = preferred
        self._preference = Preference()
        self.full: frozenset[str] = frozenset()
        """The nodes whose disks take no messages, as far as is known here."""
        self.looks = False
        """Whether a serving leader has to look from time to time who should lead."""
        self._led_term = -1
        self.again_ns = 0
        """When it has to look again."""
        self.waiting: list[HandOver] = []
        """Calls that wait for the end of a handover."""
        self.prefer(preferred)

    def prefer(self, node: str | None) -> None:
        """Set the preferred leader from now on; None: no preference."""
        self._preferred = node
        self.looks = node not in (None, self._node) or self._node in self.full

    def note_full(self, nodes: frozenset[str]) -> None:
        """Set `full` from now on."""
        self._replicator.note_full(nodes)
        self.full = nodes
        self.prefer(self._preferred)

    def take(self, call: HandOver, now_ns: int, *, serving: bool) -> list[Done]:
        """Start a handover, or join the one under way. Returns the answers that need no waiting."""
        replicator = self._replicator
        if call.cause is Cause.PLANNED_STOP:
            replicator.leave()
        if replicator.role is not Role.LEADER or not serving:
            return [Done(call.token, Refused("not-leader", replicator.leader))]
        if call.to == self._node:
            return [Done(call.token, HandedOver(self._node))]
        refusal = replicator.transfer(now_ns, call.to, call.cause, call.patience_ns)
        if refusal is not None:
            return [Done(call.token, Refused("transfer-refused", self._node, refusal))]
        self.waiting.append(call)
        return []

    def take_preference(self, call: Prefer, now_ns: int, *, serving: bool) -> list[Done]:
        self.prefer(call.node)
        return []

    ARRIVALS: ClassVar[Takers] = {HandOver: take, Prefer: take_preference}

    def look(self, now_ns: int) -> list[Done]:
        """Answer the callers whose handover has ended, or whose time is up."""
        done, waiting = [], []
        for call in self.waiting:
            outcome = self._outcome(call, now_ns)
            if outcome is None:
                waiting.append(call)
            else:
                done.append(Done(call.token, outcome))
        self.waiting = waiting
        return done

    def _outcome(self, call: HandOver, now_ns: int) -> HandedOver | HandingOver | Refused | None:
        replicator = self._replicator
        leader, handover = replicator.leader, replicator.handover
        if leader not in (None, self._node):
            assert leader is not None
            return (
                HandedOver(leader)
                if call.to in (None, leader)
                else Refused("transfer-refused", leader, f"{leader} was elected instead")
            )
        if replicator.role is Role.LEADER and handover is None:
            return Refused(
                "transfer-refused",
                leader,
                replicator.handover_failure or f"{self._node} was elected again",
            )
        if now_ns < call.until_ns:
            return None
        if handover is None:
            return Refused("not-leader", leader)
        return HandingOver(handover.to, replicator.lag_of(handover.to))

    def wake_at_ns(self) -> int:
        """When the next caller has waited for long enough; only while a call waits."""
        return min([call.until_ns for call in self.waiting])

    def look_for_leader(self, now_ns: int) -> None:
        """On a serving leader: hand over to the replica that should lead, when that is due."""
        replicator = self._replicator
        self.again_ns = now_ns + LOOK_NS
        began, self._led_term = replicator.term != self._led_term, replicator.term
        wanted = None if began or replicator.handover is not None else self._wanted(now_ns)
        if self._preference.due(now_ns, wanted):
            replicator.transfer(now_ns, wanted, Cause.PREFERRED, PATIENCE_NS)

    def _wanted(self, now_ns: int) -> str | None:
        """The voter that should lead instead of this one, and keeps up: the preferred leader or, if
        the disk here is full, any. Never one whose disk is full."""
        replicator, preferred, full = self._replicator, self._preferred, self.full
        voters = replicator.members.voters
        others: list[str] = sorted(voters) if self._node in full else []
        for node in [preferred, *others]:
            if node in voters and node not in full and replicator.keeps_up(node, now_ns):
                return node
        return None
