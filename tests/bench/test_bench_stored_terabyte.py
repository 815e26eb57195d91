"""The run over a terabyte, on a small store: stopped and continued, it verifies each file once and
names the altered object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiered.s3_servers import program

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1200)]


def test_a_run_that_was_stopped_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERSITYGW", str(program(tmp_path)))
    sizes = ["--bytes", "6e6", "--file-mib", "1", "--at-once", "2"]
    command = [sys.executable, "-m", "bench.alone.stored_terabyte", str(tmp_path / "home"), *sizes]
    done = [
        subprocess.run([*command, *more], stdout=subprocess.PIPE, text=True, timeout=600)
        for more in (["--portions", "1"], [])
    ]
    assert [one.returncode for one in done] == [0, 0], done
    lines = [one.stdout.splitlines() for one in done]
    made, part, whole = (
        json.loads(line.partition(": ")[2]) for line in (lines[0][0], lines[0][-1], lines[1][-1])
    )
    assert (made["groups"], part["tasks"], whole["tasks"], whole["entries"]) == (
        3,
        4,
        6,
        made["entries"],
    )
    assert whole["wrong"] == [made["altered"]]
    notes = [
        json.loads(line)["groups"]
        for line in (tmp_path / "home/verified.jsonl").read_text().splitlines()
    ]
    assert notes == [[0, 1], [2]]
