"""Values for handing leadership over (Raft dissertation §3.10) and for the reasons why leadership
moved; the record of one handover.

A handover has two parts. *Open*: the leader keeps accepting entries while the target catches up;
this part ends at `until_ns` at the latest. *Closed*: everything the target lacks is under way to
it, no entry is accepted any more, and the target is told to campaign as soon as it holds all of the
log on stable storage. The closed part lasts one election timeout at most; then the leader continues
as before. `handover.py` decides when each part begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Cause(IntEnum):
    """Why a leader came or went. The numbers travel between nodes and are stored: their meaning
    never changes."""

    STARTED = 1
    ELECTION_TIMEOUT = 2
    OPERATOR = 3
    PLANNED_STOP = 4
    PREFERRED = 5
    NO_MAJORITY = 6
    HIGHER_TERM = 7
    FOLLOWED = 8
    REMOVED = 9
    FORCED = 10
    """An operator made this node master although others may have been in sync
    (`ha_control.force`)."""


HANDOVERS = frozenset({Cause.OPERATOR, Cause.PLANNED_STOP, Cause.PREFERRED, Cause.REMOVED})


@dataclass(frozen=True, slots=True)
class Reason:
    """`peer`: the node that was not heard, that showed the higher term, that handed over, or that
    is followed. `silent_ms`: how long that node, or a majority, was not heard."""

    cause: Cause
    peer: str = ""
    silent_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """One replica learned of another leader, or a leader stopped being one (`leader` is None).
    `former` is the last leader it knew."""

    term: int
    former: str | None
    leader: str | None
    reason: Reason


@dataclass(slots=True)
class Handover:
    """The handover under way."""

    to: str
    cause: Cause
    until_ns: int
    closed: bool = False
    notified: bool = False
    """The target was told to campaign: from now on it may take over at any moment."""
    again_ns: int = 0
    """When to tell it again."""

    def extend(self, until_ns: int) -> None:
        """The handover was requested again: the open part may last longer. The closed part never
        does."""
        if not self.closed:
            self.until_ns = max(self.until_ns, until_ns)

    def notify(self, again_ns: int) -> None:
        """The target was told to take over."""
        self.notified, self.again_ns = True, again_ns

    def close(self, until_ns: int) -> None:
        self.closed, self.until_ns = True, until_ns
