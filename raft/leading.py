"""Leading: bring every peer the log within its window, keep the group quiet with heartbeats, learn what a majority holds, and answer
reads that rest on leading (Raft §5.3; dissertation §6.4).

`progress.py` knows each peer, `reads.py` the reads that wait; here is said what leaves now. The rules say what is committed by it.
"""

from __future__ import annotations

from ledgermq.proto.types import PeerProgress, Role
from ledgermq.raft.config import Rule
from ledgermq.raft.effects import Push
from ledgermq.raft.elections import Elections
from ledgermq.raft.messages import NO_INDEX, NO_TERM, Append, AppendReply, Extent, LeftBehind
from ledgermq.raft.progress import Peer, Stage
from ledgermq.raft.reads import lease_ns
from ledgermq.raft.state import MS, NEVER_NS


class Leading(Elections):
    """Answers of peers taken in, messages and pushes for them, and reads."""

    # Replication

    def _on_append_reply(self, reply: AppendReply, now_ns: int) -> None:
        if self.role is not Role.LEADER or reply.term < self.term:
            return None
        if reply.term > self.term:
            return self._become_follower(reply.term, None, now_ns, self._reason_to_yield(reply.sender))
        peer = self.peers[reply.sender]
        if not peer.admit(reply, self._round):
            self.refused["former-life"] += 1
            return None
        self._hear(peer, reply, now_ns)
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

    def _hear(self, peer: Peer, reply: AppendReply, now_ns: int) -> None:
        """A silence of the quorum ends with an answer of a peer that was silent for at least as long."""
        timing = self.config.timing
        quorum_ns = self._quorum_contact_ns(now_ns) if now_ns - peer.contact_ns > 2 * timing.heartbeat_ns else NO_INDEX
        peer.heard(reply, now_ns, timing.election_max_ns)
        if NO_INDEX < quorum_ns < self._quorum_contact_ns(now_ns):
            self._note_silence(now_ns - quorum_ns, now_ns)

    def _replicate(self, now_ns: int) -> tuple[Push, ...]:
        """Push what the windows allow; say something short to peers that get no push but are owed a heartbeat, a probe or commit news.

        What is committed matters to a peer that applies it, and to nobody who waits: so the news may come with the next push.
        """
        timing = self.config.timing
        asks = self._may_commit(self.commit_index) and self._reads.begin(self.commit_index, self._round + 1)
        beat = asks or now_ns >= self._heartbeat_due_ns
        if beat:
            self._heartbeat_due_ns = now_ns + timing.heartbeat_ns
        pulled = self.members.rule is Rule.IN_SYNC and self.config.ha.pull
        window_ranges = 1 if pulled else timing.window_ranges
        pushes, told, waits = [], not timing.news_ns or now_ns >= self._news_due_ns, False
        for peer in self.peers.values():
            full = peer.next_index > self.log.end_index or peer.needs_snapshot or (pulled and peer.pulls and not peer.asks)
            size, ranges = (0, 0) if full else peer.room(window_ranges)
            if ranges and peer.pace is not None and peer.node in self.members.observers:
                # What the pace does not allow now goes with a later heartbeat.
                size = max(0, min(size, int(peer.pace.available(now_ns))))
                ranges = ranges if size else 0
            news = told and self._lacks_news(peer)
            urgent = peer.stage is Stage.FLOWING and max(peer.told_urgent, peer.durable) < min(self.urgent_index, peer.received)
            if beat or peer.probe_due or ((news or urgent) and not ranges):
                self._messages.append(self._append_to(peer, peer.anchor(), None))
            if beat and peer.needs_snapshot:
                self._messages.append(LeftBehind(self.config.node, peer.node, self.term, self.log.begin_index))
            if ranges:
                pushes.append(Push(peer.node, peer.next_index, size, ranges))
            waits = waits or (not ranges and self._lacks_news(peer))
        if not waits:
            self._news_due_ns = NEVER_NS
        elif self._news_due_ns == NEVER_NS:
            self._news_due_ns = now_ns + timing.news_ns
        return tuple(pushes)

    def _lacks_news(self, peer: Peer) -> bool:
        return peer.stage is Stage.FLOWING and not peer.underway and peer.told_commit < min(self.commit_index, peer.received)

    def _append_to(self, peer: Peer, prev_index: int, extent: Extent | None) -> Append:
        self._round += 1
        term_there = self.log.term_at(prev_index)
        prev_term = NO_TERM if term_there is None else term_there
        lazy, early = self._may_be_late(peer, prev_index, extent), extent is not None and extent.first_index <= self.early_index
        me, place = self.config.node, (prev_index, prev_term, self.commit_index)
        message = Append(me, peer.node, self.term, self._round, *place, extent, lazy, early, self.log.end_index)
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

    def pushed(self, to: str, extent: Extent) -> Append:
        """The driver read this range for a `Push`; the message that carries it."""
        peer = self.peers[to]
        message = self._append_to(peer, extent.first_index - 1, extent)
        peer.pushed(extent, message.round, self._now_ns)
        if peer.pace is not None:
            # One range may exceed what is left, so that any entry fits.
            peer.pace.take(extent.size, self._now_ns)
        return message

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
