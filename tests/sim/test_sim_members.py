"""Members that change, directories that are lost and logs that are brought from peers, under all
other faults."""

from __future__ import annotations

import pytest

from ledgermq.sim.faults import FAULTS, acting, schedule
from ledgermq.sim.faults.plan import FaultEvent, Plan
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES
from ledgermq.sim.runs.world import World

pytestmark = pytest.mark.timeout(900)  # a loaded machine is no failure

STEPS = 2300
SEEDS = 8
MEMBERS = ("membership", "join", "wipe-and-return")


@pytest.mark.verify
def test_members_change_under_all_other_faults() -> None:
    """Nodes join, vote, stop voting and go, and directories are lost, in any mixture with what else
    happens: no invariant breaks."""
    changed = wiped = 0
    for seed in range(SEEDS):
        outcome = World(seed).run(STEPS, schedule((*FAULTS, *MEMBERS * (len(FAULTS) // 3))))
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        changed += outcome.coverage.get("membership-changes", 0)
        wiped += outcome.coverage.get("wiped", 0)
    assert changed > 5
    assert wiped > 1


@pytest.mark.verify
def test_a_replica_that_was_left_behind_is_brought_the_log() -> None:
    """A replica that lacks entries which the others trimmed installs them, despite failures during
    the installation. Consumers, timers and transactions keep most files, so about one run in eight
    needs an installation."""
    brought = 0
    for seed in range(8 * SEEDS):
        outcome = World(seed, file_bytes=SMALL_FILE_BYTES).run(
            3 * STEPS, schedule(("left-behind", "wipe-and-return", "kill-inside"))
        )
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        brought += outcome.coverage.get("installs", 0)
        if brought > 1:
            break
    assert brought > 1


def test_a_node_that_joins_replaces_the_leader() -> None:
    """An empty node is added and promoted, and the former leader is removed: the others continue
    without it."""
    world = World(3)
    steps = [
        FaultEvent(1_000 * MS, "join", {"for_ns": 300 * MS, "salt": 1}),
        FaultEvent(4_000 * MS, "transfer", {"node": "n1", "salt": 2}),
    ]
    world.after(6_000 * MS, lambda: world.change_members("remove", "n1"))
    outcome = world.run(8 * STEPS, acting(Plan(tuple(steps))), until_ns=9_000 * MS)
    assert outcome.passed, outcome.violation
    members = world.members()
    assert members is not None
    assert members.voters == ("j1", "n2", "n3")


def test_a_lost_directory_comes_back_as_a_voter() -> None:
    """Its packets are ignored until the log names its new directory; then it catches up and votes
    again without help."""
    world = World(5)
    plan = Plan(
        (
            FaultEvent(
                1_500 * MS, "wipe-and-return", {"node": "leader", "for_ns": 100 * MS, "salt": 1}
            ),
        )
    )
    outcome = world.run(4 * STEPS, acting(plan), until_ns=6_000 * MS)
    assert outcome.passed, outcome.violation
    members = world.members()
    assert members is not None
    assert members.voters == ("n1", "n2", "n3")
    assert not members.learners
    assert len(members.incarnations) == 1
    assert outcome.coverage["packets-of-replaced-directories"] > 0


def test_no_move_goes_to_a_node_that_joined_to_observe() -> None:
    """It would be refused for good, and its operator would ask until the run fails."""
    observing = [
        FaultEvent(
            at * MS, "observe", {"ends": "observer", "power": False, "for_ns": 500 * MS, "salt": at}
        )
        for at in (1_500, 1_510)
    ]
    move = FaultEvent(1_520 * MS, "move", {"node": "follower", "salt": 1})
    world = World(5)
    outcome = world.run(4 * STEPS, acting(Plan((*observing, move))), until_ns=5_000 * MS)
    assert outcome.passed, outcome.violation
    assert len(world.names) == 5 and not world.operators


def test_a_log_with_an_older_directory_of_the_leader_is_followed_beyond_it() -> None:
    """The leader lost two directories: a node that fetches the log from it passes the record of the
    first one."""
    world = World(1)
    lost = [(1_500, "n3"), (4_500, "n3"), (10_500, "n1")]
    wipes = [
        FaultEvent(at * MS, "wipe-and-return", {"node": node, "for_ns": 100 * MS, "salt": at})
        for at, node in lost
    ]
    handed = [
        FaultEvent(at * MS, "transfer", {"node": node, "salt": at})
        for at, node in ((1_200, "n1"), (4_200, "n1"), (9_000, "n3"))
    ]
    outcome = world.run(
        20 * STEPS,
        acting(Plan(tuple(sorted(wipes + handed, key=lambda event: event.at_ns)))),
        until_ns=12_500 * MS,
    )
    assert outcome.passed, outcome.violation
    assert outcome.coverage["wiped"] == len(lost)
