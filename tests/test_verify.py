"""The record of the long check: what passed is not run again, what failed is, and other code begins anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import verify

CASES = """
import os, pytest
def test_right(): assert not [name for name in os.environ if name.startswith("LEDGERMQ_V")]
def test_wrong(): assert os.path.exists("mended")
def test_elsewhere(): pytest.skip("no engine")
@pytest.fixture
def untidy():
    yield
    assert os.path.exists("mended")
def test_ends_badly(untidy): pass
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    shutil.copy(verify.__file__, tmp_path / "tests/verify.py")
    (tmp_path / "tests/test_cases.py").write_text(CASES)
    (tmp_path / ".gitignore").write_text(".verify\n__pycache__\n.pytest_cache\nmended\n")
    run(tmp_path, "git", "init", "-q")
    commit(tmp_path)
    return tmp_path


def run(where: Path, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    return subprocess.run(
        command, cwd=where, env=environment | environ, capture_output=True, text=True, check=False
    )


def commit(where: Path) -> None:
    run(where, "git", "add", "-A")
    me = ("-c", "user.name=a", "-c", "user.email=a@b")
    assert not run(where, "git", *me, "commit", "-qm", "a").returncode


def session(where: Path, *options: str, **environ: str) -> tuple[int, str]:
    ran = run(
        where,
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.verify", *options),
        **environ,
    )
    return ran.returncode, ran.stdout.splitlines()[-1].partition(" in ")[0]


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "workers"])
def test_second_run_repeats_only_unpassed_tests(repository: Path, options: tuple[str, ...]) -> None:
    status, told = session(repository, *options)
    assert (status, told) == (1, "1 failed, 2 passed, 1 skipped, 1 error")
    (repository / "mended").touch()
    status, told = session(repository, *options)
    assert status == 0 and told.startswith("2 passed, 1 skipped")
    assert session(repository, *options, "-k", "right or wrong")[0] == 0
    told = run(repository, sys.executable, "-m", "tests.verify").stdout
    assert ": 3 passed" in told and "FAILED" not in told


def test_other_code_and_other_parts_of_it_begin_anew(repository: Path) -> None:
    session(repository)
    assert "2 passed" in session(repository, LEDGERMQ_PURE="1")[1]
    (repository / "more.py").write_text("")
    assert "2 passed" in session(repository)[1]
    commit(repository)
    assert "2 passed" in session(repository)[1]


def test_failures_are_told_with_their_text_until_they_pass(repository: Path) -> None:
    session(repository)
    (written,) = (repository / ".verify").glob("*/failed")
    assert "assert os.path.exists" in written.read_text()
    told = run(repository, sys.executable, "-m", "tests.verify").stdout
    assert "FAILED tests/test_cases.py::test_wrong (call)" in told
    assert "FAILED tests/test_cases.py::test_ends_badly (teardown)" in told


def test_a_command_that_passed_is_not_run_again(repository: Path) -> None:
    command = (sys.executable, "-m", "tests.verify", "--once", "seeds", "test", "-e", "mended")
    assert run(repository, *command).returncode == 1
    assert "FAILED seeds (exit status 1)" in run(repository, *command[:3]).stdout
    (repository / "mended").touch()
    assert run(repository, *command).returncode == 0
    assert "FAILED" not in run(repository, *command[:3]).stdout
    (repository / "mended").unlink()
    again = run(repository, *command)
    assert (again.returncode, again.stdout) == (0, "seeds: passed before\n")
