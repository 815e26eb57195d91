"""No test here cuts the power, so waiting for the medium proves nothing and costs most of the time: syncs are called but do not wait."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync promises is tested on the forgetful disk of the simulator."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
