"""Following a leader (Raft §5.3): makes the log equal to the leader's, and reports how far it is
equal and how far that is durable.

Safety of commits rests on four rules of this module. Planted bugs break some of them
(`chain-not-verified`, `ack-before-sync`, `commit-unverified` of `sim/nodes/bugs.py`).

Histories are compared before a range is accepted. Raft compares index and term of the entry before
the range and infers by Log Matching that everything before it is equal. Here the driver has
compared the chain CRCs too, at the last entry that both logs hold with the same term
(`chain_question`). They can differ only if two leaders wrote in one term or a disk holds other
bytes than were written. From here nobody can say which of the two logs is right, and a cut could
destroy the only good copy of a committed entry. So the replica fences itself and changes nothing
(invariant I2).

Only what was never promised is cut. An entry that conflicts (the same index, another term) goes,
with all behind it. But a committed entry is in the log of every later leader (Leader Completeness,
§5.4.3), and an entry verified against this leader was in its log, of which a leader removes nothing
(Leader Append-Only). A leader that contradicts either of them has lost entries, or is not the only
one of its term. To obey it could delete what a client was told is safe, so that fences the replica
too (I3).

A range is received when it is written, not when it arrives. Messages of class `memory` are
acknowledged by received indexes. If a reply left before the write, the leader would count copies
that the end of a process, or a full disk, can still prevent. So nothing is verified or answered
while a range is decided but not reported as written (`append_written`).

A reply names two indexes, and both are about this leader's log: `received` is the last verified
entry, `durable` the last of those that is synced. Commit counts `durable` alone; with `received` a
power cut of a majority would lose committed entries (§5 demands stable storage before the answer).
Without the bound by `received`, synced entries of a deposed leader would count as copies of other
entries with the same indexes. For the same reason the commit index follows the leader's only up to
the last verified entry (figure 2: "index of last new entry"). Every reply also says whether this
copy does not count at all, because its loss would go unnoticed (`membership.py`).
"""

from __future__ import annotations

from ledgermq.raft.config import Members
from ledgermq.raft.handover import Handovers
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import NO_INDEX, NO_TERM, Append, AppendReply, Extent, LeaderContact
from ledgermq.raft.parts import Parts


def chain_question(view: LogView, message: Append) -> int | None:
    """The one index at which the driver must compare chain CRCs before it steps this message: the
    last entry that both logs hold with the same term. Equal chains there mean equal history. None
    if there is no such entry."""
    extent = message.extent
    if extent is not None and extent.last_index >= view.begin_index - 1:
        first = max(extent.first_index, view.begin_index - 1)
        if view.term_at(first) == extent.term:
            return min(extent.last_index, view.run_end(first))
    if message.prev_index >= 0 and view.term_at(message.prev_index) == message.prev_term:
        return message.prev_index
    return None


class Answers:
    """The replies of this replica to a leader.

    watched  a reader waits here for committed entries
    """

    def __init__(self, parts: Parts, handovers: Handovers) -> None:
        self._config = parts.config
        self._membership = parts.membership
        self._outbox = parts.outbox
        self._handovers = handovers
        self.watched = False

    def watch(self, watched: bool) -> None:
        self.watched = watched

    def accept(self, to: str, term: int, round_: int, received: int, durable: int) -> None:
        me, membership = self._config, self._membership
        self._outbox.messages.append(
            AppendReply(
                sender=me.node,
                to=to,
                term=term,
                round=round_,
                boot_id=me.boot_id,
                rejected=False,
                received=received,
                durable=durable,
                leaving=self._handovers.leaving,
                provisional=not membership.counts(),
                fetch=membership.policy.pulls,
                watched=self.watched,
            )
        )

    def reject(
        self, to: str, term: int, round_: int, hint: int = NO_INDEX, hint_term: int = NO_TERM
    ) -> None:
        me = self._config
        self._outbox.messages.append(
            AppendReply(
                sender=me.node,
                to=to,
                term=term,
                round=round_,
                boot_id=me.boot_id,
                rejected=True,
                received=hint,
                durable=NO_INDEX,
                hint_term=hint_term,
                leaving=self._handovers.leaving,
                provisional=not self._membership.counts(),
                watched=self.watched,
            )
        )


