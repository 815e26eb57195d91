"""The file of a replay's plan: complete and durable under its name before the first message, or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgermq.client.errors import BadArgument

pytest.importorskip("pyarrow", reason="the jobs need the extra spark")

from ledgermq.audit.batch import replay as replays

PLAN = replays.Plan("1", "c", "t", {"g1": {"0": 0}}, {"g1": {"0": 5}}, "", "c", "u", ["g1"], 1)


def test_a_plan_is_durable_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced before the file has its name, and the directory after it: a plan that is lost in a power cut would let a
    repeated replay store every message again."""
    path, events = tmp_path / "plan.json", []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        events.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    replays.write_new(PLAN, path)
    assert [named for _, named in events] == [False, True] and events[-1][0] == str(tmp_path)
    assert replays.read_plan(path) == PLAN


def test_a_plan_that_cannot_be_completed_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadArgument, match="cannot be written"):
        replays.write_new(PLAN, path)
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_another_command_stays(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    replays.write_new(PLAN, path)
    kept = path.read_bytes()
    with pytest.raises(BadArgument, match="another command"):
        replays.write_new(PLAN, path)
    assert path.read_bytes() == kept
