"""Runs many cases and healthy clusters, and counts: how many were found, of which class, how
exactly, how fast.

Cases are taken evenly from the whole matrix: every stratum once before any twice. A long run is
split into pieces, so that it continues where it was interrupted. What a case is, and what the audit
must say of it, is defined in `case.py` and `scenario.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from typing import Protocol

from ledgermq.audit.run.jobs import audit
from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.sim.faults import FAULTS
from ledgermq.sim.machine.settings import Settings
from tests.audit.fuzz.case import Case, CaseResult
from tests.audit.fuzz.clusters import Cluster, at_rest, cut_off, interrupted

PIECE = 250
"""Draws per piece, including draws that change nothing (zeroing a zero)."""
HEALTHY_PIECE = 20
SOUND = "healthy"
"""The family of cases without damage."""
EMPTY_MAX = 8
"""After this many pieces in a row without a case, none is expected any more."""
Tell = Callable[[str], object]
LIVELY = tuple(name for name in FAULTS if name != "failed-sync" and "power" not in name)
GROUPS = ("trim", "kill", "isolate", "membership", "join", "left-behind", "transfer")


class Suite(Protocol):
    """A kind of cases and the files they damage."""

    def cases(self, seed: int, only: str = "") -> Iterator[Case]:
        """Endless cases, the same for one seed. `only`: those whose description contains this
        text."""
        ...

    def try_case(self, case: Case) -> CaseResult | None:
        """Returns None if the case is not possible here."""
        ...


@dataclass
class Tally:
    """The results so far."""

    cases: int = 0
    healthy: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    damages: Counter[str] = field(default_factory=Counter)
    suites: Counter[str] = field(default_factory=Counter)
    to_the_byte: int = 0
    seconds: list[float] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def add(self, where: str, case_result: CaseResult) -> None:
        """Add the result of a case."""
        if case_result.case.family == SOUND:
            self.healthy += 1
        else:
            self.cases += 1
        self.suites[where] += 1
        self.seconds.append(case_result.seconds)
        self.damages[case_result.case.damage] += 1
        self.classes.update(case_result.classes)
        self.rules.update(case_result.rules)
        self.to_the_byte += case_result.spread == 0
        self.complaints += [
            f"{where}: {case_result.case}: {text}" for text in case_result.complaints
        ]

    def take(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.cases += other.cases
        self.healthy += other.healthy
        self.to_the_byte += other.to_the_byte
        self.seconds += other.seconds
        self.complaints += other.complaints
        for name in ("classes", "rules", "damages", "suites"):
            getattr(self, name).update(getattr(other, name))

    def as_object(self) -> dict[str, object]:
        """The figures."""
        times = sorted(self.seconds) or [0.0]
        return {
            "cases": self.cases,
            "healthy": self.healthy,
            "complaints": len(self.complaints),
            "to_the_byte": self.to_the_byte,
            "detect_p50_s": round(times[len(times) // 2], 4),
            "detect_p99_s": round(times[len(times) * 99 // 100], 4),
            "suites": dict(sorted(self.suites.items())),
            "classes": dict(sorted(self.classes.items())),
            "damages": dict(sorted(self.damages.items())),
            "rules": dict(sorted(self.rules.items())),
        }

    def save(self, path: Path) -> None:
        """Write all figures atomically."""
        names = (
            "cases",
            "healthy",
            "to_the_byte",
            "seconds",
            "complaints",
            "classes",
            "rules",
            "damages",
            "suites",
        )
        beside = path.with_suffix(".tmp")
        beside.write_text(
            json.dumps({name: getattr(self, name) for name in names}, indent=1) + "\n"
        )
        os.replace(beside, path)

    @classmethod
    def load(cls, path: Path) -> Tally:
        """Read the figures that `save` wrote."""
        value = json.loads(path.read_text())
        return cls(
            **{
                name: Counter(part) if isinstance(part, dict) else part
                for name, part in value.items()
            }
        )


def run_cases(
    base: Path,
    makers: Mapping[str, Callable[[Path], Suite]],
    count: int,
    seed: int,
    *,
    only: str = "",
    pieces: Path | None = None,
    tell: Tell = lambda text: None,
) -> Tally:
    """Run at least `count` cases, including healthy ones, in pieces of one suite each. `pieces`: a
    directory for finished pieces, which are not run again."""
    tally, suites = Tally(), dict[str, Suite]()
    empty = 0
    for number in numbers():
        for name, make in makers.items():
            if tally.cases + tally.healthy >= count or empty >= EMPTY_MAX * len(makers):
                return tally
            path = (
                None
                if pieces is None
                else pieces / f"{name.replace(' ', '-')}-{seed}-{number}.json"
            )
            if path is not None and path.exists():
                own = Tally.load(path)
            else:
                if name not in suites:
                    suites[name] = make(base / name.replace(" ", "-"))
                draws = (
                    PIECE if path is not None else min(PIECE, count - tally.cases - tally.healthy)
                )
                own = _piece(name, suites[name], seed, number, draws, only)
                if path is not None:
                    own.save(path)
                for text in own.complaints:
                    tell(text)
            empty = 0 if own.cases + own.healthy else empty + 1
            tally.take(own)
            done = f"{own.cases} damaged, {own.healthy} healthy, {len(own.complaints)} complaints"
            tell(f"{name}, piece {number}: {done}; {tally.cases + tally.healthy} cases in all")
    return tally


def _piece(name: str, suite: Suite, seed: int, number: int, draws: int, only: str) -> Tally:
    tally = Tally()
    for case in islice(suite.cases(seed, only), number * PIECE, number * PIECE + draws):
        case_result = suite.try_case(case)
        if case_result is not None:
            tally.add(name, case_result)
    return tally


def spread(strata: Sequence[Case], seed: int, shares: Mapping[str, int]) -> Iterator[Case]:
    """Endless cases: each kind of damage in turn, some with a greater share. The strata of a kind
    come in random order, each once before any comes twice."""
    order = random.Random(f"order {seed}")
    by_damage: dict[str, list[Case]] = {}
    for case in strata:
        by_damage.setdefault(case.damage, []).append(case)
    turns = [damage for damage in by_damage for _ in range(shares.get(damage, 1))]
    left: dict[str, list[Case]] = {damage: [] for damage in by_damage}
    number = seed * 1_000_000
    while turns:
        order.shuffle(turns)
        for damage in turns:
            if not left[damage]:
                left[damage] = order.sample(by_damage[damage], len(by_damage[damage]))
            yield replace(left[damage].pop(), seed=number)
            number += 1


def run_healthy(
    base: Path, count: int, seed: int, *, pieces: Path | None = None, tell: Tell = lambda text: None
) -> Tally:
    """Audit healthy clusters in every state that a cluster without damage can be left in: none may
    FAIL. `pieces`: see `run_cases`."""
    tally = Tally()
    for first in range(0, count, HEALTHY_PIECE):
        last = min(count, first + HEALTHY_PIECE)
        path = None if pieces is None else pieces / f"healthy-{seed}-{first}-{last}.json"
        if path is not None and path.exists():
            own = Tally.load(path)
        else:
            own = Tally()
            for number in range(first, last):
                own.healthy += 1
                complaint = _audit_healthy(
                    base, healthy(seed * 1_000_000 + number), deep=bool(number % 2)
                )
                if complaint:
                    own.complaints.append(complaint)
                    tell(complaint)
            if path is not None:
                own.save(path)
        tally.take(own)
        tell(f"{tally.healthy} healthy clusters, {len(tally.complaints)} complaints")
    return tally


def _audit_healthy(base: Path, cluster: Cluster, *, deep: bool) -> str:
    """The error in the audit of a healthy cluster; empty if there is none."""
    result = audit(cluster.write(base), deep=deep)
    shutil.rmtree(base)
    wrong = [finding.text for finding in result.findings if finding.fails]
    if wrong or result.verdict == "FAIL" or (cluster.complete and result.verdict != "PASS"):
        return f"{cluster.name}: {result.verdict}: {wrong or result.reasons}"
    return ""


def healthy(seed: int) -> Cluster:
    """A random undamaged cluster: quiescent or interrupted, trimmed or complete, stopped, killed or
    without power, after all kinds of faults except damaged media, with any flush policy and append
    mode."""
    rng = random.Random(f"healthy {seed}")
    way = rng.randrange(8)
    at_ms = rng.randrange(300, 4000)
    if way == 0:
        return at_rest(seed, steps=rng.randrange(100, 1500), kinds=LIVELY)
    if way == 1:
        return at_rest(seed, steps=rng.randrange(500, 2500), kinds=GROUPS)
    if way == 2:
        return cut_off(
            seed,
            rng.choice(("leader", "n1", "n2", "n3")),
            from_ms=at_ms,
            at_ms=at_ms + rng.randrange(100, 3000),
        )
    kinds = LIVELY if way % 2 else GROUPS
    policy, append = rng.choice(list(FlushPolicy)), rng.choice((None, "pwrite", "map", "pool"))
    if policy is FlushPolicy.DURABLE and append == "pool":
        append = None
    power = (None, False, True)[rng.randrange(3)]
    group = Settings.of_ha(3, ack_async=rng.random() < 0.5) if way == 3 else None
    return interrupted(
        seed, at_ms, kinds=kinds, power=power, policy=policy, append=append, group=group
    )
