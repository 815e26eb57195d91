"""Checks in every audit run by these tests that omitted findings follow the rules of `verdicts.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledgermq.audit import jobs
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from tests.audit.folding import broken_folds


@pytest.fixture(autouse=True)
def folds_obey_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check each group after all its findings are reported, and before findings are dropped because a node wrote in the meantime."""
    drop = jobs.drop_what_moved

    def inspect(group: GroupResult, moved: Callable[[Replica], str | None]) -> None:
        assert not (broken := broken_folds(group)), broken
        drop(group, moved)

    monkeypatch.setattr(jobs, "drop_what_moved", inspect)
