"""What the simulated clients were told, checked against the single log of the run.

Checked from outside: sends and their answers, messages received, acknowledged and read. Answers are
recorded cheaply; the values are compared in columns when `settle` is called, which the world does
from time to time and at the end.

Laws: a message acknowledged as durable stays where the answer said (I5). A message acknowledged
earlier may be lost, but if it is anywhere, it is where the answer said, and in order. A queue holds
no message that was not sent, that was refused permanently, or that is already in it. The sends of
one producer to one queue are in the order of their acknowledgements (I7). A queue is linearizable
(`audit.history`). An acknowledged message is not delivered again, and first deliveries are in the
order of the queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ledgermq.audit.history import NEVER, Read, Send, check_queue
from ledgermq.node.broker.calls.consumer_calls import Handle, Lease
from ledgermq.node.broker.calls.read_calls import Peeked
from ledgermq.node.broker.calls.send_calls import Produced
from ledgermq.proto.types import I64
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.ports import QueueKey, QueueValues

VALUE_BYTES = 8


@dataclass(slots=True)
class Sent:
    """One call's messages to one queue: the values `value` … `value + count − 1`."""

    producer: int
    key: QueueKey
    value: int
    count: int
    invoked: int
    returned: int | None = None
    offset: int | None = None
    """Offset of the first one; None while it is unknown whether it was stored."""
    early: bool = False
    """Acknowledged from memory, or by a master alone, so it may be lost."""
    framed: bool = False
    """In a native frame: a copy may be stored although the one that was acknowledged early is
    lost."""


@dataclass(slots=True)
class Deliveries:
    """The deliveries of one queue to one consumer group."""

    done: dict[QueueKey, dict[int, int]] = field(default_factory=dict)
    """Offset → when its acknowledgement was confirmed."""
    acked: dict[QueueKey, dict[int, int]] = field(default_factory=dict)
    """Offset → the lease of that acknowledgement."""
    repeated: int = 0
    attempts: dict[QueueKey, dict[int, int]] = field(default_factory=dict)
    """Offset → the highest attempt with which it was delivered."""
    first: dict[QueueKey, list[tuple[int, int]]] = field(default_factory=dict)
    """(lease number, offset) of first attempts."""
    again: int = 0


