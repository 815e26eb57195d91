"""The law of findings that are left out, as the tests hold it against every audit: the auditor's own reading of it is not used."""

from __future__ import annotations

from collections.abc import Iterator

from ledgermq.audit.checks.evidence import locate
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.rules import Finding


def broken_folds(group: GroupResult) -> list[str]:
    """Findings that were left out without another one of the same replica that is reported, fails, and covers the same bytes or lies on
    what these bytes were held against; and entries that count as damaged, so that checks pass them over, without any finding."""
    broken = []
    for left, kept in group.folds:
        if not (any(finding is kept for finding in group.findings) and kept.fails):
            broken.append(f"{left.text} is left out for {kept.text}, which is not reported as a failure")
        elif (left.replica, left.group) != (kept.replica, kept.group) or not _tells_of(kept, left):
            broken.append(f"{left.text}, held against {left.flaw.measures}, is left out for {kept.text}")
    return broken + [text for one in group.replicas for text in _untold(group, one)]


def _tells_of(kept: Finding, left: Finding) -> bool:
    own, other = left.flaw, kept.flaw
    end = own.byte_to if other.rule.startswith("replica.") else other.byte_to
    if own.file == other.file and other.byte_from <= own.byte_from and own.byte_to <= end:
        return True
    measures = [(start, stop) for file, start, stop in own.measures if file == other.file]
    return any(max(start, other.byte_from) <= min(stop, other.byte_to) for start, stop in measures)


def _untold(group: GroupResult, one: Replica) -> Iterator[str]:
    """Damaged entries of which neither they themselves nor the chain word before them is told."""
    told = [finding.flaw for finding in group.findings if finding.replica == one.name]
    for report in one.reports:
        for index in report.damaged:
            # Its own size may be what is damaged.
            before, behind = locate(one, index - 1), locate(one, index + 1)
            low = before.pos if before is not None else report.base
            high = behind.pos if behind is not None else report.base + report.length
            spans = [(int(flaw.file[-20:]), flaw) for flaw in told if "/data/" in flaw.file]
            if not any(base + flaw.byte_from < high and base + flaw.byte_to > low for base, flaw in spans):
                yield f"entry {index} of {report.file} is damaged, and nothing is told of it"
