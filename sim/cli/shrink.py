"""Shortening a failing run: fewer faults, fewer steps, fewer nodes, while the same invariant is
violated.

The search knows nothing about faults: a candidate is a case, and the only question is whether
running it violates the invariant. Delta debugging (Zeller and Hildebrandt 2002, ddmin) over the
events of the plan. The number of runs is bounded, not the time, so that the result depends only on
the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ledgermq.sim.cli.cases import Case, Ran
from ledgermq.sim.faults.plan import FaultEvent, Plan

RUNS_MAX = 400
SEEDS_TRIED = 2
"""If a candidate's own seed does not fail, it is tried with this many others: the former failure
may have depended on a dropped event."""


@dataclass
class Shrinking:
    """One search. `run` runs a case; `tell` is called for every shorter run."""

    run: Callable[[Case], Ran]
    tell: Callable[[Ran], None]
    best: Ran
    runs: int = 0
    runs_max: int = RUNS_MAX

    def search(self) -> Ran:
        """The shortest failing run found."""
        self._cut_to_failure()
        before = None
        while before != (size := _size(self.best)) and self._may():
            before = size
            self._drop_events()
            self._fewer_steps()
        return self.best

    def _may(self) -> bool:
        return self.runs < self.runs_max

    def _try(self, case: Case) -> bool:
        """Whether this case, or the same with another seed, violates the same invariant; it is then
        the best so far."""
        wanted = self.best.result.violation
        assert wanted is not None
        for more in range(SEEDS_TRIED + 1):
            if not self._may():
                return False
            self.runs += 1
            ran = self.run(replace(case, seed=case.seed + more))
            found = ran.result.violation
            if found is not None and found.invariant == wanted.invariant:
                self.best = ran
                self.tell(ran)
                return True
        return False

    def _cut_to_failure(self) -> None:
        """Events after the failure cannot matter. A failure after the end of faults keeps its
        steps, because the end is part of it."""
        case, result = self.best.case, self.best.result
        if result.steps <= case.steps:
            self._try(replace(case, steps=result.steps, plan=_until(case.plan, result.virtual_ns)))
        else:
            self._try(replace(case, plan=_until(case.plan, result.virtual_ns)))

    def _drop_events(self) -> None:
        """ddmin: drop halves, then quarters, then smaller parts, as long as one of them can be
        dropped."""
        parts = 2
        while self._may() and (events := self.best.case.plan.events):
            for kept in _without_parts(events, parts):
                if self._try(self.best.case.with_events(Plan(kept))):
                    parts = max(2, parts - 1)
                    break
            else:
                if parts >= len(events):
                    return
                parts = min(len(events), parts * 2)

    def _fewer_steps(self) -> None:
        """A run that fails only after the end of faults may also fail with an earlier end."""
        while self._may():
            case, result = self.best.case, self.best.result
            if result.steps <= case.steps:
                self._try(replace(case, steps=result.steps)) if result.steps < case.steps else None
                return
            if case.steps <= 1 or not self._try(replace(case, steps=case.steps // 2)):
                return


def _size(ran: Ran) -> tuple[int, int]:
    return len(ran.case.plan), ran.case.steps


def _until(plan: Plan, virtual_ns: int) -> Plan:
    return Plan(tuple(event for event in plan if event.at_ns <= virtual_ns))


def _without_parts(events: tuple[FaultEvent, ...], parts: int) -> Iterator[tuple[FaultEvent, ...]]:
    count = len(events)
    bounds = [count * at // parts for at in range(parts + 1)]
    for low, high in pairwise(bounds):
        if high > low:
            yield events[:low] + events[high:]


def shrink(
    failing: Ran, run: Callable[[Case], Ran], tell: Callable[[Ran], None], runs_max: int = RUNS_MAX
) -> tuple[Ran, int]:
    """The shortest failing run found, and the number of runs needed."""
    search = Shrinking(run, tell, failing, runs_max=runs_max)
    return search.search(), search.runs
