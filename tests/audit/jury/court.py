"""Many cases in a row, and their figures: how many were found, of which class, how exactly, how fast; and healthy clusters without end.

Here lives the order in which cases are taken (spread over the whole matrix, every stratum before any twice) and what is counted. What a
case is, and what is right, is `trial.py`'s affair.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from ledgermq.audit.jobs import audit
from ledgermq.node.core.flush import FlushPolicy
from ledgermq.sim.faults import FAULTS
from ledgermq.sim.settings import Settings
from tests.audit.jury.clusters import HEALTHY, Cluster, at_rest, cut_off, interrupted
from tests.audit.jury.damage import SCRAMBLES
from tests.audit.jury.trial import Case, Ruling, Stage, matrix

SHARE = 6
TRIES = 3
"""Some cases can do nothing: a zero cannot be zeroed."""
Tell = Callable[[str], object]
LIVELY = tuple(name for name in FAULTS if name != "failed-sync" and "power" not in name)
GROUPS = ("trim", "kill", "isolate", "membership", "join", "left-behind", "transfer")


@dataclass
class Session:
    """What came of everything so far."""

    cases: int = 0
    healthy: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    damages: Counter[str] = field(default_factory=Counter)
    to_the_byte: int = 0
    seconds: list[float] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def add(self, where: str, ruling: Ruling) -> None:
        self.cases += 1
        self.seconds.append(ruling.seconds)
        self.damages[ruling.case.damage] += 1
        self.classes.update(ruling.classes)
        self.rules.update(ruling.rules)
        self.to_the_byte += ruling.spread == 0
        self.complaints += [f"{where}: {ruling.case}: {text}" for text in ruling.complaints]

    def as_object(self) -> dict[str, object]:
        times = sorted(self.seconds) or [0.0]
        return {
            "cases": self.cases,
            "healthy": self.healthy,
            "complaints": len(self.complaints),
            "to_the_byte": self.to_the_byte,
            "detect_p50_s": round(times[len(times) // 2], 4),
            "detect_p99_s": round(times[len(times) * 99 // 100], 4),
            "classes": dict(sorted(self.classes.items())),
            "damages": dict(sorted(self.damages.items())),
            "rules": dict(sorted(self.rules.items())),
        }


def sit(session: Session, base: Path, count: int, seed: int, *, only: str = "", tell: Tell = lambda text: None) -> None:
    """`count` cases, shared among the clusters of `HEALTHY`."""
    for number, (name, make) in enumerate(HEALTHY.items()):
        stage = Stage(make(), base / name.replace(" ", "-"))
        goal = count * (number + 1) // len(HEALTHY)
        for case in islice(drawn(stage, seed, only), TRIES * count):
            if session.cases >= goal:
                break
            ruling = stage.try_case(case)
            if ruling is not None:
                session.add(name, ruling)
                for text in ruling.complaints:
                    tell(f"{name}: {case}: {text}")
        shutil.rmtree(stage.base)
        tell(f"{name}: {session.cases} cases, {len(session.complaints)} complaints")


def drawn(stage: Stage, seed: int, only: str = "") -> Iterator[Case]:
    """Cases without end: each way of damage in turn, those of the bytes of a spot more often, and for each its strata in random order, none
    a second time before all had their turn."""
    order = random.Random(f"order {seed}")
    strata: dict[str, list[Case]] = {}
    for case in matrix(stage.replicas):
        if only in str(case):
            strata.setdefault(case.damage, []).append(case)
    turns = [damage for damage in strata for _ in range(SHARE if damage in SCRAMBLES else 1)]
    left: dict[str, list[Case]] = {damage: [] for damage in strata}
    number = seed * 1_000_000
    while turns:
        order.shuffle(turns)
        for damage in turns:
            if not left[damage]:
                left[damage] = order.sample(strata[damage], len(strata[damage]))
            yield replace(left[damage].pop(), seed=number)
            number += 1


def swear_in(session: Session, base: Path, count: int, seed: int, *, tell: Tell = lambda text: None) -> None:
    """Healthy clusters in every state that a cluster without damage can be left in: not one of them may FAIL."""
    for number in range(count):
        cluster = healthy(seed * 1_000_000 + number)
        directories = cluster.write(base)
        result = audit(directories, deep=bool(number % 2))
        session.healthy += 1
        wrong = [finding.text for finding in result.findings if finding.fails]
        if wrong or result.verdict == "FAIL" or (cluster.complete and result.verdict != "PASS"):
            session.complaints.append(f"{cluster.name}: {result.verdict}: {wrong or result.reasons}")
            tell(session.complaints[-1])
        shutil.rmtree(base)
    tell(f"{session.healthy} healthy clusters, {len(session.complaints)} complaints")


def healthy(seed: int) -> Cluster:
    """Some cluster without damage: at rest or in the middle, trimmed or whole, stopped, killed or without power, after all kinds of faults
    but damaged media, under every flush policy and with every way of appending."""
    rng = random.Random(f"healthy {seed}")
    way = rng.randrange(8)
    at_ms = rng.randrange(300, 4000)
    if way == 0:
        return at_rest(seed, steps=rng.randrange(100, 1500), kinds=LIVELY)
    if way == 1:
        return at_rest(seed, steps=rng.randrange(500, 2500), kinds=GROUPS)
    if way == 2:
        return cut_off(seed, rng.choice(("leader", "n1", "n2", "n3")), from_ms=at_ms, at_ms=at_ms + rng.randrange(100, 3000))
    kinds = LIVELY if way % 2 else GROUPS
    policy, append = rng.choice(list(FlushPolicy)), rng.choice((None, "pwrite", "map", "pool"))
    if policy is FlushPolicy.DURABLE and append == "pool":
        append = None
    power = (None, False, True)[rng.randrange(3)]
    group = Settings.of_ha(3, ack_async=rng.random() < 0.5) if way == 3 else None
    return interrupted(seed, at_ms, kinds=kinds, power=power, policy=policy, append=append, group=group)
