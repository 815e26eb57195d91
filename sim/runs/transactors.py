"""Simulated transactional producers: they send half messages, end transactions, and answer checks
of undecided ones.

Such a producer stands for two real ones, the original producer and the one that answers a check in
its place, so it contradicts itself: it repeats a decision while the outcome of the first try is
unknown, and sends the opposite from elsewhere. Committed messages go to an ordinary queue;
`decisions.py` checks the answers against the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ledgermq.node.broker.calls.outcome import Call, Refused
from ledgermq.node.broker.calls.send_calls import Produced
from ledgermq.node.broker.calls.transaction_calls import (
    ChecksCounted,
    CountChecks,
    Overdue,
    OverdueHalves,
    Prepare,
    Resolve,
    Resolved,
)
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft
from ledgermq.sim.actors.clients import CLIENT_TIMEOUT_NS, NORMAL, QUEUES, VALUES_A_PRODUCER
from ledgermq.sim.actors.ports import Answer, Cluster
from ledgermq.sim.machine.network import MS
from ledgermq.sim.runs.decisions import Decision, Decisions

OPEN_MAX = 24
"""At most this many transactions of one producer are undecided before it sends more."""
CHECKS_A_ROUND = 8


@dataclass(frozen=True, slots=True)
class Manners:
    """How active a transactional producer is, and how it decides."""

    round_ns: tuple[int, int] = (300 * MS, 700 * MS)
    halves_a_send: tuple[int, int] = (1, 4)
    commits: float = 0.6
    rolls_back: float = 0.2
    """The rest is left to the checks."""
    repeats: float = 0.25
    """Share of the decisions that are sent to two nodes at once."""
    contradicts: float = 0.15


class Transactor:
    """One transactional producer."""

    def __init__(
        self,
        cluster: Cluster,
        decisions: Decisions,
        number: int,
        chance: random.Random,
        manners: Manners,
    ) -> None:
        self._cluster = cluster
        self._decisions = decisions
        self._number = number
        self._chance = chance
        self._manners = manners
        self._node = cluster.names[number % len(cluster.names)]
        self._next_value = number * VALUES_A_PRODUCER
        self._open: dict[int, Decision] = {}
        """Half offset → transactions not known to be decided, as far as this producer knows."""
        self._asked: dict[int, int] = {}
        """Calls without an answer: token → time of the call."""
        self._on = True

    def start(self) -> None:
        """Start; the first round follows within a period."""
        self._cluster.after(self._chance.randrange(self._manners.round_ns[1]), self._round)

    def wind_down(self) -> None:
        """Send no more half messages and no more decisions."""
        self._on = False

    def _round(self) -> None:
        cluster, chance, manners = self._cluster, self._chance, self._manners
        for token, since in list(self._asked.items()):
            if cluster.now - since > CLIENT_TIMEOUT_NS:
                cluster.give_up(token)
                del self._asked[token]
                self._elsewhere(None)
        if self._on:
            if len(self._open) < OPEN_MAX:
                self._send()
            for offset, decision in list(self._open.items()):
                fate = chance.random()
                if fate < manners.commits:
                    self._decide(offset, decision, commit=True)
                elif fate < manners.commits + manners.rolls_back:
                    self._decide(offset, decision, commit=False)
            self._check()
        cluster.after(chance.randrange(*manners.round_ns), self._round)

    def _ask(
        self, node: str, make: Callable[[int], Call], answered: Callable[[Answer], None]
    ) -> None:
        def came(outcome: Answer) -> None:
            self._asked.pop(token, None)
            answered(outcome)

        token = self._cluster.ask(node, make, came)
        self._asked[token] = self._cluster.now

    def _elsewhere(self, outcome: Answer) -> None:
        hint = outcome.leader if isinstance(outcome, Refused) else None
        names = self._cluster.names
        self._node = hint or names[(names.index(self._node) + 1) % len(names)]

    # Half messages

    def _send(self) -> None:
        chance = self._chance
        queue, count = (
            chance.randrange(QUEUES[NORMAL]),
            chance.randrange(*self._manners.halves_a_send),
        )
        values = range(self._next_value, self._next_value + count)
        self._next_value += count
        made = [self._decisions.begun(self._number, (NORMAL, queue), value) for value in values]
        drafts = [_draft(queue, value, self._cluster.now) for value in values]
        recoveries = [chance.choice((None, 100, 900)) for _ in values]

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, Produced):
                self._open.update(zip(outcome.queue_offsets, made, strict=True))
            else:
                self._elsewhere(outcome)

        self._ask(self._node, lambda token: Prepare(token, drafts, recoveries), answered)

    # Decisions

    def _decide(self, offset: int, decision: Decision, *, commit: bool) -> None:
        chance, manners, names = self._chance, self._manners, self._cluster.names
        self._resolve(self._node, offset, decision, commit)
        if chance.random() < manners.repeats:
            self._resolve(self._node, offset, decision, commit)
        if chance.random() < manners.contradicts:
            self._resolve(names[chance.randrange(len(names))], offset, decision, not commit)

    def _resolve(self, node: str, offset: int, decision: Decision, commit: bool) -> None:
        self._decisions.asked(decision, commit, self._cluster.now)

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, Resolved):
                if outcome.ok:
                    self._decisions.told(decision, commit, self._cluster.now)
                    self._open.pop(offset, None)
                elif node == self._node:
                    # It ended otherwise, or this node is not the leader any more; a check will ask
                    # again.
                    self._open.pop(offset, None)
            else:
                self._elsewhere(outcome)

        def make(token: int) -> Call:
            return Resolve(token, offset, NORMAL, message_id(decision.value), commit)

        self._ask(node, make, answered)

    # Checks

    def _check(self) -> None:
        """As the leader's node does: find due transactions, count the check, and ask; the answer is
        a decision like any other, or none."""
        node = self._node

        def due(outcome: Answer) -> None:
            if isinstance(outcome, OverdueHalves):
                offsets = [offset for offset, _ in outcome.halves]
                if offsets:
                    self._ask(node, lambda token: CountChecks(token, offsets), counted)
            else:
                self._elsewhere(outcome)

        def counted(outcome: Answer) -> None:
            if not isinstance(outcome, ChecksCounted):
                return
            for half in outcome.halves:
                decision = self._decisions.checked(half)
                fate = self._chance.random()
                if self._on and fate < 0.6:
                    self._resolve(self._node, half.offset, decision, fate < 0.4)

        self._ask(node, lambda token: Overdue(token, CHECKS_A_ROUND), due)


def message_id(value: int) -> str:
    """The message id of the half message with this value."""
    return f"{value:034X}"


def _draft(queue: int, value: int, now: int) -> Draft:
    properties = encode(Fields(message_id=message_id(value), transaction=True))
    return Draft(NORMAL, queue, value.to_bytes(8, "big"), properties, now // MS)
