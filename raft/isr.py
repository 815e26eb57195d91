"""The in-sync set of an HA group (rule IN_SYNC; docs/architecture.md, HA groups), and what the controller is asked for.

The controller decides in one order for all (`ha_control.py`): who is master of which epoch, and which nodes are in sync. `Isr` holds what
this replica knows of those decisions, and its requests. `IsrReview` belongs to a master: it keeps the in-sync set true to what is there. A
master waits for every node in the set. It asks the controller to remove a node that is gone or too far behind, and goes on waiting for that
node until the controller has agreed. It asks to add a node that has everything committed, and waits for it from that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ledgermq.raft.config import Members, RaftConfig
from ledgermq.raft.effects import Outbox
from ledgermq.raft.ha_control import NO_EPOCH, AlterIsr, Appointment, ElectionRequest
from ledgermq.raft.log_state import LogState
from ledgermq.raft.transfer import Cause

NEVER_NS = 1 << 62


def known_by(members: Members, node: str) -> str:
    """The directory by which the members know a node; empty for that of the group's beginning."""
    return members.incarnations.get(node, "")


class Isr:
    """What this replica knows of the controller's decisions.

    appointment  the latest decision it heard of, whatever rule the group has now
    agreed_ns    when it heard of that
    joining      nodes that it asked, as master, to add to the in-sync set of the version it knows: each of them may be in it already
    """

    def __init__(self, config: RaftConfig, log: LogState, outbox: Outbox) -> None:
        self._config = config
        self._log = log
        self._outbox = outbox
        self.appointment: Appointment | None = None
        self.agreed_ns = -NEVER_NS
        self.joining: set[str] = set()

    def learn(self, appointment: Appointment, now_ns: int) -> bool:
        """A decision of the controller arrived; late or repeated ones change nothing. Returns whether it is news."""
        if self.appointment is not None and appointment.order <= self.appointment.order:
            return False
        self.agreed_ns = now_ns
        self.appointment = appointment
        # Every request that was on its way named an older version: it was granted in this one, or it never will be.
        self.joining.clear()
        return True

    def begin_leading(self) -> None:
        self.joining.clear()

    def join(self, nodes: set[str]) -> None:
        """The master asks to add these nodes."""
        self.joining |= nodes

    def agreed(self, members: Members) -> Appointment | None:
        """What the controller agreed on for these members of the rule IN_SYNC; None before its first election."""
        known = self.appointment
        return known if known is not None and known.generation == members.since else None

    def in_sync(self, members: Members) -> Collection[str]:
        """The nodes that may be elected master: by agreement, or all voters before there is one."""
        agreed = self.agreed(members)
        return members.voters if agreed is None else agreed.in_sync.keys()

    def request_master(self, members: Members, node: str, cause: Cause, term: int) -> None:
        """Ask the controller to elect `node`; without an answer the next campaign asks again. Not before the entry that made the rule is on
        stable storage here: if it were lost, and the rule made anew by an earlier entry, the controller would refuse that as older."""
        if members.since > self._log.durable_index:
            return
        agreed, voters = self.agreed(members), {voter: known_by(members, voter) for voter in members.voters}
        epoch = NO_EPOCH if agreed is None else agreed.epoch
        known = known_by(members, node), members.since, epoch, term
        self._outbox.requests.append(ElectionRequest(node, *known, voters, cause, self._config.node, self._has_begun(members)))

    def _has_begun(self, members: Members) -> bool:
        """Whether the log shows an epoch of the rule in force: since the entry that made the rule, terms rise by epochs alone."""
        made_in = self._log.view.term_at(members.since)
        return made_in is None or self._log.view.end_term > made_in

    def request_set(self, agreed: Appointment, in_sync: Mapping[str, str]) -> None:
        """Ask the controller, as master, for this in-sync set in place of the agreed one."""
        self._outbox.requests.append(AlterIsr(self._config.node, agreed.generation, agreed.epoch, agreed.version, in_sync))


@dataclass(frozen=True, slots=True)
class Eviction:
    """A change of members needs this node out of the in-sync set first. The master does not ask for it back until the change is made, or
    until `until_ns` if the change is not asked for again. `lost`: the node's directory is gone, so it leaves also a set that is too small
    without it."""

    until_ns: int
    lost: bool
