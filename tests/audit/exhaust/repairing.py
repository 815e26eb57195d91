"""A case, repaired: `ledgermq repair` in this process, then an audit. What that must come to is said here.

A repair that ends with 0 leaves a cluster that passes the plain audit, with the bytes of the log that the other two replicas have. Any
other repair leaves every file as it was, right, or (what is derived) gone, and does not touch the other nodes.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass

from ledgermq.audit.jobs import FAIL, PASS, audit
from ledgermq.audit.report import write_findings
from ledgermq.cli import run as command
from tests.audit.exhaust.cases import Atlas, Case
from tests.audit.exhaust.ground import Changes, Ground, image_of
from tests.audit.jury.clusters import Image

REPAIRED, REMAINS, UNDECIDED, REFUSED = 0, 1, 2, 4
OWN_WORD = r".*/(hardstate|syncedmark|begin|identity\.json|node\.json|peers\.json|boots\.json)"
"""What only one replica knows: a repair may leave it as it is, and says so."""
LOG = r".*/data/\d{20}"
DERIVED = (
    r".*/(consumequeue|index|state/bloom)/.*|.*/state/(snapshot(\.previous)?|keyindex|digests|scrub|rebuilding|leadership)|.*/checkpoint"
)


@dataclass(frozen=True, slots=True)
class Repair:
    """What came of it. `status` is −1 where the audit found nothing to repair."""

    status: int
    complaint: str = ""
    told: str = ""


def repair(ground: Ground, atlas: Atlas, case: Case, changes: Changes) -> Repair:
    """Audit, repair, audit again; the cluster is as before afterwards."""
    findings = ground.base.parent / f"{ground.base.name}-findings"
    with ground.restored():
        ground.write(changes)
        first = audit(ground.directories)
        if first.verdict != FAIL:
            return Repair(-1)
        before = image_of(ground.base)
        write_findings(first, str(findings))
        told = io.StringIO()
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            status = command(["repair", "--from-findings", str(findings)])
        again = audit(ground.directories)
        texts = [f"{finding.text}: {finding.flaw.proof}" for finding in again.findings if finding.fails]
        after = image_of(ground.base)
    return Repair(status, _complaint(ground.image, before, after, case, status, again.verdict, texts), told.getvalue())


def _complaint(whole: Image, before: Image, after: Image, case: Case, status: int, verdict: str, texts: list[str]) -> str:
    strange = [
        path
        for path in sorted(before.keys() | after.keys())
        if not path.startswith(f"{case.node}/") and before.get(path) != after.get(path)
    ]
    if strange:
        return f"exit {status}: changes {', '.join(strange)} of other nodes"
    logs = [path for path in sorted(whole) if re.fullmatch(LOG, path) and path.startswith(f"{case.node}/")]
    if status == REPAIRED:
        if verdict != PASS:
            return f"exit 0, and then {verdict}: {texts[:3]}"
        others = [path for path in logs if any(whole[path]) and after.get(path) != whole[path]]
        return f"exit 0, and other bytes in {', '.join(others)}" if others else ""
    if not re.fullmatch(OWN_WORD, case.path):
        return f"exit {status} although two replicas are intact: {texts[:3]}"
    worse = [
        path
        for path in sorted(before.keys() | after.keys())
        if after.get(path) not in (before.get(path), whole.get(path)) and not re.fullmatch(rf"{DERIVED}|.*/state/repairs", path)
    ]
    return f"exit {status}, and changed {', '.join(worse)}" if worse else ""
