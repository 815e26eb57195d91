"""One replica's consensus: elections, replication and commit of one broker group (Raft; changes:
docs/architecture.md, Consensus).

The driver reports time, messages, its own appends and finished syncs, and carries out what `take`
returns, in the order that `Effects` fixes. The core itself decides nothing: it creates the parts,
dispatches each message to the part that the table `HANDLERS` names for the current role, and moves
this replica from role to role. Every field has one owner, the only class that writes it:

  log_state.py       end, durable, verified and committed indexes
  membership.py      the configuration in force, and what it makes of this replica
  election_timer.py  when this replica stops waiting for its leader
  election.py        term, vote, role
  follower.py        what is known of the leader that is followed          leader.py      what a leader knows of its peers
  isr.py             what the controller agreed on, and requests to it     isr_review.py  a master's review of the in-sync set
  handover.py        leadership that is handed over                        effects.py     what was decided and not taken yet

`policy.py` says what the rule of the group (majority, all, in-sync) means for each of them,
`member_changes.py` which changes of members a leader may propose.

A leader steps down if a majority has not answered for one maximum election timeout plus the slack
of `ElectionTimer.slack_ns`, and a master if it hears neither a slave nor the controller. A replica
that is not admitted or is not a member only follows, and says that its copy does not count, because
its loss would go unnoticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from ledgermq.proto.types import HardState, PeerProgress, Role
from ledgermq.raft.config import MS, Chance, Members, RaftConfig, Rule
from ledgermq.raft.effects import NO_WRITES, Effects, Outbox, Push, Writes
from ledgermq.raft.election import Election
from ledgermq.raft.election_timer import ElectionTimer
from ledgermq.raft.follower import Answers
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.handover import Handovers
from ledgermq.raft.isr import Isr
from ledgermq.raft.isr_review import IsrReview
from ledgermq.raft.leader import Leader
from ledgermq.raft.log_state import LogState
from ledgermq.raft.log_view import LogView
from ledgermq.raft.member_changes import MemberChanges
from ledgermq.raft.membership import Configurations, MemberChange, Membership
from ledgermq.raft.messages import (
    NO_INDEX,
    Append,
    AppendReply,
    Extent,
    LeaderContact,
    LeftBehind,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ledgermq.raft.parts import Parts
from ledgermq.raft.policy import POLICIES, Policy
from ledgermq.raft.progress import Peer
from ledgermq.raft.reads import Reads
from ledgermq.raft.transfer import Cause, Handover, LeaderChange, Reason


class Core:
    """Inputs, outputs, and the state that the driver may read. The parts are public for reading;
    only a part writes its own fields."""

    log_type: ClassVar[type[LogState]] = LogState
    membership_type: ClassVar[type[Membership]] = Membership
    election_type: ClassVar[type[Election]] = Election
    leader_type: ClassVar[type[Leader]] = Leader
    review_type: ClassVar[type[IsrReview]] = IsrReview
    changes_type: ClassVar[type[MemberChanges]] = MemberChanges
    policies: ClassVar[Mapping[Rule, type[Policy]]] = POLICIES

    def __init__(
        self,
        config: RaftConfig,
        log: LogView,
        hard_state: HardState,
        chance: Chance,
        now_ns: int,
        commit_index: int = NO_INDEX,
        *,
        admitted: bool = True,
        configurations: Iterable[tuple[int, Members]] = (),
    ) -> None:
        """`log` holds only durable entries. `commit_index` is known to be committed *and* durable
        here, for example from a snapshot. `admitted`: every other voter knows this very directory,
        so that an empty one in its place would be noticed. `configurations`: what is known of the
        log's begin, and every membership entry after it; if empty, the members are those of
        `config`."""
        self.config = config
        self.outbox = Outbox()
        self.reads = Reads()
        self.log = log
        self.log_state = self.log_type(log, commit_index)
        # A directory without a term has promised nothing to any leader.
        self.timer = ElectionTimer(config.timing, chance, now_ns, promised=hard_state.term > 0)
        self.isr = Isr(config, self.log_state, self.outbox)
        known = Configurations(tuple(configurations) or ((NO_INDEX, config.members),))
        self.membership = self.membership_type(
            config, self.log_state, known, self._policy_of, met_by_all=admitted
        )
        self.parts = parts = Parts(
            config=config,
            log=self.log_state,
            membership=self.membership,
            isr=self.isr,
            timer=self.timer,
            reads=self.reads,
            outbox=self.outbox,
        )
        self.handovers = Handovers(parts)
        self.answers = Answers(parts, self.handovers)
        self.election = self.election_type(
            parts, self.handovers, self.answers, hard_state, self._new_leader
        )
        self.changes = self.changes_type(parts, self.handovers)
        self._saved = hard_state
        self._now_ns = now_ns
        self.stirred = True
        """Something happened since the last `take` that may have to be told or sent before the next
        heartbeat."""
        self.check_invariants()

    def _policy_of(self, members: Members) -> Policy:
        return self.policies[members.rule](
            members, self.config, self.log_state, self.isr, self.timer
        )

    def _new_leader(self, term: int, now_ns: int, silent_master: str | None) -> Leader:
        return self.leader_type(self.parts, self.review_type, term, now_ns, silent_master)

    def check_invariants(self) -> None:
        """Invariant I4 and the checks of every part; kept on in production."""
        self.log_state.check()
        self.election.check()
        assert self.term >= max(self.log.end_term, self._saved.term), self
        assert self.handover is None or self.handover.to in self.peers, self
        assert self.configurations.latest_index <= self.log.end_index, (self.configurations, self)

    def __repr__(self) -> str:
        return repr(self.election)

    # What the driver may look at

    @property
    def commit_index(self) -> int:
        return self.log_state.commit_index

    @property
    def durable_index(self) -> int:
        return self.log_state.durable_index

    @property
    def verified_index(self) -> int:
        return self.log_state.verified_index

    @property
    def urgent_index(self) -> int:
        return self.log_state.urgent_index

    @property
    def early_index(self) -> int:
        return self.log_state.early_index

    @property
    def replicated_index(self) -> int:
        """The index that an early acknowledgement may rest on
        (docs/decisions/2026-11-21-flush-policies.md). On a leader this includes the last entry of
        its term that a quorum holds, durable or not; it is never called durable."""
        log = self.log_state
        return (
            log.commit_index
            if self.election.leading is None
            else max(log.commit_index, log.held_index)
        )

    @property
    def term(self) -> int:
        return self.election.term

    @property
    def voted_for(self) -> str | None:
        return self.election.voted_for

    @property
    def role(self) -> Role:
        return self.election.role

    @property
    def leader(self) -> str | None:
        return self.election.leader

    @property
    def peers(self) -> Mapping[str, Peer]:
        """The peers of a leader; empty in other roles."""
        leading = self.election.leading
        return {} if leading is None else leading.peers

    @property
    def members(self) -> Members:
        return self.membership.members

    @property
    def configurations(self) -> Configurations:
        return self.membership.configurations

    @property
    def admitted(self) -> bool:
        return self.membership.admitted

    @property
    def appointment(self) -> Appointment | None:
        return self.isr.appointment

    @property
    def agreed(self) -> Appointment | None:
        """What the controller agreed on for the rule in force; None before its first election."""
        return self.membership.policy.agreed

    @property
    def handover(self) -> Handover | None:
        return self.handovers.current

    @property
    def handover_failure(self) -> str:
        """Why the last handover failed, as a text for the operator; empty while one is under
        way."""
        return self.handovers.failure

    @property
    def accepting(self) -> bool:
        """Whether a proposal may be appended now: on a leader, except in the closed part of a
        handover."""
        handover = self.handovers.current
        return self.election.leading is not None and (handover is None or not handover.closed)

    @property
    def last_contact(self) -> LeaderContact | None:
        """The latest message of the leader that is followed; None without one."""
        following = self.election.following
        return None if following is None else following.last_contact

    @property
    def slack_ms(self) -> int:
        """The slack at the time of the latest tick or message, in ms."""
        return self.timer.slack_ns(self._now_ns) // MS

    @property
    def restarts(self) -> Counter[str]:
        return self.outbox.restarts

    @property
    def refused(self) -> Counter[str]:
        return self.outbox.refused

    def peer_progress(self) -> tuple[PeerProgress, ...]:
        """What a leader knows of the other members; empty in other roles."""
        leading = self.election.leading
        return () if leading is None else leading.progress(self._now_ns)

    def missing_isr(self, now_ns: int) -> int:
        """On a leader: how many members of the in-sync set would have to be heard again before
        anything can be committed."""
        leading = self.election.leading
        return 0 if leading is None else self.membership.policy.missing_isr(now_ns, leading.peers)

    def keeps_up(self, node: str, now_ns: int) -> bool:
        """Leader only: whether this peer was heard within the shortest election timeout, and
        everything it lacks is under way to it."""
        leading = self.election.leading
        return leading is not None and self.handovers.keeps_up(leading, node, now_ns)

    def best_successor(self, now_ns: int) -> str | None:
        """Leader only: the voter that could take over soonest; None if there is none."""
        leading = self.election.leading
        return None if leading is None else self.handovers.best_successor(leading, now_ns)

    def take_changes(self) -> tuple[LeaderChange, ...]:
        """The changes of leadership since the last call."""
        return self.election.take_changes()

    def _leading(self) -> Leader:
        leading = self.election.leading
        assert leading is not None, self
        return leading

    # Time

    def tick(self, now_ns: int) -> None:
        """Time has passed. After a pause of the process, first `step` the messages that arrived:
        one may be the missing sign of life."""
        self._now_ns = now_ns
        election, timer, policy = self.election, self.timer, self.membership.policy
        if policy.controller_elects:
            election.take_office(now_ns)
        if (leading := election.leading) is not None:
            if now_ns >= leading.contact_due_ns and (silent_ns := leading.silence_ns(now_ns)):
                election.become_follower(
                    election.term, None, now_ns, Reason(Cause.NO_MAJORITY, "", silent_ns // MS)
                )
                timer.postpone(policy.pause_after_silence_ns)
            elif self.handovers.current is not None:
                self.handovers.expire(leading, now_ns)
                self.stirred = True
        elif now_ns >= timer.due_ns and self.membership.may_campaign():
            if not timer.excuse(now_ns, follows=election.leader is not None):
                election.campaign_for_silence(now_ns)
        elif (candidate := election.candidate) is not None:
            election.end_canvass(candidate, now_ns)

    def wake_at_ns(self, now_ns: int) -> int:
        """The latest time for the next `tick` and `take`."""
        leading = self.election.leading
        if leading is None:
            return self.election.wake_at_ns()
        handover = self.handovers.current
        due_ns = leading.wake_at_ns()
        return due_ns if handover is None else min(due_ns, handover.until_ns)

    # Messages

    def concerns(self, message: Message) -> bool:
        """Whether a message is processed. Members are heard; so is a node that may be a member
        although the entry that says so is not here yet (dissertation §4.1): the leader of this or a
        later term, and a candidate with a longer log. Answers of strangers never count."""
        sender, members, election = message.sender, self.membership.members, self.election
        if message.to != self.config.node or sender == self.config.node:
            return False
        if (
            sender in members.voters
            or sender in members.learners
            or (election.leading is not None and sender in election.leading.peers)
        ):
            return True
        if isinstance(message, VoteRequest):
            view = self.log_state.view
            return (message.last_term, message.last_index) > (view.end_term, view.end_index)
        if isinstance(message, (Append, TimeoutNow, LeftBehind)):
            return message.term > election.term or (
                message.term == election.term and election.leader in (None, sender)
            )
        return False

    def step(
        self,
        message: Message,
        now_ns: int,
        *,
        chains_agree: bool = True,
        members: Members | None = None,
    ) -> None:
        """Process one message. For an `Append`, `chains_agree` answers `chain_question`, the bytes
        of its range were verified before, and `members` are those of its membership entry, if it
        has one."""
        if not self.concerns(message):
            self.outbox.refused["stranger"] += 1
            return
        self.handle(message, now_ns, chains_agree=chains_agree, members=members)

    def handle(
        self,
        message: Message,
        now_ns: int,
        *,
        chains_agree: bool = True,
        members: Members | None = None,
    ) -> None:
        """As `step`, for a message that `concerns` this replica."""
        if self.outbox.fence is not None:
            return
        self._now_ns = now_ns
        handler = HANDLERS.get((self.election.role, type(message)))
        if (
            handler is not None
            and handler(self, message, now_ns, chains_agree, members) is not False
        ):
            self.stirred = True

    def _vote(self, request: VoteRequest, now_ns: int, *_: object) -> None:
        self.election.on_vote_request(request, now_ns)

    def _count_vote(self, reply: VoteReply, now_ns: int, *_: object) -> None:
        self.election.on_vote_reply(reply, now_ns)

    def _follow(
        self, message: Append, now_ns: int, chains_agree: bool, members: Members | None
    ) -> None:
        """Follow the sender, in any role, because it leads its term."""
        election, log, sender, extent = (
            self.election,
            self.log_state,
            message.sender,
            message.extent,
        )
        if message.term < election.term:
            # A deposed leader learns of the newer term from this. Round 0: if it leads that term by
            # now, this answers no message of it.
            return self.answers.reject(sender, election.term, 0)
        assert log.appending is None and log.unreported is None, (
            "carry out and report the last range before the next"
        )
        if extent is not None and (
            extent.membership != (members is not None)
            or (members and extent.first_index != extent.last_index)
        ):
            self.outbox.refused["membership"] += 1
            return None
        if message.term == election.term and election.leader not in (None, sender):
            return self.outbox.stop(
                f"{sender} and {election.leader} both lead term {message.term} (invariant I1)"
            )
        elected_here = message.term == election.term and election.voted_for not in (None, sender)
        if elected_here and self.membership.policy.controller_elects:
            # One master per epoch: this one was promised to another by votes, before the group
            # changed its rule. The leader must take a new epoch.
            election.become_follower(election.term + 1, None, now_ns)
            return self.answers.reject(sender, election.term, 0)
        follows = message.term == election.term and sender == election.leader
        known = follows or election.has_led(message.term, sender)
        if not follows:
            reason = (
                self.handovers.reason_to_yield(sender) if election.leading is not None else None
            )
            election.become_follower(message.term, sender, now_ns, reason)
        if election.voted_for is None:
            election.vote_for_leader(sender)
        assert election.following is not None
        election.following.on_append(message, now_ns, chains_agree, members, known=known)
        if log.appending is None:
            # Otherwise the report of the write does this.
            election.rest()
        return None

    def _advance_peer(self, reply: AppendReply, now_ns: int, *_: object) -> bool:
        """A peer answered. Most answers move no commit and leave nothing to send: those of the
        slower peers, and those to heartbeats."""
        election, log = self.election, self.log_state
        if reply.term > election.term:
            election.become_follower(
                reply.term, None, now_ns, self.handovers.reason_to_yield(reply.sender)
            )
            return True
        leading = election.leading
        if reply.term < election.term or leading is None:
            return False
        before = log.commit_index, log.held_index
        leading.on_append_reply(reply, now_ns)
        return (log.commit_index, log.held_index) != before or leading.owes(reply.sender)

    def _take_over(self, message: TimeoutNow, now_ns: int, *_: object) -> None:
        """The leader hands over: campaign, unless the message is outdated or this replica is about
        to stop."""
        election, view, following = self.election, self.log_state.view, self.election.following
        stale = following is None or (message.term, message.sender) != (
            following.term,
            following.leader,
        )
        if stale or self.membership.policy.controller_elects or not self.membership.may_campaign():
            self._refuse_handover()
        elif self.handovers.leaving:
            assert following is not None
            following.accept()
        elif (message.last_index, message.last_term) == (view.end_index, view.end_term):
            election.campaign_as_told(message.sender, message.cause, now_ns)

    def _refuse_handover(self, *_: object) -> None:
        self.outbox.refused["stale-handover"] += 1

    def _fall_behind(self, message: LeftBehind, *_: object) -> None:
        if (message.term, message.sender) == (self.election.term, self.election.leader):
            self.outbox.leave_behind(message.sender, message.begin_index)

    # What the driver did

    def admit(self) -> None:
        """Take part from now on, permanently. An election that is overdue begins with the next
        `tick`."""
        self.stirred = True
        self.membership.admit()
        self.timer.demand_punctuality()

    def trimmed(self, begin_index: int) -> None:
        """The log now begins with `begin_index`; the removed entries were committed."""
        self.stirred = True
        self.log_state.trim(begin_index)
        self.membership.trim(begin_index)
        if self.election.leading is not None:
            self.election.leading.trimmed(begin_index)

    def appended(
        self,
        extent: Extent,
        *,
        urgent: bool = True,
        early: bool = False,
        members: Members | None = None,
    ) -> None:
        """Leader only: the driver appended this range in the leader's own term. `urgent`: it must
        become durable at once; `early`: a caller waits for `replicated_index` to reach it;
        `members`: what `propose_members` returned, for a membership entry alone."""
        leading, handover = self.election.leading, self.handovers.current
        assert leading is not None and not (handover is not None and handover.closed), self
        assert extent.term == self.election.term, (extent, self)
        assert extent.membership == (members is not None), (
            "a membership entry begins with propose_members"
        )
        self.stirred = True
        leading.appended(extent, members, self._now_ns, urgent=urgent, early=early)

    def append_written(self) -> None:
        """The range of the last `Writes.append` is in the log; only from now on it counts as
        received."""
        self.stirred = True
        self.log_state.append_written()
        if self.election.following is not None:
            self.election.following.append_written()
            self.election.rest()

    def append_refused(self) -> None:
        """The range of the last `Writes.append` could not be written (disk full): the log ends
        before it, and the leader pushes it again."""
        self.stirred = True
        self.membership.truncate_from(self.log_state.append_refused())
        self.election.rest()

    def sync_begins(self) -> tuple[int, int]:
        """(term, index) that a sync starting now will make durable; pass it to `synced`. One sync
        at a time."""
        if self.election.leading is not None:
            # Peers should sync what this copy syncs now, so that the sync leads to a commit.
            self.request_flush()
        return self.log_state.begin_sync()

    def synced(self, term: int, index: int) -> None:
        """The sync that began when the log ended with this entry succeeded."""
        log = self.log_state
        log.synced(term, index)
        if (leading := self.election.leading) is not None:
            before = log.commit_index, log.held_index
            leading.advance_commit()
            if not self.membership.policy.early_acks:
                # An early acknowledgement rests on this replica's own disk.
                leading.advance_held()
            self.stirred = self.stirred or (log.commit_index, log.held_index) != before
        elif (following := self.election.following) is not None:
            following.synced()

    def request_flush(self) -> None:
        """Everything in the log must be synced without delay; a leader tells its peers with the
        next `take`."""
        log = self.log_state
        if log.urgent_index < log.view.end_index:
            self.stirred = True
            log.request_flush()

    # What the driver and operators request

    def watch(self, watched: bool) -> None:
        """Whether a reader waits here for committed entries. A leader then sends commit news
        without waiting for a heartbeat."""
        begins = watched and not self.answers.watched
        self.answers.watch(watched)
        if begins and self.election.following is not None:
            self.election.following.reader_came()

    def propose_members(self, change: MemberChange, now_ns: int) -> Members | str:
        """Leader only: the members after `change`, for the driver to append alone and at once; or
        the reason against it, as a text for the operator: `NotYet` if a later request may
        succeed."""
        self._now_ns = now_ns
        return self.changes.propose(self._leading(), change, now_ns)

    def due_change(self, now_ns: int) -> MemberChange | None:
        """Leader only: a change that is due: the next rule of a change-over, or making a returned
        learner a voter again."""
        leading = self.election.leading
        if leading is None:
            return None
        self._now_ns = now_ns
        return self.changes.due(leading, now_ns)

    def transfer(self, to: str, cause: Cause, now_ns: int, patience_ns: int) -> str | None:
        """Leader only: hand over to this voter. None: it is under way; another call extends its
        deadline. Otherwise: why not."""
        return self.handovers.transfer(self._leading(), to, cause, now_ns, patience_ns)

    def note_full(self, nodes: frozenset[str]) -> None:
        """The nodes whose disks take no messages, as far as this replica knows: itself, and on a
        leader those that told it. Their logs are as good as any, so they vote, and lead if nobody
        else can; leadership avoids them while another replica has room."""
        self.handovers.note_full(nodes)
        self.timer.hold_back(self.config.node in nodes)

    def leave(self) -> None:
        """This replica is about to stop: it takes over no leadership any more, and tells the
        leader."""
        self.handovers.leave()

    def read(self, token: int, now_ns: int) -> None:
        """ReadIndex (dissertation §6.4): `Effects.reads` will return the entry that must be applied
        before the read is answered, once a quorum has answered a round of messages that begins
        after this call; or None as soon as this replica does not lead."""
        self._now_ns = now_ns
        self.reads.ask(token, leads=self.election.leading is not None)

    def appointed(self, appointment: Appointment, now_ns: int) -> None:
        """The controller agreed on this appointment; a late or repeated one has no effect."""
        if self.outbox.fence is not None or not self.isr.learn(appointment, now_ns):
            return
        self.stirred = True
        self._now_ns = now_ns
        election = self.election
        election.take_office(now_ns)
        agreed = self.membership.policy.agreed
        if election.role is Role.CANDIDATE and agreed is not None and agreed.epoch > election.term:
            # Another replica is master now. It is waited for once, not forever: it may have ended
            # before it was ever heard.
            election.become_follower(election.term, None, now_ns)
        if (leading := election.leading) is not None:
            leading.advance_commit()
            leading.advance_held()
            leading.review.hurry(now_ns)

    # Outputs

    def calm_until(self, now_ns: int) -> int | None:
        """When `tick` and `take` are needed next, if `take` would return nothing new: nothing to
        write, to send or to tell, the same commit index, the same role, term, leader and members.
        None if it may return something."""
        if self.stirred:
            return None
        election, outbox, reads = self.election, self.outbox, self.reads
        if (
            outbox.fence is not None
            or outbox.messages
            or outbox.requests
            or outbox.left_behind is not None
            or election.role_changed
        ):
            return None
        if (
            self.handovers.current is not None
            or reads.asked
            or reads.underway is not None
            or reads.done
        ):
            return None
        if election.leading is None:
            return election.wake_at_ns()
        wake_at_ns = election.leading.wake_at_ns()
        return wake_at_ns if now_ns < wake_at_ns else None

    def take_writes(self) -> Writes:
        """What must reach the disk. After stepping an `Append`, the driver calls this before the
        next one."""
        term, vote, saved, log = (
            self.election.term,
            self.election.voted_for,
            self._saved,
            self.log_state,
        )
        if (
            term == saved.term
            and vote == saved.vote
            and log.truncating_from is None
            and log.appending is None
        ):
            return NO_WRITES
        truncate_from, append = log.take_writes()
        if term != saved.term or vote != saved.vote:
            self._saved = HardState(term, vote)
            return Writes(self._saved, truncate_from, append)
        return Writes(None, truncate_from, append)

    def take(self, now_ns: int, *, syncs: bool = False) -> Effects:
        """Everything decided since the last call. `syncs`: a sync of the log begins right behind
        it; a leader's messages then ask the peers to sync too, so that all copies become durable
        together."""
        if syncs and self.election.leading is not None:
            self.request_flush()
        if not self.stirred and (calm_until_ns := self.calm_until(now_ns)) is not None:
            commit_index = self.log_state.commit_index
            return Effects(
                fence=None,
                writes=NO_WRITES,
                messages=(),
                pushes=(),
                commit_index=commit_index,
                role_changed=False,
                wake_at_ns=calm_until_ns,
            )
        self.stirred = False
        self._now_ns = now_ns
        pushes: tuple[Push, ...] = ()
        election, outbox, reads, handovers = self.election, self.outbox, self.reads, self.handovers
        if (
            election.leading is not None
            and outbox.fence is None
            and self.config.node not in self.membership.members.voters
        ):
            self._retire(election.leading, now_ns)
        writes = self.take_writes()
        if (leading := election.leading) is not None and outbox.fence is None:
            if handovers.current is not None:
                handovers.advance(leading, now_ns)
                # If the handover was given up, a leader that was removed steps down with the next
                # `take`.
                self.stirred = handovers.current is None
            if now_ns >= leading.heartbeat_due_ns:
                leading.watch_peers(now_ns)
            if self.membership.policy.controller_elects and now_ns >= leading.review.due_ns:
                leading.review.review(now_ns)
            pushes = leading.replicate(now_ns)
            if reads.underway is not None:
                reads.answered(leading.answered_round())
        messages = outbox.take_messages() if outbox.messages else ()
        changed = election.role_changed and election.take_role_changed()
        answers = reads.take() if reads.done else ()
        left_behind = None if outbox.left_behind is None else outbox.take_left_behind()
        requests = outbox.take_requests() if outbox.requests else ()
        commit_index = self.log_state.commit_index
        return Effects(
            fence=outbox.fence,
            writes=writes,
            messages=messages,
            pushes=pushes,
            commit_index=commit_index,
            role_changed=changed,
            reads=answers,
            left_behind=left_behind,
            requests=requests,
            wake_at_ns=self.wake_at_ns(now_ns),
        )

    def pushed(self, to: str, extent: Extent) -> Append:
        """The driver read this range for a `Push`. Returns the message that carries it."""
        return self._leading().pushed(to, extent, self._now_ns)

    def _retire(self, leading: Leader, now_ns: int) -> None:
        """This leader is no longer a voter. It leads until its removal is committed (dissertation
        §4.2.2); then it hands over or steps down."""
        membership, handovers = self.membership, self.handovers
        if membership.pending or handovers.current is not None:
            return
        successor = None if handovers.retiring else handovers.best_successor(leading, now_ns)
        if successor is None:
            self.election.become_follower(self.election.term, None, now_ns, Reason(Cause.REMOVED))
        else:
            handovers.transfer(
                leading, successor, Cause.REMOVED, now_ns, self.config.timing.election_max_ns
            )
            handovers.retire()


Handler = Callable[[Core, Any, int, bool, "Members | None"], "bool | None"]
"""Returns False if nothing that it changed has to be told or sent before the next heartbeat."""
HANDLERS: dict[tuple[Role, type[Any]], Handler] = {
    **{(role, VoteRequest): Core._vote for role in Role},
    **{(role, Append): Core._follow for role in Role},
    **{(role, TimeoutNow): Core._refuse_handover for role in Role},
    **{(role, LeftBehind): Core._fall_behind for role in (Role.FOLLOWER, Role.LEARNER)},
    (Role.FOLLOWER, TimeoutNow): Core._take_over,
    (Role.CANDIDATE, VoteReply): Core._count_vote,
    (Role.LEADER, AppendReply): Core._advance_peer,
}
"""Which handler takes each message in each role. A message without a handler is outdated: it
answers a question of a former role."""
