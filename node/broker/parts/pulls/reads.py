"""Linearizable reads: they see everything acknowledged before the call. Only the leader answers
them, once a quorum confirmed that it led after the call came.

This module keeps the waiting calls: each is answered when the entries up to its *read index* are
applied. The replicator asks a quorum for that index (ReadIndex, Raft dissertation §6.4), once for
all calls of a turn; questions that come while a round is under way share the next one. The index is
taken after the call arrived, so everything acknowledged before the call lies below it, whichever
leader acknowledged it. What is applied stays applied: the state may be read later, also by a
replica that was deposed meanwhile, and misses nothing of that. The machine knows the data; `raft/`
decides who leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Done, Refused, Result
from ledgermq.node.broker.calls.read_calls import (
    Confirm,
    Confirmed,
    FindOffset,
    OffsetRead,
    Peek,
    Peeked,
    Pull,
    ReadOffset,
)
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import Takers
from ledgermq.node.broker.parts.pulls.freshness import Freshness
from ledgermq.node.broker.parts.pulls.pulls import Pulls
from ledgermq.node.broker.ports import ReadBudget, Replicator

Read = Peek | Pull | ReadOffset | FindOffset | Confirm


@dataclass(frozen=True, slots=True)
class Assured:
    """An answer that a leader derived from its state as of the log's end. It is valid if the
    replica still led at that time."""

    token: Token
    outcome: Result | Refused


_Asked = Read | Assured


class Reads:
    """The reads of one replica. Belongs to the group's turns."""

    def __init__(
        self,
        replicator: Replicator,
        machine: Machine,
        budget: ReadBudget,
        freshness: Freshness,
    ) -> None:
        self._replicator = replicator
        self._machine = machine
        self._freshness = freshness
        self.pulls = Pulls(machine, budget)
        """Pulls whose read index is applied; they still wait for messages."""
        self.fresh: list[_Asked] = []
        """Calls of this turn that have no read index yet."""
        self._asked: dict[int, list[_Asked]] = {}
        """Calls that wait for a quorum's answer, by the token of the question."""
        self.indexed: list[tuple[int, _Asked]] = []
        """(read index, call): waits until the index is applied."""
        self._questions = 0

    def __len__(self) -> int:
        return len(self.fresh) + sum(map(len, self._asked.values())) + len(self.indexed)

    def take(self, call: _Asked, now_ns: int, *, serving: bool) -> list[Done]:
        """Accept a read; only a leader whose state covers every earlier term does. Returns the
        answers that need no waiting."""
        if not serving:
            return [Done(call.token, self._not_leader())]
        self.fresh.append(call)
        return []

    def take_pull(self, call: Pull, now_ns: int, *, serving: bool) -> list[Done]:
        """As `take`; a follower answers a pull of old messages itself."""
        if serving or not self._is_cold(call, now_ns):
            return self.take(call, now_ns, serving=serving)
        self.pulls.take(call)
        return []

    def _is_cold(self, call: Pull, now_ns: int) -> bool:
        """Whether this follower can answer a pull as the leader would: its state is fresh enough
        and the offset is far from the log's end."""
        age_ns, machine, cold = self._freshness.age_ns(now_ns), self._machine, call.cold
        if cold is None or age_ns is None or age_ns > cold.max_age_ns:
            return False
        if not 0 <= call.queue < machine.queues_of(call.topic):
            return False
        if (
            not machine.begin(call.topic, call.queue)
            <= call.offset
            < machine.end(call.topic, call.queue)
        ):
            return False
        positions, _, _ = machine.units(call.topic, call.queue, call.offset, 1)
        return int(positions[0]) + cold.bytes_behind < machine.applied_end_pos

    ARRIVALS: ClassVar[Takers] = {
        Pull: take_pull,
        **dict.fromkeys((Peek, ReadOffset, FindOffset, Confirm), take),
    }

    def ask(self, now_ns: int) -> bool:
        """Ask for the read index of the new calls. Returns whether there are any."""
        if not self.fresh:
            return False
        self._questions += 1
        self._asked[self._questions], self.fresh = self.fresh, []
        self._replicator.read_index(self._questions, now_ns)
        return True

    def confirmed(self, answers: Sequence[tuple[int, int | None]]) -> list[Done]:
        """Take in a quorum's answers: question → read index, or None if leadership was lost."""
        done: list[Done] = []
        for question, index in answers:
            calls = self._asked.pop(question, [])
            if index is None:
                done += [Done(call.token, self._not_leader()) for call in calls]
            else:
                self.indexed += [(index, call) for call in calls]
        return done

    def answer(self) -> list[Done]:
        """Carry out the reads whose index is applied."""
        if not self.indexed:
            return self.pulls.serve() if self.pulls.woken or self.pulls.turned_away else []
        applied_index = self._machine.applied_index
        ready = [call for index, call in self.indexed if index <= applied_index]
        if ready:
            self.indexed = [(index, call) for index, call in self.indexed if index > applied_index]
        done: list[Done] = []
        for call in ready:
            if isinstance(call, Pull):
                self.pulls.take(call)
            elif isinstance(call, Peek):
                done.append(Done(call.token, peek(self._machine, call)))
            elif isinstance(call, Assured):
                done.append(Done(call.token, call.outcome))
            elif isinstance(call, Confirm):
                done.append(Done(call.token, Confirmed(applied_index)))
            else:
                done.append(Done(call.token, read_offset(self._machine, call)))
        return done + self.pulls.serve()

    def resign(self) -> list[Done]:
        """Leadership is lost. Nothing was read yet, so every caller may ask the next leader."""
        return self._refuse_all(self._not_leader()) + self.pulls.resign(self._not_leader())

    def stalled(self) -> list[Done]:
        """Nothing more is applied until the disk has space again, so waiting reads are refused."""
        return self._refuse_all(Refused("disk-full"))

    def _refuse_all(self, refused: Refused) -> list[Done]:
        calls = [
            *self.fresh,
            *(call for asked in self._asked.values() for call in asked),
            *(call for _, call in self.indexed),
        ]
        self.fresh, self.indexed = [], []
        self._asked.clear()
        return [Done(call.token, refused) for call in calls]

    def _not_leader(self) -> Refused:
        return Refused("not-leader", self._replicator.leader)


