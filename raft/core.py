"""One replica's mind: elections, replication and commit of one broker group (Raft, with the changes of docs/architecture.md, Consensus).

The core lives in layers, each of which knows only those below it:

  state.py         the fields, and how they hang together
  rules.py         the rules that safety hangs on, one method each
  elections.py     votes and roles
  following.py     making the log the leader's             leading.py   bringing the log to the peers, reads
  handing_over.py  leadership goes over on request
  changing.py      members come and go, and so does the rule
  appointing.py    masters that the controller appoints, the in-sync set
  core.py          this: what the driver says to the core, and what the core leaves for it

Decisions only. The driver reports time, messages, its own appends and finished syncs, and carries out what `take` returns in the order
`Effects` fixes. A leader that a majority has not answered for one maximum election timeout and the slack of `State.slack_ns` steps down,
and so does a master that nobody answers. A replica whose loss nobody would notice yet, because it is not admitted or no member, follows,
and says that its copy does not count.
"""

from __future__ import annotations

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.appointing import Appointing
from ledgermq.raft.config import Members, Rule
from ledgermq.raft.effects import Effects, Push, Writes
from ledgermq.raft.messages import Append, Extent, LeftBehind, Message, TimeoutNow, VoteReply, VoteRequest
from ledgermq.raft.state import MS, NEVER_NS
from ledgermq.raft.transfer import Cause, Reason


