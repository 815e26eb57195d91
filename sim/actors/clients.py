"""Simulated clients: they send, receive under leases, acknowledge, extend leases, and read by
offset, through the calls that the server makes.

This module defines the behaviour of a client: which node it asks, how long it waits, what it
retries where, and what it believes. It knows no node and no log; `histories.py` records the
answers. A client without an answer does not know the outcome of its call: it never sends the same
message again, but repeats an acknowledgement. A client that was refused retries at another node.

A client acts in rounds, like programs that batch their work: its sends, acknowledgements and
requests leave together.

A message's body begins with eight bytes, a number that is unique in the run: producer × 2³² + its
sequence.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
    Change,
    Changed,
    Handle,
    Receive,
    Received,
)
from ledgermq.node.broker.calls.outcome import Call, Refused
from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.flush import DURABLE_PRIORITY
from ledgermq.proto.types import Draft
from ledgermq.sim.actors.ports import Answer, Cluster
from ledgermq.sim.checks.histories import Sent
from ledgermq.sim.machine.network import MS

NORMAL, FIFO = "orders", "journal"
QUEUES = {NORMAL: 2, FIFO: 1}
CONSUMER_GROUP = "readers"
VALUES_A_PRODUCER = 1 << 32
CLIENT_TIMEOUT_NS = 1_500 * MS
PROPERTIES = b"UNIQ_KEY\x01x\x02"
FIFO_PROPERTIES = b"UNIQ_KEY\x01x\x02__SHARDINGKEY\x01g\x02"
FILLER = bytes(range(32, 127)) * 8
EVERYTHING = TagFilter()
REPEATED = 4
"""After this many acknowledgements a client repeats one that was answered."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How active a client is: periods and numbers are drawn uniformly from (least, most)."""

    round_ns: tuple[int, int] = (200 * MS, 450 * MS)
    messages_a_send: tuple[int, int] = (20, 80)
    filler_bytes: tuple[int, int] = (0, 60)
    messages_a_receive: int = 64
    invisible_ms: tuple[int, int] = (600, 2_000)
    messages_a_read: int = 16
    reads: float = 0.25
    """Share of the rounds in which a queue is read by offset."""
    forgets: float = 0.04
    """Share of received batches that are never acknowledged, and are therefore delivered again."""
    prolongs: float = 0.06


class _Slot:
    """One kind of call, of which a client has at most one in flight."""

    __slots__ = ("answered", "since", "token")

    def __init__(self) -> None:
        self.token = 0
        self.since = 0
        self.answered: Callable[[Answer], None] = _nobody


