"""Every audit that a test here runs obeys the law of findings that are left out (`verdicts.py`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledgermq.audit import jobs
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from tests.audit.folding import broken_folds


@pytest.fixture(autouse=True)
def folds_obey_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every group when all its findings are told and none is dropped yet because its node wrote meanwhile."""
    drop = jobs.drop_what_moved

    def inspect(group: GroupResult, moved: Callable[[Replica], str | None]) -> None:
        assert not (broken := broken_folds(group)), broken
        drop(group, moved)

    monkeypatch.setattr(jobs, "drop_what_moved", inspect)
