"""Shrinking: what it finds breaks the same invariant with less, is a function of the case, and
replays from its file."""

from __future__ import annotations

import pytest

from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.outcome import Outcome
from ledgermq.sim.cli.cases import Case, Ran
from ledgermq.sim.cli.shrink import shrink
from ledgermq.sim.faults.plan import FaultEvent, Plan, PlanError
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.nodes.bugs import Bug

SECOND = 1_000_000_000


def imagined(case: Case) -> Ran:
    """A product that fails exactly when kinds a and b both happened before step 900, however many
    others did."""
    kinds = {event.kind for event in case.plan if event.at_ns < case.steps * SECOND // 1000}
    failing = {"a", "b"} <= kinds
    violation = (
        Violation("I2", "imagined")
        if failing
        else Violation("I4", "another one")
        if "c" in kinds and "a" not in kinds
        else None
    )
    steps = 900 if failing and case.steps >= 900 else case.steps + 100
    return Ran(
        case, Outcome(case.seed, steps, "", violation, virtual_ns=steps * SECOND // 1000), (), {}
    )


def test_shrinking_keeps_only_the_needed_faults() -> None:
    """Of forty faults the two that matter stay; a run that breaks another invariant is no shorter
    version of this one."""
    events = [FaultEvent(k * SECOND // 50, "c" if k % 2 else "d") for k in range(40)]
    events[7], events[31] = FaultEvent(events[7].at_ns, "a"), FaultEvent(events[31].at_ns, "b")
    told: list[Ran] = []
    found, runs = shrink(imagined(Case(1, 1000, plan=Plan(tuple(events)))), imagined, told.append)
    assert found.case.plan.kinds() == ("a", "b")
    assert len(found.case.plan) == 2
    assert found.case.steps <= 900
    assert found is told[-1]
    assert runs < 200


def test_a_search_ends() -> None:
    """Its number of runs is bounded, whatever the failure hangs on."""
    events = tuple(FaultEvent(k, "a" if k % 2 else "b") for k in range(300))
    _, runs = shrink(
        imagined(Case(1, 1000, plan=Plan(events))), imagined, lambda ran: None, runs_max=17
    )
    assert runs <= 17


def test_a_planted_bug_shrinks_and_replays() -> None:
    """The shorter run of a real world fails at the same step with the same digest when it is read
    from its file."""
    cases = (
        Case.drawn(seed, 800, Settings(), ("power-cut-all", "kill"), Bug.VOTE_NOT_SYNCED)
        for seed in range(40)
    )
    ran = next(ran for case in cases if not (ran := case.run()).result.passed)
    found, _ = shrink(ran, Case.run, lambda ran: None, runs_max=30)
    assert len(found.case.plan) <= len(ran.case.plan)
    again = Case.from_json(found.case.to_json())
    assert again == found.case
    replayed = again.run()
    assert replayed.result.digest == found.result.digest
    assert str(replayed.result.violation) == str(found.result.violation)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"v":1}',
        '{"v":1,"seed":1,"steps":0}',
        '{"v":1,"seed":1,"steps":5,"settings":{"names":[]},"plan":{"v":1,"events":[]}}',
    ],
)
def test_malformed_case_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Case.from_json(text)


def test_a_case_survives_its_file() -> None:
    case = Case.drawn(5, 300, Settings.of_nodes(5), None)
    assert Case.from_json(case.to_json()) == case
