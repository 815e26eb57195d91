"""Handing leadership over on request (Raft dissertation §3.10), on both sides.

The leader stops accepting entries once the target is near, lets everything become committed and durable there, and only then tells it to
campaign; if that takes too long it goes on as before. `transfer.py` holds the record of it.
"""

from __future__ import annotations

from ledgermq.proto.types import Role
from ledgermq.raft.config import Rule
from ledgermq.raft.following import Following
from ledgermq.raft.leading import Leading
from ledgermq.raft.messages import TimeoutNow
from ledgermq.raft.progress import Peer, Stage
from ledgermq.raft.state import MS
from ledgermq.raft.transfer import HANDOVERS, Cause, Handover, Reason


class HandingOver(Following, Leading):
    """Who could take over, and the handover under way."""

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
        able_by_rule = self._in_sync() if self.members.rule is Rule.IN_SYNC else self.members.voters
        peers = [self.peers[voter] for voter in able_by_rule if voter in self.peers]
        able = [(peer.durable, peer.received, peer.node) for peer in peers if self._objection(peer, now_ns) is None]
        return max(able)[2] if able else None

    def transfer(self, to: str, cause: Cause, now_ns: int, patience_ns: int) -> str | None:
        """Leader only: hand over to this voter. None: it is under way, and asking again makes it more patient. Else why not."""
        assert self.role is Role.LEADER and to != self.config.node and cause in HANDOVERS, (to, self)
        if to not in self.members.voters:
            return f"{to} is no voter of this group; its voters are {', '.join(self.members.voters)}"
        if self.members.rule is Rule.IN_SYNC and to not in self._in_sync():
            return f"{to} is not in sync; the in-sync set is {', '.join(sorted(self._in_sync()))}"
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
            if self.members.rule is Rule.IN_SYNC:
                return self._wish_master(peer.node, handover.cause)
            me, end = self.config.node, self.log
            self._messages.append(TimeoutNow(me, peer.node, self.term, end.end_index, end.end_term, handover.cause))

    def _holds_everything(self, peer: Peer) -> bool:
        """The target wins any election, and nobody waits for an entry of ours any more: no caller is left with an unknown outcome."""
        end = self.log.end_index
        return peer.received >= end and peer.durable >= end and self.commit_index >= end

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

    def _on_timeout_now(self, message: TimeoutNow, now_ns: int) -> None:
        """Campaign in a term of our own at once, without a pre-vote; unless the word is old, or this replica is about to stop."""
        stale = (message.term, message.sender) != (self.term, self.leader) or self.role is not Role.FOLLOWER
        if stale or self.members.rule is Rule.IN_SYNC or not self._may_campaign():
            self.refused["stale-handover"] += 1
            return
        if self.leaving:
            return self._accept(message.sender)
        if (message.last_index, message.last_term) != (self.log.end_index, self.log.end_term):
            return
        self._candidacy = Reason(message.cause, message.sender)
        self._campaign(now_ns, pre=False, transfer=True)
