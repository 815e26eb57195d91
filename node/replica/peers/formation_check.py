"""Checks whether a directory belongs to the founding of its broker group, so that its votes and
copies count before a record names it.

An empty directory looks the same at a group's first start and after the loss of its disk. The
node's own configuration cannot distinguish them: it names the founders, but not the nodes that
joined later. So the other nodes are asked, once for each directory. Every node that is known here
must have answered, and every replica that the configuration or an answer names must have recorded
this directory and no other in its place. If any of them knows of a log that continues without this
node, the check fails, and only a leader's record can admit the node. A directory that joins a group
never passes. The result is durable (`peer_identities.py`) before it counts; the core handles
packets and roles.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.node.replica.peers.peer_identities import PeerIdentities
from ledgermq.node.replica.ports import NodeRoster


class FormationCheck:
    """The check for all groups of one node. `founders`: broker group → the other founders according
    to the configuration; groups that this node joins are not in it."""

    def __init__(
        self,
        node: str,
        founders: Mapping[str, frozenset[str]],
        roster: NodeRoster,
        peer_identities: PeerIdentities,
    ) -> None:
        self._node = node
        self._founders = founders
        self._roster = roster
        self._peer_identities = peer_identities

    def vouched(self, group: str) -> bool:
        """Whether the check has passed, in this run or an earlier one."""
        return self._peer_identities.vouched.get(group, False)

    def finds(self, group: str) -> bool:
        """Whether the check passes; the result is durable on return. May sync a small file; raises
        as `PeerIdentities.greeted`."""
        if not self.vouched(group):
            if group not in self._founders or self.obstacles(group):
                return False
            self._peer_identities.note_vouched(group)
        return True

    def obstacles(self, group: str) -> list[str]:
        """The missing conditions, one sentence each; empty for a group that this node joins."""
        if group not in self._founders or self.vouched(group):
            return []
        what = f"broker group {group}: this replica takes no part before"
        reported = self._peer_identities.reported_members.get(group, {})
        for node, members in sorted(reported.items()):
            if self._node not in members:
                goes_on = (
                    f"node {node} says that the group's members are {', '.join(sorted(members))}"
                )
                return [
                    f"{what} it is a member again: {goes_on}; add it: ledgermq member add"
                    f" {self._node}"
                ]
        vouchers = self._founders[group].union(*reported.values()) - {self._node}
        missing = sorted(vouchers - self._peer_identities.met_by.get(group, frozenset()))
        unanswered = sorted(
            set(self._roster.nodes)
            - self._peer_identities.answered_since(group)
            - vouchers
            - {self._node}
        )
        found = (
            [
                f"{what} every other replica has recorded its data directory; missing:"
                f" {', '.join(missing)}"
            ]
            if missing
            else []
        )
        if unanswered:
            found.append(
                f"{what} every node has reported whether the group continues without it; not heard"
                f" from: {', '.join(unanswered)}"
            )
        return found
