"""What failed beside others runs once more, alone; nothing is hidden by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
FAILS_ONCE = """
import pathlib, pytest
def fails_until_it_was_tried(number, times):
    tried = pathlib.Path(__file__).with_name(f"tried-{number}")
    before = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (before + 1))
    assert before >= times, f"number {number} was tried {before} times"
def test_good(): pass
@pytest.mark.parametrize("number", range(%d))
def test_bad(number): fails_until_it_was_tried(number, %d)
"""


def outcome(directory: Path, text: str, beside: str = "") -> tuple[int, str]:
    (directory / "test_it.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "tests.second_chance", beside, "-p", "no:randomly"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_what_passes_alone_is_named_and_its_first_failure_is_told(tmp_path: Path) -> None:
    status, out = outcome(tmp_path, FAILS_ONCE % (3, 1), "-n 2")
    assert status == 0, out
    told = [line for line in out.splitlines() if line.startswith("FAILED BESIDE OTHERS, PASSED ALONE: ")]
    assert sorted(line.rpartition("::")[2] for line in told) == ["test_bad[0]", "test_bad[1]", "test_bad[2]"]
    assert "number 2 was tried 0 times" in out and "3 failed, 1 passed" in out and "3 passed" in out
    assert out.splitlines()[-1] in told


@pytest.mark.parametrize(("tests", "times"), [(4, 1), (1, 2)], ids=["too many", "twice"])
def test_more_than_three_or_twice_is_red(tmp_path: Path, tests: int, times: int) -> None:
    status, out = outcome(tmp_path, FAILS_ONCE % (tests, times))
    assert status == 1 and "PASSED ALONE" not in out, out
    assert (tmp_path / "tried-0").read_text() == "x" * times


@pytest.mark.parametrize("text", ["import nothing_of_this_name", "def test_good(): raise KeyboardInterrupt"], ids=["import", "stopped"])
def test_what_is_no_failure_of_a_test_is_red_at_once(tmp_path: Path, text: str) -> None:
    status, out = outcome(tmp_path, text)
    assert status != 0 and "alone" not in out, out
