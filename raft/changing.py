"""Changing the members of a group, one at a time (Raft dissertation ch. 4): what a leader may propose now, and what follows from it.

In effect when appended, and undone when cut off. A change is proposed only when the one before and an entry of this term are committed,
and never if it could stop the group. `membership.py` holds the values and their arithmetic.
"""

from __future__ import annotations

from ledgermq.proto.types import Role
from ledgermq.raft.config import Members, Rule
from ledgermq.raft.handing_over import HandingOver
from ledgermq.raft.membership import Change, Eviction, MemberChange, NotYet, changed
from ledgermq.raft.messages import Extent
from ledgermq.raft.progress import Stage
from ledgermq.raft.quorum import majority
from ledgermq.raft.transfer import Cause, Reason

UNSENT_AT_MOST = 1000
"""Entries: more than arrive between two turns, and pushed in a moment."""


class Changing(HandingOver):
    """Proposals of members, and what becomes of a leader that is none any more."""

    def propose_members(self, change: MemberChange, now_ns: int) -> Members | str:
        """Leader only: the members after `change`, for the driver to append alone and at once; or why they cannot be changed so, for
        people: `NotYet` where asking again will help."""
        assert self.role is Role.LEADER, self
        self._now_ns = now_ns
        if self.handover is not None or not self.accepting:
            return NotYet("leadership is being handed over; ask the next leader")
        if not self._may_commit(self.commit_index):
            return NotYet(f"this leader has not committed an entry of its term {self.term} yet; ask again")
        if self.configurations.latest_index > self.commit_index:
            return NotYet(f"the change before, entry {self.configurations.latest_index}, is not committed yet; ask again")
        members = changed(self.members, change, self.log.end_index + 1)
        if isinstance(members, str):
            return members
        if change.kind is Change.PROMOTE and (lag := self._lag(change.node, now_ns)):
            return lag
        if change.kind is Change.RULE:
            return self._not_all_there(now_ns) or members
        return self._still_in_sync(members, change, now_ns) or self._would_stall(members, change, now_ns) or members

    def due_change(self, now_ns: int) -> MemberChange | None:
        """Leader only: the rule that a change-over leads to; or a learner that voted before it lost its directory, and has caught up: it is
        to be a voter again."""
        if self.role is not Role.LEADER:
            return None
        if self.members.towards is not None:
            onward = MemberChange(Change.RULE, "", reason=f"all voters have entry {self.members.since}", rule=self.members.towards)
            return onward if isinstance(self.propose_members(onward, now_ns), Members) else None
        for node in sorted(self.members.returning):
            change = MemberChange(Change.PROMOTE, node, reason=f"{node} has caught up with a new directory")
            if isinstance(self.propose_members(change, now_ns), Members):
                return change
        return None

    def _lag(self, node: str, now_ns: int) -> str | None:
        """Why this learner could not stand in for a voter: it must lack nothing that is not under way to it, but for the newest entries.
        Under load some are always there that no push has taken yet."""
        peer = self.peers[node]
        if objection := self._objection(peer, now_ns):
            return objection
        if peer.stage is Stage.FLOWING and not peer.suspect and self.log.end_index - peer.next_index < UNSENT_AT_MOST:
            return None
        lag = self.log.end_index - peer.received
        return f"{node} is {lag} entries behind entry {self.log.end_index}, the end of the log; promote it once it has caught up"

    def _would_stall(self, members: Members, change: MemberChange, now_ns: int) -> str | None:
        """Whether the new voters could not even commit the change. A majority of them must be there; of an HA group the minimum, where the
        change takes somebody away. A node that lost its directory is gone already."""
        if members.rule is Rule.IN_SYNC and change.kind not in (Change.REMOVE, Change.DEMOTE):
            return None
        there = [voter for voter in members.voters if voter == self.config.node or self._is_there(voter, now_ns)]
        needed = self.config.ha.minimum if members.rule is Rule.IN_SYNC else majority(len(members.voters))
        if len(there) >= needed:
            return None
        silent = ", ".join(voter for voter in members.voters if voter not in there)
        heard = f"{silent} cannot be heard" if silent else "there are no others"
        lost = f"{needed} in sync" if members.rule is Rule.IN_SYNC else f"this would lose the quorum: {needed}"
        return (
            f"{lost} of the voters {', '.join(members.voters)} are needed, and {heard}; "
            "nothing could be committed any more, not even this change"
        )

    def _not_all_there(self, now_ns: int) -> str | None:
        """Whether the group could not change its rule now: between two rules it needs every voter, and nothing but that."""
        for voter in self.members.voters:
            if voter != self.config.node and (lag := self._lag(voter, now_ns)):
                return f"to change the rule every voter is needed: {lag}"
        agreed = self.agreed
        if self.members.rule is Rule.IN_SYNC and (agreed is None or set(agreed.in_sync) != set(self.members.voters)):
            return f"to change the rule every voter must be in sync; the in-sync set is {', '.join(sorted(self._in_sync()))}"
        return None

    def _still_in_sync(self, members: Members, change: MemberChange, now_ns: int) -> str | None:
        """A member of the in-sync set may be master next, and is waited for: it leaves the set before it leaves the voters. Where nothing
        else speaks against the change, this begins to take it out."""
        leaves = change.kind in (Change.REMOVE, Change.DEMOTE, Change.RETURN)
        if self.members.rule is not Rule.IN_SYNC or not leaves or change.node not in self._required():
            return None
        if change.node == self.config.node:
            return f"{change.node} is the master; hand over first: ledgermq transfer"
        lost, minimum = change.kind is Change.RETURN, self.config.ha.minimum
        left = len(set(self._in_sync()) - self._evicting.keys() - {change.node})
        if left < minimum and not lost:
            return f"this would leave {left} in the in-sync set, and the group demands {minimum}; nothing could be committed any more"
        if stalls := self._would_stall(members, change, now_ns):
            return stalls
        self._evicting[change.node] = Eviction(now_ns + self.config.timing.stall_ns, lost)
        return NotYet(f"{change.node} is still in the in-sync set and is being taken out of it; ask again")

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
                self.peers[node] = self._new_peer(node, self._now_ns)

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
