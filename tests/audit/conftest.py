"""Checks in every audit run by these tests that omitted findings follow the rules of
`verdicts.py`."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.run import jobs
from tests.audit.folding import broken_folds


@pytest.fixture(autouse=True)
def folds_obey_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check each group after all its findings are reported, and before findings are dropped because
    a node wrote in the meantime."""
    drop, judge = jobs.drop_what_moved, jobs.judge

    def inspect(group: GroupResult) -> None:
        assert not (broken := broken_folds(group)), broken
        drop(group)

    def judge_inspected(groups: list[GroupResult], *more: Any) -> jobs.Audit:
        for group in groups:
            running = any(one.point is not None for one in group.replicas)
            assert not running or not (broken := broken_folds(group)), broken
        return judge(groups, *more)

    monkeypatch.setattr(jobs, "drop_what_moved", inspect)
    monkeypatch.setattr(jobs, "judge", judge_inspected)
