"""Broadcasting consumer groups at the leader: every client of the group gets every message, so each
client is a *member* with its own cursors.

A member is a consumer group under an internal name (`names.member_group`), and behaves like one:
leases, acknowledgements, attempts, snapshots. Only the beginning and end of its cursors are
special. A member begins at the end of every queue of a topic when its first Receive for that topic
is served; a `reset` record sets these offsets. A `group` record deletes it when the client
terminates, or has shown no sign of life for `PATIENCE` liveness limits: a client that was
disconnected for a while misses nothing, and one that is gone for good leaves nothing behind.

Signs of life are local to the leader; each new leader starts over.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.node.broker.calls.consumer_calls import client_of
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import LeaderPart
from ledgermq.node.broker.plan import NEVER_NS, Plan
from ledgermq.node.broker.uncommitted import (
    UncommittedState,
    group_name,
    reset_name,
    reset_pair_name,
)
from ledgermq.proto.names import member_name, parse_member
from ledgermq.proto.records import control
from ledgermq.proto.types import GroupConfig, TopicConfig

PATIENCE = 10
MEMBERS_MAX = 10_000
"""Limit of members of all groups in a broker group."""
LOOKS = 8
"""How often within the liveness limit the leader looks for silent members."""


class Members(LeaderPart):
    """The members of broadcasting groups, on one broker group's leader."""

    def __init__(self, machine: Machine, uncommitted: UncommittedState, liveness_ns: int) -> None:
        self._machine = machine
        self._uncommitted = uncommitted
        self._patience_ns = PATIENCE * liveness_ns
        self._every_ns = max(1, liveness_ns // LOOKS)
        self.seen: dict[str, int] = {}
        """Member → last sign of life."""
        self._of_client: dict[str, dict[str, None]] = {}
        """Client name, in the form used in members' names → its members."""
        self.pending = self._silent = dict[str, None]()
        """Members that are to be deleted."""

    def lead(self, now_ns: int) -> None:
        """Start over from the applied state; every member counts as alive now."""
        self.resign()
        for group, _, _ in self._machine.delivery.queues:
            self._know(group, now_ns)
        self._look_at(now_ns)

    def resign(self) -> None:
        self.seen.clear()
        self._of_client.clear()
        self._silent.clear()
        self.due_ns = NEVER_NS

    def _look_at(self, now_ns: int) -> None:
        """Set when the signs of life of members are looked at next."""
        self.due_ns = now_ns + self._every_ns if self.seen else NEVER_NS

    def _know(self, group: str, now_ns: int) -> None:
        client = parse_member(group)[1]
        if client:
            self.seen[group] = now_ns
            self._of_client.setdefault(client, {})[group] = None

    # Signs of life

    def alive(self, clients: Sequence[str], at_ns: int) -> None:
        """Record signs of life of these sessions."""
        if self._of_client:
            for client in clients:
                for group in self._of_client.get(member_name(client_of(client)), ()):
                    self.seen[group] = max(self.seen[group], at_ns)

    def gone(self, client: str, at_ns: int) -> None:
        self._silent.update(self._of_client.get(member_name(client), {}))

    def expire(self, now_ns: int) -> None:
        """Find members that were silent for too long."""
        self._look_at(now_ns)
        self._silent.update(
            {
                group: None
                for group, seen_ns in self.seen.items()
                if seen_ns + self._patience_ns <= now_ns
            }
        )

    # Plans

    def end_plan(self, plan: Plan) -> None:
        """Plan records that delete the members that are gone."""
        if plan.full:
            return
        dropped: list[str] = []
        for group in self._silent:
            if self._uncommitted.configuring(group_name(group)) is None:
                dropped.append(group)
                self._uncommitted.mark_name(plan.next_index, group_name(group))
                plan.drafts.append(
                    control.draft(
                        control.GroupRecord(GroupConfig("", group), deleted=True), plan.now_ms
                    )
                )
                plan.count("members_dropped")
        if dropped:
            plan.kept.append(lambda _: self._forget(dropped))

    def _forget(self, groups: list[str]) -> None:
        for group in groups:
            self._silent.pop(group, None)
            if self.seen.pop(group, None) is not None:
                client = parse_member(group)[1]
                del self._of_client[client][group]
                if not self._of_client[client]:
                    del self._of_client[client]

    def begins(self, plan: Plan, group: str, config: TopicConfig, topic: str) -> bool:
        """Whether a member's Receives must wait because it has no cursors in the topic yet. If so,
        the record that sets them is planned."""
        queues = self._machine.delivery.queues
        if not parse_member(group)[1]:
            return False
        if group not in self.seen:
            if len(self.seen) >= MEMBERS_MAX:
                return True
            self._know(group, plan.now_ns)
            self.due_ns = min(self.due_ns, plan.now_ns + self._every_ns)
        if any((group, topic, queue) in queues for queue in range(config.queues)):
            # A member reads a queue that was added to the topic later from its beginning.
            return False
        index = plan.next_index
        ends = tuple([(queue, self._machine.end(topic, queue)) for queue in range(config.queues)])
        plan.drafts.append(control.draft(control.ResetRecord(group, topic, ends), plan.now_ms))
        for queue, _ in ends:
            self._uncommitted.mark_name(index, reset_name((group, topic, queue)))
        self._uncommitted.mark_name(index, reset_pair_name(group, topic))
        return True