@dataclass
class Histories:
    """The memory of one run."""

    log: QueueValues
    sends: list[Sent] = field(default_factory=list)
    groups: dict[str, Deliveries] = field(default_factory=dict)
    _told: dict[QueueKey, list[tuple[int, int]]] = field(default_factory=dict)
    """(offset, value) that a client was shown or promised, not compared yet."""
    _promised: list[Sent] = field(default_factory=list)
    _last: dict[tuple[int, QueueKey], int] = field(default_factory=dict)
    _ends: dict[QueueKey, list[tuple[int, int, int]]] = field(default_factory=dict)
    """(end of the queue, invoked, returned) of every read"""

    # Sends

    def sent(self, producer: int, key: QueueKey, value: int, count: int, now: int) -> Sent:
        """A client starts to send."""
        send = Sent(producer, key, value, count, now)
        self.sends.append(send)
        return send

    def produced(self, send: Sent, answer: Produced, now: int) -> None:
        """The answer reached its client. I7 holds between the acknowledged sends of one
        producer."""
        first, last = answer.queue_offsets[0], answer.queue_offsets[-1]
        if len(answer.queue_offsets) != send.count or last - first != send.count - 1:
            raise Violation(
                "I6", f"{send.count} messages to {send.key} got the offsets {first} to {last}"
            )
        send.returned, send.offset, send.early = now, first, answer.durability != "durable"
        if send.early:
            return
        producer = send.producer, send.key
        if first <= self._last.get(producer, -1):
            raise Violation(
                "I7",
                f"producer {send.producer} was given {first} in {send.key} after"
                f" {self._last[producer]}",
            )
        self._last[producer] = last
        self._promised.append(send)

    def placed(self, send: Sent, offset: int, durability: str, now: int) -> None:
        """A message of a native frame was answered. Answers of frames may overtake each other:
        their order in the log is checked by sequence numbers (`natives.py`)."""
        send.returned, send.offset, send.early, send.framed = (
            now,
            offset,
            durability != "durable",
            True,
        )
        if not send.early:
            self._promised.append(send)

    # Deliveries

    def delivered(
        self, group: str, topic: str, leases: Sequence[Lease], body_at: int, invoked: int
    ) -> None:
        """A Receive that was called at `invoked` was answered."""
        state = self.groups.setdefault(group, Deliveries())
        for lease in leases:
            key, offset = (topic, lease.queue), lease.queue_offset
            self._told.setdefault(key, []).append(
                (offset, int.from_bytes(lease.record[body_at : body_at + VALUE_BYTES], "big"))
            )
            if state.done.setdefault(key, {}).get(offset, invoked) < invoked:
                raise Violation(
                    "delivery",
                    f"{group} was given message {offset} of {topic}/{lease.queue} after it was"
                    " done",
                )
            attempts = state.attempts.setdefault(key, {})
            before = attempts.get(offset, 0)
            if lease.attempt == 1:
                state.first.setdefault(key, []).append((lease.lease_number, offset))
            if before:
                state.again += 1
            attempts[offset] = max(before, lease.attempt)

    def acked(self, handles: Sequence[Handle], ok: Sequence[bool], now: int) -> None:
        """An acknowledgement was answered. Once confirmed, repeating it is confirmed too, and no
        other lease of the message ever is."""
        for handle, good in zip(handles, ok, strict=True):
            state, key = self.groups[handle.group], (handle.topic, handle.queue)
            known = state.acked.setdefault(key, {}).get(handle.queue_offset)
            if good != (known == handle.lease_number) and known is not None:
                where = f"message {handle.queue_offset} of {handle.topic}/{handle.queue}"
                told = (
                    "acknowledged under two leases"
                    if good
                    else "acknowledged, and refused when it was repeated"
                )
                raise Violation("delivery", f"{where} was {told}, by {handle.group}")
            if good and known is None:
                state.acked[key][handle.queue_offset] = handle.lease_number
                state.done.setdefault(key, {})[handle.queue_offset] = now
            elif good:
                state.repeated += 1

    # Reads

    def shown(self, key: QueueKey, answer: Peeked, body_at: int, invoked: int, now: int) -> None:
        """Messages of a queue, and its end, were read."""
        self._ends.setdefault(key, []).append((answer.end_offset, invoked, now))
        first = answer.next_offset - len(answer.records)
        told = self._told.setdefault(key, [])
        for place, record in enumerate(answer.records):
            told.append(
                (first + place, int.from_bytes(record[body_at : body_at + VALUE_BYTES], "big"))
            )

    # Comparing

    def settle(self) -> None:
        """Compare everything told since the last call with the log."""
        queues = self.log.queues()
        promised, self._promised = self._promised, []
        for send in promised:
            values = queues.get(send.key, _NOTHING)
            assert send.offset is not None
            wanted = np.arange(send.value, send.value + send.count)
            if not np.array_equal(values[send.offset : send.offset + send.count], wanted):
                raise Violation(
                    "I5",
                    f"what producer {send.producer} was told of {send.key} at {send.offset} is not"
                    " what the log holds",
                )
        told, self._told = self._told, {}
        for key, rows in told.items():
            table, values = np.array(rows, np.int64).reshape(-1, 2), queues.get(key, _NOTHING)
            if len(table) and int(table[:, 0].max()) >= len(values):
                raise Violation(
                    "I5",
                    f"a client was shown message {int(table[:, 0].max())} of {key}, which was never"
                    " committed",
                )
            wrong = np.flatnonzero(values[table[:, 0]] != table[:, 1])
            if len(wrong):
                raise Violation(
                    "I6",
                    f"a client was shown another message {int(table[wrong[0], 0])} of {key} than"
                    " the log holds",
                )

    def finish(self) -> None:
        """At the end of a run: check what needs the whole history."""
        self.settle()
        queues = self.log.queues()
        self._nothing_strange(queues)
        for key, values in queues.items():
            self._early_in_place(key, values)
            self._linearizable(key, values)
        for group, state in self.groups.items():
            for key, first in state.first.items():
                offsets = np.array([offset for _, offset in sorted(first)], np.int64)
                if bool((np.diff(offsets) <= 0).any()):
                    raise Violation(
                        "I7",
                        f"{group} was first given messages of {key} in another order than the"
                        " queue's",
                    )

    def all_delivered(self, group: str, topics: Collection[str]) -> None:
        """After a group has received until nothing was left: a client was given every message."""
        attempts = self.groups.get(group, Deliveries()).attempts
        for key, values in self.log.queues().items():
            if key[0] in topics and len(attempts.get(key, {})) < len(values):
                missing = next(
                    offset for offset in range(len(values)) if offset not in attempts.get(key, {})
                )
                raise Violation("delivery", f"{group} was never given message {missing} of {key}")

    def _nothing_strange(self, queues: Mapping[QueueKey, I64]) -> None:
        """Every message in a queue was sent to it, and only once."""
        sent: dict[QueueKey, list[I64]] = {}
        for send in self.sends:
            sent.setdefault(send.key, []).append(np.arange(send.value, send.value + send.count))
        for key, values in queues.items():
            unique = np.unique(values)
            if len(unique) != len(values):
                raise Violation("I6", f"a message stands twice in {key}")
            strange = np.setdiff1d(
                unique, np.concatenate(sent.get(key, [_NOTHING])), assume_unique=True
            )
            if len(strange):
                raise Violation(
                    "I6", f"{key} holds message {int(strange[0])}, which no client sent there"
                )

    def _early_in_place(self, key: QueueKey, values: I64) -> None:
        """A message acknowledged before its commit is where the answer said, or nowhere; so it is
        in the order of its producer."""
        early = [send for send in self.sends if send.key == key and send.early and not send.framed]
        at = {value: offset for offset, value in enumerate(values.tolist())} if early else {}
        for send in early:
            assert send.offset is not None
            found = [
                place
                for place in range(send.count)
                if at.get(send.value + place, send.offset + place) != send.offset + place
            ]
            if found:
                where = f"{send.offset + found[0]} in {key}"
                raise Violation(
                    "I7",
                    f"producer {send.producer} was told {where} early, and the message is"
                    " elsewhere",
                )

    def _linearizable(self, key: QueueKey, values: I64) -> None:
        """For one queue, with each send of many messages as one operation: it has happened for a
        read that sees its last message."""
        at = {value: offset for offset, value in enumerate(values.tolist())}
        found = [
            (at[send.value], send) for send in self.sends if send.key == key and send.value in at
        ]
        found.sort(key=lambda item: item[0])
        # If the leader failed during a send, the log may hold only its first messages.
        lasts = [offset + _present(values, offset, send) for offset, send in found]
        sends = [
            # Reads need not see a message that was acknowledged from memory yet.
            Send(
                str(send.value),
                send.invoked,
                NEVER if send.returned is None or send.early else send.returned,
                place,
            )
            for place, (_, send) in enumerate(found)
        ]
        seen = [
            (bisect_right(lasts, end), invoked, returned)
            for end, invoked, returned in self._ends.get(key, ())
        ]
        wrong = check_queue(
            sends, [Read(invoked, returned, count, (), count) for count, invoked, returned in seen]
        )
        if wrong:
            raise Violation("O5", f"the history of {key} is not linearizable: {wrong[0].text}")

    @property
    def reads(self) -> int:
        return sum(len(ends) for ends in self._ends.values())

    def early_lost(self) -> int:
        """The number of batches that were acknowledged from memory but are not in the log."""
        queues = self.log.queues()
        lost = 0
        for send in self.sends:
            if send.early and send.offset is not None:
                values = queues.get(send.key, _NOTHING)[send.offset : send.offset + send.count]
                lost += not np.array_equal(values, np.arange(send.value, send.value + send.count))
        return lost

    @property
    def acknowledged(self) -> tuple[int, int]:
        """Batches acknowledged as durable, and as `memory`. Commits of transactions have no place
        in their answer, and do not count."""
        early = sum(send.early for send in self.sends)
        return sum(send.offset is not None for send in self.sends) - early, early


def _present(values: I64, offset: int, send: Sent) -> int:
    """The number of a send's messages that a queue holds from this offset on."""
    part = values[offset : offset + send.count]
    return int(np.count_nonzero(part == np.arange(send.value, send.value + len(part))))


_NOTHING: I64 = np.zeros(0, np.int64)
