"""The controller's stand-in: the wanted configuration of the cluster, the call that applies it, and
the master of an HA group.

This module holds what the metadata quorum decides (docs/architecture.md, The controller). Topics
and consumer groups requested by a client, and the addresses of the nodes, are intent: the group's
log takes precedence, and the reconciler of any node repeats the request to a leader that lacks
something. Appointments are decided only here, by the product's own functions
(`raft/ha_control.py`), one request after the other. `appointing.py` transports requests and
decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicKind
from ledgermq.raft.ha_control import (
    AlterIsr,
    Appointment,
    ElectionRequest,
    HaRequest,
    alter,
    elect,
    force,
)
from ledgermq.sim.actors.clients import CONSUMER_GROUP, FIFO, NORMAL, QUEUES


def _topic(name: str, kind: TopicKind) -> TopicConfig:
    return TopicConfig(
        namespace="",
        name=name,
        kind=kind,
        queues=QUEUES[name],
        permission=Permission.READ_WRITE,
        incarnation=0,
    )


@dataclass
class Controller:
    """Wanted topics by stored name, wanted consumer groups, the nodes' addresses, and all
    appointments, oldest first."""

    topics: dict[str, TopicConfig] = field(
        default_factory=lambda: {
            NORMAL: _topic(NORMAL, TopicKind.NORMAL),
            FIFO: _topic(FIFO, TopicKind.FIFO),
        }
    )
    groups: dict[str, GroupConfig] = field(
        default_factory=lambda: {CONSUMER_GROUP: GroupConfig("", CONSUMER_GROUP)}
    )
    addresses: dict[str, str] = field(default_factory=dict)
    elects: Callable[[Appointment | None, ElectionRequest], Appointment | str] = elect
    appointments: list[Appointment] = field(default_factory=list)
    refusals: int = 0
    """The number of refused requests."""

    def missing(
        self, topics: dict[str, TopicConfig], groups: dict[str, GroupConfig], token: int
    ) -> Configure | None:
        """The call for a leader that has these topics and groups; None if nothing is missing."""
        lacking = [topic for name, topic in self.topics.items() if topics.get(name) != topic]
        unknown = [group for name, group in self.groups.items() if groups.get(name) != group]
        return Configure(token, tuple(lacking), tuple(unknown)) if lacking or unknown else None

    @property
    def appointment(self) -> Appointment | None:
        """The current appointment; None before the first election."""
        return self.appointments[-1] if self.appointments else None

    def decide(self, wish: HaRequest, *, by_force: bool = False) -> Appointment | str:
        """Apply one request as the quorum applies its log; returns the resulting appointment, or a
        text why there is none."""
        known = self.appointment
        decided = (
            alter(known, wish)
            if isinstance(wish, AlterIsr)
            else force(known, wish)
            if by_force
            else self.elects(known, wish)
        )
        if isinstance(decided, str):
            self.refusals += 1
        else:
            self.appointments.append(decided)
        return decided

    def of_epoch(self, epoch: int) -> Appointment | None:
        """The last appointment of this epoch, which says which copies its master has to count."""
        return next((known for known in reversed(self.appointments) if known.epoch == epoch), None)
