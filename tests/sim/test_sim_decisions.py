"""Checks the answers to producers of transactions against the log; hand-made histories show that
each check detects its violation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from ledgermq.node.broker.calls.transaction_calls import UndecidedHalf
from ledgermq.proto.types import I64
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.histories import Histories
from ledgermq.sim.checks.ports import QueueKey
from ledgermq.sim.cli.cases import Case
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.nodes.node import RECORD_BODY_AT
from ledgermq.sim.runs.decisions import Decisions

KEY: QueueKey = ("t", 0)


class Log:
    """A log of one queue that can be read."""

    def __init__(self, *values: int) -> None:
        self._values: I64 = np.array(values, np.int64)

    def queues(self) -> Mapping[QueueKey, I64]:
        return {KEY: self._values}


def decided(commit: bool, *visible: int) -> Decisions:
    """The outcome of message 7 that was reported to its producer."""
    found = Decisions(Histories(Log(*visible)), 2)
    one = found.begun(1, KEY, 7)
    found.asked(one, commit, 5)
    found.told(one, commit, 9)
    return found


def test_true_decisions_are_accepted() -> None:
    """A commit that is visible once, a rollback that is not visible, and a transaction without a
    reported outcome, in both variants."""
    for found in (decided(True, 7), decided(False)):
        open_ = found.begun(1, KEY, 8)
        found.asked(open_, True, 6)
        found.settle()
        found.finish()
        found.histories.finish()
    assert decided(True, 7).confirmed == (1, 0) and decided(False).confirmed == (0, 1)


@pytest.mark.parametrize(
    ("commit", "visible", "said"),
    [
        (True, (), "is not in"),
        (False, (7,), "rolled back but is in"),
        (True, (7, 7), "stands twice"),
        (True, (7, 9), "no client sent"),
    ],
)
def test_decision_that_the_log_contradicts_is_a_violation(
    commit: bool, visible: tuple[int, ...], said: str
) -> None:
    """A lost commit, a visible rollback, two copies, and an unrequested copy."""
    found = decided(commit, *visible)
    found.begun(2, KEY, 9)
    with pytest.raises(Violation, match=said):
        found.settle()
        found.histories.finish()


def test_two_answers_that_contradict_each_other_are_a_violation() -> None:
    """A transaction ends once."""
    found = decided(True, 7)
    with pytest.raises(Violation, match="rolled back"):
        found.told(found.halves[7], False, 12)


def test_more_checks_than_there_may_be_are_a_violation() -> None:
    """The checks that a client receives are compared with the number that the leader reports and
    with the maximum."""
    found = decided(False)
    record = bytes(RECORD_BODY_AT) + (7).to_bytes(8, "big")
    for number in (1, 2):
        found.checked(UndecidedHalf(0, "t", number, record))
    with pytest.raises(Violation, match="for the 3th time"):
        found.checked(UndecidedHalf(0, "t", 3, record))


def test_a_run_decides_transactions_both_ways() -> None:
    """The workload of every run has commits, rollbacks and checks."""
    outcome = Case.drawn(3, 4000, Settings(), ("kill-leader", "isolate")).run().result
    assert outcome.passed, outcome.violation
    assert (
        min(
            outcome.coverage[name]
            for name in ("transactions-committed", "transactions-rolled-back", "transaction-checks")
        )
        > 3
    )
