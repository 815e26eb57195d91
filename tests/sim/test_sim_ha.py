"""HA groups as the simulator runs them: the same invariants, under masters that a metadata quorum
appoints, loses and appoints again."""

from __future__ import annotations

from functools import partial

import pytest

from ledgermq.raft.config import Rule
from ledgermq.raft.member_changes import MemberChanges
from ledgermq.sim.actors.appointing import STEPS
from ledgermq.sim.checks.outcome import Outcome
from ledgermq.sim.faults import acting, schedule
from ledgermq.sim.faults.faults_ha import HOW, KINDS, STAGES
from ledgermq.sim.faults.faults_kind import leaders
from ledgermq.sim.faults.faults_media import files
from ledgermq.sim.faults.plan import FaultEvent, Plan, Value
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.nodes.bugs import Bug
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World
from ledgermq.storage.files.ports import PAGE_BYTES

pytestmark = pytest.mark.timeout(900)  # a loaded machine is no failure

STEPS_A_RUN = 1500
GROUPS = {
    "in-sync": Settings.of_ha(),
    "async": Settings.of_ha(ack_async=True),
    "pull": Settings.of_ha(pull=True),
    "minimum": Settings.of_ha(minimum=2),
    "five": Settings.of_ha(5, minimum=2),
}


def run(
    seed: int, settings: Settings, kinds: tuple[str, ...] | None = None, steps: int = STEPS_A_RUN
) -> Outcome:
    return World(seed, settings=settings).run(steps, schedule(kinds, steps))


@pytest.mark.parametrize(("seeds", "terms"), [(1, 1), pytest.param(3, 4, marks=pytest.mark.verify)])
@pytest.mark.parametrize("name", GROUPS)
def test_every_invariant_holds(name: str, seeds: int, terms: int) -> None:
    """All faults of Raft groups and those of HA groups, in any mixture: masters change, the in-sync
    set too, and nothing breaks."""
    outcomes = [run(seed, GROUPS[name]) for seed in range(seeds)]
    assert all(outcome.passed for outcome in outcomes), [
        (outcome.seed, outcome.violation) for outcome in outcomes
    ]
    assert sum(outcome.terms for outcome in outcomes) >= terms
    assert sum(outcome.coverage["appointments"] for outcome in outcomes) >= sum(
        outcome.terms for outcome in outcomes
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_of_ha_groups_alone_is_survived(kind: str) -> None:
    """Runs devoted to one kind, over and over."""
    outcomes = [run(seed, Settings.of_ha(), (kind,)) for seed in (1, 2)]
    assert all(outcome.passed for outcome in outcomes), [outcome.violation for outcome in outcomes]
    assert sum(outcome.commits for outcome in outcomes) > 4


@pytest.mark.one_in(4)
@pytest.mark.parametrize("step", STEPS)
def test_the_quorums_leader_may_end_at_every_step_of_an_election(step: str) -> None:
    """The request is lost before the agreement, or its result reaches no node for most of a second;
    the master is killed, partitioned or paused. Half of the runs intercept any request, so that
    changes of the in-sync set are hit too."""
    events = []
    for number, how in enumerate(HOW):
        drawn: dict[str, Value] = {
            "step": step,
            "any": number % 2 == 1,
            "how": how,
            "for_ns": 900 * MS,
            "salt": number,
        }
        events.append(FaultEvent((600 + 1300 * number) * MS, "quorum-step", drawn))
    outcome = World(3, settings=Settings.of_ha()).run(
        4 * STEPS_A_RUN, acting(Plan(tuple(events))), until_ns=6_000 * MS
    )
    assert outcome.passed, outcome.violation
    assert outcome.coverage["appointments"] > 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize("stage", STAGES)
def test_a_change_of_the_rule_may_be_hit_at_every_stage(stage: str) -> None:
    """To in-sync and back: whichever node is hit at each stage of the change, the group continues
    under one of the two rules."""
    events = []
    for number, (hit, how) in enumerate(
        (("master", "kill"), ("slave", "power"), ("master", "cut"), ("all", "kill"))
    ):
        drawn: dict[str, Value] = {
            "stage": stage,
            "hit": hit,
            "how": how,
            "for_ns": 400 * MS,
            "salt": number,
        }
        events.append(FaultEvent((500 + 1400 * number) * MS, "change-over", drawn))
    outcome = World(len(stage)).run(
        4 * STEPS_A_RUN, acting(Plan(tuple(events))), until_ns=6_000 * MS
    )
    assert outcome.passed, outcome.violation
    assert stage == "asked" or outcome.coverage["membership-changes"] > 0


def test_group_continues_while_some_lack_the_record_ending_the_in_sync_rule() -> None:
    """The master has the record of the rule all, and a slave without it is asked for its vote: it
    looks at the log, not at its rule."""
    for seed in (3, 8):
        outcome = run(seed, Settings.of_ha(), ("change-over",), 2500)
        assert outcome.passed, outcome.violation


@pytest.mark.parametrize("seed", [116, 106])
def test_a_group_goes_on_without_a_master_or_slave_that_is_gone_for_good(seed: int) -> None:
    """116: the master loses its directory before its first contact with the only in-sync slave;
    that slave becomes a candidate nevertheless. 106: one of two in-sync nodes loses its directory
    before the master confirmed any entry; a third node with all entries takes its place."""
    outcome = run(
        seed,
        GROUPS["minimum"],
        ("wipe-and-return", "in-sync-race", "wipe-and-return", "membership"),
        2500,
    )
    assert outcome.passed, outcome.violation
    assert outcome.coverage["wiped"] > 0


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["in-sync", "async", "pull", "five"])
def test_observers_never_count_while_masters_change(name: str) -> None:
    """They come, are killed and made voters while masters and the in-sync set change: no copy of
    theirs counts before they vote."""
    observed = 0
    for seed in (1, 2):
        world = World(seed, settings=GROUPS[name])
        outcome = world.run(
            2 * STEPS_A_RUN,
            schedule(("observe", "two-masters", "observe", "in-sync-race"), 2 * STEPS_A_RUN),
        )
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        members = world.members()
        assert members is not None
        known = world.controller.appointment
        assert known is not None and not members.observers.intersection(known.in_sync)
        observed += len(members.observers) + sum(
            voter not in world.settings.names for voter in members.voters
        )
    assert observed > 0


