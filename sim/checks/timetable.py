"""The requests and answers of producers of delayed messages, checked against the single log of the
run.

Checked from outside. Laws: no delayed message is in its topic before its time, by the clock of the
leader that put it there; each acknowledged one arrives there, unless its recall was requested; one
whose recall was confirmed never does. `histories.py` reports messages that are stored twice or were
never sent: to it a delayed message is a send.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ledgermq.node.broker.parts.timers.timers import Timers
from ledgermq.proto.entries.layout import BODY_AT, prefixes, record_columns
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.histories import Histories
from ledgermq.sim.checks.ports import QueueKey
from ledgermq.sim.checks.truth import VALUE_BYTES, Truth


@dataclass(slots=True)
class Appointment:
    """One delayed message."""

    key: QueueKey
    value: int
    deliver_ms: int
    place: tuple[int, int] | None = None
    """Delivery time and offset, once it was acknowledged as waiting."""
    acknowledged: bool = False
    asked: bool = False
    """Whether its recall was requested."""
    recalled: bool = False
    """Whether its recall was confirmed."""


@dataclass
class Timetable:
    """The memory of one run."""

    histories: Histories
    truth: Truth
    appointments: dict[int, Appointment] = field(default_factory=dict)
    """By value."""

    def made(
        self, producer: int, key: QueueKey, value: int, deliver_ms: int, now: int
    ) -> Appointment:
        """A delayed message is about to be sent."""
        self.histories.sent(producer, key, value, 1, now)
        made = self.appointments[value] = Appointment(key, value, deliver_ms)
        return made

    def waits(self, timers: Timers, now_ms: int) -> bool:
        """Whether a message will still be delivered; not if only a clock that ran ahead holds it
        back."""
        last_ms = max(
            (appointment.deliver_ms for appointment in self.appointments.values()), default=0
        )
        return timers.pending > 0 and timers.watermark.fire_ms <= max(now_ms, last_ms)

    def finish(self, pending: int) -> None:
        """Called at the end of a run. `pending`: the number of messages that the log still holds
        back."""
        queues = self.histories.log.queues()
        missing = 0
        for appointment in self.appointments.values():
            there = bool((queues.get(appointment.key, _NOTHING) == appointment.value).any())
            if appointment.recalled and there:
                raise Violation(
                    "timer", f"message {appointment.value} was recalled but is in {appointment.key}"
                )
            missing += appointment.acknowledged and not appointment.asked and not there
        if missing > pending:
            raise Violation(
                "timer",
                f"{missing} delayed messages are in no topic, and only {pending} wait for their"
                " time",
            )
        self._none_early()

    def _none_early(self) -> None:
        for entries in self.truth.pieces(0, len(self.truth) - 1):
            columns = record_columns(entries)
            heads = prefixes(entries.data, entries.starts)
            waiting = [
                number for number, topic in enumerate(columns.topics) if topic == TIMER_TOPIC
            ]
            rows = np.flatnonzero((columns.origins > 0) & ~np.isin(columns.topic_of, waiting))
            for row in rows.tolist():
                at = int(entries.starts[row]) + BODY_AT
                value = int.from_bytes(entries.data[at : at + VALUE_BYTES], "big")
                if (
                    value in self.appointments
                    and int(heads["store_ms"][row]) < self.appointments[value].deliver_ms
                ):
                    raise Violation("timer", f"message {value} was delivered before its time")

    @property
    def confirmed(self) -> tuple[int, int]:
        """The numbers of acknowledged delayed messages, and of confirmed recalls."""
        all_of_them = self.appointments.values()
        return sum(one.acknowledged for one in all_of_them), sum(
            one.recalled for one in all_of_them
        )


_NOTHING = np.zeros(0, np.int64)
