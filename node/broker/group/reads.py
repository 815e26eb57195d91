"""Reads that must not miss anything acknowledged before they were asked: only the leader answers them, once it is sure that it still leads.

Here lives the waiting: a call is answered when the entries up to its *read index* are applied. Under a lease (Raft dissertation §6.4.1)
that index is known at once; without one the replicator asks a majority first (ReadIndex, §6.4), once for all calls of a turn. Either way it
is taken after the call came, so whatever was acknowledged before the call lies below it, whichever leader did that; and a lease that ends
while the data is read takes nothing away from it. Who reads outside of a turn asks again when it has read (`group_queries.py`): time went
on meanwhile. What is read belongs to the machine, who may lead to `raft/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Done, Refused, Result
from ledgermq.node.broker.calls.read_calls import Confirm, Confirmed, FindOffset, Peek, Pull, ReadOffset
from ledgermq.node.broker.decisions.pulls import Pulls
from ledgermq.node.broker.ports import Replicator
from ledgermq.node.broker.state.machine import Machine

Read = Peek | Pull | ReadOffset | FindOffset | Confirm


@dataclass(frozen=True, slots=True)
class Assured:
    """An answer that a leader found in its state as of the log's end, and that counts if it still led then."""

    token: Token
    outcome: Result | Refused


_Asked = Read | Assured


class Reads:
    """The reads of one replica. Belongs to the group's turns."""

    def __init__(self, replicator: Replicator, machine: Machine) -> None:
        self._replicator = replicator
        self._machine = machine
        self.pulls = Pulls(machine)
        """Pulls whose index is applied: they go on waiting, for messages."""
        self._fresh: list[_Asked] = []
        """Came in this turn, and have no index yet."""
        self._asked: dict[int, list[_Asked]] = {}
        """Wait for the answer of a majority: token of the question → calls."""
        self._indexed: list[tuple[int, _Asked]] = []
        """Wait until their read index is applied."""
        self._questions = 0

    def __len__(self) -> int:
        return len(self._fresh) + sum(map(len, self._asked.values())) + len(self._indexed)

    def take(self, call: _Asked, *, serving: bool) -> list[Done]:
        """Accept a read. Only a leader whose state covers every earlier term does; the answers are those that need no waiting."""
        if not serving:
            return [Done(call.token, self._not_leader())]
        self._fresh.append(call)
        return []

    def ask(self, now_ns: int) -> None:
        """Give what came an index: the lease's, or one that a majority confirms."""
        if not self._fresh:
            return
        calls, self._fresh = self._fresh, []
        index = self._replicator.lease_index(now_ns)
        if index is not None:
            self._indexed += [(index, call) for call in calls]
            return
        self._questions += 1
        self._asked[self._questions] = calls
        self._replicator.read_index(self._questions, now_ns)

    def confirmed(self, answers: Sequence[tuple[int, int | None]]) -> list[Done]:
        """What the majority said: question → read index, None when leadership was lost over it."""
        done: list[Done] = []
        for question, index in answers:
            calls = self._asked.pop(question, [])
            if index is None:
                done += [Done(call.token, self._not_leader()) for call in calls]
            else:
                self._indexed += [(index, call) for call in calls]
        return done

    def answer(self) -> list[Done]:
        """Carry out the reads whose index is applied."""
        applied_index = self._machine.applied_index
        ready = [call for index, call in self._indexed if index <= applied_index]
        if ready:
            self._indexed = [(index, call) for index, call in self._indexed if index > applied_index]
        done: list[Done] = []
        for call in ready:
            if isinstance(call, Pull):
                self.pulls.take(call)
            elif isinstance(call, Peek):
                done.append(Done(call.token, self._machine.peek(call)))
            elif isinstance(call, Assured):
                done.append(Done(call.token, call.outcome))
            elif isinstance(call, Confirm):
                done.append(Done(call.token, Confirmed(applied_index)))
            else:
                done.append(Done(call.token, self._machine.read_offset(call)))
        return done + self.pulls.serve()

    def resign(self) -> list[Done]:
        """Leadership is lost: nothing was read yet, so every caller may ask the next leader."""
        return self._refuse_all(self._not_leader()) + self.pulls.resign(self._not_leader())

    def stalled(self) -> list[Done]:
        """Nothing more is applied before the disk has room again: nobody waits for that."""
        return self._refuse_all(Refused("disk-full"))

    def _refuse_all(self, refused: Refused) -> list[Done]:
        calls = [*self._fresh, *(call for asked in self._asked.values() for call in asked), *(call for _, call in self._indexed)]
        self._fresh, self._indexed = [], []
        self._asked.clear()
        return [Done(call.token, refused) for call in calls]

    def _not_leader(self) -> Refused:
        return Refused("not-leader", self._replicator.leader)
