"""Simulated producers of delayed messages: they send some for the near future or the recent past,
and recall a few of them.

This module defines such a producer's behaviour and knowledge; `timetable.py` checks the result.
Delayed messages go to an ordinary queue, where consumers receive them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ledgermq.node.broker.calls.outcome import Call, Refused
from ledgermq.node.broker.calls.send_calls import Produce, Produced, Recall, Recalled
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft
from ledgermq.sim.actors.clients import CLIENT_TIMEOUT_NS, NORMAL, QUEUES, VALUES_A_PRODUCER
from ledgermq.sim.actors.ports import Answer, Cluster
from ledgermq.sim.checks.timetable import Appointment, Timetable
from ledgermq.sim.machine.network import MS


@dataclass(frozen=True, slots=True)
class Plans:
    """How active such a producer is."""

    round_ns: tuple[int, int] = (400 * MS, 900 * MS)
    messages_a_send: tuple[int, int] = (1, 6)
    delay_ms: tuple[int, int] = (-100, 3_000)
    recalls: float = 0.2
    """Share of the messages that are recalled."""


class Delayer:
    """One producer of delayed messages."""

    def __init__(
        self,
        cluster: Cluster,
        timetable: Timetable,
        number: int,
        chance: random.Random,
        plans: Plans,
    ) -> None:
        self._cluster = cluster
        self._timetable = timetable
        self._number = number
        self._chance = chance
        self._plans = plans
        self._node = cluster.names[number % len(cluster.names)]
        self._next_value = number * VALUES_A_PRODUCER
        self._regretted: list[Appointment] = []
        """Messages to recall in the next round."""
        self._asked: dict[int, int] = {}
        """Calls without an answer: token → time of the call."""
        self._on = True

    def start(self) -> None:
        """Start; the first round follows within a period."""
        self._cluster.after(self._chance.randrange(self._plans.round_ns[1]), self._round)

    def wind_down(self) -> None:
        """Stop sending and recalling."""
        self._on = False

    def _round(self) -> None:
        for token, since in list(self._asked.items()):
            if self._cluster.now - since > CLIENT_TIMEOUT_NS:
                self._cluster.give_up(token)
                del self._asked[token]
                self._elsewhere(None)
        if self._on:
            self._recall()
            self._send()
        self._cluster.after(self._chance.randrange(*self._plans.round_ns), self._round)

    def _ask(self, make: Callable[[int], Call], answered: Callable[[Answer], None]) -> None:
        def came(outcome: Answer) -> None:
            self._asked.pop(token, None)
            answered(outcome)

        token = self._cluster.ask(self._node, make, came)
        self._asked[token] = self._cluster.now

    def _elsewhere(self, outcome: Answer) -> None:
        hint = outcome.leader if isinstance(outcome, Refused) else None
        names = self._cluster.names
        self._node = hint or names[(names.index(self._node) + 1) % len(names)]

    def _send(self) -> None:
        chance, now = self._chance, self._cluster.now
        key = (NORMAL, chance.randrange(QUEUES[NORMAL]))
        count = chance.randrange(*self._plans.messages_a_send)
        values = range(self._next_value, self._next_value + count)
        self._next_value += count
        times = [max(0, now // MS + chance.randrange(*self._plans.delay_ms)) for _ in values]
        made = [
            self._timetable.made(self._number, key, value, at_ms, now)
            for value, at_ms in zip(values, times, strict=True)
        ]
        drafts = [_draft(appointment, now) for appointment in made]

        def answered(outcome: Answer) -> None:
            if not isinstance(outcome, Produced):
                self._elsewhere(outcome)
                return
            if outcome.durability != "durable":
                return
            for place, appointment in enumerate(made):
                appointment.acknowledged = True
                if outcome.fire_ms and outcome.fire_ms[place]:
                    appointment.place = outcome.fire_ms[place], outcome.queue_offsets[place]
                    if self._chance.random() < self._plans.recalls:
                        self._regretted.append(appointment)

        self._ask(lambda token: Produce(token, drafts), answered)

    def _recall(self) -> None:
        regretted, self._regretted = self._regretted, []
        for appointment in regretted:
            self._take_back(appointment)

    def _take_back(self, appointment: Appointment) -> None:
        assert appointment.place is not None, "only a waiting message is recalled"
        fire_ms, offset = appointment.place
        appointment.asked = True

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, Recalled):
                appointment.recalled |= outcome.ok
            else:
                self._elsewhere(outcome)

        self._ask(lambda token: Recall(token, appointment.deliver_ms, fire_ms, offset), answered)


def _draft(appointment: Appointment, now: int) -> Draft:
    topic, queue = appointment.key
    properties = encode(Fields(message_id="x", deliver_ms=appointment.deliver_ms))
    return Draft(
        topic,
        queue,
        appointment.value.to_bytes(8, "big"),
        properties,
        now // MS,
        priority=0,
        deliver_ms=appointment.deliver_ms,
    )
