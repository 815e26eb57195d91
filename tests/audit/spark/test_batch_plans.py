"""The file of a replay's plan: complete and durable under its name before the first message, or
absent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.native.consumers.positions import EntryName, Place
from ledgermq.client.native.log_connection import Located

pytest.importorskip("pyarrow", reason="the jobs need the extra spark")

from ledgermq.audit.batch import replay as replays

PLAN = replays.Plan("1", "c", "t", {"g1": {"0": 0}}, {"g1": {"0": 5}}, "", "c", "u", ["g1"], 1)


def test_a_plan_is_durable_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced before the file has its name, and the directory after it: a plan that
    is lost in a power cut would let a repeated replay store every message again."""
    path, events = tmp_path / "plan.json", []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        events.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    replays.write_new(PLAN, path)
    assert [named for _, named in events] == [False, True] and events[-1][0] == str(tmp_path)
    assert replays.read_plan(path) == PLAN


def test_a_digit_that_flipped_is_no_other_range(tmp_path: Path) -> None:
    """It would leave messages out. Plans of former versions have no checksum."""
    path = tmp_path / "plan.json"
    replays.write_new(PLAN, path)
    kept = path.read_text()
    path.write_text(kept.replace('"0": 5', '"0": 4'))
    with pytest.raises(BadArgument, match="is damaged: it does not have the checksum"):
        replays.read_plan(path)
    former = {key: value for key, value in json.loads(kept).items() if key != "crc32c"}
    path.write_text(json.dumps(former))
    assert replays.read_plan(path) == PLAN


def test_a_plan_that_cannot_be_completed_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def ends_at(end: int) -> Callable[..., dict[Place, int]]:
    return lambda *_: {Place("g1", 0): end}


@dataclass
class Source:
    """The source of a plan: how its one queue ends, and the names of its messages."""

    names: list[EntryName]
    target: Any = None

    @property
    def connection(self) -> Source:
        return self

    def locate(self) -> Located:
        return Located("c", "normal", ())

    def name_before(self, place: Place, end: int) -> EntryName:
        return self.names[end - 1]


def test_a_plan_is_of_one_history_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is restored from a state with fewer messages, and gets new ones: every length of
    what it kept and got. A plan that is done, and one of a former version, are not compared."""
    before = [EntryName(k, 1, k) for k in range(5)]
    plan = replace(PLAN, last={"g1": {"0": list(before[4])}})
    target = SimpleNamespace(stored_topic="t")
    goal = SimpleNamespace(
        target=SimpleNamespace(stored_topic="u"), locate=lambda: Located("c", "normal", ())
    )
    for kept in range(6):
        for new in range(7):
            source = Source(
                before[:kept] + [EntryName(k, 1, 100 + k) for k in range(kept, kept + new)], target
            )
            monkeypatch.setattr(replays, "offsets_at", ends_at(kept + new))
            for one in (replace(plan, done=True), PLAN):
                replays.check_plan(one, source, goal, 1)
            if kept == 5:
                replays.check_plan(plan, source, goal, 1)
            else:
                with pytest.raises(Refused, match="restored from an older state"):
                    replays.check_plan(plan, source, goal, 1)
