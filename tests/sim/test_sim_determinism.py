"""One seed is one history: also in another process, with another order of hashes."""

from __future__ import annotations

import os
import subprocess
import sys

RUN = """
from ledgermq.sim.faults import FAULTS, schedule
from ledgermq.sim.runs.world import World
outcome = World(5, file_bytes=8 << 10).run(1500, schedule((*FAULTS, "trim", "transfer", "kill-inside")))
print(outcome)
"""


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    """Outcome, digest and coverage are equal, whatever order sets of strings have in a process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", RUN],
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "77")
    ]
    assert told[0] == told[1] and "digest=" in told[0]
