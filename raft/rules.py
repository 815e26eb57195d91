"""The rules that safety hangs on, one method each: who may vote and campaign, what a copy counts, what is durable, what is committed.

Every other layer asks here before it promises anything, and none has a second opinion. No message is sent, no role changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ledgermq.proto.types import Role
from ledgermq.raft.appointments import Appointment
from ledgermq.raft.config import Rule
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
        if self.members.rule is Rule.IN_SYNC and not self._is_electable():
            return False
        return self._resting_role() is Role.FOLLOWER and self._counts()

    # The in-sync set (rule IN_SYNC)

    @property
    def agreed(self) -> Appointment | None:
        """What the controller agreed on for the rule in force here; None before its first election."""
        known = self.appointment
        return known if known is not None and self.members.rule is Rule.IN_SYNC and known.generation == self.members.since else None

    def _in_sync(self) -> Collection[str]:
        """Whom the next master is taken from: by agreement, or all voters before there is one."""
        agreed = self.agreed
        return self.members.voters if agreed is None else agreed.in_sync.keys()

    def _required(self) -> Collection[str]:
        """Whose copies a master waits for: whoever may be elected; also those it wished into the set, who may be in it by now."""
        return {*self._in_sync(), *self._joining} if self._joining else self._in_sync()

    def _known_by(self, node: str) -> str:
        """The directory by which the members know a node; empty for that of the group's beginning."""
        return self.members.incarnations.get(node, "")

    def _is_electable(self) -> bool:
        """Whether the controller would take this replica, as far as is known here."""
        agreed, node = self.agreed, self.config.node
        return agreed is None or agreed.in_sync.get(node) == self._known_by(node)

    def _others_in_sync(self) -> list[str]:
        """Whom a master cannot do without, nor anybody elect another: the in-sync set but for this replica."""
        return [node for node in self._in_sync() if node != self.config.node]

    def _contact_ns(self, node: str) -> int:
        """Leader only: when a peer was last heard."""
        peer = self.peers.get(node)
        return -1 if peer is None else peer.contact_ns

    def _hears_nobody(self, now_ns: int) -> bool:
        """Leader only: whether it has others in its in-sync set, and heard none of them for the longest election timeout."""
        others = self._others_in_sync()
        return bool(others) and now_ns - max(map(self._contact_ns, others)) >= self.config.timing.election_max_ns

    def _abandoned_ns(self, now_ns: int) -> int:
        """Leader only: for how long nobody said that it may go on, if that is too long; else 0. A leader needs a majority. A master with
        others in its set needs one of them, or the controller, which takes longer to find a leader of its own: whom it does not hear may
        hear it, and stays quiet for it."""
        timing = self.config.timing
        if self.members.rule is not Rule.IN_SYNC:
            silent_ns = now_ns - self._quorum_contact_ns(now_ns)
            return silent_ns if silent_ns >= timing.election_max_ns + self.slack_ns(now_ns) else 0
        if not self._hears_nobody(now_ns):
            return 0
        silent_ns = now_ns - max(self._agreed_ns, *map(self._contact_ns, self._others_in_sync()))
        return silent_ns if silent_ns >= timing.alone_ns else 0

    def short_of(self, now_ns: int) -> int:
        """Leader only: how many members of the in-sync set would have to be heard again before anything can be committed."""
        if self.role is not Role.LEADER or self.members.rule is not Rule.IN_SYNC:
            return 0
        there = sum(1 for node in self._in_sync() if node == self.config.node or self._is_there(node, now_ns))
        return max(0, self.config.ha.minimum - there)

    def _is_there(self, node: str, now_ns: int) -> bool:
        """Leader only: whether a peer whose copy counts was heard within the longest election timeout."""
        peer = self.peers.get(node)
        heard = peer is not None and peer.boot_id is not None and not peer.provisional
        return heard and now_ns - peer.contact_ns < self.config.timing.election_max_ns  # type: ignore[union-attr]

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
        """The last entry that this leader and enough peers hold to outlive any one of them; a process's memory is enough for that. A master
        that acknowledges alone has nothing but its own stable storage."""
        if self.members.rule is Rule.IN_SYNC and self.config.ha.ack_async:
            return self._durable_claim()
        return self._reached(self.log.end_index, lambda peer: peer.received)

    def _was_trimmed(self, index: int) -> bool:
        """An entry that this log began to do without was committed: by leader completeness every later leader has the very same."""
        return index < self.log.begin_index - 1

    # Quorums

    def _may_commit(self, index: int) -> bool:
        """Raft §5.4.2: a leader counts copies only for entries of its own term; earlier ones are committed by what follows them."""
        return self.log.term_at(index) == self.term

    def _reached(self, own: int, value: Callable[[Peer], int]) -> int:
        """What the quorum of the rule in force has reached: a majority of the voters, all of them, or everybody in the in-sync set. A
        leader that is no voter any more does not count itself, and nobody counts a provisional copy."""
        rule = self.members.rule
        reached = []
        for node in self._required() if rule is Rule.IN_SYNC else self.members.voters:
            if node == self.config.node:
                reached.append(own)
            else:
                peer = self.peers.get(node)
                reached.append(NO_INDEX if peer is None or peer.provisional else value(peer))
        return reached_by_majority(reached) if rule is Rule.MAJORITY else min(reached)

    def _quorum_contact_ns(self, now_ns: int) -> int:
        """When the quorum had last been heard of, ourselves included."""
        return self._reached(now_ns, lambda peer: peer.contact_ns)

    def _answered_round(self) -> int:
        """The last round of which every member of a quorum answered this one or a later one."""
        return self._reached(NEVER_NS, lambda peer: peer.answered_round)

    def _advance_commit(self) -> None:
        candidate = self._reached(self._durable_claim(), lambda peer: peer.durable)
        if candidate > self.commit_index and self._may_commit(candidate) and not self._lacks_copies(candidate):
            self.commit_index = candidate

    def _lacks_copies(self, index: int) -> bool:
        """Whether fewer copies of an entry, which everybody in sync has, are on stable storage than the group demands: then it is not
        called committed. Where the set itself is too small, copies outside of it count: who is to come into it, or to be a voter again,
        does so only once something is committed in this epoch."""
        if self.members.rule is not Rule.IN_SYNC:
            return False
        in_sync = self._in_sync()
        missing = self.config.ha.minimum - len(in_sync)
        if missing <= 0:
            return False
        others = [self.peers.get(node) for node in self.members.nodes if node not in in_sync and node not in self.members.observers]
        return sum(1 for peer in others if peer is not None and peer.durable >= max(index, peer.named_at)) < missing

    def _advance_replicated(self) -> None:
        candidate = self._early_claim()
        if candidate > self._held_by_majority and self._may_commit(candidate):
            self._held_by_majority = candidate