class Follower:
    """The role object of a follower: created when this replica learns of a leader of a term, and
    dropped when it no longer follows that leader in that term.

    leader, term  the leader that is followed, and its term
    """

    def __init__(self, parts: Parts, answers: Answers, leader: str, term: int) -> None:
        self._log = parts.log
        self._membership = parts.membership
        self._timer = parts.timer
        self._outbox = parts.outbox
        self._answers = answers
        self.leader = leader
        self.term = term
        self.last_contact: LeaderContact | None = None
        """The latest message of the leader; None before the first."""
        self._leader_commit = NO_INDEX
        self._seen_round = 0
        self._early = False
        self._reply_owed = False
        """The leader waits for what is written here but not durable yet."""

    def on_append(
        self,
        message: Append,
        now_ns: int,
        chains_agree: bool,
        members: Members | None,
        *,
        known: bool,
    ) -> None:
        """Process a message of the leader. `known`: this leader was heard before in this term, even
        if the role changed meanwhile."""
        log, view, timer, sender = self._log, self._log.view, self._timer, self.leader
        if known:
            timer.note_silence(now_ns - timer.last_contact_ns, now_ns)
        timer.heard(now_ns)
        prev_index = message.prev_index
        last_index = prev_index if message.extent is None else message.extent.last_index
        if message.round > self._seen_round:
            # Also if the logs differ: this is how far the leader's log goes.
            self.last_contact = LeaderContact(
                leader=sender,
                term=self.term,
                at_ns=now_ns,
                end_index=max(message.end_index, last_index),
                commit_index=message.commit_index,
            )
            self._seen_round = message.round
        if not chains_agree and (question := chain_question(view, message)) is not None:
            self._outbox.stop(
                f"entry {question} of term {view.term_at(question)} differs from that of {sender}"
                " (invariant I2)"
            )
            return
        if log.was_trimmed(prev_index):
            log.verify(view.begin_index - 1)
        elif prev_index >= 0 and view.term_at(prev_index) != message.prev_term:
            self._reject(message)
            return
        if message.extent is not None:
            self._merge(message.extent, members)
        if not message.lazy:
            log.request_flush_to(last_index)
        self._early = message.early
        self._leader_commit = max(self._leader_commit, message.commit_index)
        if self._outbox.fence is None and log.appending is None and log.unreported is None:
            log.verify(last_index)
            log.follow_commit(self._leader_commit)
            if not message.quiet:
                self.accept()

    def _merge(self, extent: Extent, members: Members | None) -> None:
        """Raft §5.3: keep what is already there, cut what conflicts, append the rest."""
        log, view = self._log, self._log.view
        # The entry before a trimmed log is compared too: if terms differ there, no chain was
        # compared, and the range must not be accepted.
        first = max(extent.first_index, view.begin_index - 1)
        if first <= extent.last_index and view.term_at(first) == extent.term:
            first = min(extent.last_index, view.run_end(first)) + 1
        if first > extent.last_index:
            return
        if first <= view.end_index:
            if first <= max(log.commit_index, log.verified_index, view.begin_index):
                self._outbox.stop(
                    f"{self.leader} would replace entry {first}, but entries up to"
                    f" {log.commit_index} are committed, up to {log.verified_index} verified, and"
                    f" the log begins for good with {view.begin_index} (invariants I2, I3)"
                )
                return
            log.cut_from(first)
            self._membership.truncate_from(first)
        log.merge(first, extent.last_index, extent.term)
        if members is not None:
            self._membership.append(first, members)

    def append_written(self) -> None:
        """The driver wrote the range; only from now on it counts as received."""
        self._reply_owed = True
        self._log.follow_commit(self._leader_commit)
        if self._early or self._membership.policy.pulls:
            self.accept()

    def synced(self) -> None:
        """A sync has ended: tell the leader if it waits for it."""
        if self._reply_owed:
            self._reply_owed = self._log.follower_claim() < self._log.verified_index
            self.accept()

    def reader_came(self) -> None:
        """A reader waits here from now on: tell the leader at once, unless nothing of its log was
        verified here yet; then the next reply says so."""
        if self._log.verified_index > NO_INDEX:
            self.accept()

    def accept(self) -> None:
        """Tell the leader how far this log equals its own, and how far that is durable."""
        log = self._log
        self._answers.accept(
            self.leader, self.term, self._seen_round, log.verified_index, log.follower_claim()
        )

    def _reject(self, message: Append) -> None:
        """Name the last entry that both logs may share, so that the leader steps back by terms,
        never below what is committed."""
        view = self._log.view
        hint = max(
            view.last_at_most(message.prev_index, message.prev_term),
            min(self._log.commit_index, message.prev_index),
        )
        hint_term = view.term_at(hint)
        self._answers.reject(
            self.leader, self.term, message.round, hint, NO_TERM if hint_term is None else hint_term
        )
