"""Whether a directory is one of those its broker group began with, so that its votes and copies count before any record names it.

An empty directory looks the same at a group's first start and after its disk was lost. The node's own configuration cannot tell: it says
who began the group, not who has joined since. So the others are asked, once for each directory: every node that is known here must have
answered, and every replica that the configuration or any answer names must have recorded this very directory and no other in its place.
Who knows of a log that goes on without this node keeps it out of the beginning; then only the record of a leader takes it in. A directory
that joins begins nothing. What was found is durable (`peer_identities.py`) before it counts; packets and roles are the core's affair.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.node.replica.peers.peer_identities import PeerIdentities
from ledgermq.node.replica.ports import NodeRoster


class FormationCheck:
    """Of all groups of one node. `founders`: broker group → the other nodes that began it as the configuration says; a group that this node
    joins is not in it."""

    def __init__(self, node: str, founders: Mapping[str, frozenset[str]], roster: NodeRoster, peer_identities: PeerIdentities) -> None:
        self._node = node
        self._founders = founders
        self._roster = roster
        self._peer_identities = peer_identities

    def vouched(self, group: str) -> bool:
        """Whether it was found before, in this life or an earlier one."""
        return self._peer_identities.vouched.get(group, False)

    def finds(self, group: str) -> bool:
        """Whether it is so now; durable afterwards. May sync a small file; raises as `PeerIdentities.greeted`."""
        if not self.vouched(group):
            if group not in self._founders or self.obstacles(group):
                return False
            self._peer_identities.note_vouched(group)
        return True

    def obstacles(self, group: str) -> list[str]:
        """What is missing, one sentence each; empty for a group that this node joins."""
        if group not in self._founders or self.vouched(group):
            return []
        what = f"broker group {group}: this replica takes no part before"
        reported = self._peer_identities.reported_members.get(group, {})
        for node, members in sorted(reported.items()):
            if self._node not in members:
                goes_on = f"node {node} says that the group's members are {', '.join(sorted(members))}"
                return [f"{what} it is one of them again: {goes_on}; add it: ledgermq member add {self._node}"]
        vouchers = self._founders[group].union(*reported.values()) - {self._node}
        missing = sorted(vouchers - self._peer_identities.met_by.get(group, frozenset()))
        unanswered = sorted(set(self._roster.nodes) - self._peer_identities.answered_since(group) - vouchers - {self._node})
        found = [f"{what} each other replica has met its data directory; missing: {', '.join(missing)}"] if missing else []
        if unanswered:
            found.append(f"{what} every node has said whether the group goes on without it; not heard from: {', '.join(unanswered)}")
        return found
