"""Golden conversations: every file in `scenarios/` must replay to itself. REWRITE=1 in the
environment writes the traces anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.raft.scenario import replay

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario_replays_to_its_trace(path: Path) -> None:
    """What the cores say and do in a described situation is exactly what the file says."""
    before = path.read_text()
    after = replay(before)
    if os.environ.get("REWRITE"):
        path.write_text(after)
    else:
        assert after == before


def test_there_are_scenarios() -> None:
    """An empty folder would pass silently."""
    assert len(FILES) >= 20
