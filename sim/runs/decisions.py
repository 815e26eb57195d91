"""The requests and answers of transactional producers, checked against the single log of the run.

Checked from outside. Laws: a message is visible only if its commit was requested, and only once; a
message whose commit was confirmed exists, and one whose rollback was confirmed never does; no
transaction is checked back more often than configured. `histories.py` reports messages that are
stored twice or were never sent: to it a commit is a send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ledgermq.node.broker.calls.transaction_calls import UndecidedHalf
from ledgermq.proto.types import I64
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.histories import VALUE_BYTES, Histories, Sent
from ledgermq.sim.checks.ports import QueueKey
from ledgermq.sim.nodes.node import RECORD_BODY_AT


@dataclass(slots=True)
class Decision:
    """One half message and its outcome, as known from outside."""

    producer: int
    key: QueueKey
    value: int
    sent: Sent | None = None
    """Set when a commit was requested."""
    told: bool | None = None
    """Whether it was committed, when that was confirmed."""
    checks: int = 0


@dataclass
class Decisions:
    """The memory of one run."""

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
        """A client requests this outcome."""
        if commit and decision.sent is None:
            decision.sent = self.histories.sent(
                decision.producer, decision.key, decision.value, 1, now
            )

    def told(self, decision: Decision, commit: bool, now: int) -> None:
        """An answer confirmed this outcome."""
        if decision.told not in (None, commit):
            raise Violation(
                "transaction",
                f"message {decision.value} was confirmed to be committed, and to be rolled back",
            )
        if decision.told is None:
            decision.told = commit
            self._unsettled.append(decision)
        if commit and decision.sent is not None and decision.sent.returned is None:
            # Every read from now on sees it.
            decision.sent.returned = now

    def checked(self, half: UndecidedHalf) -> Decision:
        """A producer is asked about a half message."""
        decision = self.halves[
            int.from_bytes(half.record[RECORD_BODY_AT : RECORD_BODY_AT + VALUE_BYTES], "big")
        ]
        decision.checks += 1
        if decision.checks > min(half.checks, self.checks_max):
            raise Violation(
                "transaction",
                f"message {decision.value} is asked about for the {decision.checks}th time",
            )
        return decision

    def settle(self) -> None:
        """Check outcomes confirmed since the last call against the log."""
        unsettled, self._unsettled = self._unsettled, []
        self._compare(unsettled, self.histories.log.queues())

    def finish(self) -> None:
        """At the end of a run: check every confirmed outcome."""
        self._compare(list(self.halves.values()), self.histories.log.queues())

    def _compare(self, decisions: list[Decision], queues: Mapping[QueueKey, I64]) -> None:
        for key in {decision.key for decision in decisions}:
            mine = [decision for decision in decisions if decision.key == key]
            visible = np.isin(
                [decision.value for decision in mine], queues.get(key, np.zeros(0, np.int64))
            )
            for decision, there in zip(mine, visible.tolist(), strict=True):
                if decision.told is True and not there:
                    raise Violation(
                        "transaction",
                        f"message {decision.value} was confirmed to be committed and is not in"
                        f" {key}",
                    )
                if decision.told is False and there:
                    raise Violation(
                        "transaction", f"message {decision.value} was rolled back but is in {key}"
                    )

    @property
    def confirmed(self) -> tuple[int, int]:
        """The numbers of confirmed commits and rollbacks."""
        told = [decision.told for decision in self.halves.values()]
        return told.count(True), told.count(False)
