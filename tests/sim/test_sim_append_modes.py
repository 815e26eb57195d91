"""The simulator runs every way of appending: each node of a cluster of three has another one."""

from __future__ import annotations

from ledgermq.sim.faults import schedule
from ledgermq.sim.runs.world import World
from ledgermq.storage.log.log_writer import MODES


def test_each_node_appends_in_another_way() -> None:
    """After a run with crashes, the three logs are still written in three different modes, and are
    equal."""
    world = World(11)
    assert world.run(800, schedule()).passed
    lives = [station.life for station in world.stations.values()]
    assert sorted(life.replica.log._writer.mode for life in lives) == sorted(MODES)  # type: ignore[union-attr]
