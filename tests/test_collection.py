"""What `tests/conftest.py` does with the tests that are collected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest

TESTS = """
import asyncio, pytest
from tests.conftest import pytest_pyfunc_call

async def test_fails():
    await asyncio.sleep(0)
    assert False, "it ran"

@pytest.fixture
def run():
    ran = []
    yield lambda coroutine: ran.append(asyncio.run(coroutine))
    assert ran == [None]

async def test_by_its_fixture(run):
    await asyncio.sleep(0)
"""


class Item:
    """A case of a parametrized test, marked `in_turn(3)`."""

    parent = None

    def __init__(self, number: int) -> None:
        self.name = f"test_sweep[{number}]"
        self.added: list[str] = []

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return pytest.mark.in_turn(3).mark if name == "in_turn" else None

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.added.append(marker.name)


def test_every_case_of_a_sweep_has_its_turn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit leaves all but a third to the weekly check; three commits behind each other run
    every case."""
    ran: list[int] = []
    for turn in range(100, 103):
        monkeypatch.setattr(conftest, "turn", lambda turn=turn: turn)
        monkeypatch.setattr(conftest, "CASES", type(conftest.CASES)())
        items = [Item(number) for number in range(8)]
        for item in items:
            conftest.pytest_itemcollected(item)  # type: ignore[arg-type]
        ran += [number for number, item in enumerate(items) if item.added == []]
        assert all(item.added in ([], ["weekly"]) for item in items)
    assert sorted(ran) == list(range(8))


def test_a_coroutine_function_is_run_and_may_fail(tmp_path: Path) -> None:
    """On a loop of its own, or by its fixture `run`."""
    (tmp_path / "test_cases.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_pyfunc_call\n")
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "--import-mode=importlib", "test_cases.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{root}:{root / 'src'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "AssertionError: it ran" in ran.stdout and "1 failed, 1 passed" in ran.stdout, ran
