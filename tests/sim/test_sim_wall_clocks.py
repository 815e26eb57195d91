"""Wall clocks per node that jump, drift and restart: the law of store times holds, delayed messages
arrive, and a planted bug is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from ledgermq.node.replica.consensus.cluster_clock import ClusterClock
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import make_range, seal
from ledgermq.proto.types import Range
from ledgermq.raft.config import MS
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.outcome import Outcome
from ledgermq.sim.checks.wall_clocks import MAX_OFFSET_MS, WallClocks
from ledgermq.sim.faults import acting
from ledgermq.sim.faults.plan import FaultEvent, Plan
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.nodes.bugs import Bug, FollowsItself
from ledgermq.sim.runs.world import World
from tests.node_core.core_fakes import draft

SECOND = 1000 * MS
HOUR_MS = 3_600_000
STEPS = 2500


def jump(at_ms: int, node: str, offset_ms: int, for_ms: int) -> FaultEvent:
    return FaultEvent(
        at_ms * MS,
        "clock-jump",
        {"node": node, "offset_ms": offset_ms, "for_ns": for_ms * MS, "salt": at_ms},
    )


def drift(at_ms: int, node: str, ppm: int, for_ms: int) -> FaultEvent:
    return FaultEvent(
        at_ms * MS, "clock-drift", {"node": node, "ppm": ppm, "for_ns": for_ms * MS, "salt": at_ms}
    )


def kill(at_ms: int, node: str) -> FaultEvent:
    return FaultEvent(at_ms * MS, "kill", {"node": node, "for_ns": 100 * MS, "salt": at_ms})


def transfer(at_ms: int, node: str) -> FaultEvent:
    return FaultEvent(at_ms * MS, "transfer", {"node": node, "salt": at_ms})


def leader_jumps(offset_ms: int) -> list[FaultEvent]:
    return [jump(1500 + 4000 * k, "leader", offset_ms, 3000) for k in range(4)]


PLANS: dict[str, list[FaultEvent]] = {
    "the leader's clock, forward": leader_jumps(HOUR_MS),
    "the leader's clock, back": leader_jumps(-HOUR_MS),
    "one node after the other": [
        jump(1200 + 2500 * k, f"n{1 + k % 3}", (-1) ** k * HOUR_MS, 2000) for k in range(6)
    ],
    "restarts in between": [
        event
        for k in range(4)
        for event in (
            jump(1500 + 4000 * k, "leader", HOUR_MS, 3000),
            kill(2500 + 4000 * k, "leader"),
        )
    ],
    "a start with a wrong clock": [
        jump(1100, "n1", HOUR_MS, 20_000),
        kill(1200, "n1"),
        transfer(3000, "n1"),
        kill(5000, "n1"),
        transfer(7000, "n1"),
    ],
    "steady clocks that drift meanwhile": [
        *leader_jumps(HOUR_MS),
        *(
            drift(1200, node, ppm, 12_000)
            for node, ppm in (("n1", 40_000), ("n2", -40_000), ("n3", 0))
        ),
    ],
    "all together": [jump(2000, node, HOUR_MS, 60_000) for node in ("n1", "n2", "n3")],
    "all together, one after the other": [
        jump(2000 + 400 * k, node, -HOUR_MS, 60_000) for k, node in enumerate(("n1", "n2", "n3"))
    ],
    "all of them, each to another time": [
        jump(1000 + 400 * k, node, -HOUR_MS * (k + 1), 60_000)
        for k, node in enumerate(("n1", "n2", "n3"))
    ],
    "all apart from the start, then the leader's forward": [
        jump(1000, "n2", 2 * HOUR_MS, 60_000),
        jump(1000, "n3", -2 * HOUR_MS, 60_000),
        *(kill(1200, node) for node in ("n1", "n2", "n3")),
        *(jump(2500 + 1500 * k, "leader", 10 * HOUR_MS, 60_000) for k in range(4)),
    ],
}


def run(plan: str, seed: int, bug: Bug = Bug.NONE, settings: Settings | None = None) -> Outcome:
    return World(seed, bug=bug, settings=settings).run(STEPS, acting(Plan(tuple(PLANS[plan]))))


@pytest.mark.parametrize("plan", PLANS)
def test_store_times_obey_their_law(plan: str) -> None:
    for seed in (1, 2, 3):
        outcome = run(plan, seed)
        assert outcome.passed, f"seed {seed}: {outcome.violation}"


@pytest.mark.parametrize("plan", ["the leader's clock, forward", "restarts in between"])
def test_ha_groups(plan: str) -> None:
    outcome = run(plan, 3, settings=Settings.of_ha())
    assert outcome.passed, outcome.violation


@pytest.mark.parametrize(
    "plan", ["the leader's clock, forward", "restarts in between", "a start with a wrong clock"]
)
def test_a_leader_that_follows_its_own_clock_is_found(plan: str) -> None:
    outcome = run(plan, 1, Bug.OWN_CLOCK_FOLLOWED)
    assert outcome.violation is not None and outcome.violation.invariant == "time", (
        outcome.violation
    )


@dataclass
class Fixed:
    """A node whose clocks a test sets."""

    wall_offset_ms: int = 0
    lives: int = 1

    def process(self, world_ns: int) -> int:
        return self.lives

    def steady_ns(self, world_ns: int) -> int:
        return world_ns


def clocks(
    nodes: dict[str, Fixed],
    reaches: Callable[[str, str], bool] = lambda sender, to: True,
    **more: object,
) -> WallClocks:
    clock_type = FollowsItself if more.get("bug") else ClusterClock
    return WallClocks(Random(1), nodes, reaches, clock_type, by_majority=True)  # type: ignore[arg-type]


def test_a_new_process_hears_its_peers_before_its_first_turn_ends() -> None:
    """Its clock was never right, and it does not go by it."""
    nodes = {"n1": Fixed(HOUR_MS), "n2": Fixed(), "n3": Fixed()}
    assert abs(clocks(nodes).now_ms("n1", 100 * SECOND) - 100_000) <= MAX_OFFSET_MS
    assert clocks(nodes, bug=True).now_ms("n1", 100 * SECOND) == 100_000 + HOUR_MS
    assert (
        clocks(nodes, lambda sender, to: sender != "n1").now_ms("n1", 100 * SECOND)
        == 100_000 + HOUR_MS
    ), "it heard nobody"


def stamped(first_index: int, *times_ms: int) -> list[Range]:
    """One range for each time, of two entries with it."""
    ranges = []
    for at, time_ms in enumerate(times_ms):
        batch = encode_entries([draft("a"), draft("b")])
        place = {"first_index": first_index + 2 * at, "term": 1, "pos": 0, "prev_chain": 0}
        seal(batch, **place, queue_offsets=np.arange(2), store_ms=time_ms, store_host=bytes(8))
        ranges.append(make_range(batch, 0, 2, **place))
    return ranges


def test_store_times_that_fall_are_a_violation() -> None:
    nodes = {"n1": Fixed(), "n2": Fixed(), "n3": Fixed()}
    checker = clocks(nodes)
    checker.check(stamped(1, 100_000, 100_000, 100_001), 101 * SECOND)
    checker.check(stamped(7, 100_001), 101 * SECOND)
    with pytest.raises(Violation, match="time: the store time of entry 9 falls"):
        checker.check(stamped(9, 100_000), 101 * SECOND)


def test_a_store_time_that_only_one_clock_had_reached_is_a_violation() -> None:
    """Once a majority had reached it, it is none, also later."""
    nodes = {"n1": Fixed(HOUR_MS), "n2": Fixed(), "n3": Fixed()}
    checker = clocks(nodes)
    checker.check(stamped(1, 100_000 + MAX_OFFSET_MS), 100 * SECOND)
    with pytest.raises(Violation, match="time: entry 4 has the store time 3700000"):
        checker.check(stamped(3, 100_000 + HOUR_MS), 100 * SECOND)
    nodes["n2"].wall_offset_ms = HOUR_MS
    checker.check(stamped(5, 100_000 + HOUR_MS), 100 * SECOND)
    nodes["n2"].wall_offset_ms = 0
    checker.check(stamped(7, 100_000 + HOUR_MS), 101 * SECOND)


def test_wrong_store_time_long_after_clocks_agree_is_a_violation() -> None:
    checker = clocks({"n1": Fixed(), "n2": Fixed(), "n3": Fixed()})
    checker.healed(100 * SECOND)
    checker.check(stamped(1, 50_000), 105 * SECOND)
    checker.check(stamped(3, 110_000), 115 * SECOND)
    with pytest.raises(Violation, match="long after all clocks were set right"):
        checker.check(stamped(5, 110_000), 130 * SECOND)


def test_time_is_followed_again_after_a_jump() -> None:
    nodes = {"n1": Fixed(), "n2": Fixed(), "n3": Fixed()}
    station = clocks(nodes)
    for second in range(100, 130):
        nodes["n1"].wall_offset_ms = HOUR_MS if 105 <= second < 110 else 0
        assert abs(station.now_ms("n1", second * SECOND) - second * 1000) <= 2
