"""The speed of the simulator: virtual seconds of a busy three-node cluster per second of processor
time, with all checkers enabled.

The cluster is busy: three clients send at least 300 messages per virtual second (the result gives
the number), and also lease, acknowledge and read messages. Two figures are measured: one with the
default faults, during which the cluster has no leader and little work for part of the time, and one
without faults.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ledgermq.sim.faults import schedule
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World

NAME = "sim_speed"
RUNS = 3
DURABLE = False
SEEDS = 4
VIRTUAL_S = 20
STEPS = 1 << 40
PLANNED = 2_000
"""The number of steps for which faults are drawn: more than the run has."""


def _measure(faults: bool) -> dict[str, float]:
    """Virtual seconds per second over all seeds, and the work done in one virtual second."""
    began, virtual_ns, entries, steps = time.process_time(), 0, 0, 0
    for seed in range(SEEDS):
        world = World(seed)
        outcome = world.run(
            STEPS, schedule(None if faults else (), PLANNED), until_ns=VIRTUAL_S * SECOND
        )
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        virtual_ns += outcome.virtual_ns
        entries += outcome.commits
        steps += outcome.steps
    spent, virtual = time.process_time() - began, virtual_ns / SECOND
    return {
        "virtual_s_per_s": round(virtual / spent, 1),
        "entries_per_virtual_s": round(entries / virtual),
        "steps_per_virtual_s": round(steps / virtual),
        "entries_per_s": round(entries / spent),
    }


def run(directory: Path) -> dict[str, Any]:
    """Measure both figures. Writes no files."""
    return {"default_faults": _measure(True), "no_faults": _measure(False)}
