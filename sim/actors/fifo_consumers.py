"""Simulated consumers of a FIFO group: they take batches, acknowledge a part of each in any order,
give some back, and let the rest lapse.

They use the calls that the server makes, and remember what `message_groups.py` needs to judge the
order.
"""

from __future__ import annotations

import random

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
    Change,
    Handle,
    Lease,
    Receive,
    Received,
)
from ledgermq.node.broker.calls.outcome import Call, Refused
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import MESSAGE_GROUP, parse
from ledgermq.sim.actors.clients import CLIENT_TIMEOUT_NS, EVERYTHING, FIFO
from ledgermq.sim.actors.ports import Answer, Cluster
from ledgermq.sim.checks.message_groups import MessageGroup
from ledgermq.sim.machine.network import MS

ROUND_NS = (60 * MS, 240 * MS)
BATCHES = (1, 6)
INVISIBLE_MS = (300, 900)
ACKNOWLEDGED, GIVEN_BACK = 0.6, 0.2
"""Shares of the messages of a batch. The leases of the others lapse."""
REST = 512
"""So many messages are taken at once, and all of them acknowledged, when what is left is to be
consumed."""


class Groups:
    """The message groups of one consumer group: (queue, message group) → what its consumers saw."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: dict[tuple[int, str], MessageGroup] = {}
        self.of: dict[tuple[int, int], MessageGroup] = {}
        """(queue, offset) → its message group."""

    def received(self, leases: tuple[Lease, ...], now_ns: int) -> None:
        parts: dict[tuple[int, str], list[Lease]] = {}
        for lease in leases:
            name = parse(decode_record(lease.record).properties).get(MESSAGE_GROUP, "")
            parts.setdefault((lease.queue, name), []).append(lease)
        for key, mine in parts.items():
            group = self.seen.setdefault(key, MessageGroup())
            group.received(
                mine[0].lease_number,
                [(lease.queue_offset, lease.attempt) for lease in mine],
                now_ns,
            )
            self.of.update(((lease.queue, lease.queue_offset), group) for lease in mine)

    def check(self) -> None:
        """Raises Violation."""
        for group in self.seen.values():
            group.check()


class FifoConsumer:
    """One client process."""

    def __init__(
        self, cluster: Cluster, groups: Groups, number: int, chance: random.Random, body_at: int
    ) -> None:
        self._cluster = cluster
        self._groups = groups
        self._session = f"fifo-{number} via sim"
        self._chance = chance
        self._body_at = body_at
        self._node = cluster.names[number % len(cluster.names)]
        self._token = 0
        self._since = 0
        self._rest = False
        self._ended = False

    def start(self) -> None:
        self._cluster.after(self._chance.randrange(*ROUND_NS), self._round)

    def wind_down(self, *, receives: bool) -> None:
        """With `receives`, consume what is left, and acknowledge all of it; otherwise stop."""
        self._rest, self._ended = receives, not receives

    def _round(self) -> None:
        cluster = self._cluster
        if self._token and cluster.now - self._since > CLIENT_TIMEOUT_NS:
            cluster.give_up(self._token)
            self._token = 0
            self._elsewhere(None)
        if not self._token and not self._ended:
            self._receive()
        if not self._ended:
            cluster.after(self._chance.randrange(*ROUND_NS), self._round)

    def _elsewhere(self, outcome: Answer) -> None:
        hint = outcome.leader if isinstance(outcome, Refused) else None
        names = self._cluster.names
        self._node = hint or names[(names.index(self._node) + 1) % len(names)]

    def _receive(self) -> None:
        most = REST if self._rest else self._chance.randrange(*BATCHES)
        invisible_ms = self._chance.randrange(*INVISIBLE_MS)
        invoked = self._cluster.now
        until = invoked + self._chance.randrange(*ROUND_NS)

        def make(token: int) -> Call:
            return Receive(
                token=token,
                group=self._groups.name,
                topic=FIFO,
                client_id=self._session,
                filter=EVERYTHING,
                max_messages=most,
                invisible_ms=invisible_ms,
                deadline_ns=until,
            )

        def answered(outcome: Answer) -> None:
            self._token = 0
            if isinstance(outcome, Received):
                self._took(outcome.leases, invoked)
            else:
                self._elsewhere(outcome)

        self._since = invoked
        self._token = self._cluster.ask(self._node, make, answered)

    def _took(self, leases: tuple[Lease, ...], invoked: int) -> None:
        if not leases:
            return
        self._cluster.histories.delivered(self._groups.name, FIFO, leases, self._body_at, invoked)
        self._groups.received(leases, self._cluster.now)
        done: list[Handle] = []
        for lease in leases:
            handle = Handle(
                group=self._groups.name,
                topic=FIFO,
                queue=lease.queue,
                queue_offset=lease.queue_offset,
                lease_number=lease.lease_number,
                attempt=lease.attempt,
            )
            fate = 0.0 if self._rest else self._chance.random()
            if fate < ACKNOWLEDGED:
                done.append(handle)
            elif fate < ACKNOWLEDGED + GIVEN_BACK:
                self._give_back(handle)
        if done:
            self._acknowledge(done)

    def _acknowledge(self, handles: list[Handle]) -> None:
        for handle in handles:
            self._groups.of[handle.queue, handle.queue_offset].acknowledging(
                handle.queue_offset, self._cluster.now
            )

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, Acked):
                self._cluster.histories.acked(handles, outcome.ok, self._cluster.now)

        self._cluster.ask(self._node, lambda token: Ack(token, handles), answered)

    def _give_back(self, handle: Handle) -> None:
        self._cluster.ask(
            self._node, lambda token: Change(token, handle, 0, self._session), _ignored
        )


def _ignored(outcome: Answer) -> None:
    """Whether it was given back shows in what comes next."""
