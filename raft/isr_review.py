"""A master's review of its in-sync set: which nodes it asks the controller to remove, and which to
add.

See docs/architecture.md, HA groups. Requests may be lost; the next review asks again. A master that
hears no other member of the set requests no change before the controller has confirmed the set that
the master knows. If the controller does not answer either, the master steps down
(`policy.InSync.silence_ns`).
"""

from __future__ import annotations

from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.isr import Eviction, known_by
from ledgermq.raft.lag_samples import LagSamples
from ledgermq.raft.parts import Parts
from ledgermq.raft.policy import InSync, Peers, is_there
from ledgermq.raft.progress import Stage
from ledgermq.raft.transfer import Cause


class IsrReview:
    """Created with the leader, and dropped with it.

    due_ns         when the set is reviewed next
    evicting       nodes that a change of members needs out of the set; entered when the change is proposed, removed by the review
    lag            samples of the log's end over time
    silent_master  the former master, if its silence made this replica master
    """

    def __init__(
        self,
        parts: Parts,
        peers: Peers,
        term: int,
        now_ns: int,
        silent_master: str | None,
    ) -> None:
        self._config = parts.config
        self._log = parts.log
        self._membership = parts.membership
        self._isr = parts.isr
        self._timer = parts.timer
        self._peers = peers
        self._term = term
        self.due_ns = now_ns
        self.evicting: dict[str, Eviction] = {}
        self.lag = LagSamples(parts.log.view.end_index, now_ns)
        self.silent_master = silent_master

    def hurry(self, now_ns: int) -> None:
        """The controller answered a master that hears no other member of the set: review the set at
        once."""
        policy = self._membership.policy
        if isinstance(policy, InSync) and policy.hears_nobody(now_ns, self._peers):
            self.due_ns = now_ns

    def evict(self, node: str, until_ns: int, *, lost: bool) -> None:
        """A change of members needs this node out of the set."""
        self.evicting[node] = Eviction(until_ns, lost)

    def review(self, now_ns: int) -> None:
        """Once in a heartbeat period: request the set that is right now."""
        policy = self._membership.policy
        if not isinstance(policy, InSync) or now_ns < self.due_ns:
            return
        self.due_ns = now_ns + self._config.timing.heartbeat_ns
        agreed, me, isr = policy.agreed, self._config.node, self._isr
        if agreed is None or (agreed.epoch, agreed.master) != (self._term, me):
            # This leader led when the group took this rule: now it needs an epoch, like any master.
            isr.request_master(policy.members, me, Cause.STARTED, self._term)
            return
        self.lag.sample(self._log.view.end_index, now_ns)
        self.forget_evictions(policy, now_ns)
        if (
            policy.hears_nobody(now_ns, self._peers)
            and now_ns - isr.agreed_ns >= self._config.timing.election_max_ns
        ):
            # The others may hear the master although it hears none of them: a smaller set could be
            # agreed on without its knowledge, and then no other node could be elected.
            isr.request_set(agreed, dict(agreed.in_sync))
            return
        leaving = self.leaving_set(agreed, now_ns)
        joining = {
            node
            for node in policy.members.voters
            if node not in agreed.in_sync and self.may_join(node, now_ns)
        }
        wanted = (set(agreed.in_sync) - leaving) | joining
        # The second condition: the master no longer wants a node that it asked for; the next
        # version makes that request void.
        if wanted != set(agreed.in_sync) or not isr.joining <= joining:
            isr.join(joining)
            isr.request_set(
                agreed, {node: known_by(policy.members, node) for node in sorted(wanted)}
            )

    def forget_evictions(self, policy: InSync, now_ns: int) -> None:
        """Forget evictions that are over: the node is no voter any more, the change is not
        requested any more, or the set is too small without the node. That the node left the set
        does not end an eviction, because the change is still to come."""
        short = policy.missing_isr(now_ns, self._peers) > 0
        self.evicting = {
            node: eviction
            for node, eviction in self.evicting.items()
            if node in policy.members.voters
            and now_ns < eviction.until_ns
            and (eviction.lost or not short)
        }

    def leaving_set(self, agreed: Appointment, now_ns: int) -> set[str]:
        """The nodes to remove from the set: first those that are no voters any more or lost their
        directory; then, as long as the minimum remains, those that a change needs out, and those
        that have failed or lag too far. Below the minimum nothing is committed anyway, so a larger
        set, with more nodes that may be elected, is better. Copies that count until their nodes are
        in the set again (`InSync.may_commit`) belong to what remains: otherwise a node that is gone
        could keep them from becoming voters for ever."""
        outside = self._outside(now_ns)
        voters = self._membership.members.voters
        others = [node for node in agreed.in_sync if node != self._config.node]
        lost = {node for node, eviction in self.evicting.items() if eviction.lost}
        leaving = {
            node
            for node in others
            if node not in voters or node in lost or self._is_renamed(agreed, node)
        }
        evicted = [node for node in others if node not in leaving and node in self.evicting]
        late = sorted(
            (self._contact_ns(node), node)
            for node in others
            if node not in {*leaving, *evicted} and self._is_late(node, now_ns)
        )
        for node in (*evicted, *(node for _, node in late)):
            if len(agreed.in_sync) - len(leaving) + outside > self._config.ha.minimum_of(
                self._membership.members
            ):
                leaving.add(node)
        return leaving

    def _outside(self, now_ns: int) -> int:
        """How many nodes have everything and join the set once the next entry is committed: they
        lost their directory and become voters without an operator, or are voters by a change that
        is not committed."""
        log, silence_ns, members = (
            self._log,
            self._config.timing.election_max_ns,
            self._membership.members,
        )
        voters = self._membership.configurations.at(log.commit_index).voters
        count = 0
        for node in (*members.returning, *{*members.voters}.difference(voters)):
            # The master itself has no peer; it is in the set.
            peer = self._peers.get(node)
            if (
                peer is not None
                and peer.boot_id is not None
                and now_ns - peer.contact_ns < silence_ns
                and not peer.leaving
            ):
                count += (
                    peer.durable >= log.commit_index
                    and log.view.term_at(peer.durable) == self._term
                )
        return count

    def _contact_ns(self, node: str) -> int:
        peer = self._peers.get(node)
        return -1 if peer is None else peer.contact_ns

    def _is_renamed(self, agreed: Appointment, node: str) -> bool:
        """Whether the members now know the node by another directory."""
        return agreed.in_sync[node] != known_by(self._membership.members, node)

    def _is_late(self, node: str, now_ns: int) -> bool:
        peer, timing = self._peers.get(node), self._config.timing
        if now_ns - self._timer.last_contact_ns < timing.election_min_ns:
            # A former master of a release before 0.2.0 may still answer reads under a lease that
            # this replica's own answers support; until that ends, nothing may be committed without
            # the former master.
            return False
        if peer is None:
            return True
        # The former master was already silent for an election timeout; the new master does not wait
        # that long for it again.
        patience_ns = (
            timing.heartbeat_ns
            if node == self.silent_master and peer.boot_id is None
            else timing.election_max_ns
        )
        if peer.provisional or now_ns - peer.contact_ns >= patience_ns:
            return True
        late_ns, late_bytes = self.lag.behind(peer.durable, self._log.view.end_index, now_ns)
        return late_ns > self._config.ha.lag_ns or late_bytes > self._config.ha.lag_bytes

    def may_join(self, node: str, now_ns: int) -> bool:
        """Whether a node may join: it keeps up, and has on stable storage everything that is
        committed and an entry of this epoch; everything that an earlier master may have confirmed
        lies before that. No entry of this epoch must be committed first, because a failed node may
        prevent that."""
        peer, configurations = self._peers.get(node), self._membership.configurations
        if peer is None or not is_there(peer, now_ns, self._config.timing.election_max_ns):
            return False
        if peer.stage is not Stage.FLOWING or peer.leaving or node in self.evicting:
            return False
        if node not in configurations.at(self._log.commit_index).voters:
            return False
        if self._log.view.term_at(peer.durable) != self._term:
            return False
        late_ns, _ = self.lag.behind(peer.durable, self._log.view.end_index, now_ns)
        return (
            peer.durable >= self._log.commit_index
            and late_ns <= self._config.timing.election_min_ns
        )
