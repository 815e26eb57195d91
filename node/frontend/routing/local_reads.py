"""Decides whether the replica on this node may serve readers while another node leads the broker
group, and how stale its data may be.

A replica serves only what it has applied, so only committed entries, which never change. A replica
that has not heard its leader for longer than the bound sends its readers to the leader. Consumers
that acknowledge messages always go to the leader; they do not use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ledgermq.node.broker.calls.group_view import GroupView

MS = 1_000_000
LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one broker group. `max_age_ms`: the greatest staleness that is served.
    `cold_bytes`: a pull of the official contract is served here only if it asks for entries at
    least this many bytes behind the end of the log."""

    max_age_ms: int
    cold_bytes: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The role of this node's replica in the group, and the staleness of its data in ms; None if it
    leads."""

    role: str
    age_ms: int | None


class LocalReads:
    """The local reads of one node, on the loop's thread. `rules`: the groups that allow them.
    `age_ns`: as `Freshness.age_ns`, by group."""

    def __init__(
        self,
        node: str,
        rules: Mapping[str, Rules],
        views: Mapping[str, GroupView],
        age_ns: Callable[[str], int | None],
    ) -> None:
        self._node = node
        self._rules = rules
        self._views = views
        self._age_ns = age_ns

    def bound_ms(self, group: str, wanted_ms: int = 0) -> int | None:
        """The staleness bound in ms for a reader that wants nothing older than `wanted_ms` (0: no
        preference); None if the group allows no local reads."""
        rules = self._rules.get(group)
        if rules is None:
            return None
        return min(wanted_ms, rules.max_age_ms) if wanted_ms > 0 else rules.max_age_ms

    def cold_bytes(self, group: str) -> int:
        """The `cold_bytes` of a group that allows local reads."""
        return self._rules[group].cold_bytes

    def standing(self, group: str, bound_ms: int) -> Standing | None:
        """The replica's standing; None if its data is too old or of unknown age: the reader must
        then go to the leader."""
        view = self._views.get(group)
        if view is None:
            return None
        if view.serving:
            return Standing(LEADER, None)
        age_ns = self._age_ns(group)
        if age_ns is None or age_ns > bound_ms * MS:
            return None
        return Standing(self._role(view), age_ns // MS)

    def _role(self, view: GroupView) -> str:
        members = view.members
        if members is None or self._node in members.voters:
            return "follower"
        return "observer" if self._node in members.observers else "learner"
