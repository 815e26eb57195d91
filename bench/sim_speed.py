"""How fast the simulator is: virtual seconds of a busy three-node cluster per second of processor time, all checkers on.

Busy: three clients, as many messages a virtual second as the result says (at least 300), calls for leases, acknowledgements and reads
beside them. Two figures: with the default faults, where part of the time nobody leads and little is to be done, and without any fault.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ledgermq.sim.cluster import SECOND
from ledgermq.sim.faults import schedule
from ledgermq.sim.world import World

NAME = "sim_speed"
RUNS = 3
DURABLE = False
SEEDS = 4
VIRTUAL_S = 20
STEPS = 1 << 40
PLANNED = 2_000
"""Faults are drawn for so many steps: more than the run has."""


def _measure(faults: bool) -> dict[str, float]:
    """Over all seeds: virtual seconds per second, and what a virtual second holds."""
    began, virtual_ns, entries, steps = time.process_time(), 0, 0, 0
    for seed in range(SEEDS):
        world = World(seed)
        outcome = world.run(STEPS, schedule(None if faults else (), PLANNED), until_ns=VIRTUAL_S * SECOND)
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
    """Both figures; nothing is written anywhere."""
    return {"default_faults": _measure(True), "no_faults": _measure(False)}
