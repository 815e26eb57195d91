"""Roles and votes: how a replica comes to lead, follow or rest, and why leadership moved (Raft §5.2, §5.4.1; dissertation §9.6).

A candidate asks for pre-votes, still in its term, then for votes in the next one; a majority makes it leader. A leader never leads the
same term twice: each campaign takes a new term, durable before the first request leaves. A voter that hears its leader refuses everyone
else, unless that leader sent the candidate. In a group of the rule IN_SYNC the pre-votes are a canvass, and the controller elects. Every
change of role goes through `_enter`; nothing here touches an entry.
"""

from __future__ import annotations

from ledgermq.proto.types import Role
from ledgermq.raft.appointments import NO_EPOCH, Elect
from ledgermq.raft.config import Rule
from ledgermq.raft.messages import NO_INDEX, VoteReply, VoteRequest
from ledgermq.raft.progress import Peer
from ledgermq.raft.quorum import Ballot, ballot
from ledgermq.raft.rules import Rules
from ledgermq.raft.state import NEVER_NS
from ledgermq.raft.transfer import Cause, LeaderChange, Reason
from ledgermq.raft.window import Window


class Elections(Rules):
    """Campaigns, ballots, and the one way from role to role."""

    # Campaigns

    def _campaign(self, now_ns: int, *, pre: bool, transfer: bool = False) -> None:
        self._enter(Role.CANDIDATE, None)
        self._pre = pre
        if not pre:
            self.term += 1
            self.voted_for = self.config.node
        self._votes = {self.config.node: True}
        self._restart_election_timer(now_ns)
        asked = self.term + int(pre)
        appointed = self.members.rule is Rule.IN_SYNC
        self._canvass_until_ns = now_ns + self.config.timing.heartbeat_ns if appointed else NEVER_NS
        for voter in self._in_sync() if appointed else self.members.voters:
            if voter != self.config.node:
                known_by = self.members.incarnations.get(voter, "")
                end = self.log.end_index, self.log.end_term
                self._messages.append(VoteRequest(self.config.node, voter, asked, pre, *end, transfer, known_by))
        self._count_votes(now_ns)

    def _count_votes(self, now_ns: int) -> None:
        if self.members.rule is Rule.IN_SYNC:
            return self._count_canvass(now_ns)
        result = ballot(self.members.voters, self._votes, unanimous=self.members.rule is Rule.ALL)
        if result is Ballot.WON and self._pre:
            self._campaign(now_ns, pre=False)
        elif result is Ballot.WON:
            self._become_leader(now_ns)
        elif result is Ballot.LOST:
            self._become_follower(self.term, None, now_ns)

    def _count_canvass(self, now_ns: int) -> None:
        """Nobody in the in-sync set who answers hears a master or has a longer log: the controller may elect this replica. Who is silent is
        waited for a moment, not for ever: it may be the master that is gone."""
        answers = [self._votes.get(node) for node in self._in_sync()]
        if False in answers:
            self._become_follower(self.term, None, now_ns)
        elif None not in answers or now_ns >= self._canvass_until_ns:
            self._canvass_until_ns = NEVER_NS
            self._wish_master(self.config.node, self._candidacy.cause)

    def _wish_master(self, node: str, cause: Cause) -> None:
        """Ask the controller for an election; without an answer the next campaign asks again. Not before the entry that made the rule is
        on stable storage here: if it were lost, and the rule made anew by an earlier one, the controller would refuse that as older."""
        if self.members.since > self.durable_index:
            return
        agreed, voters = self.agreed, {voter: self._known_by(voter) for voter in self.members.voters}
        epoch = NO_EPOCH if agreed is None else agreed.epoch
        known = self._known_by(node), self.members.since, epoch, self.term
        self._wishes.append(Elect(node, *known, voters, cause, self.config.node, self._has_begun()))

    def _has_begun(self) -> bool:
        """Whether the log shows an epoch of the rule in force: since the entry that made the rule, terms rise by epochs alone."""
        made_in = self.log.term_at(self.members.since)
        return made_in is None or self.log.end_term > made_in

    def _on_vote_request(self, request: VoteRequest, now_ns: int) -> None:
        if not self._may_vote(request):
            self.refused["no-voter"] += 1
            return None
        if request.term > self.term and self._hears_leader(now_ns) and not request.transfer:
            return self._answer_vote(request, granted=False)
        if request.term > self.term and not request.pre:
            self._become_follower(request.term, None, now_ns, self._reason_to_yield(request.sender))
        if request.pre:
            granted = request.term > self.term and self._up_to_date(request)
        else:
            granted = request.term == self.term and self.voted_for in (None, request.sender) and self._up_to_date(request)
            granted = granted and self.leader is None
        if granted and not request.pre:
            self._become_follower(self.term, None, now_ns)
            self.voted_for = request.sender
        return self._answer_vote(request, granted=granted)

    def _answer_vote(self, request: VoteRequest, *, granted: bool) -> None:
        term = request.term if granted else self.term
        self._messages.append(VoteReply(self.config.node, request.sender, term, request.pre, granted))

    def _on_vote_reply(self, reply: VoteReply, now_ns: int) -> None:
        if self.role is not Role.CANDIDATE:
            return None
        if reply.term > self.term and not (reply.pre and reply.granted):
            return self._become_follower(reply.term, None, now_ns, self._reason_to_yield(reply.sender))
        if reply.pre != self._pre:
            return None
        if reply.granted and reply.term != self.term + int(self._pre):
            return None
        if reply.granted or reply.term == self.term or self.members.rule is Rule.IN_SYNC:
            self._votes[reply.sender] = reply.granted
            self._count_votes(now_ns)
        return None

    # Roles

    def _become_leader(self, now_ns: int) -> None:
        self._enter(Role.LEADER, self.config.node, self._candidacy)
        self.handover_failure = ""
        self._round = 0
        self._heartbeat_due_ns = now_ns
        self._news_due_ns = NEVER_NS
        # Of which class entries of earlier terms are, nobody knows any more.
        self.urge()
        self.early_index = self._held_by_majority = NO_INDEX
        self._lease_given_up = False
        self._joining.clear()
        self._evicting.clear()
        self._review_due_ns = now_ns
        self._trail.begin(self.log.end_index, now_ns)
        self.peers = {node: self._new_peer(node, now_ns) for node in self.members.nodes if node != self.config.node}
        self._advance_commit()

    def _new_peer(self, node: str, now_ns: int) -> Peer:
        """Nothing is known of it yet."""
        timing = self.config.timing
        return Peer(node, self.log.end_index + 1, now_ns, Window(timing), timing.observer_pace())

    def _become_follower(self, term: int, leader: str | None, now_ns: int, reason: Reason | None = None) -> None:
        """Also the way from one leader or term to the next; whatever was verified against the old leader is not against the new."""
        if (term, leader) != (self.term, self.leader):
            self.verified_index = NO_INDEX
            self._leader_commit = NO_INDEX
            self._said = None
            self._seen_round = 0
            self._reply_owed = False
        if self.role is Role.LEADER:
            self._leader_heard_ns = now_ns
        if term > self.term:
            self.term = term
            self.voted_for = None
        self._enter(self._resting_role(), leader, reason)
        self._restart_election_timer(now_ns)

    def _enter(self, role: Role, leader: str | None, reason: Reason | None = None) -> None:
        """`reason`: why another leads from now on, or nobody that we know; told outside where a leader came or went."""
        self._role_changed |= (role, leader) != (self.role, self.leader)
        self._note_change(role, leader, reason or Reason(Cause.FOLLOWED, leader or ""))
        self.handover = None
        self._retiring = False
        self.role = role
        self.leader = leader
        self._votes = {}
        self._canvass_until_ns = NEVER_NS
        if role is not Role.LEADER:
            self.peers = {}
            self._reads.lose()

    def _rest(self) -> None:
        """Members or the commit index moved: a follower may have become a learner, or a learner a follower."""
        role = self._resting_role()
        if self.role in (Role.FOLLOWER, Role.LEARNER) and self.role is not role:
            self.role, self._role_changed = role, True

    # Why leadership moved

    def take_changes(self) -> tuple[LeaderChange, ...]:
        """Leaders that came and went since the last call."""
        changes = tuple(self._changes)
        self._changes.clear()
        return changes

    def _reason_to_yield(self, sender: str) -> Reason:
        """Of a leader to whom a higher term was shown: its own handover, or somebody else's doing."""
        handover = self.handover
        if handover is not None and handover.told and handover.to == sender:
            return Reason(handover.cause, sender)
        return Reason(Cause.HIGHER_TERM, sender)

    def _note_change(self, role: Role, leader: str | None, reason: Reason) -> None:
        if leader is not None and (self.term, leader) != (self._led_term, self._last_leader):
            self._changes.append(LeaderChange(self.term, self._last_leader, leader, reason))
            self._led_term, self._last_leader = self.term, leader
        elif self.role is Role.LEADER and role is not Role.LEADER:
            self._changes.append(LeaderChange(self._led_term, self._last_leader, None, reason))