def test_no_replica_is_evicted_during_a_lease_of_an_earlier_release() -> None:
    """The masters here answer reads by a lease, as those of releases before 0.2.0 did, which a
    cluster may have during an upgrade. The request of a slave without contact to the master is
    granted late, after the contact returned. The master is partitioned at that moment and answers
    reads under the lease that this slave gave it; the slave must not confirm entries while the
    lease is valid."""
    directions: dict[str, Value] = {"node": "leader", "inbound": True, "outbound": True, "salt": 0}
    events = (
        FaultEvent(1200 * MS, "quorum-outage", {"for_ns": 1500 * MS, "salt": 0}),
        FaultEvent(1210 * MS, "isolate", {**directions, "for_ns": 900 * MS}),
        FaultEvent(
            2712 * MS,
            "two-masters",
            {**directions, "deaf": True, "mute": False, "for_ns": 1500 * MS},
        ),
    )
    for seed in (1, 2):
        world = World(seed, settings=Settings.of_ha(), bug=Bug.READS_BY_LEASE)
        outcome = world.run(4 * STEPS_A_RUN, acting(Plan(events)), until_ns=3_600 * MS)
        assert outcome.passed, outcome.violation
        assert outcome.terms > 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["in-sync", "async", "pull", "minimum"])
def test_master_behind_a_one_way_partition_is_replaced(name: str) -> None:
    """A permanent one-way partition: the master receives nothing from slaves or the quorum, but all
    receive its messages. It steps down by itself, and the others continue without it long before
    the partition heals."""
    inbound: dict[str, Value] = {
        "node": "leader",
        "inbound": True,
        "outbound": False,
        "deaf": True,
        "mute": False,
        "for_ns": 60_000 * MS,
    }
    begins = acting(Plan((FaultEvent(1500 * MS, "two-masters", {**inbound, "salt": 0}),)))
    found: list[tuple[str, int]] = []

    def look(world: World) -> None:
        name = leaders(world)[-1]
        life = world.stations[name].life
        assert life is not None
        found.append((name, life.commit_index))

    def schedule(world: World) -> None:
        begins(world)
        for at_ms in (1490, 9000, 10_000):
            world.after(at_ms * MS, partial(look, world))

    for seed in (1, 3):
        found.clear()
        outcome = World(seed, settings=GROUPS[name]).run(
            20 * STEPS_A_RUN, schedule, until_ns=10_100 * MS
        )
        assert outcome.passed, outcome.violation
        former, between, last = found
        assert former[0] != last[0] and former[1] < between[1] < last[1], found


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", GROUPS)
def test_replicas_move_and_go_while_masters_and_sets_change(name: str) -> None:
    """Operators ask until it is done, as the command line does; no request is left over once
    everything healed."""
    asked = changed = 0
    for seed in (1, 2):
        world = World(seed, settings=GROUPS[name])
        outcome = world.run(
            STEPS_A_RUN, schedule(("move", "remove", "move", "in-sync-race"), STEPS_A_RUN)
        )
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        assert all(operator.ended for operator in world.operators)
        asked, changed = (
            asked + len(world.operators),
            changed + outcome.coverage["membership-changes"],
        )
    assert asked > 0 and changed > 0


