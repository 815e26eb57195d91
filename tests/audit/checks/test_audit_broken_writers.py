"""A writer with one thing wrong in it, on all replicas alike, is caught by the rule that is about
that thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.audit.run.jobs import audit
from tests.audit.fuzz.writers import NODES, WRITERS, write


@pytest.mark.parametrize("derives", [True, False])
def test_the_writer_as_it_is_passes(tmp_path: Path, derives: bool) -> None:
    """What the rows below break is in order as long as nothing is broken."""
    result = audit(write(tmp_path, derives=derives), deep=True)
    assert (result.verdict, [finding.text for finding in result.findings], result.reasons) == (
        "PASS",
        [],
        [],
    )


@pytest.mark.parametrize("name", WRITERS)
def test_a_broken_writer_is_caught(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAIL, by its own rule, without any peer to compare with: it shares no code with the writer,
    so it cannot agree with it by mistake."""
    broken = WRITERS[name]
    broken.patch(monkeypatch)
    directories = write(tmp_path, NODES[:1], derives=broken.derives)
    monkeypatch.undo()
    result = audit(directories, deep=True)
    rules = {finding.flaw.rule for finding in result.findings if finding.fails}
    assert result.verdict == "FAIL" and broken.rule in rules, sorted(
        {finding.text for finding in result.findings}
    )[:8]
