"""All wall clocks are ahead together; then they are right, and a time epoch begins, whatever ends
or is cut off meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from ledgermq.proto.entries.layout import prefixes
from ledgermq.sim.faults import acting, draw
from ledgermq.sim.faults.faults_process import MINUTE_MS, YEAR_MS
from ledgermq.sim.faults.plan import FaultEvent, Plan
from ledgermq.sim.machine.network import MS
from ledgermq.sim.runs.world import World

OTHERS = ("kill-leader", "kill-all", "power-cut", "isolate", "rolling-restart")


def run(seed: int, steps: int = 3000) -> World:
    """A run that must end well: the laws of delayed messages, of the log and of the derived state
    are those of every run. The clocks are ahead once, early, by minutes or by a year."""
    world = World(seed)
    ahead = {"offset_ms": 5 * MINUTE_MS if seed % 2 else YEAR_MS, "for_ns": 4000 * MS, "salt": seed}
    events = (
        FaultEvent(300 * MS, "clocks-ahead", ahead),
        *draw(seed, world.names, steps, OTHERS).events,
    )
    outcome = world.run(steps, acting(Plan(tuple(sorted(events, key=lambda event: event.at_ns)))))
    assert outcome.passed, f"seed {seed}: {outcome.violation}"
    return world


def falls(world: World) -> list[int]:
    """Where the store times of the committed log fall."""
    times: list[int] = []
    for entries in world.truth.pieces(0, len(world.truth) - 1):
        times += prefixes(entries.data, entries.starts)["store_ms"].tolist()
    return [at + 1 for at in np.flatnonzero(np.diff(times) < 0).tolist()]


def test_time_epochs_begin_under_faults() -> None:
    """Store times fall where an epoch begins, and nowhere else. Everything that is due is delivered
    once."""
    begun = 0
    for seed in range(1, 4):
        world = run(seed)
        epochs = [epoch.index for epoch in world.truth.machine.time_epochs.begins]
        assert falls(world) == epochs
        begun += len(epochs)
    assert begun


@pytest.mark.verify
def test_time_epochs_begin_under_faults_for_long() -> None:
    assert sum(bool(run(seed, 5000).truth.machine.time_epochs) for seed in range(100, 150)) > 25
