"""Leadership handovers of one broker group: the callers that wait for them, and the rule for the preferred leader.

The replicator carries out a handover. The preferred leader gets leadership once it has kept up without a gap for `SETTLED_NS`, so that a
node that has just come back has time to settle. It cannot flap: each time it loses leadership soon after a handover, it must keep up
twice as long before the next one.
"""

from __future__ import annotations

from ledgermq.node.broker.calls.member_calls import HandedOver, HandingOver, HandOver
from ledgermq.node.broker.calls.outcome import Done, Refused
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
"""How often a leader looks whether the preferred leader keeps up, apart from turns in which it decides something anyway."""


class Preference:
    """When the preferred leader should lead. Asked at least every `LOOK_NS` on a serving leader that has turns; time is monotonic."""

    def __init__(self, preferred: str) -> None:
        self.preferred = preferred
        self.settled_ns = SETTLED_NS
        self._since_ns: int | None = None
        self._tried_ns: int | None = None

    def due(self, now_ns: int, *, keeps_up: bool) -> bool:
        """True once per period in which the preferred leader has kept up for long enough."""
        if not keeps_up:
            self._since_ns = None
            return False
        if self._since_ns is None:
            self._since_ns = now_ns
        if now_ns - self._since_ns < self.settled_ns:
            return False
        self._settle(now_ns)
        return True

    def interrupted(self) -> None:
        """Restart the observation: another replica leads, a handover is under way, or the preferred leader is not a voter."""
        self._since_ns = None

    def _settle(self, now_ns: int) -> None:
        calm = self._tried_ns is None or now_ns - self._tried_ns >= CALM_NS + self.settled_ns
        self._tried_ns, self._since_ns = now_ns, None
        self.settled_ns = SETTLED_NS * 2 if calm else min(2 * self.settled_ns, SETTLED_MAX_NS)


class Handovers:
    """Handovers of one replica. Used only by the group's turns."""

    def __init__(self, node: str, replicator: Replicator, preferred: str | None) -> None:
        self._node = node
        self._replicator = replicator
        self.preference = None if preferred is None or preferred == node else Preference(preferred)
        self._led_term = -1
        self.again_ns = 0
        """When a serving leader has to look at its preference again."""
        self.waiting: list[HandOver] = []
        """Calls that wait for the end of a handover."""

    def preferred(self, node: str | None) -> None:
        """Set the preferred leader from now on; None: no preference."""
        wanted = None if node == self._node else node
        if wanted != (None if self.preference is None else self.preference.preferred):
            self.preference = None if wanted is None else Preference(wanted)

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
            return HandedOver(leader) if call.to in (None, leader) else Refused("transfer-refused", leader, f"{leader} was elected instead")
        if replicator.role is Role.LEADER and handover is None:
            return Refused("transfer-refused", leader, replicator.handover_failure or f"{self._node} was elected again")
        if now_ns < call.until_ns:
            return None
        if handover is None:
            return Refused("not-leader", leader)
        return HandingOver(handover.to, replicator.lag_of(handover.to))

    def wake_at_ns(self) -> int:
        """When the next caller has waited for long enough; only while a call waits."""
        return min([call.until_ns for call in self.waiting])

    def prefer(self, now_ns: int, preference: Preference) -> None:
        """On a serving leader: hand over to the preferred leader when that is due."""
        replicator = self._replicator
        self.again_ns = now_ns + LOOK_NS
        if replicator.handover is not None or replicator.term != self._led_term or preference.preferred not in replicator.members.voters:
            self._led_term = replicator.term
            preference.interrupted()
        elif preference.due(now_ns, keeps_up=replicator.keeps_up(preference.preferred, now_ns)):
            replicator.transfer(now_ns, preference.preferred, Cause.PREFERRED, PATIENCE_NS)