class Client:
    """One client process."""

    def __init__(
        self,
        cluster: Cluster,
        number: int,
        chance: random.Random,
        habits: Habits,
        body_at: int,
        group: str = CONSUMER_GROUP,
    ) -> None:
        """`body_at`: where a message record's body begins."""
        self.group = group
        """The consumer group to which it belongs."""
        self._cluster = cluster
        self._number = number
        self._session = f"client-{number} via sim"
        self._chance = chance
        self._habits = habits
        self._body_at = body_at
        self._node = cluster.names[number % len(cluster.names)]
        """The node it asks: the one that answered last, or was named as the leader."""
        self._next_value = number * VALUES_A_PRODUCER
        self._sends = 0
        self._unsent: tuple[Sent, list[Draft]] | None = None
        """Messages that were refused, and may be sent again."""
        self._acknowledged = 0
        self._leases: list[Handle] = []
        """Messages received, to be acknowledged in the next round."""
        self._sends_on, self._receives_on = True, True
        self._sending, self._receiving, self._giving_back, self._reading = (
            _Slot(),
            _Slot(),
            _Slot(),
            _Slot(),
        )

    def start(self) -> None:
        """Start; the first round follows within a period."""
        self._cluster.after(self._chance.randrange(self._habits.round_ns[1]), self._round)

    def wind_down(self, *, receives: bool) -> None:
        """Stop sending and reading. With `receives`, every remaining message is received and
        acknowledged."""
        self._sends_on, self._receives_on = False, receives

    def _round(self) -> None:
        cluster, chance = self._cluster, self._chance
        for slot in (self._sending, self._receiving, self._giving_back, self._reading):
            if slot.token and cluster.now - slot.since > CLIENT_TIMEOUT_NS:
                cluster.give_up(slot.token)
                slot.token = 0
                slot.answered(None)
        if self._sends_on and not self._sending.token:
            self._send()
        if self._leases and not self._giving_back.token:
            self._acknowledge()
        if self._receives_on and not self._receiving.token:
            self._receive()
        if self._sends_on and not self._reading.token and chance.random() < self._habits.reads:
            self._read()
        cluster.after(chance.randrange(*self._habits.round_ns), self._round)

    def _ask(
        self,
        slot: _Slot,
        node: str,
        make: Callable[[int], Call],
        answered: Callable[[Answer], None],
    ) -> None:
        def came(outcome: Answer) -> None:
            slot.token = 0
            answered(outcome)

        slot.since, slot.answered = self._cluster.now, answered
        slot.token = self._cluster.ask(node, make, came)

    def _elsewhere(self, outcome: Answer) -> None:
        """After a refusal or no answer: ask the reported leader, or the next node."""
        hint = outcome.leader if isinstance(outcome, Refused) else None
        names = self._cluster.names
        self._node = hint or names[(names.index(self._node) + 1) % len(names)]

    # Sending

    def _send(self) -> None:
        send, drafts = self._unsent or self._new_messages()
        self._unsent = None

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, Produced):
                self._cluster.histories.produced(send, outcome, self._cluster.now)
                return
            self._elsewhere(outcome)
            if isinstance(outcome, Refused) and outcome.reason not in (
                "unknown-outcome",
                "too-large",
            ):
                # Nothing was appended, so the same messages may be sent again.
                self._unsent = send, drafts

        self._ask(self._sending, self._node, lambda token: Produce(token, drafts), answered)

    def _new_messages(self) -> tuple[Sent, list[Draft]]:
        habits, chance = self._habits, self._chance
        self._sends += 1
        topic = FIFO if self._sends % 3 == 0 else NORMAL
        queue, properties = (
            chance.randrange(QUEUES[topic]),
            FIFO_PROPERTIES if topic == FIFO else PROPERTIES,
        )
        count = chance.randrange(*habits.messages_a_send)
        value, self._next_value = self._next_value, self._next_value + count
        filler, born_ms = FILLER[: chance.randrange(*habits.filler_bytes)], self._cluster.now // MS
        priority = chance.randrange(2 * DURABLE_PRIORITY)
        numbers = range(value, value + count)
        drafts = [
            Draft(
                stored_topic=topic,
                queue=queue,
                body=number.to_bytes(8, "big") + filler,
                properties=properties,
                born_ms=born_ms,
                tags_code=0,
                channel=0,
                priority=priority,
            )
            for number in numbers
        ]
        return self._cluster.histories.sent(
            self._number, (topic, queue), value, count, self._cluster.now
        ), drafts

    # Receiving

    def _receive(self) -> None:
        habits, chance, invoked = self._habits, self._chance, self._cluster.now
        topic = FIFO if chance.random() < 0.33 else NORMAL
        invisible_ms = chance.randrange(*habits.invisible_ms)
        until = invoked + chance.randrange(*habits.round_ns)

        def make(token: int) -> Call:
            return Receive(
                token=token,
                group=self.group,
                topic=topic,
                client_id=self._session,
                filter=EVERYTHING,
                max_messages=habits.messages_a_receive,
                invisible_ms=invisible_ms,
                deadline_ns=until,
            )

        self._ask(
            self._receiving,
            self._node,
            make,
            lambda outcome: self._received(topic, invoked, outcome),
        )

    def _received(self, topic: str, invoked: int, outcome: Answer) -> None:
        if not isinstance(outcome, Received):
            self._elsewhere(outcome)
            return
        if not outcome.leases:
            return
        self._cluster.histories.delivered(self.group, topic, outcome.leases, self._body_at, invoked)
        fate = self._chance.random()
        if fate < self._habits.forgets and self._sends_on:
            return
        name = (self.group, topic)
        handles = [
            Handle(*name, lease.queue, lease.queue_offset, lease.lease_number, lease.attempt)
            for lease in outcome.leases
        ]
        if fate < self._habits.forgets + self._habits.prolongs:
            self._prolong(handles.pop())
        self._leases += handles

    def _acknowledge(self) -> None:
        handles, self._leases = self._leases, []

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, Acked):
                self._cluster.histories.acked(handles, outcome.ok, self._cluster.now)
                self._acknowledged += 1
                if self._acknowledged % REPEATED == 0:
                    self._leases += handles
            else:
                # The outcome is unknown, but an acknowledgement may be repeated.
                self._elsewhere(outcome)
                self._leases += handles

        self._ask(self._giving_back, self._node, lambda token: Ack(token, handles), answered)

    def _prolong(self, handle: Handle) -> None:
        """Extend the lease of this message; it is acknowledged under its new lease."""
        invisible_ms = self._chance.randrange(*self._habits.invisible_ms)

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, Changed) and outcome.lease_number is not None:
                self._leases.append(handle._replace(lease_number=outcome.lease_number))

        self._cluster.ask(
            self._node, lambda token: Change(token, handle, invisible_ms, self._session), answered
        )

    # Reading by offset

    def _read(self) -> None:
        """Usually ask the presumed leader, sometimes any node: every node that answers must be up
        to date."""
        chance, names, invoked = self._chance, self._cluster.names, self._cluster.now
        topic = FIFO if chance.random() < 0.5 else NORMAL
        queue, most = chance.randrange(QUEUES[topic]), self._habits.messages_a_read
        offset = chance.randrange(1 << 10) if chance.random() < 0.5 else 1 << 40

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, Peeked):
                self._cluster.histories.shown(
                    (topic, queue), outcome, self._body_at, invoked, self._cluster.now
                )
            else:
                self._elsewhere(outcome)

        node = names[chance.randrange(len(names))] if chance.random() < 0.2 else self._node
        self._ask(
            self._reading, node, lambda token: Peek(token, topic, queue, offset, most), answered
        )


def _nobody(outcome: Answer) -> None:
    """The callback of a slot that was never used."""
