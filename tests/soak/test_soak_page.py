"""The record of the soak and its page. Pieces themselves run by hand (`python -m tests.soak`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.soak import __main__ as soak
from tests.soak.page import render
from tests.soak.piece import LANES, ports_of

WAYS = {
    "native": (100, 100, 100, 0, 0),
    "sink": (100, 100, 100, 0, 0),
    "official": (40, 39, 40, 0, 2),
}
COLUMNS = ("sent", "acknowledged", "received", "lost", "duplicates")


def record(seed: int, **changed: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "seed": seed,
        "began_ms": 1_700_000_000_000,
        "commit": "abc",
        "seconds": 1800,
        "load": 2.5,
        "faults": {"pause": 2, "kill one": 1},
        "longest_gap_s": {"pause": 1.5, "kill one": 0.9},
        "messages": {way: dict(zip(COLUMNS, counts, strict=True)) for way, counts in WAYS.items()},
        "memory_mib": {"n1": [80, 90, 91, 92], "n2": [70, 95, 89, 88]},
        "audit": "PASS",
        **changed,
    }


def test_the_page_is_that_of_the_records() -> None:
    assert soak.PAGE.read_text() == render(soak.read())


def test_pieces_are_summed_and_failures_are_named() -> None:
    failed = {
        "v": 1,
        "seed": 3,
        "began_ms": 0,
        "commit": "def",
        "failed": "AssertionError: a | b\nc",
    }
    page = render(
        [record(1), record(2, longest_gap_s={"pause": 3.25, "kill one": 0.1}, load=7.5), failed]
    )
    assert "1.0 of 24 hours under load, in 2 pieces that passed; 1 failed." in page
    assert "between 2.5 and 7.5" in page
    assert "| Parquet files of the sink | 200 | 200 | 200 | 0 | 0 |" in page
    assert "| official Python client | 80 | 78 | 80 | 0 | 4 |" in page
    assert (
        "| pause | 4 | 3.25 |" in page
        and "| kill one | 2 | 0.9 |" in page
        and "| all | 6 |  |" in page
    )
    assert "80, 95, 91, 92" in page
    assert "| 3 | def | AssertionError: a / b c |" in page


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(soak, "STATE", tmp_path / "state")
    monkeypatch.setattr(soak, "PIECES", tmp_path / "pieces.jsonl")
    return tmp_path


def test_a_seed_is_used_once(place: Path) -> None:
    """Neither a piece that is in the record nor one that runs at the same time is repeated."""
    (place / "pieces.jsonl").write_text(json.dumps(record(4)) + "\n")
    assert [soak.claimed(place / "state")[0] for _ in range(3)] == [5, 6, 7]


def test_the_seed_of_a_piece_that_ends_meanwhile_is_not_used_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not in the record yet at the first look, and its directory is gone at the second."""
    looks = [[], [record(1)]]
    monkeypatch.setattr(soak, "read", lambda: looks.pop(0) if len(looks) > 1 else looks[0])
    assert soak.claimed(place / "state")[0] == 2
    assert [path.name for path in (place / "state").iterdir()] == ["2"]


def test_a_piece_is_in_the_record_before_its_directory_is_gone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another command could take its seed between the two."""
    there: list[bool] = []

    def removed(directory: Path) -> None:
        there.append((place / "pieces.jsonl").exists())

    monkeypatch.setattr(soak, "run", lambda seed, *_: record(seed))
    monkeypatch.setattr(soak.shutil, "rmtree", removed)
    soak.piece(60)
    assert there == [True]


def test_pieces_that_run_at_the_same_time_have_no_port_in_common() -> None:
    of_seeds = [set(ports_of(seed)) for seed in (7, 8, 7 + LANES - 1)]
    assert len(set.union(*of_seeds)) == sum(map(len, of_seeds))


def test_soak_piece_leaves_a_record_and_a_failure_its_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[BaseException | None] = [None, AssertionError("lost"), KeyboardInterrupt()]

    def run(seed: int, seconds: float, directory: Path) -> dict[str, Any]:
        (directory / "data").touch()
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return record(seed)

    monkeypatch.setattr(soak, "run", run)
    soak.piece(60)
    soak.piece(60)
    with pytest.raises(KeyboardInterrupt):
        soak.piece(60)
    passed, failed = soak.read()
    assert passed == record(1)
    assert (failed["seed"], failed["failed"]) == (2, "AssertionError: lost")
    assert [path.name for path in (place / "state").iterdir()] == ["2"]
