"""Audits of a simulated cluster while it works: every audit passes whatever happens between its
calls, or says what it could not read."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ledgermq.raft.config import MS
from ledgermq.sim.actors.clients import Habits
from ledgermq.sim.faults import acting, draw
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES, Settings
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World
from tests.sim.audited import Auditing, reasons

STEPS = 100_000
FULL = Habits()
LIGHT = Habits(round_ns=(300 * MS, 600 * MS), messages_a_send=(3, 12))
"""So that an audit reads few files, and ends within the time of a fast test."""
CHANGES = ("trim-stored", "trim-stored", "seal", "transfer", "isolate")
"""New files begin, old ones go, files are sealed, leaders change, and minorities are cut off; no
process ends."""
RESTARTS = (*CHANGES, "kill", "kill-leader", "power-cut", "pause")
MOVED = (
    "was started again",
    "could not be read",
    "was lost while it was audited",
    "before the compared index",
    "had reached entry",
)
"""What an audit may say of a replica whose node was restarted, was away, or lagged (docs/audit.md,
Running nodes)."""
FEW = (
    "no membership record",
    "only one replica was given",
    "no index is held alike",
    "nothing was compared",
)
"""And of a group of which too little is left."""


def run(
    seed: int,
    settings: Settings,
    kinds: tuple[str, ...],
    events_a_call: int,
    *,
    times: int = 3,
    load: Habits = FULL,
) -> Auditing:
    """Audit a cluster under load so often."""
    world = World(seed, settings=replace(settings, file_bytes=SMALL_FILE_BYTES), habits=load)
    auditing = Auditing(world, random.Random(f"audit {seed}"), events_a_call)

    def schedule(world: World) -> None:
        acting(draw(seed, world.names, STEPS, kinds))(world)
        auditing.begin(1500 * MS, 500 * MS, times)

    outcome = world.run(STEPS, schedule, until_ns=1500 * MS + times * SECOND)
    assert outcome.violation is None, outcome.violation
    assert auditing.results
    return auditing


def check(auditing: Auditing) -> None:
    for result in auditing.results:
        assert not result.findings, reasons(result)
        left = [
            reason for reason in result.reasons if not any(told in reason for told in MOVED + FEW)
        ]
        assert not left and (result.verdict == "PASS") is not bool(result.reasons), reasons(result)


def check_passes(auditing: Auditing) -> None:
    check(auditing)
    assert any(result.verdict == "PASS" for result in auditing.results)


@pytest.mark.parametrize("seed", [1, 2])
def test_audits_pass_while_the_cluster_works(seed: int) -> None:
    check_passes(run(seed, Settings(), CHANGES, 2, times=2, load=LIGHT))


def test_audits_of_a_group_with_appointed_masters_pass_while_it_works() -> None:
    check_passes(
        run(3, Settings.of_ha(), ("trim-stored", "seal", "transfer"), 2, times=2, load=LIGHT)
    )


@pytest.mark.verify
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("seed", range(10, 26))
def test_audits_pass_while_the_cluster_works_in_many_runs(seed: int) -> None:
    check_passes(run(seed, Settings(), CHANGES, (1, 3, 10)[seed % 3]))


@pytest.mark.verify
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("seed", range(50, 58))
def test_audits_of_many_groups_with_appointed_masters_pass(seed: int) -> None:
    check_passes(
        run(
            seed,
            Settings.of_ha(minimum=1 + seed % 2),
            ("trim-stored", "seal", "transfer", "isolate"),
            (1, 3, 10)[seed % 3],
        )
    )


@pytest.mark.verify
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("seed", range(70, 86))
def test_audits_of_restarted_nodes_have_no_finding(seed: int) -> None:
    """What a node that was restarted had said does not count, and nothing of it is a finding."""
    check(
        run(seed, Settings.of_ha() if seed % 3 == 0 else Settings(), RESTARTS, (1, 3, 10)[seed % 3])
    )
