"""Handing leadership over on request (Raft dissertation §3.10): which voter could take over, and
the handover under way.

The leader stops accepting entries once the target is near, lets everything become committed and
durable there, and only then tells the target to campaign, or asks the controller to make it master.
If that takes too long, the leader continues as before. `transfer.py` has the record of one
handover.
"""

from __future__ import annotations

from ledgermq.raft.config import MS, RaftConfig
from ledgermq.raft.leader import Leader
from ledgermq.raft.messages import TimeoutNow
from ledgermq.raft.parts import Parts
from ledgermq.raft.progress import Peer, Stage
from ledgermq.raft.transfer import HANDOVERS, Cause, Handover, Reason


def objection(config: RaftConfig, peer: Peer, now_ns: int) -> str | None:
    """Why this peer could not take over; None if it could."""
    if peer.boot_id is None:
        return f"{peer.node} has not answered this leader yet; it may be down"
    if peer.provisional:
        return f"the directory of {peer.node} is not known to all voters yet"
    if now_ns - peer.contact_ns >= config.timing.election_min_ns:
        return f"{peer.node} has not been heard for {(now_ns - peer.contact_ns) // MS} ms"
    if peer.needs_snapshot:
        return f"{peer.node} lacks entries that the leader's log does not hold any more"
    return f"{peer.node} is about to stop" if peer.leaving else None


class Handovers:
    """The handovers of this replica; methods that take a `leader` are for leaders only.

    current   the handover under way
    failure   why the last one failed, as a text for the operator; empty while one is under way
    full      the nodes whose disks take no messages, as far as this replica knows: as leader such a node would refuse every send
    leaving   this replica is about to stop: it takes over no leadership any more, and says so
    retiring  a leader that was removed from the voters has begun to hand over
    """

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self._log = parts.log
        self._membership = parts.membership
        self._isr = parts.isr
        self._outbox = parts.outbox
        self.current: Handover | None = None
        self.failure = ""
        self.full: frozenset[str] = frozenset()
        self.leaving = False
        self.retiring = False

    def begin_leading(self) -> None:
        self.failure = ""

    def drop(self) -> None:
        """Drop the handover, because the role changed."""
        self.current = None
        self.retiring = False

    def note_full(self, nodes: frozenset[str]) -> None:
        self.full = nodes

    def leave(self) -> None:
        self.leaving = True

    def retire(self) -> None:
        self.retiring = True

    def reason_to_yield(self, sender: str) -> Reason:
        """Why a leader that saw a higher term steps down: its own handover, or another node's
        campaign."""
        current = self.current
        if current is not None and current.notified and current.to == sender:
            return Reason(current.cause, sender)
        return Reason(Cause.HIGHER_TERM, sender)

    def keeps_up(self, leader: Leader, node: str, now_ns: int) -> bool:
        """Whether this peer was heard within the shortest election timeout, and everything it lacks
        is under way to it."""
        peer = leader.peers.get(node)
        if peer is None or objection(self._config, peer, now_ns):
            return False
        return peer.stage is Stage.FLOWING and peer.next_index > self._log.view.end_index

    def best_successor(self, leader: Leader, now_ns: int) -> str | None:
        """The voter that could take over soonest, if possible one whose disk takes messages; None
        if there is none. One that does not keep up would not lead in time, whatever room it has."""
        peers = [
            leader.peers[voter]
            for voter in self._membership.policy.electors()
            if voter in leader.peers
        ]
        able = [peer for peer in peers if objection(self._config, peer, now_ns) is None]
        ranked = [
            (self._has_room(leader, peer.node, now_ns), peer.durable, peer.received, peer.node)
            for peer in able
        ]
        return max(ranked)[3] if ranked else None

    def _has_room(self, leader: Leader, node: str, now_ns: int) -> bool:
        return node not in self.full and self.keeps_up(leader, node, now_ns)

    def _objection_to_full(self, to: str, cause: Cause) -> str | None:
        """Nobody asks for a leader that would refuse every send while the group has a voter that
        would not. A leader that has to go hands over to such a node too, because reads and
        acknowledgements go on there."""
        if to not in self.full or cause not in (Cause.OPERATOR, Cause.PREFERRED):
            return None
        better = sorted(set(self._membership.policy.electors()) - self.full)
        return (
            f"the disk of {to} is full: as leader it would refuse sends, and {', '.join(better)}"
            " would not"
            if better
            else None
        )

    def transfer(
        self, leader: Leader, to: str, cause: Cause, now_ns: int, patience_ns: int
    ) -> str | None:
        """Hand over to this voter. None: it is under way; another call extends its deadline.
        Otherwise the reason against it."""
        assert to != self._config.node and cause in HANDOVERS, (to, leader)
        membership = self._membership
        if to not in membership.members.voters:
            return (
                f"{to} is no voter of this group; its voters are"
                f" {', '.join(membership.members.voters)}"
            )
        refusal = membership.policy.objection_to(to) or objection(
            self._config, leader.peers[to], now_ns
        )
        if refusal := refusal or self._objection_to_full(to, cause):
            return refusal
        if self.current is not None and self.current.to != to:
            return f"leadership is being handed over to {self.current.to} already"
        if self.current is None:
            self.current, self.failure = Handover(to, cause, now_ns + patience_ns), ""
        else:
            self.current.extend(now_ns + patience_ns)
        return None

    def advance(self, leader: Leader, now_ns: int) -> None:
        """Close when the target is near; tell it to campaign when it lacks nothing, again with
        every heartbeat period."""
        current, timing, view = self.current, self._config.timing, self._log.view
        if current is None:
            return
        peer = leader.peers[current.to]
        if peer.leaving:
            self.give_up(f"{peer.node} is about to stop")
            return
        if not current.closed and self.keeps_up(leader, peer.node, now_ns):
            current.close(now_ns + timing.election_max_ns)
            self._log.request_flush()
        if current.closed and self._holds_everything(peer) and now_ns >= current.again_ns:
            current.notify(now_ns + timing.heartbeat_ns)
            policy = self._membership.policy
            if policy.controller_elects:
                self._isr.request_master(policy.members, peer.node, current.cause, leader.term)
                return
            self._outbox.messages.append(
                TimeoutNow(
                    sender=self._config.node,
                    to=peer.node,
                    term=leader.term,
                    last_index=view.end_index,
                    last_term=view.end_term,
                    cause=current.cause,
                )
            )

    def _holds_everything(self, peer: Peer) -> bool:
        """Whether the target wins any election and all entries of this leader are committed, so
        that no caller has an unknown outcome."""
        end = self._log.view.end_index
        return peer.received >= end and peer.durable >= end and self._log.commit_index >= end

    def expire(self, leader: Leader, now_ns: int) -> None:
        """Give up a handover whose time is over."""
        current = self.current
        if current is None or now_ns < current.until_ns:
            return
        peer, end_index = leader.peers[current.to], self._log.view.end_index
        if not current.closed:
            self.give_up(
                f"{peer.node} did not come near the end of the log in time: it holds entry"
                f" {peer.received} of {end_index}"
            )
        elif not current.notified:
            self.give_up(
                f"{peer.node} did not store the last entries in time: entry {peer.durable} of"
                f" {end_index} is durable there"
            )
        else:
            within_ms = self._config.timing.election_max_ns // MS
            self.give_up(
                f"{peer.node} was told to take over and did not do so within {within_ms} ms"
            )

    def give_up(self, why: str) -> None:
        """The leader continues. If the target campaigns after all, its term deposes this leader as
        any other would."""
        self.current, self.failure = None, why
