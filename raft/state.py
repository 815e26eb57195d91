"""What one replica of a group has in mind: every field that the layers above share, how the fields hang together, and what
the members make of this replica.

The lowest layer of the core. Nothing is decided here and no message is read: `check_invariants` says what every layer must leave true.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.appointments import Appointment, Wish
from ledgermq.raft.config import Chance, Members, RaftConfig
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import Configurations, Eviction
from ledgermq.raft.messages import NO_INDEX, Message
from ledgermq.raft.progress import Peer
from ledgermq.raft.reads import Reads
from ledgermq.raft.trail import Trail
from ledgermq.raft.transfer import Cause, Handover, LeaderChange, Reason

NEVER_NS = 1 << 62
MS = 1_000_000
CHANGES_KEPT = 64
"""Of what nobody took yet."""
SLACK_FACTOR = 2
"""The next sign of life may be overdue by so many times as much as the latest late one."""
SLACK_FADES = 8
"""Slack shrinks by this part of the time that passes."""


class State:
    """Public counters, all indexes −1 for none:

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
        self._news_due_ns = NEVER_NS
        """When peers are told what they do not know to be committed; NEVER_NS while they all know."""
        self._leader_heard_ns = now_ns
        self._slack_ns, self._slack_at_ns = 0, now_ns
        """What `slack_ns` was when a sign of life came late, and when that was."""
        self._excused = False
        """The election timer that runs now ran out once already, when this replica was late itself."""
        self._election_due_ns = 0
        self._restart_election_timer(now_ns)
        self._truncate_from: int | None = None
        self._early = False
        self._append: tuple[int, int] | None = None
        self._appending: tuple[int, int] | None = None
        self._leader_commit = NO_INDEX
        self._said: tuple[int, int, int] | None = None
        """When the leader that is followed was heard last, its commit index and where its log ended, by its own word."""
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
        self.appointment: Appointment | None = None
        """The latest that this replica heard of, whatever rule the group has now."""
        self._joining: set[str] = set()
        """Whom a master wished into the in-sync set of the version it knows: each of them may be in it already."""
        self._evicting: dict[str, Eviction] = {}
        """The nodes that a change of members wants out of the in-sync set. Within an epoch entered when the change is proposed, and removed
        only by the review of the set (`appointing.py`)."""
        self._wishes: list[Wish] = []
        self._canvass_until_ns = NEVER_NS
        """Until when answers to a canvass are waited for; NEVER_NS without one."""
        self._review_due_ns = now_ns
        self._agreed_ns = -NEVER_NS
        """When the last news of the controller came."""
        self._silent_master: str | None = None
        """Whose silence made this replica master."""
        self._trail = Trail()
        self.restarts: Counter[str] = Counter()
        """How often a peer without progress was compared with from the beginning."""
        self.refused: Counter[str] = Counter()
        """Messages that were not heard, by reason."""
        self.check_invariants()

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

    # Standing: what the members make of this replica

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

    def _leaves(self) -> bool:
        """A voter that is being removed, until that is committed. It was this very directory that voted: a new one in its place never
        counts for what was promised by the lost one, on whose account a candidate without that entry may have been elected."""
        node, before = self.config.node, self.configurations.before
        if self.configurations.latest_index <= self.commit_index or node in self.members.voters or node not in before.voters:
            return False
        return self._admitted_by(before) and (node not in self.members.incarnations or self.admitted)

    def _resting_role(self) -> Role:
        """What this replica is when it neither leads nor campaigns."""
        return Role.FOLLOWER if self.config.node in self.members.voters or self._leaves() else Role.LEARNER

    # What every layer does to it

    @property
    def replicated_index(self) -> int:
        """What an earlier acknowledgement may rest on (docs/decisions/2026-11-21-flush-policies.md). Never called durable."""
        return max(self.commit_index, self._held_by_majority if self.role is Role.LEADER else NO_INDEX)

    def _restart_election_timer(self, now_ns: int) -> None:
        """Invariant: a follower neither campaigns nor votes for another within the shortest election timeout after it heard the leader,
        because slack is never negative. Leases (`reads.lease_ns`) rest on that shortest timeout, whatever slack any replica has."""
        self._election_due_ns = now_ns + self._drawn_timeout_ns() + self.slack_ns(now_ns)
        self._excused = False

    def _drawn_timeout_ns(self) -> int:
        timing = self.config.timing
        return round(self._chance.uniform(timing.election_min_ns, timing.election_max_ns))

    def slack_ns(self, now_ns: int) -> int:
        """By how much a silence may last longer than its timeout, because this replica has lately heard a living leader, or as leader a
        quorum, late: some node gets too little processor time, and is not dead. It fades while signs of life are on time. Timers alone
        depend on it: no vote, no lease and no commit does."""
        return max(0, self._slack_ns - (now_ns - self._slack_at_ns) // SLACK_FADES)

    @property
    def slack_ms(self) -> int:
        """When this replica was last told the time."""
        return self.slack_ns(self._now_ns) // MS

    def _note_silence(self, silent_ns: int, now_ns: int) -> None:
        """A silence of a leader that lives, or of a quorum that is there, ended now. One lost heartbeat is not late."""
        timing = self.config.timing
        slack_ns = min(SLACK_FACTOR * (silent_ns - 2 * timing.heartbeat_ns), timing.slack_max_ns)
        if slack_ns > self.slack_ns(now_ns):
            self._slack_ns, self._slack_at_ns = slack_ns, now_ns

    def urge(self) -> None:
        """Nothing of what the log holds now may wait any longer for its sync; a leader tells its peers with the next `take`."""
        self.urgent_index = self.log.end_index

    def _stop(self, reason: str) -> None:
        """Fence: from now on nothing is decided any more, the driver must stop."""
        self._fence = self._fence or reason
