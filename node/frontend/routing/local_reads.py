"""Whether the replica on this node may serve readers although another node leads the broker group, and how old what it knows is.

Only what is applied here is served, so nothing beyond what is confirmed, and never anything that a leader would not have given sooner or
later: committed entries do not change. A replica that has not heard its leader for longer than the bound sends its readers to the leader.
Consumers that acknowledge go to the leader always; nothing here is asked for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ledgermq.node.broker.calls.group_view import GroupView

MS = 1_000_000
LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one broker group. `max_age_ms`: older than this nothing is served. `cold_bytes`: a pull of the official contract is served here
    only when what it asks for lies so far behind the end of the log."""

    max_age_ms: int
    cold_bytes: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What this node's replica is in the group, and how old what it knows is; None: it leads."""

    role: str
    age_ms: int | None


class LocalReads:
    """The groups of one node. `rules`: those that allow it. `age_ns`: as `Freshness.age_ns`, by group. Belongs to the loop's thread."""

    def __init__(
        self, node: str, rules: Mapping[str, Rules], views: Mapping[str, GroupView], age_ns: Callable[[str], int | None]
    ) -> None:
        self._node = node
        self._rules = rules
        self._views = views
        self._age_ns = age_ns

    def bound_ms(self, group: str, wanted_ms: int = 0) -> int | None:
        """How old what is served may be, for a reader that wants nothing older than `wanted_ms` (0: no wish); None: the group does not
        allow it."""
        rules = self._rules.get(group)
        if rules is None:
            return None
        return min(wanted_ms, rules.max_age_ms) if wanted_ms > 0 else rules.max_age_ms

    def cold_bytes(self, group: str) -> int:
        """Of a group that allows it."""
        return self._rules[group].cold_bytes

    def standing(self, group: str, bound_ms: int) -> Standing | None:
        """None: what the replica here knows is too old, or unknown; whoever reads goes to the leader."""
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
