"""The in-sync set of an HA group as the turns of its replica see it: how many members are missing
before anything can be committed, and whether the master acknowledges alone.

In groups of other rules nothing is ever missing, and nobody acknowledges alone. `raft/policy.py`
says what the rule means for elections and commits; here it is what callers are told.
"""

from __future__ import annotations

from ledgermq.node.broker.calls.group_view import HaView
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.ports import Replicator
from ledgermq.node.broker.turn import Turn
from ledgermq.proto.levels import MINIMUM_LEVEL
from ledgermq.raft.config import HaRules, Rule
from ledgermq.raft.quorum import majority

SETTLING_NS = 1_000_000_000
UNCONFIRMED_MAX = 1 << 20
"""How many entries a master may acknowledge alone before the in-sync set confirms them. Entries not
yet applied are kept in memory."""


class InSyncSet:
    """What a replica knows of the in-sync set of its broker group."""

    def __init__(
        self, group: str, replicator: Replicator, machine: Machine, rules: HaRules
    ) -> None:
        self._group = group
        self._replicator = replicator
        self._machine = machine
        self._rules = rules
        self.missing = 0
        """How many more replicas must be in sync before the master can commit anything, as of this
        turn."""
        self.led_since_ns: int | None = None
        """Since when this replica leads; None while it does not."""
        self.acks_async = rules.ack_async
        """Whether the settings let the master acknowledge alone."""

    @property
    def acks_alone(self) -> bool:
        """Whether sends wait for the master's own disk and no other."""
        return (
            self.acks_async
            and self._replicator.members.rule is Rule.IN_SYNC
            and not self.is_far_ahead
        )

    @property
    def is_far_ahead(self) -> bool:
        """Whether too many entries are unconfirmed, because a silent slave cannot leave the in-sync
        set now. Sends then wait for the commit."""
        return self._replicator.end_index - self._replicator.commit_index >= UNCONFIRMED_MAX

    def look(self, turn: Turn) -> None:
        """Count the missing members. Slaves need a moment to report to a new master; until then no
        call is refused because of them."""
        since_ns = self.led_since_ns
        settled = since_ns is not None and turn.now_ns - since_ns >= SETTLING_NS
        missing = self._replicator.missing_isr(turn.now_ns) if settled else 0
        if missing != self.missing:
            self.missing, turn.decides = missing, True

    def why_short(self) -> str:
        """Why nothing can be committed with the current in-sync set, and what to do; empty if
        commits are possible."""
        if self.missing == 0:
            return ""
        needs = self._rules.minimum_of(self._replicator.members)
        there = needs - self.missing
        what = (
            f"broker group {self._group} has {there} of the {needs} replicas in sync that a send"
            " needs (min_in_sync)"
        )
        back = "nothing was stored; bring its other nodes back (ledgermq status)"
        if self._machine.level < MINIMUM_LEVEL:
            return f"{what}: {back}, or lower min_in_sync of the group"
        return (
            f"{what}: {back}, or, if none can come back: ledgermq replication {self._group}"
            f" --min-in-sync {max(1, there)}"
        )

    def copies_needed(self, voters: int) -> int:
        """How many of so many voters must store an entry before it counts."""
        members = self._replicator.members
        if members.rule is Rule.IN_SYNC:
            return self._rules.minimum_of(members)
        return voters if members.rule is Rule.ALL else majority(voters)

    def view(self) -> HaView | None:
        """What outsiders may know of it; None in a group of another rule."""
        members, rules = self._replicator.members, self._rules
        if members.rule is not Rule.IN_SYNC:
            return None
        agreed = self._replicator.appointment
        return HaView(
            generation=members.since,
            in_sync=None if agreed is None else tuple(sorted(agreed.in_sync)),
            minimum=rules.minimum_of(members),
            ack_async=rules.ack_async,
            pull=rules.pull,
            short=self.why_short(),
            last_store_ms=self._machine.store_ms,
        )

    def statistics(self) -> dict[str, int]:
        """Gauges of the set; none in a group of another rule, or while the set is unknown."""
        view = self.view()
        if view is None or view.in_sync is None:
            return {}
        return {"in_sync": len(view.in_sync), "in_sync_short": self.missing}
