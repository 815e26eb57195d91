"""One case of the fuzzer: damage a cluster on disk, audit it, judge the report, and undo the
damage.

This module has the matrix of cases (damage × kind of spot × first, middle, last × one, two, three
replicas), draws a case from a seed, and judges the auditor: it must find all damage at its place,
with its class, on the right replica, and nothing else.
"""

from __future__ import annotations

import random
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ledgermq.audit.rules import Finding
from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.fuzz.anatomy import Anatomy, anatomies, everything
from tests.audit.fuzz.clusters import Cluster
from tests.audit.fuzz.damage import DIVERGENCE, KINDS, OPEN, Changes, Mutation
from tests.audit.fuzz.forging import FORGERIES, forge
from tests.audit.fuzz.rewriting import EDITS, MIRRORED, rewrite

HEADER_BYTES = 48
NEAR = 64
"""A finding about a damaged blank or header may cover all of it."""
PLACES = ("first", "middle", "last")
DRAWS = 8
"""How often a draw is repeated if it changes nothing (zeroing a zero)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of damage and its target. `damage` is a kind of `KINDS` with the kind of `spot`, or a
    row of `EDITS` or `FORGERIES`. `apart`: each replica is damaged at another place. A case with
    its seed always means the same damage."""

    family: str
    damage: str
    spot: str
    place: str
    replicas: int
    apart: bool = False
    seed: int = 0

    def __str__(self) -> str:
        where = f" of {self.spot}" if self.spot else ""
        return (
            f"{self.damage}{where}, {self.place}, {self.replicas}"
            f" replicas{' apart' if self.apart else ''}, seed {self.seed}"
        )


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case. `complaints`: the errors of the auditor, if any."""

    case: Case
    complaints: tuple[str, ...]
    seconds: float
    classes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    spread: int = 0
    """The number of unchanged bytes that the narrowest finding at the place covers."""


@dataclass
class DamagedCluster:
    """A cluster on disk that is damaged and restored, case by case."""

    cluster: Cluster
    base: Path
    replicas: list[Anatomy] = field(init=False)

    def __post_init__(self) -> None:
        self.cluster.write(self.base)
        self.replicas = anatomies(self.cluster.image)

    def audit(self, *, deep: bool = False) -> Audit:
        return audit([str(self.base / node) for node in self.cluster.nodes], deep=deep)

    def try_case(self, case: Case) -> CaseResult | None:
        """Returns None if the case is not possible here."""
        drawn = self.draw(case)
        if drawn is None:
            return None
        changes, mutations = drawn
        began = time.perf_counter()
        try:
            with self.changed(changes):
                result = self.audit(deep=bool(case.seed % 2))
        except Exception as error:  # any error: an audit must not end with a traceback
            return CaseResult(case, (f"the audit raised {error!r}",), time.perf_counter() - began)
        return judge(case, result, mutations, time.perf_counter() - began)

    @contextmanager
    def changed(self, changes: Changes) -> Iterator[None]:
        """The files are like this within."""
        self._change(changes)
        try:
            yield
        finally:
            self._change({path: self.cluster.image.get(path) for path in changes})

    def _change(self, changes: Changes) -> None:
        for path, data in changes.items():
            target = self.base / path
            if data is None:
                target.unlink(missing_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)

    # Drawing

    def draw(self, case: Case) -> tuple[Changes, list[Mutation]] | None:
        for turn in range(DRAWS):
            rng = random.Random(f"{case.seed} {turn} {zlib.crc32(repr(case).encode())}")
            chosen = rng.sample(self.replicas, min(case.replicas, len(self.replicas)))
            salt = rng.random()
            changes: Changes = {}
            mutations: list[Mutation] = []
            for number, one in enumerate(chosen):
                found = self._damage(
                    case, one, number, random.Random(f"{salt} {number if case.apart else 0}")
                )
                if found is None:
                    break
                changes |= found[0]
                mutations += found[1]
            else:
                return changes, [
                    self._expected(case, mutation, chosen, mutations) for mutation in mutations
                ]
        return None

    def _damage(
        self, case: Case, one: Anatomy, number: int, rng: random.Random
    ) -> tuple[Changes, list[Mutation]] | None:
        image = self.cluster.image
        if case.family == "forged":
            return forge(image, one, case.damage)
        place = PLACES[(PLACES.index(case.place) + (number if case.apart else 0)) % len(PLACES)]
        if case.family == "rewritten":
            name, _, renumbered = case.damage.partition(", ")
            at = _at(rng, place, len(one.entries))
            holders = sum(
                other.entries[-1].index > one.entries[at].index for other in self.replicas
            )
            if renumbered == "renumbered" and case.replicas > 1 and not self.cluster.complete:
                # All remaining replicas agree, so only clients could detect the damage.
                return None
            found = rewrite(rng, image, one, name, at, renumbered=renumbered == "renumbered")
            if found is None or holders == len(self.replicas):
                return found
            # Two replicas that contradict each other.
            return found[0], [
                replace(mutation, classes=mutation.classes | {OPEN}) for mutation in found[1]
            ]
        spots = one.spots.get(case.spot, [])
        return (
            KINDS[case.damage].act(rng, image, one, spots[_at(rng, place, len(spots))])
            if spots
            else None
        )

    def _expected(
        self, case: Case, mutation: Mutation, chosen: list[Anatomy], mutations: list[Mutation]
    ) -> Mutation:
        """Damage is undecidable only if no replica has the place intact."""
        if "/data/" not in mutation.path or case.family != "bytes" or OPEN not in mutation.classes:
            return mutation
        place = int(mutation.path[-20:]) + mutation.start
        # If a kind has few places, several replicas may be damaged at the same one.
        near = {
            w.node
            for w in mutations
            if w.path[-20:] == mutation.path[-20:]
            and w.start < mutation.stop + NEAR
            and w.stop > mutation.start - NEAR
        }
        others = [
            one
            for one in self.replicas
            if (one.node not in near if case.apart else one not in chosen)
        ]
        # A replica with a tail that no other replica accepted has other entries there.
        own = next(one for one in self.replicas if one.node == mutation.node)
        there = next(
            (
                entry
                for entry in own.entries
                if int(entry.path[-20:]) + entry.at + entry.size > place
            ),
            own.entries[-1],
        )
        spared = [
            one
            for one in others
            if int(one.end[0][-20:]) + one.end[1] > place and there.chain in _chains(one)
        ]
        if spared:
            return replace(mutation, classes=mutation.classes - {OPEN})
        # If no other replica has the entry, the first entry of a log may continue another log.
        first = (
            mutation.path
            == self.replicas[0].entries[0].path.replace(self.replicas[0].node, mutation.node)
            and mutation.start < HEADER_BYTES
        )
        return replace(mutation, classes=mutation.classes | {DIVERGENCE}) if first else mutation


def _chains(one: Anatomy) -> set[int]:
    return {entry.chain for entry in one.entries}


def _at(rng: random.Random, place: str, count: int) -> int:
    return {"first": 0, "middle": rng.randrange(count), "last": count - 1}[place]


# ------------------------------------------------------------------------------------------------------------------ the matrix


def matrix(replicas: Sequence[Anatomy]) -> Iterator[Case]:
    """All cases for these replicas, with seed 0."""
    many = [(1, False), (2, False), (2, True), (3, False), (3, True)]
    for spot in everything(list(replicas)):
        for kind in KINDS.values():
            if kind.fits(spot):
                yield from (
                    Case("bytes", kind.name, spot, place, count, apart)
                    for place in PLACES
                    for count, apart in many
                )
    for edit in EDITS:
        # An altered entry keeps its place in both variants.
        for degree in ("renumbered",) if edit == "entry altered" else ("kept", "renumbered"):
            # Only clients can detect a consistent change on which all replicas agree.
            limit = 2 if degree == "renumbered" else 3
            counts: list[tuple[int, bool]] = [(count, False) for count in range(1, limit + 1)]
            yield from (
                Case("rewritten", f"{edit}, {degree}", "", place, count, apart)
                for place in PLACES
                for count, apart in counts
            )
    for forgery in FORGERIES:
        # The statements of two peers about the directory of a third count.
        counts = (1,) if forgery.startswith("peers") else (1, 2, 3)
        yield from (Case("forged", forgery, "", "first", count) for count in counts)


# --------------------------------------------------------------------------------------------------------------------- judging


def judge(case: Case, result: Audit, mutations: list[Mutation], seconds: float) -> CaseResult:
    """Compare the report of an audit with the damage."""
    failing = [finding for finding in result.findings if finding.fails]
    serious = [mutation for mutation in mutations if not mutation.mild]
    complaints = []
    if serious and result.verdict != "FAIL":
        complaints.append(f"the verdict is {result.verdict}")
    outvoted = (
        case.family == "rewritten" and case.replicas == 2 and case.damage.endswith("renumbered")
    )
    if case.family == "bytes" or case.replicas == 1:
        # Otherwise the same forgery may be in the majority, and the correct replica is accused.
        fair = [f for f in failing if case.family == "bytes" or f.klass != OPEN]
        accused = sorted({f.replica for f in fair} - {mutation.node for mutation in mutations})
        complaints += [
            f"{name} is accused: {[f.text for f in failing if f.replica == name][:3]}"
            for name in accused
        ]
    spreads, classes, rules = [], set(), set()
    for mutation in serious:
        here = [f for f in failing if _touches(f, mutation, anywhere=outvoted)]
        allowed = mutation.classes | (
            {MIRRORED.get(klass, klass) for klass in mutation.classes} if outvoted else set()
        )
        right = [
            f
            for f in here
            if f.klass in allowed or (mutation.rules and re.fullmatch(mutation.rules, f.flaw.rule))
        ]
        classes |= {f.klass for f in here}
        rules |= {f.flaw.rule for f in here}
        if not right and not (
            outvoted and any(_touches(f, w, anywhere=True) for f in failing for w in serious)
        ):
            told = [f.text for f in here or failing][:4]
            what = "has another class" if here else "is not found"
            complaints.append(
                f"{mutation.path} bytes {mutation.start}-{mutation.stop}"
                f" ({'/'.join(sorted(mutation.classes))}) {what}: {told}"
            )
        spreads += (
            [
                min(
                    max(0, f.flaw.byte_to - f.flaw.byte_from - (mutation.stop - mutation.start))
                    for f in right
                )
            ]
            if right
            else []
        )
    return CaseResult(
        case,
        tuple(complaints),
        seconds,
        tuple(sorted(classes)),
        tuple(sorted(rules)),
        max(spreads, default=0),
    )


def _touches(finding: Finding, mutation: Mutation, *, anywhere: bool) -> bool:
    """`anywhere`: on any replica."""
    flaw = finding.flaw
    if (
        mutation.rules
        and re.fullmatch(mutation.rules, flaw.rule)
        and finding.replica == mutation.node
    ):
        return True
    path = mutation.path.partition("/")[2]
    if anywhere:
        path, shown = path.replace(mutation.node, "*"), flaw.file.replace(finding.replica, "*")
    else:
        shown = flaw.file
    if shown != path or (finding.replica != mutation.node and not anywhere):
        return False
    whole = flaw.byte_from == flaw.byte_to
    return whole or (
        flaw.byte_from < max(mutation.stop, mutation.start + 1) and flaw.byte_to > mutation.start
    )