def read_offset(machine: Machine, call: ReadOffset | FindOffset) -> OffsetRead | Refused:
    """The offset that a group committed, clamped to the queue; or the offset where a queue begins,
    ends, or was at a given time."""
    topic, queue = call.topic, call.queue
    if not 0 <= queue < machine.queues_of(topic):
        return Refused("unknown-topic", detail=f"queue {queue} of topic {topic}")
    if isinstance(call, ReadOffset):
        committed = machine.offsets.get((call.group, topic, queue))
        low = machine.floor(topic, queue) if call.tiered else machine.begin(topic, queue)
        return OffsetRead(None if committed is None else max(committed, low))
    if call.store_ms is not None:
        return OffsetRead(machine.offset_at(topic, queue, call.store_ms))
    return OffsetRead(machine.end(topic, queue) if call.end else machine.begin(topic, queue))


def peek(machine: Machine, call: Peek) -> Peeked | Refused:
    """Messages of one queue, without a lease."""
    if not 0 <= call.queue < machine.queues_of(call.topic):
        return Refused("unknown-topic", detail=f"queue {call.queue} of topic {call.topic}")
    begin, end = machine.begin(call.topic, call.queue), machine.end(call.topic, call.queue)
    first = min(max(call.offset, begin), end)
    count = max(0, min(call.max_messages, end - first))
    positions, sizes, _ = machine.units(call.topic, call.queue, first, count)
    fits = (
        max(1, int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), call.max_bytes, side="right")))
        if count
        else 0
    )
    rows = zip(positions[:fits].tolist(), sizes[:fits].tolist(), strict=True)
    records = tuple([machine.record(position, size) for position, size in rows])
    return Peeked(records, first + len(records), end, begin, machine.time_epochs)