class Core(Appointing):
    """Inputs and outputs; the counters are described at `State`."""

    # Inputs

    def tick(self, now_ns: int) -> None:
        """Time passed. After a pause of the process step what has arrived first: it may be the sign of life that `tick` would miss."""
        self._now_ns = now_ns
        self._take_office(now_ns)
        if self.role is Role.LEADER:
            if silent_ns := self._abandoned_ns(now_ns):
                self._become_follower(self.term, None, now_ns, Reason(Cause.NO_MAJORITY, "", silent_ns // MS))
                if self.members.rule is Rule.IN_SYNC:
                    # Others may hear each other, and the controller: they go first.
                    self._election_due_ns += self.config.timing.election_max_ns
            elif self.handover is not None and now_ns >= self.handover.until_ns:
                self._give_up_handover(self._why_late(self.handover))
        elif self._may_campaign() and now_ns >= self._election_due_ns:
            if self._excuse_late_tick(now_ns):
                return
            silent_ms = (now_ns - self._leader_heard_ns) // MS
            known = self._last_leader is not None
            self._candidacy = Reason(Cause.ELECTION_TIMEOUT, self._last_leader or "", silent_ms) if known else Reason(Cause.STARTED)
            self._campaign(now_ns, pre=True)
        elif now_ns >= self._canvass_until_ns:
            self._count_votes(now_ns)

    def _excuse_late_tick(self, now_ns: int) -> bool:
        """Whether a silence of the leader proves nothing, because this replica itself was late: while it got no processor time it could
        have heard nobody, and what the leader sent meanwhile may not have been read yet. It waits once more for as long as it was late,
        for a timeout without slack at most, which is time enough to read; a replica that is always late still campaigns the next time."""
        late_ns = now_ns - self._election_due_ns
        if self._excused or self.leader is None or late_ns < self.config.timing.heartbeat_ns:
            return False
        self._election_due_ns = now_ns + min(self._drawn_timeout_ns(), late_ns)
        self._excused = True
        return True

    def admit(self) -> None:
        """Take part from now on, for good. An election that is overdue begins with the next `tick`."""
        self.met_by_all = True
        # Until now nobody was asked to tick in time.
        self._excused = True

    def trimmed(self, begin_index: int) -> None:
        """The log begins with `begin_index` now: what is gone was committed, and a peer that lacks it needs another way to get it."""
        assert begin_index <= self.commit_index + 1, (begin_index, self)
        self.log.trim(begin_index)
        self.configurations.trim(begin_index)
        for peer in self.peers.values():
            peer.keep_from(begin_index, self._round)

    def concerns(self, message: Message) -> bool:
        """Whether it is to be heard: from a member; or from somebody who may well be one, although the entry that says so is not here yet
        (dissertation §4.1): the leader of this or a later term, and a candidate whose log goes beyond ours. Answers of strangers never
        count."""
        if message.to != self.config.node or message.sender == self.config.node:
            return False
        if message.sender in self.members.voters or message.sender in self.members.learners or message.sender in self.peers:
            return True
        if isinstance(message, VoteRequest):
            return (message.last_term, message.last_index) > (self.log.end_term, self.log.end_index)
        if isinstance(message, (Append, TimeoutNow, LeftBehind)):
            return message.term > self.term or (message.term == self.term and self.leader in (None, message.sender))
        return False

    def step(self, message: Message, now_ns: int, *, chains_agree: bool = True, members: Members | None = None) -> None:
        """Take in one message. For an `Append`, `chains_agree` answers `chain_question`; the bytes of its range were verified before, and
        `members` is what its membership entry says, if it pushes one."""
        if self._fence is not None:
            return
        if not self.concerns(message):
            self.refused["stranger"] += 1
            return
        self._now_ns = now_ns
        if isinstance(message, VoteRequest):
            self._on_vote_request(message, now_ns)
        elif isinstance(message, VoteReply):
            self._on_vote_reply(message, now_ns)
        elif isinstance(message, Append):
            self._on_append(message, now_ns, chains_agree, members)
        elif isinstance(message, TimeoutNow):
            self._on_timeout_now(message, now_ns)
        elif isinstance(message, LeftBehind):
            self._on_left_behind(message)
        else:
            self._on_append_reply(message, now_ns)

    def appended(self, extent: Extent, *, urgent: bool = True, early: bool = False, members: Members | None = None) -> None:
        """Leader only: the driver appended this range of the leader's own term. `urgent`: it is to become durable at once; `early`: its
        `replicated_index` is waited for; `members`: what `propose_members` returned, for a membership entry alone."""
        assert self.accepting and extent.term == self.term, (extent, self)
        assert extent.membership == (members is not None), "a membership entry begins with propose_members"
        self.log.append(extent.first_index, extent.last_index, extent.term)
        if members is not None:
            self._change_members(extent, members)
        if urgent:
            self.urgent_index = extent.last_index
        self._trail.total_bytes += extent.size
        if early and not (self.members.rule is Rule.IN_SYNC and self.config.ha.ack_async):
            self.early_index = extent.last_index
        self._advance_replicated()

    def sync_begins(self) -> tuple[int, int]:
        """(term, index) that a sync starting now will make durable; hand it back to `synced`. One sync at a time."""
        self._cut_since_sync = None
        if self.role is Role.LEADER:
            # What this copy does not wait with, no other needs to wait with: so the sync at hand leads to a commit.
            self.urge()
        return self.log.end_term, self.log.end_index

    def synced(self, term: int, index: int) -> None:
        """The sync that began when the log ended with this entry succeeded."""
        self.durable_index = max(self.durable_index, self._covered_by_sync(term, index))
        if self.role is Role.LEADER:
            self._advance_commit()
            self._advance_replicated()
        elif self._reply_owed and self.leader is not None:
            self._reply_owed = self._durable_claim() < self.verified_index
            self._accept(self.leader)

    # Outputs

    def take_writes(self) -> Writes:
        """What must reach the disk; after stepping an `Append` the driver calls this before the next one."""
        hard_state = HardState(self.term, self.voted_for)
        writes = Writes(None if hard_state == self._saved else hard_state, self._truncate_from, self._append)
        self._saved = hard_state
        self._appending = self._append
        self._truncate_from = self._append = None
        return writes

    def take(self, now_ns: int) -> Effects:
        """Everything decided since the last call."""
        self._now_ns = now_ns
        pushes: tuple[Push, ...] = ()
        if self.role is Role.LEADER and self._fence is None:
            self._retire(now_ns)
        writes = self.take_writes()
        if self.role is Role.LEADER and self._fence is None:
            self._advance_handover(now_ns)
            self._watch_peers(now_ns)
            self._review_in_sync(now_ns)
            pushes = self._replicate(now_ns)
            self._reads.answered(self._answered_round())
        left_behind, self._left_behind = self._left_behind, None
        messages, self._messages = (tuple(self._messages) if self._fence is None else ()), []
        changed, self._role_changed = self._role_changed, False
        reads = self._reads.take()
        wishes, self._wishes = (tuple(self._wishes) if self._fence is None else ()), []
        return Effects(self._fence, writes, messages, pushes, self.commit_index, changed, reads, left_behind, wishes)

    def wake_at_ns(self, now_ns: int) -> int:
        """When `tick` and `take` are wanted at the latest."""
        if self.role is Role.LEADER:
            limit = NEVER_NS if self.handover is None else self.handover.until_ns
            if self.members.rule is Rule.IN_SYNC:
                return min(self._heartbeat_due_ns, self._news_due_ns, self._review_due_ns, limit)
            alone_ns = self._quorum_contact_ns(now_ns) + self.config.timing.election_max_ns + self.slack_ns(now_ns)
            return min(self._heartbeat_due_ns, self._news_due_ns, alone_ns, limit)
        return min(self._election_due_ns, self._canvass_until_ns) if self._may_campaign() else NEVER_NS
