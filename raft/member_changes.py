"""Changes the members of a group, one at a time (Raft dissertation ch. 4): what a leader may
propose now.

A change takes effect when it is appended, and is undone when its entry is cut off. It is proposed
only when the previous change and an entry of this term are committed, except for what an HA group
may need to commit anything (`MemberChanges._may_come_first`), and never if it could stop the group.
`membership.py` has the values, their arithmetic and the configuration in force.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.raft.config import Members
from ledgermq.raft.handover import Handovers, objection
from ledgermq.raft.leader import Leader
from ledgermq.raft.membership import Change, MemberChange, NotYet, changed
from ledgermq.raft.parts import Parts
from ledgermq.raft.policy import is_there
from ledgermq.raft.progress import Stage

UNSENT_AT_MOST = 1000
"""Entries not yet pushed to a learner that counts as caught up: more than arrive between two turns,
and pushed within moments."""


class MemberChanges:
    """Which changes a leader may propose; has no state of its own."""

    def __init__(self, parts: Parts, handovers: Handovers) -> None:
        self._config = parts.config
        self._log = parts.log
        self._membership = parts.membership
        self._handovers = handovers

    def propose(self, leader: Leader, change: MemberChange, now_ns: int) -> Members | str:
        """The members after `change`, for the driver to append alone and at once; or the reason
        against it, as a text for the operator: `NotYet` if a later request may succeed."""
        log, membership = self._log, self._membership
        if self._handovers.current is not None:
            return NotYet("leadership is being handed over; ask the next leader")
        if not self._may_come_first(leader, change):
            if not leader.is_of_this_term(log.commit_index):
                return NotYet(
                    f"this leader has not committed an entry of its term {leader.term} yet; ask"
                    " again"
                )
            if membership.pending:
                return NotYet(
                    f"the change before, entry {membership.configurations.latest_index}, is not"
                    " committed yet; ask again"
                )
        members = changed(membership.members, change, log.view.end_index + 1)
        if isinstance(members, str):
            return members
        if change.kind is Change.PROMOTE and (lag := self._lag(leader, change.node, now_ns)):
            return lag
        if change.kind is Change.RULE:
            return self._objection_to_rule_change(leader, now_ns) or members
        if change.kind is Change.MINIMUM:
            return self._objection_to_minimum(leader, change.minimum, now_ns) or members
        return (
            self._still_in_sync(leader, members, change, now_ns)
            or self.would_stall(leader, members, change, now_ns)
            or members
        )

    def _may_come_first(self, leader: Leader, change: MemberChange) -> bool:
        """Whether this change may be appended before the previous one and an entry of this term are
        committed.

        Otherwise it may not, because quorums follow from the members: two leaders of different
        terms could each append a change to the same committed configuration, and the quorums of the
        two need not meet (Ongaro, raft-dev, 10 July 2015). Under a master that the controller
        appointed, no quorum follows from the members: who may be elected, and whose copies commit,
        is the in-sync set, which the controller changes in one order. A directory that was lost
        leaves the set first (`_still_in_sync`) and comes back into it only by a later, committed
        change. The minimum only says how many copies are enough besides. And without these two
        changes the group may be unable to commit anything: the set is too small, and only a
        returned node, or another minimum, makes it large enough."""
        agreed = self._membership.policy.agreed
        appointed = agreed is not None and (agreed.epoch, agreed.master) == (
            leader.term,
            self._config.node,
        )
        return appointed and change.kind in (Change.RETURN, Change.MINIMUM)

    def due(self, leader: Leader, now_ns: int) -> MemberChange | None:
        """A change that is due: the next rule of a change-over, or a vote for a learner that lost
        its directory and has caught up."""
        members = self._membership.members
        if members.towards is not None:
            onward = MemberChange(
                Change.RULE,
                "",
                reason=f"all voters have entry {members.since}",
                rule=members.towards,
            )
            return onward if isinstance(self.propose(leader, onward, now_ns), Members) else None
        for node in sorted(members.returning):
            change = MemberChange(
                Change.PROMOTE, node, reason=f"{node} has caught up with a new directory"
            )
            if isinstance(self.propose(leader, change, now_ns), Members):
                return change
        return None

    def _lag(self, leader: Leader, node: str, now_ns: int) -> str | None:
        """Why this learner could not replace a voter; None if it could. Everything it lacks must be
        under way to it, except for the newest entries, because under load some always wait for the
        next push."""
        peer, end_index = leader.peers[node], self._log.view.end_index
        if refusal := objection(self._config, peer, now_ns):
            return refusal
        if (
            peer.stage is Stage.FLOWING
            and not peer.suspect
            and end_index - peer.next_index < UNSENT_AT_MOST
        ):
            return None
        lag = end_index - peer.received
        return (
            f"{node} is {lag} entries behind entry {end_index}, the end of the log; promote it once"
            " it has caught up"
        )

    def _objection_to_rule_change(self, leader: Leader, now_ns: int) -> str | None:
        """Why the group could not change its rule now: between two rules it needs every voter."""
        for voter in self._membership.members.voters:
            if voter != self._config.node and (lag := self._lag(leader, voter, now_ns)):
                return f"to change the rule every voter is needed: {lag}"
        return self._membership.policy.objection_to_rule_change()

    def _objection_to_minimum(self, leader: Leader, wanted: int, now_ns: int) -> str | None:
        """Why this minimum of copies would mean nothing, or could not be reached now."""
        if self._config.ha.ack_async:
            return (
                "with ack: async the master acknowledges alone; set ack: in-sync in the"
                " configuration of the group first"
            )
        members = self._membership.members
        voters, former = members.voters, self._config.ha.minimum_of(members)
        there = self._there(leader, voters, now_ns)
        if wanted <= max(former, len(there)):
            return None
        silent = ", ".join(voter for voter in voters if voter not in there)
        return (
            f"{silent} cannot be heard, so {wanted} copies of an entry cannot be reached; nothing"
            " could be committed any more"
        )

    def _there(self, leader: Leader, voters: Sequence[str], now_ns: int) -> list[str]:
        """Which of these voters are reachable."""
        me, silence_ns = self._config.node, self._config.timing.election_max_ns
        return [
            voter
            for voter in voters
            if voter == me or is_there(leader.peers.get(voter), now_ns, silence_ns)
        ]

    def would_stall(
        self, leader: Leader, members: Members, change: MemberChange, now_ns: int
    ) -> str | None:
        """Why the new voters could not even commit the change: too few of them are reachable."""
        leaves = change.kind in (Change.REMOVE, Change.DEMOTE)
        return self._membership.policy.would_stall(
            members.voters, self._there(leader, members.voters, now_ns), leaves=leaves
        )

    def _still_in_sync(
        self, leader: Leader, members: Members, change: MemberChange, now_ns: int
    ) -> str | None:
        """A member of the in-sync set may become master, and the master waits for it: it must leave
        the set before it leaves the voters. If nothing else prevents the change, this begins to
        remove it from the set."""
        policy, node = self._membership.policy, change.node
        leaves = change.kind in (Change.REMOVE, Change.DEMOTE, Change.RETURN)
        if not policy.controller_elects or not leaves or node not in policy.required():
            return None
        if node == self._config.node:
            return f"{node} is the master; hand over first: ledgermq transfer"
        lost, minimum = (
            change.kind is Change.RETURN,
            self._config.ha.minimum_of(self._membership.members),
        )
        left = len(set(policy.electors()) - leader.review.evicting.keys() - {node})
        if left < minimum and not lost:
            return (
                f"this would leave {left} in the in-sync set, and the group demands {minimum};"
                " nothing could be committed any more"
            )
        if stalls := self.would_stall(leader, members, change, now_ns):
            return stalls
        leader.review.evict(node, now_ns + self._config.timing.stall_ns, lost=lost)
        return NotYet(f"{node} is still in the in-sync set and is being taken out of it; ask again")
