"""The law of findings that are left out, as the tests hold it against every audit: the auditor's own reading of it is not used."""

from __future__ import annotations

from ledgermq.audit.checks.group import GroupResult


def broken_folds(group: GroupResult) -> list[str]:
    """Findings that were left out without another one that is reported, fails, and covers the same bytes of the same replica."""
    broken = []
    for left, kept in group.folds:
        own, other = left.flaw, kept.flaw
        same = (left.replica, left.group, own.file) == (kept.replica, kept.group, other.file)
        if not (any(finding is kept for finding in group.findings) and kept.fails and same):
            broken.append(f"{left.text} is left out for {kept.text}, which is not told of the same file")
        elif not (other.byte_from <= own.byte_from and own.byte_to <= other.byte_to):
            broken.append(f"{left.text} is left out for {kept.text}, which does not cover it")
    return broken
