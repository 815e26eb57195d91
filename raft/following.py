"""Following a leader (Raft §5.3): make the log the leader's, and say how far it is so, and how much of that is durable.

What conflicts is cut, never what is committed or was verified against this very leader: that fences, as does a chain that differs. A range
counts as received once the driver wrote it. An answer names received and durable apart, and says if this copy does not count.
"""

from __future__ import annotations

from ledgermq.proto.types import Role
from ledgermq.raft.config import Members, Rule
from ledgermq.raft.elections import Elections
from ledgermq.raft.messages import NO_INDEX, NO_TERM, Append, AppendReply, Heard, LeftBehind


class Following(Elections):
    """What an `Append` does to the log, and the answers to it."""

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

    @property
    def heard(self) -> Heard | None:
        """Of the leader that is followed; None without one."""
        if self.leader is None or self._said is None:
            return None
        at_ns, commit_index, end_index = self._said
        return Heard(self.leader, self.term, at_ns, end_index, commit_index)

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
        if self.members.rule is Rule.IN_SYNC and message.term == self.term and self.voted_for not in (None, message.sender):
            # One master per epoch: this one's was promised to somebody else, by votes before the group changed its rule. It takes another.
            self._become_follower(self.term + 1, None, now_ns)
            return self._answer_append(message.sender, 0, True, NO_INDEX, NO_INDEX)
        known = (message.term, message.sender) == (self._led_term, self._last_leader)
        if (message.term, message.sender) != (self.term, self.leader):
            yields = self.role is Role.LEADER
            self._become_follower(message.term, message.sender, now_ns, self._reason_to_yield(message.sender) if yields else None)
        if self.members.rule is not Rule.MAJORITY and self.voted_for is None:
            # Epoch and master are durable, like a vote, before anything of this message is
            # (docs/architecture.md, HA groups). Under the rule ALL this replica may have voted for another candidate of the term,
            # against which the leader was elected: that vote is not taken back.
            self.voted_for = message.sender
        if known:
            self._note_silence(now_ns - self._leader_heard_ns, now_ns)
        self._leader_heard_ns = now_ns
        self._restart_election_timer(now_ns)
        if message.round > self._seen_round:
            # Whether the logs agree does not matter: this is how far the leader's is.
            self._said = now_ns, message.commit_index, max(message.end_index, message.last_index)
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

    def _revert_members(self, index: int) -> None:
        """An entry that is cut off takes its members with it (dissertation §4.1)."""
        if self.configurations.truncate_from(index):
            self._rest()

    def append_written(self) -> None:
        """The range of the last `Writes.append` is in the log now; only from here on it counts as received."""
        assert self._appending is not None
        self.verified_index = max(self.verified_index, self._appending[1])
        self._appending = None
        self._reply_owed = True
        self._follow_commit()
        if (self._early or self._pulls()) and self.leader is not None:
            self._accept(self.leader)

    def append_refused(self) -> None:
        """That range could not be written (disk full): the log still ends before it, and the leader will push it again."""
        assert self._appending is not None
        self.log.truncate_from(self._appending[0])
        self._revert_members(self._appending[0])
        self.urgent_index = min(self.urgent_index, self.log.end_index)
        self._appending = None

    def _follow_commit(self) -> None:
        """What the leader committed, as far as our log is known to be the leader's."""
        self.commit_index = max(self.commit_index, min(self._leader_commit, self.verified_index))
        self._rest()

    def _accept(self, to: str) -> None:
        """Tell the leader how far we agree with it, and how much of that is durable."""
        self._answer_append(to, self._seen_round, False, self.verified_index, self._durable_claim())

    def _pulls(self) -> bool:
        """Whether this slave asks for every range."""
        return self.config.ha.pull and self.members.rule is Rule.IN_SYNC

    def _reject(self, message: Append) -> None:
        """Name the last entry that can still be common, so that the leader steps back by terms, never below what is committed."""
        hint = max(self.log.last_at_most(message.prev_index, message.prev_term), min(self.commit_index, message.prev_index))
        hint_term = self.log.term_at(hint)
        self._answer_append(message.sender, message.round, True, hint, NO_INDEX, NO_TERM if hint_term is None else hint_term)

    def _answer_append(self, to: str, round_: int, rejected: bool, received: int, durable: int, hint_term: int = NO_TERM) -> None:
        me = self.config
        said = (rejected, received, durable, hint_term, self.leaving, not self._counts(), not rejected and self._pulls())
        self._messages.append(AppendReply(me.node, to, self.term, round_, me.boot_id, *said))

    def _on_left_behind(self, message: LeftBehind) -> None:
        if (message.term, message.sender) == (self.term, self.leader):
            self._left_behind = (message.sender, message.begin_index)
