"""The first steps in a container that has Python and pip and nothing else: every block of the
README, from `pip install` of a clone to the audit; and `make demo` and `make test` of a clone, once
git and make are there.

Needs a container engine and a package index; `.ci/with-engine` provides the engine and a base image
(BASE_IMAGE).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.containers.engine import ROOT, default_ports, docker, engine_missing
from tests.examples.test_documents import tracked_files

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1800)]

WITHIN_S = 300
BASE = os.environ.get("BASE_IMAGE") or "python:3.11-slim"
RUN = """
import os, shutil, sys
from pathlib import Path
import documents
page = documents.blocks(Path("/given/README.md").read_text())
Path("/reader").mkdir()
shutil.copytree("/given/ledgermq", "/ledgermq", symlinks=True)
with documents.terminal(Path("/reader"), {**os.environ, "HOME": "/reader", "NO_COLOR": "1"}, 8081) as at:
    documents.run(page, at)
    used = at.run(documents.Block(0, "sh", "python -c 'import ledgermq; print(ledgermq.__path__[0])'\\n"))
assert used.startswith("/reader/.venv"), used
print("blocks:", len(page))
"""


CLONE = """
cp /given/*.crt /usr/local/share/ca-certificates/ 2>/dev/null && update-ca-certificates >/dev/null
apt-get update -qq && apt-get install -y -qq git make >/dev/null
git clone -q /given/source.bundle /ledgermq && cd /ledgermq
make "$0"
"""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """What a container gets: the directory `/given`, with the certificates of authorities that a
    private index may need."""
    if (reason := engine_missing()) is not None:
        pytest.skip(reason)
    directory = tmp_path / "given"
    directory.mkdir()
    for path in (ROOT / "deploy/certs").glob("*.crt"):
        shutil.copy2(path, directory)
    return directory


def in_fresh_container(given: Path, *command: str, timeout: int) -> str:
    """The output of a command in a container that has this machine's network. Fails with its end if
    the command fails."""
    variables = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if authorities := sorted(given.glob("*.crt")):
        (given / "authorities.pem").write_text("".join(path.read_text() for path in authorities))
        variables["PIP_CERT"] = "/given/authorities.pem"
    options = [part for item in variables.items() for part in ("--env", "=".join(item))]
    fresh = [
        "docker",
        "run",
        "--rm",
        "--network",
        "host",
        "--volume",
        f"{given}:/given:ro",
        *options,
        BASE,
    ]
    done = subprocess.run([*fresh, *command], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_the_readme_runs_in_a_fresh_container_within_five_minutes(given: Path) -> None:
    """No line that is not in the README. The container gets the files of a clone."""
    tracked_files(given / "ledgermq")
    for name in ("README.md", "tests/examples/documents.py"):
        shutil.copy2(ROOT / name, given)
    (given / "run.py").write_text(RUN)
    docker("run", "--rm", BASE, "python3", "-c", "import venv, ensurepip")
    with default_ports():
        began_s = time.monotonic()
        said = in_fresh_container(given, "python3", "/given/run.py", timeout=800)
        took_s = time.monotonic() - began_s
    assert said.startswith("blocks: ")
    assert took_s < WITHIN_S, f"it took {took_s:.0f} s"
    print(f"{said.strip()}, {took_s:.0f} s")


def made_in_a_clone(given: Path, target: str) -> list[str]:
    """The last lines of `make` of a target, in a clone of the last commit."""
    bundle = str(given / "source.bundle")
    subprocess.run(["git", "bundle", "create", "--quiet", bundle, "HEAD"], cwd=ROOT, check=True)
    said = in_fresh_container(given, "sh", "-e", "-c", CLONE, target, timeout=3500)
    return said.splitlines()[-5:]


def test_the_demo_of_a_clone_passes_in_a_fresh_container(given: Path) -> None:
    assert "demo: PASS" in "".join(made_in_a_clone(given, "demo"))


@pytest.mark.weekly
@pytest.mark.timeout(3600)
def test_the_fast_tests_of_a_clone_pass_in_a_fresh_container(given: Path) -> None:
    assert " passed" in made_in_a_clone(given, "test")[-1]
