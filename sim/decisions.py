"""What producers of transactions asked for and were told, held against the one log of the run.

Here lives the knowledge of outsiders about transactions. Laws: a message is visible only if somebody asked for its commit, and once; one
whose commit was confirmed is there, and one whose rollback was confirmed never is; nobody is asked about a transaction more often than
configured. That nothing stands in a queue twice, or without having been sent, is told by `histories.py`: to it a commit is a send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ledgermq.node.broker.calls.transaction_calls import UndecidedHalf
from ledgermq.proto.types import I64
from ledgermq.sim.checkers import Violation
from ledgermq.sim.histories import VALUE_BYTES, Histories, QueueKey, Sent
from ledgermq.sim.node import RECORD_BODY_AT


@dataclass(slots=True)
class Decision:
    """One half message and what became of it, as far as outsiders know."""

    producer: int
    key: QueueKey
    value: int
    sent: Sent | None = None
    """Once somebody asked for the commit."""
    told: bool | None = None
    """Whether it was committed, once that was confirmed."""
    checks: int = 0


@dataclass
class Decisions:
    """Memory of one run."""

    histories: Histories
    checks_max: int
    halves: dict[int, Decision] = field(default_factory=dict)
    """By value."""
    _unsettled: list[Decision] = field(default_factory=list)

    def begun(self, producer: int, key: QueueKey, value: int) -> Decision:
        """A half message is about to be sent."""
        made = self.halves[value] = Decision(producer, key, value)
        return made

    def asked(self, decision: Decision, commit: bool, now: int) -> None:
        """Somebody asks for this end."""
        if commit and decision.sent is None:
            decision.sent = self.histories.sent(decision.producer, decision.key, decision.value, 1, now)

    def told(self, decision: Decision, commit: bool, now: int) -> None:
        """The answer was that it has ended so."""
        if decision.told not in (None, commit):
            raise Violation("transaction", f"message {decision.value} was confirmed to be committed, and to be rolled back")
        if decision.told is None:
            decision.told = commit
            self._unsettled.append(decision)
        if commit and decision.sent is not None and decision.sent.returned is None:
            # Whoever reads from now on sees it.
            decision.sent.returned = now

    def checked(self, half: UndecidedHalf) -> Decision:
        """Somebody is asked about a half message."""
        decision = self.halves[int.from_bytes(half.record[RECORD_BODY_AT : RECORD_BODY_AT + VALUE_BYTES], "big")]
        decision.checks += 1
        if decision.checks > min(half.checks, self.checks_max):
            raise Violation("transaction", f"message {decision.value} is asked about for the {decision.checks}th time")
        return decision

    def settle(self) -> None:
        """Hold what was confirmed since the last call against the log."""
        unsettled, self._unsettled = self._unsettled, []
        self._compare(unsettled, self.histories.log.queues())

    def finish(self) -> None:
        """At the end of a run: everything that was ever confirmed."""
        self._compare(list(self.halves.values()), self.histories.log.queues())

    def _compare(self, decisions: list[Decision], queues: Mapping[QueueKey, I64]) -> None:
        for key in {decision.key for decision in decisions}:
            mine = [decision for decision in decisions if decision.key == key]
            visible = np.isin([decision.value for decision in mine], queues.get(key, np.zeros(0, np.int64)))
            for decision, there in zip(mine, visible.tolist(), strict=True):
                if decision.told is True and not there:
                    raise Violation("transaction", f"message {decision.value} was confirmed to be committed and is not in {key}")
                if decision.told is False and there:
                    raise Violation("transaction", f"message {decision.value} was rolled back and stands in {key}")

    @property
    def confirmed(self) -> tuple[int, int]:
        """Commits and rollbacks that were confirmed."""
        told = [decision.told for decision in self.halves.values()]
        return told.count(True), told.count(False)
