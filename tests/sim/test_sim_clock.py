"""Monotonic clocks that run apart or stand still: the arithmetic between a node's time and the
world's, and that nothing rests on them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.sim.checks.outcome import Outcome
from ledgermq.sim.faults import acting, schedule
from ledgermq.sim.faults.faults_process import DRIFT_PPM
from ledgermq.sim.faults.plan import FaultEvent, Plan
from ledgermq.sim.machine.clock import Clock
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.runs.world import World

STEPS = 6000
SEEDS = 6
PPM = st.integers(-900_000, 900_000)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), PPM), max_size=5),
    st.integers(0, 1 << 41),
    st.integers(0, 1 << 41),
)
def test_a_clock_never_goes_back_and_a_moment_is_the_first_that_shows_its_time(
    rates: list[tuple[int, int]], first: int, later: int
) -> None:
    """Whatever rates it had."""
    clock, now = Clock(), 0
    for passed, ppm in rates:
        before, now = clock.at(now), now + passed
        assert clock.at(now) >= before
        clock.set_rate(now, ppm)
    own = clock.at(now + first)
    assert clock.at(now + max(first, later)) >= own
    assert clock.at(clock.when(own)) >= own
    assert clock.when(own) <= now + first
    assert clock.when(own) == now or clock.at(clock.when(own) - 1) < own


def test_a_clock_that_was_never_set_shows_the_time_of_the_world() -> None:
    """So runs without this fault are what they were."""
    assert (
        [Clock().at(k) for k in (0, 7, 1 << 50)]
        == [0, 7, 1 << 50]
        == [Clock().when(k) for k in (0, 7, 1 << 50)]
    )


@given(st.integers(0, 1 << 40), PPM, st.integers(1, 1 << 40), PPM, st.integers(0, 1 << 40))
def test_a_clock_that_stood_still_goes_on_where_it_was(
    began: int, ppm: int, stood: int, then: int, passed: int
) -> None:
    """At the rate that it got meanwhile, or at once when it is told to."""
    clock = Clock()
    clock.set_rate(0, ppm)
    showed = clock.at(began)
    clock.stand_still(began, stood)
    clock.set_rate(began + stood // 2, then)
    assert {clock.at(began + part * stood // 3) for part in range(4)} == {showed}
    assert clock.when(showed) == began + stood
    assert clock.at(began + stood + passed) - showed == passed * (1_000_000 + then) // 1_000_000
    clock.go_on(began + stood // 2)
    assert clock.when(showed) == began + stood // 2


def apart(seed: int, ppm: int) -> Outcome:
    """The leader's clock runs slow, all others fast, and the leader is repeatedly partitioned in
    one direction or both."""
    events = [
        FaultEvent(5 * MS, "clock-drift", {"node": node, "ppm": ppm, "for_ns": 1 << 40, "salt": 1})
        for node in ("n1", "n2", "n3")
    ]
    for number in range(12):
        at = (1500 + 2500 * number) * MS
        events.append(
            FaultEvent(
                at - MS,
                "clock-drift",
                {"node": "leader", "ppm": -ppm, "for_ns": 2000 * MS, "salt": 2},
            )
        )
        events.append(
            FaultEvent(
                at, "depose", {"crash": False, "power": False, "for_ns": 600 * MS, "salt": number}
            )
        )
    return World(seed).run(
        STEPS, acting(Plan(tuple(sorted(events, key=lambda event: event.at_ns))))
    )


@pytest.mark.verify
def test_clocks_of_different_rates_keep_the_invariants() -> None:
    """A leader's clock runs at half the rate of the others, or a quarter; no node answers an old
    read."""
    for seed in range(SEEDS):
        for ppm in (DRIFT_PPM, 6 * DRIFT_PPM, 10 * DRIFT_PPM):
            outcome = apart(seed, ppm)
            assert outcome.passed, f"seed {seed}: {outcome.violation}"


@pytest.mark.verify
def test_suspended_machines_among_other_faults() -> None:
    """No read is old, in a Raft group and in an HA group, whatever else fails."""
    kinds = ("suspend", "suspend", "late-answers", "transfer-and-cut", "clock-drift", "kill-leader")
    for seed in range(SEEDS):
        outcome = World(seed).run(2000, schedule(kinds))
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        outcome = World(seed, settings=Settings.of_ha()).run(
            2000, schedule((*kinds, "usurper", "two-masters"))
        )
        assert outcome.passed, f"HA, seed {seed}: {outcome.violation}"


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_drift_among_other_faults() -> None:
    """Nothing rests on clocks."""
    for seed in range(SEEDS):
        outcome = World(seed).run(
            2000,
            schedule(
                ("clock-drift", "clock-drift", "late-answers", "isolate", "pause", "kill-leader")
            ),
        )
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
