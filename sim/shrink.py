"""From a failing run to a shorter one: fewer faults, fewer steps, fewer nodes, and the same invariant broken.

Here lives the search. It knows nothing of faults: a candidate is a case, and the only question is whether running it breaks the invariant.
Delta debugging (Zeller and Hildebrandt 2002, ddmin) over the events of the plan; the number of runs is bounded, not the time, so that the
answer is a pure function of the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ledgermq.sim.cases import Case, Ran
from ledgermq.sim.plan import FaultEvent, Plan

RUNS_MAX = 400
SEEDS_TRIED = 2
"""Every candidate is tried with so many further seeds when its own does not fail: what chance did before may hang on an event dropped."""


@dataclass
class Shrinking:
    """One search. `run` is how a case is run; `tell` hears of every shorter run."""

    run: Callable[[Case], Ran]
    tell: Callable[[Ran], None]
    best: Ran
    runs: int = 0
    runs_max: int = RUNS_MAX

    def search(self) -> Ran:
        """The shortest failing run that was found."""
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
        """Whether this case, or the same with another seed, breaks the same invariant; then it is the best."""
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
        """What comes after the failure cannot matter. A failure after the heal keeps its steps: the heal is a part of it."""
        case, result = self.best.case, self.best.result
        if result.steps <= case.steps:
            self._try(replace(case, steps=result.steps, plan=_until(case.plan, result.virtual_ns)))
        else:
            self._try(replace(case, plan=_until(case.plan, result.virtual_ns)))

    def _drop_events(self) -> None:
        """ddmin: drop halves, then quarters, then smaller parts, as long as one of them can go."""
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
        """A run that fails only after the heal may fail after an earlier heal as well."""
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


def shrink(failing: Ran, run: Callable[[Case], Ran], tell: Callable[[Ran], None], runs_max: int = RUNS_MAX) -> tuple[Ran, int]:
    """The shortest failing run found, and how many runs that took."""
    search = Shrinking(run, tell, failing, runs_max=runs_max)
    return search.search(), search.runs
