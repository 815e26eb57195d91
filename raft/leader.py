"""Leading: sends every peer the log within its window, keeps the group quiet with heartbeats,
learns what a quorum holds, and asks a quorum for the reads that rest on leading (Raft §5.3;
dissertation §6.4).

`Leader` is created when this replica becomes leader of a term, and dropped with the role.
`progress.py` tracks each peer, `reads.py` the waiting reads; `policy.py` says what a quorum is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter

from ledgermq.proto.types import PeerProgress, Role
from ledgermq.raft.config import MS, Members
from ledgermq.raft.effects import Push
from ledgermq.raft.isr_review import IsrReview
from ledgermq.raft.messages import NO_INDEX, NO_TERM, Append, AppendReply, Extent, LeftBehind
from ledgermq.raft.parts import Parts
from ledgermq.raft.progress import Peer, Stage
from ledgermq.raft.window import Window

NEVER_NS = 1 << 62

DURABLE: Callable[[Peer], int] = attrgetter("durable")
ANSWERED_ROUND: Callable[[Peer], int] = attrgetter("answered_round")
"""The values of a peer that a quorum is computed over."""


class Leader:
    """One term of leading.

    peers             every other member, and removed members for a while
    first_index       the entries of its term are those from here on: it appends no others, and led no term before with the same number
    round             the number of the latest message; it grows over all peers
    heartbeat_due_ns  when the next heartbeat to every peer is due
    contact_due_ns    when contact must be checked next; derived with every heartbeat, and anew when a copy stops counting
    news_due_ns       when watched peers are told of commits they do not know; NEVER_NS while they know all
    review            the review of the in-sync set
    """

    def __init__(
        self,
        parts: Parts,
        review_type: type[IsrReview],
        term: int,
        now_ns: int,
        silent_master: str | None,
    ) -> None:
        """`silent_master`: the former master, if its silence made this replica master."""
        self._config = config = parts.config
        self._log = log = parts.log
        self._membership = membership = parts.membership
        self._outbox = parts.outbox
        self._reads = parts.reads
        self._timer = parts.timer
        self.term = term
        self.first_index = log.view.end_index + 1
        self.round = 0
        self.heartbeat_due_ns = now_ns
        self.contact_due_ns = now_ns
        self.news_due_ns = NEVER_NS
        self.peers = {
            node: self._new_peer(node, now_ns)
            for node in membership.members.nodes
            if node != config.node
        }
        self.review = review_type(parts, self.peers, term, now_ns, silent_master)

    def _new_peer(self, node: str, now_ns: int) -> Peer:
        """A peer of which nothing is known yet."""
        timing = self._config.timing
        return Peer(
            node, self._log.view.end_index + 1, now_ns, Window(timing), timing.observer_pace()
        )

    def check(self) -> None:
        """Every member is a peer, no peer is asked about an entry before the log, and nobody led
        this term before."""
        log, config = self._log, self._config
        assert log.view.term_at(self.first_index - 1) != self.term, self
        assert log.held_index <= log.view.end_index, self
        assert set(self.peers) >= set(self._membership.members.nodes) - {config.node}, self
        for peer in self.peers.values():
            peer.check(log.view.end_index)
            assert (
                peer.next_index >= log.view.begin_index
                and peer.anchor() >= log.view.begin_index - 1
            ), (peer, self)

    def __repr__(self) -> str:
        return (
            f"Leader({self._config.node} term={self.term} {self._log}"
            f" peers={list(self.peers.values())})"
        )

    # Entries

    def appended(
        self, extent: Extent, members: Members | None, now_ns: int, *, urgent: bool, early: bool
    ) -> None:
        """The driver appended this range in the leader's term; `members`: those of its membership
        entry."""
        log = self._log
        log.append_own(extent, urgent=urgent)
        if members is not None:
            self._change_members(extent, members, now_ns)
        self.review.lag.appended(extent.size)
        policy = self._membership.policy
        if early and policy.early_acks:
            log.reply_early(extent.last_index)
        if early or members is not None or len(policy.required()) <= 1:
            # Otherwise the leader's own copy alone moves no quorum.
            self.advance_held()

    def _change_members(self, extent: Extent, members: Members, now_ns: int) -> None:
        """A leader's own change takes effect at once. A removed node gets messages for a while
        longer, so that it does not campaign."""
        assert extent.first_index == extent.last_index, extent
        self.contact_due_ns = now_ns
        before = self._membership.members.incarnations
        self._membership.append(extent.first_index, members)
        for node, peer in self.peers.items():
            if node in members.nodes:
                peer.readmit()
            else:
                peer.remove(extent.first_index)
            if node in members.incarnations and before.get(node) != members.incarnations[node]:
                peer.rename(extent.first_index, self.round)
        for node in members.nodes:
            if node != self._config.node and node not in self.peers:
                self.peers[node] = self._new_peer(node, now_ns)

    def trimmed(self, begin_index: int) -> None:
        """The log was trimmed: a peer that lacks removed entries needs another way to get them."""
        for peer in self.peers.values():
            peer.keep_from(begin_index, self.round)

    # Quorums

    def is_of_this_term(self, index: int) -> bool:
        """Raft §5.4.2: a leader counts copies only of entries of its own term; later entries commit
        the earlier ones."""
        return index >= self.first_index

    def advance_commit(self) -> None:
        log, membership, peers = self._log, self._membership, self.peers
        if log.commit_index == log.view.end_index:
            return
        policy = membership.policy
        candidate = policy.reached(log.leader_claim(), peers, DURABLE)
        if candidate <= log.commit_index or not self.is_of_this_term(candidate):
            return
        if policy.may_commit(candidate, peers, membership.configurations.at):
            log.commit(candidate)

    def advance_held(self) -> None:
        log = self._log
        if log.held_index == log.view.end_index:
            return
        candidate = self._membership.policy.early_claim(self.peers)
        if candidate > log.held_index and self.is_of_this_term(candidate):
            log.hold(candidate)

    def answered_round(self) -> int:
        """The last round such that a quorum answered it or a later one; NEVER_NS if this replica
        alone is one. The same replicas count as for a commit: no observer, no learner, no
        provisional copy, and not a leader that was removed."""
        return self._membership.policy.reached(NEVER_NS, self.peers, ANSWERED_ROUND)

    # Replication

    def on_append_reply(self, reply: AppendReply, now_ns: int) -> None:
        """A peer answered in this leader's term."""
        peer, view = self.peers[reply.sender], self._log.view
        if not peer.admit(reply, self.round):
            self._outbox.refused["former-life"] += 1
            return
        if reply.provisional and not peer.provisional:
            self.contact_due_ns = now_ns
        timing = self._config.timing
        if now_ns - peer.contact_ns > 2 * timing.heartbeat_ns:
            self._end_silence(peer, reply, now_ns)
        else:
            peer.on_reply(reply, now_ns, timing.election_max_ns)
        if reply.rejected:
            peer.rejected(reply, view, self.round)
        else:
            peer.accepted(reply, view.end_index, self.round)
            self.advance_commit()
            self.advance_held()
        peer.keep_from(view.begin_index, self.round)
        if self._reads.underway is not None:
            self._reads.answered(self.answered_round())

    def _end_silence(self, peer: Peer, reply: AppendReply, now_ns: int) -> None:
        """Note the end of a silence of the quorum, with an answer of a peer that was silent for at
        least as long."""
        policy, peers = self._membership.policy, self.peers
        quorum_ns = policy.quorum_contact_ns(now_ns, peers)
        peer.on_reply(reply, now_ns, self._config.timing.election_max_ns)
        if NO_INDEX < quorum_ns < policy.quorum_contact_ns(now_ns, peers):
            self._timer.note_silence(now_ns - quorum_ns, now_ns)

    def replicate(self, now_ns: int) -> tuple[Push, ...]:
        """Push what the windows allow; send a short message to peers without a push that need a
        heartbeat, a probe or commit news, and to those whose answers count if a round of reads
        begins. Such a round is no heartbeat: nothing that is done once in a heartbeat period may
        depend on how often something is read.

        A peer needs the commit index only to apply entries, and no caller of the leader waits for
        that, so the commit index comes with the next push or heartbeat. Invariant: the commit index
        of a reachable peer is behind by at most one heartbeat period. Only a peer where a reader
        waits gets commit news in a message of its own, once nothing is under way to it and
        `news_ns` have passed.
        """
        config, log, membership, messages = (
            self._config,
            self._log,
            self._membership,
            self._outbox.messages,
        )
        timing, end_index, commit_index = config.timing, log.view.end_index, log.commit_index
        asked: Collection[str] = ()
        if (
            self._reads.asked
            and self.is_of_this_term(commit_index)
            and self._reads.begin(commit_index, self.round + 1)
        ):
            asked = membership.policy.required()
        beat = now_ns >= self.heartbeat_due_ns
        if beat:
            self.heartbeat_due_ns = now_ns + timing.heartbeat_ns
            self._check_contact_later(now_ns)
        pulled = membership.policy.pulls
        window_ranges = 1 if pulled else timing.window_ranges
        pushes, news_due, waits = [], not timing.news_ns or now_ns >= self.news_due_ns, False
        urgent_index = log.urgent_index
        for peer in self.peers.values():
            size = ranges = 0
            if (
                peer.next_index <= end_index
                and not peer.needs_snapshot
                and (peer.asks or not (pulled and peer.pulls))
            ):
                size, ranges = peer.room(window_ranges)
                if ranges and peer.pace is not None and peer.node in membership.members.observers:
                    # What the pace does not allow now goes with a later heartbeat.
                    size = max(0, min(size, int(peer.pace.available(now_ns))))
                    ranges = ranges if size else 0
            if ranges:
                pushes.append(
                    Push(to=peer.node, first_index=peer.next_index, size=size, ranges=ranges)
                )
            needed = beat or peer.probe_due or peer.node in asked
            needed = needed or (
                not ranges and peer.durable < urgent_index and peer.lacks_urgency(urgent_index)
            )
            lacks_news = peer.watched and not ranges and peer.lacks_news(commit_index)
            if needed or (lacks_news and news_due):
                messages.append(self._append_to(peer, peer.anchor(), None, quiet=not needed))
            else:
                waits = waits or lacks_news
            if beat and peer.needs_snapshot:
                messages.append(
                    LeftBehind(
                        sender=config.node,
                        to=peer.node,
                        term=self.term,
                        begin_index=log.view.begin_index,
                    )
                )
        if not waits:
            self.news_due_ns = NEVER_NS
        elif self.news_due_ns == NEVER_NS:
            self.news_due_ns = now_ns + timing.news_ns
        return tuple(pushes)

    def owes(self, node: str) -> bool:
        """Whether `replicate` may have something for this peer before the next heartbeat."""
        peer, log = self.peers[node], self._log
        if peer.probe_due or peer.next_index <= log.view.end_index:
            return True
        lacks_urgency = peer.durable < log.urgent_index and peer.lacks_urgency(log.urgent_index)
        return lacks_urgency or (peer.watched and peer.lacks_news(log.commit_index))

    def _append_to(
        self, peer: Peer, prev_index: int, extent: Extent | None, *, quiet: bool = False
    ) -> Append:
        log, view = self._log, self._log.view
        self.round += 1
        prev_term = self.term if prev_index >= self.first_index else view.term_at(prev_index)
        message = Append(
            sender=self._config.node,
            to=peer.node,
            term=self.term,
            round=self.round,
            prev_index=prev_index,
            prev_term=NO_TERM if prev_term is None else prev_term,
            commit_index=log.commit_index,
            extent=extent,
            lazy=self._may_be_late(peer, prev_index, extent),
            early=extent is not None and extent.first_index <= log.early_index,
            end_index=view.end_index,
            quiet=quiet,
        )
        peer.asked(message, prev_index if extent is None else extent.last_index)
        return message

    def _may_be_late(self, peer: Peer, prev_index: int, extent: Extent | None) -> bool:
        """Whether no caller waits for anything up to the end of a message: neither in its range
        nor, as far as is known, before it."""
        if extent is not None:
            return extent.first_index > self._log.urgent_index
        return min(self._log.urgent_index, prev_index) <= peer.durable

    def pushed(self, to: str, extent: Extent, now_ns: int) -> Append:
        """The driver read this range for a `Push`. Returns the message that carries it."""
        peer = self.peers[to]
        message = self._append_to(peer, extent.first_index - 1, extent)
        peer.pushed(extent, message.round, now_ns)
        if peer.pace is not None:
            # One range may exceed the remaining bytes, so that an entry of any size fits.
            peer.pace.take(extent.size, now_ns)
        return message

    def watch_peers(self, now_ns: int) -> None:
        """Compare logs anew with a peer that answers without progress; forget a removed peer that
        had time to learn of its removal."""
        timing, log = self._config.timing, self._log
        for peer in tuple(self.peers.values()):
            if peer.stalled(log.view.end_index, now_ns, timing.stall_ns, timing.election_max_ns):
                peer.restart(self.round, now_ns)
                self._outbox.restarts[peer.node] += 1
            if peer.may_be_forgotten(log.commit_index, now_ns, timing.election_max_ns):
                del self.peers[peer.node]

    def progress(self, now_ns: int) -> tuple[PeerProgress, ...]:
        """What the leader knows of the other members."""
        return tuple(
            PeerProgress(
                node=peer.node,
                role=Role.FOLLOWER
                if peer.node in self._membership.members.voters
                else Role.LEARNER,
                end_index=peer.received if peer.stage is Stage.FLOWING else None,
                durable_index=peer.durable if peer.stage is Stage.FLOWING else None,
                silent_ms=(now_ns - peer.contact_ns) // MS,
                left_behind=peer.needs_snapshot,
                restarts=self._outbox.restarts[peer.node],
            )
            for peer in self.peers.values()
        )

    # Contact

    def silence_ns(self, now_ns: int) -> int:
        """How long the leader lacked the contact it needs to continue, if that is too long;
        otherwise 0. Asked once contact is due."""
        silent_ns = self._membership.policy.silence_ns(now_ns, self.peers)
        if not silent_ns:
            self._check_contact_later(now_ns)
        return silent_ns

    def _check_contact_later(self, now_ns: int) -> None:
        self.contact_due_ns = self._membership.policy.contact_limit_ns(
            now_ns, self.peers, self.review.due_ns
        )

    def wake_at_ns(self) -> int:
        """When the leader is due at the latest."""
        return min(self.heartbeat_due_ns, self.news_due_ns, self.contact_due_ns)