@pytest.mark.parametrize(
    ("name", "seed", "more"), [("in-sync", 7123456109, ()), ("async", 4, ("read-error", "kill"))]
)
def test_a_page_that_cannot_be_read_fails_for_the_node_and_not_for_the_checkers(
    name: str, seed: int, more: tuple[str, ...]
) -> None:
    """After a power cut the checkers read the whole last log file; the node has not repaired the
    page in it yet."""
    outcome = run(
        seed, GROUPS[name], ("read-error", "power-cut-all", *more), 2000 if more else 3000
    )
    assert outcome.passed, outcome.violation
    assert outcome.coverage["mended"] > 0


def test_the_checkers_see_every_entry_although_no_page_can_be_read() -> None:
    """Reading through the checker's view must not depend on which pages are broken, nor repair them
    for the node."""
    seen: list[int] = []

    def look(world: World) -> None:
        station = world.stations[leaders(world)[-1]]
        life, medium = station.life, station.medium
        assert life is not None
        intact = life.entry(life.end_index).data.tobytes()
        for base in files(medium):
            for offset in range(0, medium.file_bytes, PAGE_BYTES):
                medium.disk.break_page(f"{medium.data_directory}/{base:020d}", offset)
        assert life.entry(life.end_index).data.tobytes() == intact and life.bytes_behind_end() == 0
        with pytest.raises(OSError, match="Input/output"):
            medium.disk.read_file(f"{medium.data_directory}/{base:020d}")
        medium.repair()
        seen.append(life.end_index)

    outcome = World(2, settings=GROUPS["in-sync"]).run(
        STEPS_A_RUN, lambda world: world.after(SECOND, partial(look, world))
    )
    assert outcome.passed and seen, outcome.violation


def test_a_raft_group_is_drawn_as_if_there_were_no_others() -> None:
    """No master is appointed, and no request is sent."""
    world = World(4)
    outcome = world.run(600, schedule())
    assert outcome.passed, outcome.violation
    assert world.controller.appointment is None and world.settings.rule is Rule.MAJORITY


LOSSES = tuple(
    FaultEvent(at_ms * MS, "wipe-and-return", {"node": "leader", "for_ns": 1500 * MS, "salt": 0})
    for at_ms in (1200, 6000)
)


@pytest.mark.parametrize("name", ["two", "minimum"])
def test_a_group_that_lost_the_disk_of_its_master_serves_again(name: str) -> None:
    """Of its next master too: two replicas with a minimum of two need the copy of the new directory
    to commit anything."""
    settings = Settings.of_ha(2, minimum=2) if name == "two" else GROUPS[name]
    for seed in (1, 2, 3):
        outcome = World(seed, settings=settings).run(
            20 * STEPS_A_RUN, acting(Plan(LOSSES)), until_ns=11_000 * MS
        )
        assert outcome.passed, outcome.violation
        assert outcome.coverage["wiped"] == 2 and outcome.terms > 2


def test_without_taking_a_lost_directory_back_first_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted, the former rule; the checkers notice that the group makes no progress once
    everything is healed."""
    monkeypatch.setattr(MemberChanges, "_may_come_first", lambda *_: False)
    outcome = World(1, settings=Settings.of_ha(2, minimum=2)).run(
        20 * STEPS_A_RUN, acting(Plan(LOSSES[:1])), until_ns=11_000 * MS
    )
    assert not outcome.passed and "O7" in str(outcome.violation), outcome.violation
