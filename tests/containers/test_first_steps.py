"""The README in a container that has Python and pip and nothing else: every block, from `pip install` of the wheel to the audit.

Needs a container engine and a package index; `.ci/with-engine` provides the engine and a base image (BASE_IMAGE).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.containers.engine import ROOT, docker, engine_missing
from tests.examples.test_documents import built_wheel

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(900)]

WITHIN_S = 300
BASE = os.environ.get("BASE_IMAGE") or "python:3.11-slim"
RUN = """
import os, sys
from pathlib import Path
import documents
page = documents.blocks(Path("/given/README.md").read_text())
Path("/reader").mkdir()
with documents.terminal(Path("/reader"), {**os.environ, "HOME": "/reader", "NO_COLOR": "1"}, 8081) as at:
    documents.run(page, at)
    used = at.run(documents.Block(0, "sh", "python -c 'import ledgermq; print(ledgermq.__path__[0])'\\n"))
assert used.startswith("/reader/.venv"), used
print("blocks:", len(page))
"""


def test_the_readme_runs_in_a_fresh_container_within_five_minutes(tmp_path: Path) -> None:
    """No line that is not in the README. The container gets the wheel as a file, and the authorities that a private index may need."""
    if (reason := engine_missing()) is not None:
        pytest.skip(reason)
    given = tmp_path / "given"
    given.mkdir()
    shutil.copy2(built_wheel(tmp_path / "dist"), given)
    for name in ("README.md", "tests/examples/documents.py"):
        shutil.copy2(ROOT / name, given)
    (given / "run.py").write_text(RUN)
    variables = {"PIP_FIND_LINKS": "/given", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if authorities := sorted((ROOT / "deploy/certs").glob("*.crt")):
        (given / "authorities.pem").write_text("".join(path.read_text() for path in authorities))
        variables["PIP_CERT"] = "/given/authorities.pem"
    options = [part for item in variables.items() for part in ("--env", "=".join(item))]
    fresh = ["run", "--rm", "--network", "host", "--volume", f"{given}:/given:ro", *options, BASE]
    docker("run", "--rm", BASE, "python3", "-c", "import venv, ensurepip")
    began_s = time.monotonic()
    done = subprocess.run(["docker", *fresh, "python3", "/given/run.py"], capture_output=True, text=True, timeout=800)
    took_s = time.monotonic() - began_s
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert done.stdout.startswith("blocks: ")
    assert took_s < WITHIN_S, f"it took {took_s:.0f} s"
    print(f"{done.stdout.strip()}, {took_s:.0f} s")
