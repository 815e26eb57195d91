"""One replica's mind: elections, replication and commit of one broker group (Raft, with the changes of design §5).

Here live decisions only. The driver reports time, messages, its own appends and finished syncs, and carries out what `take` returns in the
order `Effects` fixes. Rules that safety hangs on have a method of their own, named for the rule.

Roles: a follower whose election timeout passes asks for pre-votes (still in its term), then for votes in the next term; a majority makes
it leader. A leader that a majority has not answered for one maximum election timeout steps down. A voter that hears its leader refuses
everyone else. A leader never leads the same term twice: each campaign takes a new term, durable before the first request leaves.
A replica whose loss nobody would notice yet, because it is not admitted or no member, follows, and says that its copy does not count.

A leader hands over on request (Raft dissertation §3.10, `transfer.py`): it stops accepting entries once the target is near, lets everything
become committed and durable there, and tells it to campaign. Whoever is asked for a vote then does not insist on the leader it hears.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from ledgermq.proto.types import HardState, PeerProgress, Role
from ledgermq.raft.config import Chance, Members, RaftConfig
from ledgermq.raft.effects import Effects, Push, Writes
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import Change, Configurations, MemberChange, changed
from ledgermq.raft.messages import (
    NO_INDEX,
    NO_TERM,
    Append,
    AppendReply,
    Extent,
    LeftBehind,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ledgermq.raft.progress import Peer, Stage
from ledgermq.raft.quorum import Ballot, ballot, majority, reached_by_majority
from ledgermq.raft.reads import Reads, lease_ns
from ledgermq.raft.transfer import HANDOVERS, Cause, Handover, LeaderChange, Reason

NEVER_NS = 1 << 62
MS = 1_000_000
CHANGES_KEPT = 64
"""Of what nobody took yet."""


class Core:
    """See the module. Public counters, all indexes −1 for none:

    term, voted_for   as last decided; durable once the driver carried out `Writes.hard_state`
    end_index         last entry of the log; the driver moves it (`appended`) on a leader, `step` on a follower
    durable_index     ≤ end_index; moved by `synced`, lowered by truncation
    verified_index    ≤ end_index; on a follower the last entry known to equal the current leader's; only rises while that one is followed
    commit_index      ≤ end_index; never falls; counts durable copies only
    urgent_index      ≤ end_index; everything up to it is to be made durable without delay, here and, on a leader, on every peer
    early_index       ≤ end_index; on a leader the last entry whose arrival at the peers is worth a reply of its own
    replicated_index  commit_index ≤ it ≤ end_index; on a leader the last entry of its term that a majority holds, durable or not
    """

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
        """`log` holds durable entries only. `commit_index` is known to be committed *and* durable here, for example from a snapshot.
        `admitted`: every other voter knows this very directory, so that an empty one in its place would be noticed. `configurations`: what
        is known of the log's begin, and every membership entry after it; without any the members are those of `config`."""
        self.config = config
        self.met_by_all = admitted
        self.log = log
        self.configurations = Configurations(tuple(configurations) or ((NO_INDEX, config.members),))
        self.term = hard_state.term
        self.voted_for = hard_state.vote
        self.leader: str | None = None
        self.durable_index = log.end_index
        self.verified_index = NO_INDEX
        # Only what was committed is ever trimmed.
        self.commit_index = max(commit_index, log.begin_index - 1)
        self.urgent_index = NO_INDEX
        self.early_index = NO_INDEX
        self._held_by_majority = NO_INDEX
        self.role = self._resting_role()
        self.peers: dict[str, Peer] = {}
        self.handover: Handover | None = None
        self.handover_failure = ""
        """Why the last handover came to nothing, for people; empty while one is under way."""
        self.leaving = False
        """See `leave`."""
        self._last_leader: str | None = None
        self._led_term = -1
        """The last leader that was known, and its term."""
        self._candidacy = Reason(Cause.STARTED)
        self._changes: deque[LeaderChange] = deque(maxlen=CHANGES_KEPT)
        self._chance = chance
        self._saved = hard_state
        self._pre = False
        self._votes: dict[str, bool] = {}
        self._round = 0
        self._seen_round = 0
        self._reply_owed = False
        self._cut_since_sync: int | None = None
        self._heartbeat_due_ns = now_ns
        self._leader_heard_ns = now_ns
        self._election_due_ns = 0
        self._restart_election_timer(now_ns)
        self._truncate_from: int | None = None
        self._early = False
        self._append: tuple[int, int] | None = None
        self._appending: tuple[int, int] | None = None
        self._leader_commit = NO_INDEX
        self._messages: list[Message] = []
        self._fence: str | None = None
        self._role_changed = False
        self._now_ns = now_ns
        # A directory that never saw a term promised nothing to any leader.
        self._promised_until_ns = now_ns + config.timing.election_min_ns if hard_state.term > 0 else now_ns
        self._reads = Reads()
        self._lease_given_up = False
        self._retiring = False
        self._left_behind: tuple[str, int] | None = None
        self.restarts: Counter[str] = Counter()
        """How often a peer without progress was compared with from the beginning."""
        self.refused: Counter[str] = Counter()
        """Messages that were not heard, by reason."""
        self.check_invariants()

    # Inputs

    def tick(self, now_ns: int) -> None:
        """Time passed. After a pause of the process step what has arrived first: it may be the sign of life that `tick` would miss."""
        self._now_ns = now_ns
        if self.role is Role.LEADER:
            silent_ns = now_ns - self._quorum_contact_ns(now_ns)
            if silent_ns >= self.config.timing.election_max_ns:
                self._become_follower(self.term, None, now_ns, Reason(Cause.NO_MAJORITY, "", silent_ns // MS))
            elif self.handover is not None and now_ns >= self.handover.until_ns:
                self._give_up_handover(self._why_late(self.handover))
        elif self._may_campaign() and now_ns >= self._election_due_ns:
            silent_ms = (now_ns - self._leader_heard_ns) // MS
            known = self._last_leader is not None
            self._candidacy = Reason(Cause.ELECTION_TIMEOUT, self._last_leader or "", silent_ms) if known else Reason(Cause.STARTED)
            self._campaign(now_ns, pre=True)

    def admit(self) -> None:
        """Take part from now on, for good. An election that is overdue begins with the next `tick`."""
        self.met_by_all = True

    def trimmed(self, begin_index: int) -> None:
        """The log begins with `begin_index` now: what is gone was committed, and a peer that lacks it needs another way to get it."""
        assert begin_index <= self.commit_index + 1, (begin_index, self)
        self.log.trim(begin_index)
        self.configurations.trim(begin_index)
        for peer in self.peers.values():
            peer.keep_from(begin_index, self._round)

    def chain_question(self, message: Append) -> int | None:
        """The one index at which the driver must compare chain CRCs before it steps this message: the last entry that both logs hold with
        equal term. Equal words there mean equal history; None when there is no such entry."""
        extent = message.extent
        if extent is not None and extent.last_index >= self.log.begin_index - 1:
            first = max(extent.first_index, self.log.begin_index - 1)
            if self.log.term_at(first) == extent.term:
                return min(extent.last_index, self.log.run_end(first))
        if message.prev_index >= 0 and self.log.term_at(message.prev_index) == message.prev_term:
            return message.prev_index
        return None

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
        if early:
            self.early_index = extent.last_index
        self._advance_replicated()

    def urge(self) -> None:
        """Nothing of what the log holds now may wait any longer for its sync; a leader tells its peers with the next `take`."""
        self.urgent_index = self.log.end_index

    def append_written(self) -> None:
        """The range of the last `Writes.append` is in the log now; only from here on it counts as received."""
        assert self._appending is not None
        self.verified_index = max(self.verified_index, self._appending[1])
        self._appending = None
        self._reply_owed = True
        self._follow_commit()
        if self._early and self.leader is not None:
            self._accept(self.leader)

    def append_refused(self) -> None:
        """That range could not be written (disk full): the log still ends before it, and the leader will push it again."""
        assert self._appending is not None
        self.log.truncate_from(self._appending[0])
        self._revert_members(self._appending[0])
        self.urgent_index = min(self.urgent_index, self.log.end_index)
        self._appending = None

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
        elif self._reply_owed and self.leader is not None:
            self._reply_owed = self._durable_claim() < self.verified_index
            self._accept(self.leader)

    def pushed(self, to: str, extent: Extent) -> Append:
        """The driver read this range for a `Push`; the message that carries it."""
        peer = self.peers[to]
        message = self._append_to(peer, extent.first_index - 1, extent)
        peer.pushed(extent, message.round)
        return message

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
            pushes = self._replicate(now_ns)
            self._reads.answered(self._answered_round())
        left_behind, self._left_behind = self._left_behind, None
        messages, self._messages = (tuple(self._messages) if self._fence is None else ()), []
        changed, self._role_changed = self._role_changed, False
        reads = self._reads.take()
        return Effects(self._fence, writes, messages, pushes, self.commit_index, changed, reads, left_behind)

    def wake_at_ns(self, now_ns: int) -> int:
        """When `tick` and `take` are wanted at the latest."""
        if self.role is Role.LEADER:
            limit = NEVER_NS if self.handover is None else self.handover.until_ns
            return min(self._heartbeat_due_ns, self._quorum_contact_ns(now_ns) + self.config.timing.election_max_ns, limit)
        return self._election_due_ns if self._may_campaign() else NEVER_NS

    # Rules that safety hangs on, one method each

    @property
    def members(self) -> Members:
        """In effect as soon as appended (dissertation §4.1)."""
        return self.configurations.latest

    @property
    def admitted(self) -> bool:
        """A vote or a copy counts only if its loss would be noticed: the members name this very directory, or, where they name none, all
        other voters have met it."""
        return self._admitted_by(self.members)

    def _admitted_by(self, members: Members) -> bool:
        named = members.incarnations.get(self.config.node)
        return self.met_by_all if named is None or not self.config.incarnation else named == self.config.incarnation

    def _counts(self) -> bool:
        """Whether this copy may count: a voter's; or of one that is being removed, until that is committed; or of a learner for certain,
        which may have been made a voter since. An uncommitted learner may be a voter whose old promises are forgotten."""
        node, pending = self.config.node, self.configurations.latest_index > self.commit_index
        if node in self.members.voters or (node in self.members.learners and not pending):
            return self.admitted
        return self._leaves()

    def _leaves(self) -> bool:
        """A voter that is being removed, until that is committed. It was this very directory that voted: a new one in its place never
        counts for what was promised by the lost one, on whose account a candidate without that entry may have been elected."""
        node, before = self.config.node, self.configurations.before
        if self.configurations.latest_index <= self.commit_index or node in self.members.voters or node not in before.voters:
            return False
        return self._admitted_by(before) and (node not in self.members.incarnations or self.admitted)

    def _may_vote(self, request: VoteRequest) -> bool:
        """Whose copy counts; and whom the candidate's members name by this very directory: it was made a voter by an entry that is not here
        yet, and the one that made it a learner, which ended its old promises, was committed before (dissertation §4.1)."""
        named = self.members.incarnations.get(self.config.node, self.config.incarnation)
        return self._counts() or (named == self.config.incarnation == request.incarnation != "")

    def _may_campaign(self) -> bool:
        """A voter; or one that is being removed, until that is committed: the entry may need just this candidate (dissertation §4.2.2)."""
        return self._resting_role() is Role.FOLLOWER and self._counts()

    def _resting_role(self) -> Role:
        """What this replica is when it neither leads nor campaigns."""
        return Role.FOLLOWER if self.config.node in self.members.voters or self._leaves() else Role.LEARNER

    def _may_commit(self, index: int) -> bool:
        """Raft §5.4.2: a leader counts copies only for entries of its own term; earlier ones are committed by what follows them."""
        return self.log.term_at(index) == self.term

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

    def _was_trimmed(self, index: int) -> bool:
        """An entry that this log began to do without was committed: by leader completeness every later leader has the very same."""
        return index < self.log.begin_index - 1

    def _up_to_date(self, request: VoteRequest) -> bool:
        """Raft §5.4.1: the candidate's log holds everything a voter's does, by last term, then by length."""
        return (request.last_term, request.last_index) >= (self.log.end_term, self.log.end_index)

    def _hears_leader(self, now_ns: int) -> bool:
        """Stickiness: a voter that lately heard a living leader helps nobody to depose it."""
        if self.role is Role.LEADER or now_ns < self._promised_until_ns:
            # Before it stopped this replica may have heard a leader whose lease rests on that.
            return True
        return self.leader is not None and now_ns - self._leader_heard_ns < self.config.timing.election_min_ns

    # Elections

    def _campaign(self, now_ns: int, *, pre: bool, transfer: bool = False) -> None:
        self._enter(Role.CANDIDATE, None)
        self._pre = pre
        if not pre:
            self.term += 1
            self.voted_for = self.config.node
        self._votes = {self.config.node: True}
        self._restart_election_timer(now_ns)
        asked = self.term + int(pre)
        for voter in self.members.voters:
            if voter != self.config.node:
                known_by = self.members.incarnations.get(voter, "")
                end = self.log.end_index, self.log.end_term
                self._messages.append(VoteRequest(self.config.node, voter, asked, pre, *end, transfer, known_by))
        self._count_votes(now_ns)

    def _count_votes(self, now_ns: int) -> None:
        result = ballot(self.members.voters, self._votes)
        if result is Ballot.WON and self._pre:
            self._campaign(now_ns, pre=False)
        elif result is Ballot.WON:
            self._become_leader(now_ns)
        elif result is Ballot.LOST:
            self._become_follower(self.term, None, now_ns)

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
        if reply.granted or reply.term == self.term:
            self._votes[reply.sender] = reply.granted
            self._count_votes(now_ns)
        return None

    def _become_leader(self, now_ns: int) -> None:
        self._enter(Role.LEADER, self.config.node, self._candidacy)
        self.handover_failure = ""
        self._round = 0
        self._heartbeat_due_ns = now_ns
        # Of which class entries of earlier terms are, nobody knows any more.
        self.urge()
        self.early_index = self._held_by_majority = NO_INDEX
        self._lease_given_up = False
        self.peers = {node: Peer(node, self.log.end_index + 1, now_ns) for node in self.members.nodes if node != self.config.node}
        self._advance_commit()

    def _become_follower(self, term: int, leader: str | None, now_ns: int, reason: Reason | None = None) -> None:
        """Also the way from one leader or term to the next; whatever was verified against the old leader is not against the new."""
        if (term, leader) != (self.term, self.leader):
            self.verified_index = NO_INDEX
            self._leader_commit = NO_INDEX
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
        if role is not Role.LEADER:
            self.peers = {}
            self._reads.lose()

    def _restart_election_timer(self, now_ns: int) -> None:
        timing = self.config.timing
        self._election_due_ns = now_ns + round(self._chance.uniform(timing.election_min_ns, timing.election_max_ns))

    # Following

    def _on_append(self, message: Append, now_ns: int, chains_agree: bool, members: Members | None) -> None:
        if message.term < self.term:
            # A deposed leader learns of the newer term from this. Round 0: should it lead that term by now, this answers nothing it asked.
            return self._answer_append(message.sender, 0, True, NO_INDEX, NO_INDEX)
        assert self._append is None and self._appending is None, "carry out and report the last range before the next"
        extent = message.extent
        if extent is not None and (extent.membership != (members is not None) or (members and extent.first_index != extent.last_index)):
            self.refused["membership"] += 1
            return None
        if message.term == self.term and self.leader not in (None, message.sender):
            return self._stop(f"{message.sender} and {self.leader} both lead term {message.term} (invariant I1)")
        if (message.term, message.sender) != (self.term, self.leader):
            yields = self.role is Role.LEADER
            self._become_follower(message.term, message.sender, now_ns, self._reason_to_yield(message.sender) if yields else None)
        self._leader_heard_ns = now_ns
        self._restart_election_timer(now_ns)
        self._seen_round = max(self._seen_round, message.round)
        question = self.chain_question(message)
        if question is not None and not chains_agree:
            return self._stop(f"entry {question} of term {self.log.term_at(question)} differs from that of {message.sender} (invariant I2)")
        if self._was_trimmed(message.prev_index):
            self.verified_index = max(self.verified_index, self.log.begin_index - 1)
        elif message.prev_index >= 0 and self.log.term_at(message.prev_index) != message.prev_term:
            return self._reject(message)
        self._merge(message, members)
        if not message.lazy:
            self.urgent_index = max(self.urgent_index, min(message.last_index, self.log.end_index))
        self._early = message.early
        self._leader_commit = max(self._leader_commit, message.commit_index)
        if self._fence is None and self._append is None:
            self.verified_index = max(self.verified_index, message.last_index)
            self._follow_commit()
            self._accept(message.sender)
        return None

    def _follow_commit(self) -> None:
        """What the leader committed, as far as our log is known to be the leader's."""
        self.commit_index = max(self.commit_index, min(self._leader_commit, self.verified_index))
        self._rest()

    def _merge(self, message: Append, members: Members | None) -> None:
        """Raft §5.3: keep what is already there, cut what conflicts, append the rest."""
        extent = message.extent
        if extent is None:
            return
        # The entry before a trimmed log is compared too: where terms differ there, nobody looked at the range, and it must not get in.
        first = max(extent.first_index, self.log.begin_index - 1)
        if first <= extent.last_index and self.log.term_at(first) == extent.term:
            first = min(extent.last_index, self.log.run_end(first)) + 1
        if first > extent.last_index:
            return
        if first <= self.log.end_index:
            if first <= max(self.commit_index, self.verified_index, self.log.begin_index):
                return self._stop(
                    f"{message.sender} would replace entry {first}, but entries up to {self.commit_index} are committed, up to "
                    f"{self.verified_index} verified, and the log begins for good with {self.log.begin_index} (invariants I2, I3)"
                )
            self._cut_from(first)
        self.log.append(first, extent.last_index, extent.term)
        self._append = (first, extent.last_index)
        if members is not None:
            self.configurations.append(first, members)
            self._rest()

    def _cut_from(self, index: int) -> None:
        self._truncate_from = index
        self.log.truncate_from(index)
        self._revert_members(index)
        self.durable_index = min(self.durable_index, index - 1)
        self.urgent_index, self.early_index = min(self.urgent_index, index - 1), min(self.early_index, index - 1)
        self._cut_since_sync = index if self._cut_since_sync is None else min(index, self._cut_since_sync)

    def _accept(self, to: str) -> None:
        """Tell the leader how far we agree with it, and how much of that is durable."""
        self._answer_append(to, self._seen_round, False, self.verified_index, self._durable_claim())

    def _reject(self, message: Append) -> None:
        """Name the last entry that can still be common, so that the leader steps back by terms, never below what is committed."""
        hint = max(self.log.last_at_most(message.prev_index, message.prev_term), min(self.commit_index, message.prev_index))
        hint_term = self.log.term_at(hint)
        self._answer_append(message.sender, message.round, True, hint, NO_INDEX, NO_TERM if hint_term is None else hint_term)

    def _answer_append(self, to: str, round_: int, rejected: bool, received: int, durable: int, hint_term: int = NO_TERM) -> None:
        me = self.config
        said = (rejected, received, durable, hint_term, self.leaving, not self._counts())
        self._messages.append(AppendReply(me.node, to, self.term, round_, me.boot_id, *said))

    # Leading

    def _on_append_reply(self, reply: AppendReply, now_ns: int) -> None:
        if self.role is not Role.LEADER or reply.term < self.term:
            return None
        if reply.term > self.term:
            return self._become_follower(reply.term, None, now_ns, self._reason_to_yield(reply.sender))
        peer = self.peers[reply.sender]
        if not peer.admit(reply, self._round):
            self.refused["former-life"] += 1
            return None
        peer.heard(reply, now_ns, self.config.timing.election_max_ns)
        if reply.rejected:
            peer.rejected(reply, self.log, self._round)
        else:
            peer.accepted(reply, self.log.end_index, self._round)
            self._advance_commit()
            self._advance_replicated()
        peer.keep_from(self.log.begin_index, self._round)
        if self._reads.underway is not None:
            self._reads.answered(self._answered_round())
        return None

    @property
    def replicated_index(self) -> int:
        """What an earlier acknowledgement may rest on (docs/decisions/2026-11-21-flush-policies.md). Never called durable."""
        return max(self.commit_index, self._held_by_majority if self.role is Role.LEADER else NO_INDEX)

    def _advance_replicated(self) -> None:
        candidate = self._early_claim()
        if candidate > self._held_by_majority and self._may_commit(candidate):
            self._held_by_majority = candidate

    def _advance_commit(self) -> None:
        candidate = self._reached(self._durable_claim(), lambda peer: peer.durable)
        if candidate > self.commit_index and self._may_commit(candidate):
            self.commit_index = candidate

    def _quorum_contact_ns(self, now_ns: int) -> int:
        """When a majority had last been heard of, ourselves included."""
        return self._reached(now_ns, lambda peer: peer.contact_ns)

    def _answered_round(self) -> int:
        """The last round of which every member of a majority answered this one or a later one."""
        return self._reached(NEVER_NS, lambda peer: peer.answered_round)

    def _replicate(self, now_ns: int) -> tuple[Push, ...]:
        """Push what the windows allow; say something short to peers that get no push but are owed a heartbeat, a probe or commit news."""
        timing = self.config.timing
        asks = self._may_commit(self.commit_index) and self._reads.begin(self.commit_index, self._round + 1)
        beat = asks or now_ns >= self._heartbeat_due_ns
        if beat:
            self._heartbeat_due_ns = now_ns + timing.heartbeat_ns
        pushes = []
        for peer in self.peers.values():
            full = peer.next_index > self.log.end_index or peer.needs_snapshot
            size, ranges = (0, 0) if full else peer.room(timing.window_bytes, timing.window_ranges)
            news = peer.stage is Stage.FLOWING and not peer.underway and peer.told_commit < min(self.commit_index, peer.received)
            urgent = peer.stage is Stage.FLOWING and max(peer.told_urgent, peer.durable) < min(self.urgent_index, peer.received)
            if beat or peer.probe_due or ((news or urgent) and not ranges):
                self._messages.append(self._append_to(peer, peer.anchor(), None))
            if beat and peer.needs_snapshot:
                self._messages.append(LeftBehind(self.config.node, peer.node, self.term, self.log.begin_index))
            if ranges:
                pushes.append(Push(peer.node, peer.next_index, size, ranges))
        return tuple(pushes)

    def _append_to(self, peer: Peer, prev_index: int, extent: Extent | None) -> Append:
        self._round += 1
        term_there = self.log.term_at(prev_index)
        prev_term = NO_TERM if term_there is None else term_there
        lazy, early = self._may_be_late(peer, prev_index, extent), extent is not None and extent.first_index <= self.early_index
        me = self.config.node
        message = Append(me, peer.node, self.term, self._round, prev_index, prev_term, self.commit_index, extent, lazy, early)
        peer.asked(self._round, self._now_ns)
        peer.told_commit = max(peer.told_commit, min(self.commit_index, message.last_index))
        if not lazy:
            peer.told_urgent = max(peer.told_urgent, message.last_index)
        return message

    def _may_be_late(self, peer: Peer, prev_index: int, extent: Extent | None) -> bool:
        """Whether nothing up to the end of a message is waited for: neither in its range nor, as far as we know of the peer, before it."""
        if extent is not None:
            return extent.first_index > self.urgent_index
        return min(self.urgent_index, prev_index) <= peer.durable

    # Handing over (Raft dissertation §3.10)

    @property
    def accepting(self) -> bool:
        """Whether a proposal may be appended now: on a leader, but for the closed part of a handover."""
        return self.role is Role.LEADER and (self.handover is None or not self.handover.closed)

    def leave(self) -> None:
        """This replica is about to stop: it takes no leadership over any more, and says so."""
        self.leaving = True

    def keeps_up(self, node: str, now_ns: int) -> bool:
        """Leader only: whether this peer was heard within the shortest election timeout, and lacks nothing that is not under way to it."""
        peer = self.peers.get(node)
        if peer is None or self._objection(peer, now_ns):
            return False
        return peer.stage is Stage.FLOWING and peer.next_index > self.log.end_index

    def best_successor(self, now_ns: int) -> str | None:
        """Leader only: the voter that could take over soonest, if any is there."""
        peers = [self.peers[voter] for voter in self.members.voters if voter in self.peers]
        able = [(peer.durable, peer.received, peer.node) for peer in peers if self._objection(peer, now_ns) is None]
        return max(able)[2] if able else None

    def transfer(self, to: str, cause: Cause, now_ns: int, patience_ns: int) -> str | None:
        """Leader only: hand over to this voter. None: it is under way, and asking again makes it more patient. Else why not."""
        assert self.role is Role.LEADER and to != self.config.node and cause in HANDOVERS, (to, self)
        if to not in self.members.voters:
            return f"{to} is no voter of this group; its voters are {', '.join(self.members.voters)}"
        if objection := self._objection(self.peers[to], now_ns):
            return objection
        if self.handover is not None and self.handover.to != to:
            return f"leadership is being handed over to {self.handover.to} already"
        if self.handover is None:
            self.handover, self.handover_failure = Handover(to, cause, now_ns + patience_ns), ""
        self.handover.be_patient(now_ns + patience_ns)
        return None

    def _objection(self, peer: Peer, now_ns: int) -> str | None:
        """Why this peer could not take over."""
        if peer.boot_id is None:
            return f"{peer.node} has not answered this leader yet; it may be down"
        if peer.provisional:
            return f"the directory of {peer.node} is not known to all voters yet"
        if now_ns - peer.contact_ns >= self.config.timing.election_min_ns:
            return f"{peer.node} has not been heard for {(now_ns - peer.contact_ns) // MS} ms"
        if peer.needs_snapshot:
            return f"{peer.node} lacks entries that the leader's log does not hold any more"
        return f"{peer.node} is about to stop" if peer.leaving else None

    def _advance_handover(self, now_ns: int) -> None:
        """Close when the target is near; tell it to campaign when nothing is missing, and again with every heartbeat period."""
        handover = self.handover
        if handover is None:
            return
        peer = self.peers[handover.to]
        if peer.leaving:
            return self._give_up_handover(f"{peer.node} is about to stop")
        if not handover.closed and self.keeps_up(peer.node, now_ns):
            handover.close(now_ns + self.config.timing.election_max_ns)
            self.urge()
        if handover.closed and self._holds_everything(peer) and now_ns >= handover.again_ns:
            handover.told = self._lease_given_up = True
            handover.again_ns = now_ns + self.config.timing.heartbeat_ns
            me, end = self.config.node, self.log
            self._messages.append(TimeoutNow(me, peer.node, self.term, end.end_index, end.end_term, handover.cause))

    def _holds_everything(self, peer: Peer) -> bool:
        """The target wins any election, and nobody waits for an entry of ours any more: no caller is left with an unknown outcome."""
        end = self.log.end_index
        return peer.received >= end and peer.durable >= end and self.commit_index >= end

    def _on_timeout_now(self, message: TimeoutNow, now_ns: int) -> None:
        """Campaign in a term of our own at once, without a pre-vote; unless the word is old, or this replica is about to stop."""
        if (message.term, message.sender) != (self.term, self.leader) or self.role is not Role.FOLLOWER or not self._may_campaign():
            self.refused["stale-handover"] += 1
            return
        if self.leaving:
            return self._accept(message.sender)
        if (message.last_index, message.last_term) != (self.log.end_index, self.log.end_term):
            return
        self._candidacy = Reason(message.cause, message.sender)
        self._campaign(now_ns, pre=False, transfer=True)

    def _why_late(self, handover: Handover) -> str:
        peer = self.peers[handover.to]
        if not handover.closed:
            return f"{peer.node} did not come near the end of the log in time: it holds entry {peer.received} of {self.log.end_index}"
        if not handover.told:
            return f"{peer.node} did not store the last entries in time: entry {peer.durable} of {self.log.end_index} is durable there"
        return f"{peer.node} was told to take over and did not do so within {self.config.timing.election_max_ns // MS} ms"

    def _give_up_handover(self, why: str) -> None:
        """The leader goes on. Should the target campaign after all, its term deposes this leader as any other would."""
        self.handover, self.handover_failure = None, why

    # Members (dissertation ch. 4)

    def propose_members(self, change: MemberChange, now_ns: int) -> Members | str:
        """Leader only: the members after `change`, for the driver to append alone and at once; or why they cannot be changed so now, for
        people."""
        assert self.role is Role.LEADER, self
        self._now_ns = now_ns
        if self.handover is not None or not self.accepting:
            return "leadership is being handed over; ask the next leader"
        if not self._may_commit(self.commit_index):
            return f"this leader has not committed an entry of its term {self.term} yet; ask again"
        if self.configurations.latest_index > self.commit_index:
            return f"the change before, entry {self.configurations.latest_index}, is not committed yet; ask again"
        members = changed(self.members, change)
        if isinstance(members, str):
            return members
        if change.kind is Change.PROMOTE and (lag := self._lag(change.node, now_ns)):
            return lag
        return self._would_stall(members, now_ns) or members

    def due_change(self, now_ns: int) -> MemberChange | None:
        """Leader only: a learner that voted before it lost its directory, and has caught up: it is to be a voter again."""
        if self.role is not Role.LEADER:
            return None
        for node in sorted(self.members.returning):
            change = MemberChange(Change.PROMOTE, node, reason=f"{node} has caught up with a new directory")
            if isinstance(self.propose_members(change, now_ns), Members):
                return change
        return None

    def _lag(self, node: str, now_ns: int) -> str | None:
        """Why this learner could not stand in for a voter: it must lack nothing that is not under way to it."""
        peer = self.peers[node]
        if objection := self._objection(peer, now_ns):
            return objection
        if peer.stage is Stage.FLOWING and peer.next_index > self.log.end_index:
            return None
        lag = self.log.end_index - peer.received
        return f"{node} is {lag} entries behind entry {self.log.end_index}, the end of the log; promote it once it has caught up"

    def _would_stall(self, members: Members, now_ns: int) -> str | None:
        """Whether the new voters could not even commit the change: a majority of them must be there."""
        there = [voter for voter in members.voters if voter == self.config.node or self._is_there(self.peers[voter], now_ns)]
        needed = majority(len(members.voters))
        if len(there) >= needed:
            return None
        silent = ", ".join(voter for voter in members.voters if voter not in there)
        return (
            f"this would lose the quorum: {needed} of the voters {', '.join(members.voters)} are needed, and {silent} cannot be heard; "
            "nothing could be committed any more, not even this change"
        )

    def _is_there(self, peer: Peer, now_ns: int) -> bool:
        return peer.boot_id is not None and not peer.provisional and now_ns - peer.contact_ns < self.config.timing.election_max_ns

    def _change_members(self, extent: Extent, members: Members) -> None:
        """A leader's own change is in effect at once. Who is removed hears of it for a little while longer, so that it rests in peace."""
        assert extent.first_index == extent.last_index, extent
        before = self.members.incarnations
        self.configurations.append(extent.first_index, members)
        for node, peer in self.peers.items():
            peer.removed_by = None if node in members.nodes else peer.removed_by or extent.first_index
            if node in members.incarnations and before.get(node) != members.incarnations[node]:
                peer.rename(extent.first_index, self._round)
        for node in members.nodes:
            if node != self.config.node and node not in self.peers:
                self.peers[node] = Peer(node, self.log.end_index + 1, self._now_ns)

    def _revert_members(self, index: int) -> None:
        """An entry that is cut off takes its members with it (dissertation §4.1)."""
        if self.configurations.truncate_from(index):
            self._rest()

    def _rest(self) -> None:
        """Members or the commit index moved: a follower may have become a learner, or a learner a follower."""
        role = self._resting_role()
        if self.role in (Role.FOLLOWER, Role.LEARNER) and self.role is not role:
            self.role, self._role_changed = role, True

    def _retire(self, now_ns: int) -> None:
        """A leader that is no voter any more leads until that is committed (dissertation §4.2.2); then it hands over, or just stops."""
        if self.config.node in self.members.voters or self.configurations.latest_index > self.commit_index or self.handover is not None:
            return
        successor = None if self._retiring else self.best_successor(now_ns)
        if successor is None:
            self._become_follower(self.term, None, now_ns, Reason(Cause.REMOVED))
        else:
            self.transfer(successor, Cause.REMOVED, now_ns, self.config.timing.election_max_ns)
            self._retiring = True

    def _watch_peers(self, now_ns: int) -> None:
        """Compare anew with a peer that answers and gets nowhere; forget who was removed and had time to hear of it."""
        timing = self.config.timing
        for peer in tuple(self.peers.values()):
            if peer.stalled(self.log.end_index, now_ns, timing.stall_ns, timing.election_max_ns):
                peer.restart(self._round, now_ns)
                self.restarts[peer.node] += 1
            if peer.removed_by is not None and peer.removed_by <= self.commit_index:
                peer.forget_at_ns = peer.forget_at_ns or now_ns + timing.election_max_ns
                if now_ns >= peer.forget_at_ns:
                    del self.peers[peer.node]

    def _on_left_behind(self, message: LeftBehind) -> None:
        if (message.term, message.sender) == (self.term, self.leader):
            self._left_behind = (message.sender, message.begin_index)

    # Reads (dissertation §6.4)

    def read(self, token: int, now_ns: int) -> None:
        """ReadIndex (§6.4): `Effects.reads` will name the entry that must be applied before the read is answered, once a round of messages
        that begins after this was answered by a majority; or None, as soon as this replica does not lead."""
        self._now_ns = now_ns
        if self.role is Role.LEADER:
            self._reads.asked.append(token)
        else:
            self._reads.done.append((token, None))

    def lease_index(self, now_ns: int) -> int | None:
        """Leader only (§6.4.1): the entry that must be applied before a read is answered now, or None when nothing proves that nobody else
        leads. To be asked again after the data was read. Never again in a term in which a target was told to campaign: its requests for
        votes override what the voters promised, and may come late."""
        if self.role is not Role.LEADER or self._lease_given_up or self._fence is not None or not self._may_commit(self.commit_index):
            return None
        sent_ns = self._reached(now_ns, lambda peer: peer.confirmed_ns)
        return self.commit_index if now_ns - sent_ns < lease_ns(self.config.timing.election_min_ns) else None

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

    # Ending and looking

    def _stop(self, reason: str) -> None:
        """Fence: from now on nothing is decided any more, the driver must stop."""
        self._fence = self._fence or reason

    def peer_progress(self) -> tuple[PeerProgress, ...]:
        """What a leader knows of the others; empty elsewhere."""
        return tuple(
            PeerProgress(
                peer.node,
                Role.FOLLOWER if peer.node in self.members.voters else Role.LEARNER,
                peer.received if peer.stage is Stage.FLOWING else None,
                peer.durable if peer.stage is Stage.FLOWING else None,
                (self._now_ns - peer.contact_ns) // MS,
                peer.needs_snapshot,
                self.restarts[peer.node],
            )
            for peer in self.peers.values()
        )

    def check_invariants(self) -> None:
        """I4 and the relations in the class docstring; kept on in production."""
        self.log.check()
        end = self.log.end_index
        assert -1 <= self.durable_index <= end, self
        assert -1 <= self.verified_index <= end, self
        assert -1 <= self.commit_index <= self.replicated_index <= end, self
        assert -1 <= self.urgent_index <= end and self.early_index <= end, self
        assert self.term >= max(self.log.end_term, self._saved.term), self
        assert (self.role is Role.LEADER) == (self.leader == self.config.node), self
        assert self.role is not Role.LEADER or self.voted_for == self.config.node, self
        assert self.role is Role.LEADER or not self.peers, self
        assert self.handover is None or (self.role is Role.LEADER and self.handover.to in self.peers), self
        assert self.configurations.latest_index <= end, (self.configurations, self)
        assert self.role is not Role.LEADER or set(self.peers) >= set(self.members.nodes) - {self.config.node}, self
        for peer in self.peers.values():
            peer.check(end)
            assert peer.next_index >= self.log.begin_index and peer.anchor() >= self.log.begin_index - 1, (peer, self)

    def __repr__(self) -> str:
        candidate = "pre-candidate" if self.role is Role.CANDIDATE and self._pre else self.role.value
        return (
            f"{self.config.node} {candidate} term={self.term} vote={self.voted_for} leader={self.leader} end={self.log.end_index} "
            f"durable={self.durable_index} verified={self.verified_index} commit={self.commit_index}"
        )
