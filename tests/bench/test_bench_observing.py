"""The measurement of what metrics cost: the cluster without them does not count."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.alone.observing import uncounted

PROGRAM = """
from ledgermq.node.broker.queries.traffic import Leased, Traffic

traffic = Traffic(None)
traffic.leased([Leased("g", "t", 1)])
print(len(traffic.handed_out))
"""


def counted() -> str:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_processes_started_meanwhile_do_not_count(tmp_path: Path) -> None:
    """And later ones do, with the environment as it was."""
    former = dict(os.environ)
    with uncounted(tmp_path / "site"):
        assert counted() == "0"
    assert counted() == "1" and dict(os.environ) == former
