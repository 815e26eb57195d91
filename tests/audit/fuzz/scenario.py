"""Suites about more than the bytes of one directory: an experiment changes files, and names the
findings that the auditor must report.

This module runs an experiment: it changes the files, audits them, judges the report, and restores
the files. The experiments are in modules of their own (`sealed.py`, `claimed.py`, `witnesses.py`,
`appointed.py`, `called.py`). One of the family `healthy` expects no finding: the auditor may accuse
no replica.
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ledgermq.audit.rules import Finding
from ledgermq.audit.run.jobs import FAIL, INCOMPLETE, PASS, Audit
from tests.audit.fuzz.case import PLACES, Case, CaseResult
from tests.audit.fuzz.clusters import Image
from tests.audit.fuzz.runner import SOUND as UNHURT
from tests.audit.fuzz.runner import spread
from tests.audit.log_writer import Placed

T = TypeVar("T")
SOUND = frozenset({PASS, INCOMPLETE})
WHOLE = frozenset({PASS})
FAILS = frozenset({FAIL})


@dataclass(frozen=True, slots=True)
class Expected:
    """A required finding. `rules`: a pattern. `index`, `file` (the end of its path) and the bytes
    are compared if they are given."""

    replica: str
    rules: str
    classes: frozenset[str]
    file: str = ""
    index: int | None = None
    start: int = 0
    stop: int = 0
    proof: str = ""
    """A pattern for the beginning of the proof, such as the row in a client file."""

    def meets(self, finding: Finding) -> bool:
        """Whether this finding matches."""
        flaw = finding.flaw
        if (
            finding.replica != self.replica
            or not re.fullmatch(self.rules, flaw.rule)
            or finding.klass not in self.classes
        ):
            return False
        if (
            not flaw.file.endswith(self.file)
            or not re.match(self.proof, flaw.proof)
            or self.index not in (None, flaw.index)
        ):
            return False
        return not self.stop or (flaw.byte_from < self.stop and flaw.byte_to > self.start)


@dataclass(frozen=True, slots=True)
class Experiment:
    """The changed files and the required findings. `also`: a pattern `REPLICA RULE` of further
    findings that are allowed."""

    image: Image
    expected: Sequence[Expected] = ()
    also: str = ""
    verdicts: frozenset[str] = FAILS


MakeExperiment = Callable[[random.Random, Case], Experiment | None]


class Scenario(ABC):
    """A suite with a table of experiments: each at the first, a middle and the last place, on the
    listed numbers of replicas."""

    experiments: Mapping[str, tuple[MakeExperiment, tuple[int, ...]]]
    """By name: the experiment, and the numbers of damaged replicas."""
    sound: Mapping[str, MakeExperiment]
    """Variants without damage."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.image: Image = {}

    def cases(self, seed: int, only: str = "") -> Iterator[Case]:
        """All experiments at all places, and each healthy variant as often."""
        family = type(self).__name__.lower()
        strata = [
            Case(family, name, "", place, count)
            for name, (_, counts) in self.experiments.items()
            for place in PLACES
            for count in counts
        ]
        strata += [Case(UNHURT, name, "", place, 0) for name in self.sound for place in PLACES]
        return spread([case for case in strata if only in str(case)], seed, {})

    def try_case(self, case: Case) -> CaseResult | None:
        """Returns None if the case is not possible."""
        rng = random.Random(f"{case.seed} {case.damage} {case.place} {case.replicas}")
        act = self.sound[case.damage] if case.family == UNHURT else self.experiments[case.damage][0]
        experiment = act(rng, case)
        if experiment is None:
            return None
        self.lay(experiment.image)
        began = time.perf_counter()
        try:
            result = self.audit()
        except Exception as error:  # any error: an audit must not end with a traceback
            return CaseResult(case, (f"the audit raised {error!r}",), time.perf_counter() - began)
        return judge(case, experiment, result, time.perf_counter() - began)

    @abstractmethod
    def audit(self) -> Audit:
        """Audit the current files."""

    def lay(self, image: Image) -> None:
        """Make the files equal to the image; only differing files are written."""
        for path in self.image.keys() - image.keys():
            (self.base / path).unlink()
        for path, data in image.items():
            if self.image.get(path) != data:
                (self.base / path).parent.mkdir(parents=True, exist_ok=True)
                (self.base / path).write_bytes(data)
        self.image = dict(image)


def judge(case: Case, experiment: Experiment, result: Audit, seconds: float) -> CaseResult:
    """Compare the report of an audit with the experiment."""
    failing = [finding for finding in result.findings if finding.fails]
    complaints = []
    if result.verdict not in experiment.verdicts:
        told = [finding.text for finding in failing][:3] or result.reasons[:3]
        complaints.append(
            f"the verdict is {result.verdict}, not {'/'.join(sorted(experiment.verdicts))}: {told}"
        )
    found = []
    for wanted in experiment.expected:
        here = [finding for finding in failing if wanted.meets(finding)]
        found += here
        if not here:
            told = [f"{f.text}: {f.flaw.proof}" for f in failing][:4]
            complaints.append(f"{wanted} is not found: {told}")
    for finding in failing:
        known = any(wanted.meets(finding) for wanted in experiment.expected)
        if not known and not re.fullmatch(
            experiment.also or "-", f"{finding.replica} {finding.flaw.rule}"
        ):
            complaints.append(f"{finding.replica} is accused: {finding.text}: {finding.flaw.proof}")
    classes, rules = {finding.klass for finding in found}, {finding.flaw.rule for finding in found}
    wide = [
        f.flaw.byte_to - f.flaw.byte_from - (c.stop - c.start)
        for c in experiment.expected
        if c.stop
        for f in found
        if c.meets(f)
    ]
    return CaseResult(
        case,
        tuple(complaints),
        seconds,
        tuple(sorted(classes)),
        tuple(sorted(rules)),
        max([0, *wide]),
    )


def image_of(make: Callable[[Path], object]) -> Image:
    """The files that `make` writes below a directory."""
    with tempfile.TemporaryDirectory(prefix="fuzzer-") as folder:
        make(Path(folder))
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


def of_place(place: str, things: Sequence[T], rng: random.Random) -> T:
    """The first, the last, or one in the middle."""
    middle = things[1:-1] or things
    return {"first": things[0], "last": things[-1]}.get(place) or rng.choice(middle)


def span(entry: Placed, file_bytes: int) -> tuple[str, int, int]:
    """The place of an entry: the end of the path of its log file, and its bytes in that file."""
    at = entry.pos % file_bytes
    return f"data/{entry.pos - at:020d}", at, at + entry.size


__all__ = [
    "FAILS",
    "SOUND",
    "WHOLE",
    "Expected",
    "Experiment",
    "MakeExperiment",
    "Scenario",
    "image_of",
    "judge",
    "of_place",
    "span",
]
