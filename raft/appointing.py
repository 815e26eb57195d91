"""Groups of the rule IN_SYNC: taking office when the controller says so, and keeping the in-sync set up to date.

See docs/architecture.md, HA groups.

Decided by the controller, in one order for all (`appointments.py`): who is master of which epoch, and who is in sync. A master leads an
epoch only if that is above every term it has made durable, so never one that it led before a restart. It waits for everybody in the set;
it takes out who is gone, or too far behind, by asking, and waits on until that is agreed; it takes in who has everything committed, and
waits for it from the moment it asks. Where it hears nobody, it changes nothing before the controller answered that the set is as it
knows it; where that does not answer either, it steps down (`core.py`). What a quorum is in this rule is said in `rules.py`.
"""

from __future__ import annotations

from ledgermq.proto.types import Role
from ledgermq.raft.appointments import Alter, Appointment
from ledgermq.raft.changing import Changing
from ledgermq.raft.config import Rule
from ledgermq.raft.progress import Stage
from ledgermq.raft.transfer import Cause, Reason


class Appointing(Changing):
    """What the controller said, and what it is asked for."""

    def appointed(self, appointment: Appointment, now_ns: int) -> None:
        """What the controller agreed on; late or repeated words mean nothing."""
        if self._fence is not None or (self.appointment is not None and appointment.order <= self.appointment.order):
            return
        self._now_ns = self._agreed_ns = now_ns
        self.appointment = appointment
        # Every wish that was on its way named an older version: it is granted in this one, or never.
        self._joining.clear()
        self._take_office(now_ns)
        if self.role is Role.CANDIDATE and self.agreed is not None and self.agreed.epoch > self.term:
            # Another is master now. It is waited for once, not for ever: it may have ended before it was ever heard.
            self._become_follower(self.term, None, now_ns)
        if self.role is Role.LEADER:
            self._advance_commit()
            self._advance_replicated()
            if self._hears_nobody(now_ns):
                self._review_due_ns = now_ns

    def _take_office(self, now_ns: int) -> None:
        """Lead the epoch this replica was appointed for, or make way for who was."""
        agreed, me = self.agreed, self.config.node
        if agreed is None or agreed.epoch <= self.term:
            return
        if agreed.master == me and self._is_electable() and self._counts():
            if self.role is Role.LEADER:
                self._become_follower(agreed.epoch, None, now_ns, Reason(agreed.cause, agreed.asked_by))
            self.term, self.voted_for = agreed.epoch, me
            if (agreed.asked_by, agreed.cause) != (me, self._candidacy.cause):
                self._candidacy = Reason(agreed.cause, agreed.asked_by)
            self._silent_master = self._last_leader if self._candidacy.cause is Cause.ELECTION_TIMEOUT else None
            self._become_leader(now_ns)
        elif self.role is Role.LEADER:
            self._become_follower(agreed.epoch, None, now_ns, self._reason_to_yield(agreed.master))

    # The in-sync set

    def _review_in_sync(self, now_ns: int) -> None:
        """Master only, once in a heartbeat period: wish the set that is right now. Wishes may be lost; the next review wishes again."""
        if self.members.rule is not Rule.IN_SYNC or now_ns < self._review_due_ns:
            return
        self._review_due_ns = now_ns + self.config.timing.heartbeat_ns
        agreed, me = self.agreed, self.config.node
        if agreed is None or (agreed.epoch, agreed.master) != (self.term, me):
            # It led when the group took this rule: now it needs an epoch, like any master.
            return self._wish_master(me, Cause.STARTED)
        self._trail.sample(self.log.end_index, now_ns)
        self._forget_evictions(now_ns)
        if self._hears_nobody(now_ns) and now_ns - self._agreed_ns >= self.config.timing.election_max_ns:
            # It may be heard by all and hear none: a smaller set could be agreed on, without its knowing, and nobody else be electable.
            self._wishes.append(Alter(me, agreed.generation, agreed.epoch, agreed.version, dict(agreed.in_sync)))
            return
        leaving = self._leaving_set(agreed, now_ns)
        joining = {node for node in self.members.voters if node not in agreed.in_sync and self._may_join(node, now_ns)}
        wanted = (set(agreed.in_sync) - leaving) | joining
        # Who was wished into the set and is not wanted any more: with the next version that wish is void.
        if wanted != set(agreed.in_sync) or not self._joining <= joining:
            self._joining |= joining
            in_sync = {node: self._known_by(node) for node in sorted(wanted)}
            self._wishes.append(Alter(me, agreed.generation, agreed.epoch, agreed.version, in_sync))

    def _forget_evictions(self, now_ns: int) -> None:
        """A node stays out of the set for a change until it is no voter any more, nobody asks for the change any more, or the set is short
        of nodes without it. Being out of the set is no reason: the change is still to come."""
        short = self.short_of(now_ns) > 0
        self._evicting = {
            node: eviction
            for node, eviction in self._evicting.items()
            if node in self.members.voters and now_ns < eviction.until_ns and (eviction.lost or not short)
        }

    def _leaving_set(self, agreed: Appointment, now_ns: int) -> set[str]:
        """Who is to leave the set: a node that is no voter any more or lost its directory; then, as long as the minimum stays, one that a
        change wants out, and one that is gone or too far behind. Below the minimum nothing is committed anyway, and the more may be elected
        the better."""
        others = [node for node in agreed.in_sync if node != self.config.node]
        lost = {node for node, eviction in self._evicting.items() if eviction.lost}
        leaving = {node for node in others if node not in self.members.voters or node in lost or self._is_renamed(agreed, node)}
        evicted = [node for node in others if node not in leaving and node in self._evicting]
        late = sorted((self._contact_ns(node), node) for node in others if node not in {*leaving, *evicted} and self._is_late(node, now_ns))
        for node in (*evicted, *(node for _, node in late)):
            if len(agreed.in_sync) - len(leaving) > self.config.ha.minimum:
                leaving.add(node)
        return leaving

    def _is_renamed(self, agreed: Appointment, node: str) -> bool:
        """The members know it by another directory since."""
        return agreed.in_sync[node] != self._known_by(node)

    def _is_late(self, node: str, now_ns: int) -> bool:
        peer, timing = self.peers.get(node), self.config.timing
        if now_ns - self._leader_heard_ns < timing.election_min_ns:
            # The former master may still answer reads by a lease that our own answers carry; without it nothing is confirmed till then.
            return False
        if peer is None:
            return True
        # Who was silent for an election timeout already, and says nothing to the new master either, is not waited for as long again.
        patience_ns = timing.heartbeat_ns if node == self._silent_master and peer.boot_id is None else timing.election_max_ns
        if peer.provisional or now_ns - peer.contact_ns >= patience_ns:
            return True
        late_ns, late_bytes = self._trail.behind(peer.durable, self.log.end_index, now_ns)
        return late_ns > self.config.ha.lag_ns or late_bytes > self.config.ha.lag_bytes

    def _may_join(self, node: str, now_ns: int) -> bool:
        """It keeps up, and has on stable storage everything that is committed, and an entry of this epoch: whatever an earlier master may
        have confirmed lies before that. Nothing of this epoch needs to be confirmed: who is gone for good may stand in the way of that."""
        peer = self.peers.get(node)
        if peer is None or not self._is_there(node, now_ns) or peer.stage is not Stage.FLOWING or peer.leaving or node in self._evicting:
            return False
        if self.configurations.latest_index > self.commit_index and node not in self.configurations.before.voters:
            return False
        if self.log.term_at(peer.durable) != self.term:
            return False
        late_ns, _ = self._trail.behind(peer.durable, self.log.end_index, now_ns)
        return peer.durable >= self.commit_index and late_ns <= self.config.timing.election_min_ns
