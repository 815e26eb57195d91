"""One cluster with its earlier versions, and what becomes of a case on it: audited, judged,
repaired, restored."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.audit.run.jobs import Audit
from tests.audit.exhaust.cases import Atlas, Case
from tests.audit.exhaust.cluster import build
from tests.audit.exhaust.ground import Changes, Ground, image_of
from tests.audit.exhaust.judging import complaint
from tests.audit.exhaust.repairing import Repair, Trial, repair

LIVES = (18, 33, 48)
"""After so many steps the earlier versions were stopped."""


@dataclass
class Field:
    """A cluster below `base`."""

    base: Path
    cluster: str = "one"
    ground: Ground = field(init=False)
    atlas: Atlas = field(init=False)
    trial: Trial = field(init=False)

    def __post_init__(self) -> None:
        versions = []
        for lives in LIVES:
            build(self.base / "earlier", self.cluster, lives=lives)
            versions.append(image_of(self.base / "earlier"))
            shutil.rmtree(self.base / "earlier")
        self.ground = Ground(self.base / "now", self.cluster)
        self.atlas = Atlas(self.cluster, self.ground.image, versions)
        self.trial = Trial(self.ground)

    def judge(self, case: Case, changes: Changes, *, plain: bool = False) -> tuple[str, str]:
        """The verdict, and what is wrong with it. `plain`: the audit of everything must say the
        same."""
        try:
            result = self.ground.verdict(changes, case.mode)
        except Exception as error:  # whatever it was: an audit never ends with a stack trace
            return "raised", f"the audit raised {error!r}"
        wrong = self.complaint(case, result)
        if plain and not wrong:
            wrong = self.difference(changes, case.mode, result)
        return result.verdict, wrong

    def complaint(self, case: Case, result: Audit) -> str:
        return complaint(self.atlas, case, result)

    def repair(self, case: Case, changes: Changes) -> Repair:
        """What a repair of it comes to."""
        return repair(self.trial, case, changes)

    def difference(self, changes: Changes, mode: str, short: Audit) -> str:
        """How the audit that leaves out what is not changed differs from the plain one."""
        plain, quick = self.ground.plain(changes, mode), self.ground.quick(changes, mode)
        told = [
            (result.verdict, [(finding.text, finding.flaw.proof) for finding in result.findings])
            for result in (plain, quick)
        ]
        if short.verdict != plain.verdict or told[0] != told[1]:
            return f"the quick audit says {short.verdict} and {told[1]}, the plain one {told[0]}"
        return ""
