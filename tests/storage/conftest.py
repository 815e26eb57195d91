"""Fixtures of the storage tests. No test here cuts the power, so `fsync` and `fdatasync` are
replaced by no-ops to save time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ledgermq.storage.log.log_writer import MODES
from tests.storage.log_material import APPEND


@pytest.fixture(autouse=True)
def quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace syncs by no-ops; the durability of synced data is tested on the `ForgetfulDisk` of
    the simulator."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture(params=MODES)
def each_mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once for each way of appending to a log."""
    APPEND.mode = request.param
    yield request.param
    APPEND.mode = "pwrite"
    APPEND.logs.clear()
