"""Runs `ledgermq import` in this process, on the directories of a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledgermq.cli import run

Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def import_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `ledgermq import --json` into `tmp_path/cluster`. Returns the exit status, the JSON
    object on stdout, and stderr."""

    def call(
        source: Path, *arguments: str, data: str = "cluster", nodes: int = 1
    ) -> tuple[int, dict[str, Any], str]:
        target: Sequence[str] = [
            "--data",
            str(tmp_path / data),
            "--nodes",
            str(nodes),
            "--log-file-size",
            "128KiB",
        ]
        status = run(["import", "--from", str(source), "--json", *target, *arguments])
        output = capsys.readouterr()
        return status, json.loads(output.out) if output.out.strip() else {}, output.err

    return call
