"""No test here cuts the power, so waiting for the medium proves nothing and costs most of the time: syncs are called but do not wait."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ledgermq.storage.log_writer import MODES
from tests.storage.log_material import APPEND


@pytest.fixture(autouse=True)
def quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync promises is tested on the forgetful disk of the simulator."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture(params=MODES)
def each_mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every way of appending to a log, one after the other."""
    APPEND.mode = request.param
    yield request.param
    APPEND.mode = "pwrite"
    APPEND.logs.clear()
