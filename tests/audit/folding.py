"""Checks the rules for omitted findings in every audit of the tests, independently of the auditor's
code."""

from __future__ import annotations

from collections.abc import Iterator

from ledgermq.audit.checks.evidence import locate
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.rules import Finding


def broken_folds(group: GroupResult) -> list[str]:
    """Violations of two rules. An omitted finding needs a reported, failing finding of the same
    replica on the same bytes, or on the bytes with which they were compared. An entry that checks
    skip as damaged needs a finding."""
    broken = []
    for left, kept in group.folds:
        if not (any(finding is kept for finding in group.findings) and kept.fails):
            broken.append(
                f"{left.text} is omitted because of {kept.text}, which is not reported as a failure"
            )
        elif (left.replica, left.group) != (kept.replica, kept.group) or not _covers(kept, left):
            broken.append(
                f"{left.text}, compared with {left.flaw.measures}, is omitted because of"
                f" {kept.text}"
            )
    return broken + [text for one in group.replicas for text in _unreported(group, one)]


def _covers(kept: Finding, left: Finding) -> bool:
    own, other = left.flaw, kept.flaw
    end = own.byte_to if other.rule.startswith("replica.") else other.byte_to
    if own.file == other.file and other.byte_from <= own.byte_from and own.byte_to <= end:
        return True
    measures = [(start, stop) for file, start, stop in own.measures if file == other.file]
    return any(max(start, other.byte_from) <= min(stop, other.byte_to) for start, stop in measures)


def _unreported(group: GroupResult, one: Replica) -> Iterator[str]:
    """Damaged entries without a finding on themselves or on the chain CRC before them."""
    flaws = [finding.flaw for finding in group.findings if finding.replica == one.name]
    for report in one.reports:
        for index in report.damaged:
            # The damaged field may be its size.
            before, behind = locate(one, index - 1), locate(one, index + 1)
            low = before.pos if before is not None else report.base
            high = behind.pos if behind is not None else report.base + report.length
            spans = [(int(flaw.file[-20:]), flaw) for flaw in flaws if "/data/" in flaw.file]
            if not any(
                base + flaw.byte_from < high and base + flaw.byte_to > low for base, flaw in spans
            ):
                yield f"entry {index} of {report.file} is damaged and has no finding"
