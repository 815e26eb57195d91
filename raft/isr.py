"""The in-sync set of an HA group (rule IN_SYNC; docs/architecture.md, HA groups), and the requests
to the controller.

The controller decides in one order for all nodes (`ha_control.py`) who is master of which epoch,
and which nodes are in sync. `Isr` holds what this replica knows of those decisions, and its
requests. A master's `IsrReview` keeps the set equal to the nodes that keep up. A master waits for
every node in the set. It asks the controller to remove a node that has failed or lags too far, and
keeps waiting for that node until the controller has agreed. It asks to add a node that has
everything committed, and waits for it from that moment.
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
    """The directory by which the members know a node; empty for the one at the group's creation."""
    return members.incarnations.get(node, "")


class Isr:
    """What this replica knows of the controller's decisions.

    appointment  the latest decision it received, whatever rule the group has now
    agreed_ns    when it received that decision
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
        """Learn a decision of the controller; a late or repeated one changes nothing. Returns
        whether it is new."""
        if self.appointment is not None and appointment.order <= self.appointment.order:
            return False
        self.agreed_ns = now_ns
        self.appointment = appointment
        # Every pending request named an older version: it was granted in this version, or never
        # will be.
        self.joining.clear()
        return True

    def begin_leading(self) -> None:
        self.joining.clear()

    def join(self, nodes: set[str]) -> None:
        """The master asks to add these nodes."""
        self.joining |= nodes

    def agreed(self, members: Members) -> Appointment | None:
        """What the controller agreed on for these members of the rule IN_SYNC; None before its
        first election."""
        known = self.appointment
        return known if known is not None and known.generation == members.since else None

    def in_sync(self, members: Members) -> Collection[str]:
        """The nodes that may be elected master: those agreed on, or all voters before there is an
        agreement."""
        agreed = self.agreed(members)
        return members.voters if agreed is None else agreed.in_sync.keys()

    def request_master(self, members: Members, node: str, cause: Cause, term: int) -> None:
        """Ask the controller to elect `node`; without an answer the next campaign asks again. It
        waits until the entry that made the rule is on stable storage here: if that entry were lost,
        and an earlier one made the rule anew, the controller would refuse that as older."""
        if members.since > self._log.durable_index:
            return
        agreed, voters = (
            self.agreed(members),
            {voter: known_by(members, voter) for voter in members.voters},
        )
        epoch = NO_EPOCH if agreed is None else agreed.epoch
        self._outbox.requests.append(
            ElectionRequest(
                node=node,
                incarnation=known_by(members, node),
                generation=members.since,
                epoch=epoch,
                term=term,
                voters=voters,
                cause=cause,
                asked_by=self._config.node,
                begun=self._has_begun(members),
            )
        )

    def _has_begun(self, members: Members) -> bool:
        """Whether the log shows an epoch of the rule in force: since the entry that made the rule,
        only epochs raise terms."""
        made_in = self._log.view.term_at(members.since)
        return made_in is None or self._log.view.end_term > made_in

    def request_set(self, agreed: Appointment, in_sync: Mapping[str, str]) -> None:
        """Ask the controller, as master, for this in-sync set in place of the agreed one."""
        self._outbox.requests.append(
            AlterIsr(
                node=self._config.node,
                generation=agreed.generation,
                epoch=agreed.epoch,
                version=agreed.version,
                in_sync=in_sync,
            )
        )


@dataclass(frozen=True, slots=True)
class Eviction:
    """A change of members needs this node out of the in-sync set first. The master does not add it
    again until the change is made, or until `until_ns` if the change is not requested again.
    `lost`: the node's directory is lost, so it is removed even from a set that is too small without
    it."""

    until_ns: int
    lost: bool
