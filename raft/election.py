"""Term, vote and role: how a replica becomes leader, follower or learner, and why leadership moved
(Raft §5.2, §5.4.1; dissertation §9.6).

A candidate asks for pre-votes, still in its term, then for votes in the next one; a majority makes
it leader. A leader never leads the same term twice: each campaign takes a new term, which is
durable before the first request leaves. A voter that hears its leader refuses every other
candidate, unless that leader told the candidate to campaign. In a group of the rule IN_SYNC the
pre-votes only ask for objections, and the controller elects. Every change of role goes through
`_enter`; nothing here touches an entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS
from ledgermq.raft.follower import Answers, Follower
from ledgermq.raft.handover import Handovers
from ledgermq.raft.isr import known_by
from ledgermq.raft.leader import NEVER_NS, Leader
from ledgermq.raft.messages import VoteReply, VoteRequest
from ledgermq.raft.parts import Parts
from ledgermq.raft.quorum import Ballot
from ledgermq.raft.transfer import Cause, LeaderChange, Reason

CHANGES_KEPT = 64
"""The most changes of leadership that wait for `take_changes`."""


@dataclass(slots=True)
class Candidate:
    """One campaign. `canvass_until_ns`: until when a candidate that the controller elects waits for
    answers; NEVER_NS after that, and in a campaign for votes."""

    pre: bool
    canvass_until_ns: int
    votes: dict[str, bool] = field(default_factory=dict)

    def end_canvass(self) -> None:
        self.canvass_until_ns = NEVER_NS


class Election:
    """Term, vote, role and leader of this replica.

    term, voted_for   as last decided; durable once the driver carried out `Writes.hard_state`
    role, leader      the role of this replica, and the leader of the term if it is known
    leading           the role object of a leader; None in every other role
    following         the role object of a replica that knows another leader
    candidate         the role object of a candidate
    candidacy         why this replica campaigned last
    role_changed      role or leader changed since `take_role_changed`
    last_leader       the last leader that was known
    led_term          its term
    """

    def __init__(
        self,
        parts: Parts,
        handovers: Handovers,
        answers: Answers,
        hard_state: HardState,
        new_leader: Callable[[int, int, str | None], Leader],
    ) -> None:
        """`new_leader` creates the role object of a leader from its term, the time and the
        `silent_master` of `become_leader`."""
        self._parts = parts
        self._config = parts.config
        self._log = parts.log
        self._membership = parts.membership
        self._isr = parts.isr
        self._timer = parts.timer
        self._reads = parts.reads
        self._outbox = parts.outbox
        self._handovers = handovers
        self._answers = answers
        self._new_leader = new_leader
        self.term = hard_state.term
        self.voted_for = hard_state.vote
        self.role = parts.membership.resting_role()
        self.leader: str | None = None
        self.leading: Leader | None = None
        self.following: Follower | None = None
        self.candidate: Candidate | None = None
        self.candidacy = Reason(Cause.STARTED)
        self.role_changed = False
        self.last_leader: str | None = None
        self.led_term = -1
        self._changes: deque[LeaderChange] = deque(maxlen=CHANGES_KEPT)

    def check(self) -> None:
        """Each term has at most one leader, which voted for itself; a replica has at most one role
        object."""
        assert (
            (self.role is Role.LEADER)
            == (self.leader == self._config.node)
            == (self.leading is not None)
        ), self
        assert (self.role is Role.CANDIDATE) == (self.candidate is not None), self
        assert (self.following is not None) == (self.leader is not None and self.leading is None), (
            self
        )
        assert self.role is not Role.LEADER or self.voted_for == self._config.node, self
        if self.leading is not None:
            assert self.leading.term == self.term, self
            self.leading.check()

    def __repr__(self) -> str:
        role = (
            "pre-candidate"
            if self.candidate is not None and self.candidate.pre
            else self.role.value
        )
        return (
            f"{self._config.node} {role} term={self.term} vote={self.voted_for}"
            f" leader={self.leader} {self._log}"
        )

    # Campaigns

    def campaign(self, now_ns: int, *, pre: bool, transfer: bool = False) -> None:
        policy, me, view = self._membership.policy, self._config.node, self._log.view
        self._enter(Role.CANDIDATE, None)
        if not pre:
            self.term += 1
            self.voted_for = me
        canvass_until_ns = (
            now_ns + self._config.timing.heartbeat_ns if policy.controller_elects else NEVER_NS
        )
        self.candidate = Candidate(pre, canvass_until_ns, {me: True})
        self._timer.restart(now_ns)
        asked = self.term + int(pre)
        for voter in policy.electors():
            if voter != me:
                named = known_by(policy.members, voter)
                self._outbox.messages.append(
                    VoteRequest(
                        sender=me,
                        to=voter,
                        term=asked,
                        pre=pre,
                        last_index=view.end_index,
                        last_term=view.end_term,
                        transfer=transfer,
                        incarnation=named,
                    )
                )
        self._count_votes(self.candidate, now_ns)

    def campaign_for_silence(self, now_ns: int) -> None:
        """Campaign because the leader was not heard for too long, or none was ever known."""
        silent_ms, known = (now_ns - self._timer.last_contact_ns) // MS, self.last_leader
        self.candidacy = (
            Reason(Cause.STARTED)
            if known is None
            else Reason(Cause.ELECTION_TIMEOUT, known, silent_ms)
        )
        self.campaign(now_ns, pre=True)

    def campaign_as_told(self, leader: str, cause: Cause, now_ns: int) -> None:
        """The leader hands over: campaign at once in a new term, without a pre-vote."""
        self.candidacy = Reason(cause, leader)
        self.campaign(now_ns, pre=False, transfer=True)

    def _count_votes(self, candidate: Candidate, now_ns: int) -> None:
        policy = self._membership.policy
        result = policy.ballot(candidate.votes)
        if result is Ballot.LOST:
            self.become_follower(self.term, None, now_ns)
        elif policy.controller_elects:
            # A silent member of the in-sync set is waited for briefly, not forever: it may be the
            # master that has failed.
            if result is Ballot.WON or now_ns >= candidate.canvass_until_ns:
                candidate.end_canvass()
                self._isr.request_master(
                    policy.members, self._config.node, self.candidacy.cause, self.term
                )
        elif result is Ballot.WON and candidate.pre:
            self.campaign(now_ns, pre=False)
        elif result is Ballot.WON:
            self.become_leader(now_ns)

    def end_canvass(self, candidate: Candidate, now_ns: int) -> None:
        """If it is time, stop waiting for silent members of the in-sync set."""
        if now_ns >= candidate.canvass_until_ns:
            self._count_votes(candidate, now_ns)

    def wake_at_ns(self) -> int:
        """When a replica that does not lead is due at the latest."""
        if not self._membership.may_campaign():
            return NEVER_NS
        candidate = self.candidate
        return (
            self._timer.due_ns
            if candidate is None
            else min(self._timer.due_ns, candidate.canvass_until_ns)
        )

    # Votes

    def on_vote_request(self, request: VoteRequest, now_ns: int) -> None:
        if not self._membership.may_vote(request):
            self._outbox.refused["no-voter"] += 1
            return
        if request.term > self.term and self.hears_leader(now_ns) and not request.transfer:
            self._answer_vote(request, granted=False)
            return
        if request.term > self.term and not request.pre:
            self.become_follower(
                request.term, None, now_ns, self._handovers.reason_to_yield(request.sender)
            )
        granted = self.is_up_to_date(request)
        if request.pre:
            granted = granted and request.term > self.term
        else:
            granted = (
                granted
                and request.term == self.term
                and self.voted_for in (None, request.sender)
                and self.leader is None
            )
        if granted and not request.pre:
            self.become_follower(self.term, None, now_ns)
            self.voted_for = request.sender
        self._answer_vote(request, granted=granted)

    def _answer_vote(self, request: VoteRequest, *, granted: bool) -> None:
        term = request.term if granted else self.term
        self._outbox.messages.append(
            VoteReply(
                sender=self._config.node,
                to=request.sender,
                term=term,
                pre=request.pre,
                granted=granted,
            )
        )

    def hears_leader(self, now_ns: int) -> bool:
        """Stickiness: a voter that recently heard a living leader helps no other candidate to
        depose it."""
        timer = self._timer
        if self.role is Role.LEADER or now_ns < timer.promised_until_ns:
            # Before its restart this replica may have heard a leader. One of a release before 0.2.0
            # has a lease that rests on that.
            return True
        return (
            self.leader is not None
            and now_ns - timer.last_contact_ns < self._config.timing.election_min_ns
        )

    def is_up_to_date(self, request: VoteRequest) -> bool:
        """Raft §5.4.1: the candidate's log is at least as up to date as this one, by last term,
        then by length."""
        view = self._log.view
        return (request.last_term, request.last_index) >= (view.end_term, view.end_index)

    def on_vote_reply(self, reply: VoteReply, now_ns: int) -> None:
        candidate = self.candidate
        assert candidate is not None
        if reply.term > self.term and not (reply.pre and reply.granted):
            self.become_follower(
                reply.term, None, now_ns, self._handovers.reason_to_yield(reply.sender)
            )
            return
        if reply.pre != candidate.pre or (
            reply.granted and reply.term != self.term + int(candidate.pre)
        ):
            return
        if reply.granted or reply.term == self.term or self._membership.policy.controller_elects:
            candidate.votes[reply.sender] = reply.granted
            self._count_votes(candidate, now_ns)

    def vote_for_leader(self, leader: str) -> None:
        """Make epoch and master durable, like a vote, before anything of the leader's message
        (docs/architecture.md, HA groups); for a replica that has not voted in the term. Under the
        rule ALL it may have voted for another candidate, against which the leader was elected; that
        vote stays."""
        assert self.voted_for is None, self
        if self._membership.policy.vote_follows_leader:
            self.voted_for = leader

    # Roles

    def become_leader(self, now_ns: int, silent_master: str | None = None) -> None:
        """Lead the current term. `silent_master`: the former master, if its silence made this
        replica master."""
        self._enter(Role.LEADER, self._config.node, self.candidacy)
        self._handovers.begin_leading()
        self._log.begin_leading()
        self._isr.begin_leading()
        self.leading = self._new_leader(self.term, now_ns, silent_master)

    def take_office(self, now_ns: int) -> None:
        """Lead the epoch for which the controller appointed this replica, or step down for its
        master."""
        membership, me = self._membership, self._config.node
        agreed = membership.policy.agreed
        if agreed is None or agreed.epoch <= self.term:
            return
        if agreed.master == me and membership.policy.may_campaign() and membership.counts():
            if self.role is Role.LEADER:
                self.become_follower(
                    agreed.epoch, None, now_ns, Reason(agreed.cause, agreed.asked_by)
                )
            self.term, self.voted_for = agreed.epoch, me
            if (agreed.asked_by, agreed.cause) != (me, self.candidacy.cause):
                self.candidacy = Reason(agreed.cause, agreed.asked_by)
            self.become_leader(
                now_ns, self.last_leader if self.candidacy.cause is Cause.ELECTION_TIMEOUT else None
            )
        elif self.role is Role.LEADER:
            self.become_follower(
                agreed.epoch, None, now_ns, self._handovers.reason_to_yield(agreed.master)
            )

    def become_follower(
        self, term: int, leader: str | None, now_ns: int, reason: Reason | None = None
    ) -> None:
        """Follow a leader, or none; also for a change of leader or term. What was verified against
        the old leader is forgotten."""
        changed = (term, leader) != (self.term, self.leader)
        if changed:
            self._log.forget_verified()
        if self.role is Role.LEADER:
            self._timer.contact(now_ns)
        if term > self.term:
            self.term = term
            self.voted_for = None
        self._enter(self._membership.resting_role(), leader, reason)
        if changed:
            self.following = (
                None if leader is None else Follower(self._parts, self._answers, leader, term)
            )
        self._timer.restart(now_ns)

    def _enter(self, role: Role, leader: str | None, reason: Reason | None = None) -> None:
        """Change the role. `reason`: why another replica leads now, or none; it is reported if a
        leader came or went."""
        self.role_changed |= (role, leader) != (self.role, self.leader)
        self._note_change(role, leader, reason or Reason(Cause.FOLLOWED, leader or ""))
        self._handovers.drop()
        self.role = role
        self.leader = leader
        self.candidate = self.leading = None
        if leader is None or role is Role.LEADER:
            self.following = None
        if role is not Role.LEADER:
            self._reads.lose()

    def rest(self) -> None:
        """Update the resting role after a change of members or commit index: a follower may have
        become a learner, or the reverse."""
        if self.role is Role.FOLLOWER or self.role is Role.LEARNER:
            role = self._membership.resting_role()
            if self.role is not role:
                self.role, self.role_changed = role, True

    def take_role_changed(self) -> bool:
        changed, self.role_changed = self.role_changed, False
        return changed

    # Why leadership moved

    def take_changes(self) -> tuple[LeaderChange, ...]:
        """The changes of leadership since the last call."""
        changes = tuple(self._changes)
        self._changes.clear()
        return changes

    def has_led(self, term: int, leader: str) -> bool:
        """Whether this is the last known leader, in the same term."""
        return term == self.led_term and leader == self.last_leader

    def _note_change(self, role: Role, leader: str | None, reason: Reason) -> None:
        if leader is not None and (self.term, leader) != (self.led_term, self.last_leader):
            self._changes.append(LeaderChange(self.term, self.last_leader, leader, reason))
            self.led_term, self.last_leader = self.term, leader
        elif self.role is Role.LEADER and role is not Role.LEADER:
            self._changes.append(LeaderChange(self.led_term, self.last_leader, None, reason))
