"""The rules that safety hangs on, one method each: who may vote and campaign, what a copy counts, what is durable, what is committed.

Every other layer asks here before it promises anything, and none has a second opinion. No message is sent, no role changes.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.proto.types import Role
from ledgermq.raft.messages import NO_INDEX, VoteRequest
from ledgermq.raft.progress import Peer
from ledgermq.raft.quorum import reached_by_majority
from ledgermq.raft.state import NEVER_NS, State


class Rules(State):
    """Questions about the state, and the two advances that are nothing but their answers."""

    # Who takes part

    def _counts(self) -> bool:
        """Whether this copy may count: a voter's; or of one that is being removed, until that is committed; or of a learner for certain,
        which may have been made a voter since. An uncommitted learner may be a voter whose old promises are forgotten."""
        node, pending = self.config.node, self.configurations.latest_index > self.commit_index
        if node in self.members.voters or (node in self.members.learners and not pending):
            return self.admitted
        return self._leaves()

    def _may_vote(self, request: VoteRequest) -> bool:
        """Whose copy counts; and whom the candidate's members name by this very directory: it was made a voter by an entry that is not here
        yet, and the one that made it a learner, which ended its old promises, was committed before (dissertation §4.1). Never who is named
        by another directory: to that candidate it is another server, which may vote in this term itself."""
        if self.config.incarnation and request.incarnation not in ("", self.config.incarnation):
            return False
        named = self.members.incarnations.get(self.config.node, self.config.incarnation)
        return self._counts() or (named == self.config.incarnation == request.incarnation != "")

    def _may_campaign(self) -> bool:
        """A voter; or one that is being removed, until that is committed: the entry may need just this candidate (dissertation §4.2.2)."""
        return self._resting_role() is Role.FOLLOWER and self._counts()

    # Elections

    def _up_to_date(self, request: VoteRequest) -> bool:
        """Raft §5.4.1: the candidate's log holds everything a voter's does, by last term, then by length."""
        return (request.last_term, request.last_index) >= (self.log.end_term, self.log.end_index)

    def _hears_leader(self, now_ns: int) -> bool:
        """Stickiness: a voter that lately heard a living leader helps nobody to depose it."""
        if self.role is Role.LEADER or now_ns < self._promised_until_ns:
            # Before it stopped this replica may have heard a leader whose lease rests on that.
            return True
        return self.leader is not None and now_ns - self._leader_heard_ns < self.config.timing.election_min_ns

    # Copies

    def _covered_by_sync(self, term: int, index: int) -> int:
        """No ABA: a finished sync counts only if its entry is still the one it began with, and never for what was cut off meanwhile."""
        if self.log.term_at(index) != term:
            return NO_INDEX
        return index if self._cut_since_sync is None else min(index, self._cut_since_sync - 1)

    def _durable_claim(self) -> int:
        """What this replica may call durable: its vote in the commit quorum, as leader and in every reply."""
        return self.durable_index if self.role is Role.LEADER else min(self.durable_index, self.verified_index)

    def _early_claim(self) -> int:
        """The last entry that this leader and enough peers hold to outlive any one of them; a process's memory is enough for that."""
        return self._reached(self.log.end_index, lambda peer: peer.received)

    def _was_trimmed(self, index: int) -> bool:
        """An entry that this log began to do without was committed: by leader completeness every later leader has the very same."""
        return index < self.log.begin_index - 1

    # Majorities

    def _may_commit(self, index: int) -> bool:
        """Raft §5.4.2: a leader counts copies only for entries of its own term; earlier ones are committed by what follows them."""
        return self.log.term_at(index) == self.term

    def _reached(self, own: int, value: Callable[[Peer], int]) -> int:
        """What a majority of the voters has reached. A leader that is no voter any more does not count itself, and nobody counts a
        provisional copy."""
        reached = []
        for voter in self.members.voters:
            if voter == self.config.node:
                reached.append(own)
            else:
                peer = self.peers[voter]
                reached.append(NO_INDEX if peer.provisional else value(peer))
        return reached_by_majority(reached)

    def _quorum_contact_ns(self, now_ns: int) -> int:
        """When a majority had last been heard of, ourselves included."""
        return self._reached(now_ns, lambda peer: peer.contact_ns)

    def _answered_round(self) -> int:
        """The last round of which every member of a majority answered this one or a later one."""
        return self._reached(NEVER_NS, lambda peer: peer.answered_round)

    def _advance_commit(self) -> None:
        candidate = self._reached(self._durable_claim(), lambda peer: peer.durable)
        if candidate > self.commit_index and self._may_commit(candidate):
            self.commit_index = candidate

    def _advance_replicated(self) -> None:
        candidate = self._early_claim()
        if candidate > self._held_by_majority and self._may_commit(candidate):
            self._held_by_majority = candidate
