"""The simulator as a test: a few seeds of every kind hold every invariant. Many more run from the
commit (bench/alone/sim_soak.py)."""

from __future__ import annotations

import pytest

from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.sim.faults import FAULTS, KNOWN, acting, faults_ha, schedule
from ledgermq.sim.faults.plan import FaultEvent, Plan
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES
from ledgermq.sim.runs.cluster import NATIVES_EVERY
from ledgermq.sim.runs.world import World

pytestmark = pytest.mark.timeout(900)  # a loaded machine is no failure

HELD = 60
SLICE = 6
DEVOTED = 24
"""Seeds of a mixture of its own."""
STEPS = 2000
"""About three virtual seconds."""


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(first, marks=pytest.mark.verify) for first in range(SLICE, HELD, SLICE))],
)
def test_every_invariant_holds(first: int) -> None:
    """Power cuts, kills, pauses, partitions, bad networks, slow disks and failed syncs, in any
    mixture, break nothing."""
    for seed in range(first, first + SLICE):
        outcome = World(seed).run(STEPS, schedule())
        assert outcome.passed, (
            f"seed {seed}: {outcome.violation} (ledgermq sim --seed {seed} --steps {STEPS})"
        )


@pytest.mark.verify
def test_a_seed_is_repeatable() -> None:
    """The same seed gives the same history, whatever ran before it; another seed gives another."""
    first = World(7).run(STEPS, schedule())
    World(8).run(STEPS, schedule())
    assert World(7).run(STEPS, schedule()) == first
    assert World(8).run(STEPS, schedule()).digest != first.digest


@pytest.mark.one_in(17)
@pytest.mark.parametrize(
    "seeds",
    [range(1), pytest.param(range(1, 3), marks=pytest.mark.verify)],
    ids=["one seed", "more seeds"],
)
@pytest.mark.parametrize("fault", [name for name in KNOWN if name not in faults_ha.KINDS])
def test_each_fault_alone_is_survived(fault: str, seeds: range) -> None:
    """A run devoted to one kind of fault commits something and ends well; those of HA groups are in
    test_sim_ha.py."""
    outcomes = [World(seed).run(STEPS, schedule((fault,))) for seed in seeds]
    assert all(outcome.passed for outcome in outcomes), [outcome.violation for outcome in outcomes]
    assert sum(outcome.commits for outcome in outcomes) > 4 * len(seeds)


@pytest.mark.verify
def test_a_process_may_end_between_any_two_accesses_of_its_disk() -> None:
    """Rolls, cuts, slots, marks and recoveries are interrupted in their middle, with and without
    the power, and on full disks."""
    for seed in range(DEVOTED):
        outcome = World(seed).run(
            STEPS, schedule(("kill-inside", "full-disk", "power-cut", "depose", "failed-sync"))
        )
        assert outcome.passed, f"seed {seed}: {outcome.violation}"


@pytest.mark.verify
def test_trimmed_logs_hold_the_same_invariants() -> None:
    """Logs are trimmed during the run: no acknowledged entry is lost, and all replicas continue."""
    trimmed = 0
    for seed in range(DEVOTED):
        world = World(seed, file_bytes=SMALL_FILE_BYTES)
        outcome = world.run(STEPS, schedule((*FAULTS, *["trim"] * (len(FAULTS) // 2))))
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        trimmed += outcome.coverage["files-trimmed"]
    # Undecided transactions and delayed messages keep files: without them it would be three times
    # as many.
    assert trimmed > 4


@pytest.mark.verify
def test_a_trim_may_end_between_any_two_accesses_of_the_disk() -> None:
    """The process or the power ends in the middle of trims and of the recoveries after them."""
    trimmed = 0
    for seed in range(DEVOTED):
        world = World(seed, file_bytes=SMALL_FILE_BYTES)
        outcome = world.run(
            STEPS, schedule(("trim", "kill-inside", "trim", "power-cut", "failed-sync"))
        )
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        trimmed += outcome.coverage["files-trimmed"]
    assert trimmed > 10


@pytest.mark.verify
def test_transfers_hold_the_same_invariants() -> None:
    """Leadership that is handed over in the middle of everything, to nodes in any state: nothing is
    lost, and it really moves."""
    moved = 0
    for seed in range(DEVOTED):
        world = World(seed)
        outcome = world.run(STEPS, schedule((*FAULTS, *["transfer"] * (len(FAULTS) // 2))))
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
        moved += outcome.coverage["leaders-by-transfer"]
    assert moved > 3


@pytest.mark.verify
@pytest.mark.parametrize("policy", [FlushPolicy.MEMORY, FlushPolicy.HYBRID])
def test_memory_acknowledgements_weaken_no_other_guarantee(policy: FlushPolicy) -> None:
    """The same faults and the same checkers: what is committed or called durable is never lost."""
    outcomes = {seed: World(seed, policy=policy).run(STEPS, schedule()) for seed in range(10)}
    assert all(outcome.passed for outcome in outcomes.values()), [
        outcome.violation for outcome in outcomes.values()
    ]
    assert sum(outcome.acknowledged_memory for outcome in outcomes.values()) > 50
    # Frames of native producers ask for durability, whatever the policy.
    durable = sum(
        outcome.acknowledged_durable for seed, outcome in outcomes.items() if seed % NATIVES_EVERY
    )
    assert (durable > 50) is (policy is FlushPolicy.HYBRID)


@pytest.mark.verify
@pytest.mark.parametrize("policy", [FlushPolicy.MEMORY, FlushPolicy.DURABLE])
def test_only_memory_is_lost_when_the_power_fails_everywhere(policy: FlushPolicy) -> None:
    """Without a sync a majority in memory is worth nothing to a power cut of all nodes; under
    `durable` the same cuts lose nothing."""
    cuts = Plan(
        tuple(FaultEvent(k * 1_700 * MS, "power-cut-all", {"salt": k}) for k in range(1, 9))
    )
    lost = 0
    for seed in range(6 if policy is FlushPolicy.DURABLE else 40):
        outcome = World(seed, policy=policy).run(3 * STEPS, acting(cuts))
        assert outcome.passed, outcome.violation
        lost += outcome.lost_memory
        if lost:
            break
    assert (lost > 0) is (policy is not FlushPolicy.DURABLE)


@pytest.mark.verify
def test_five_nodes() -> None:
    """A larger group holds the same invariants."""
    outcomes = [World(seed, nodes=5).run(STEPS, schedule()) for seed in range(8)]
    assert all(outcome.passed for outcome in outcomes), [outcome.violation for outcome in outcomes]


def test_rot_on_several_replicas_leaves_a_whole_copy() -> None:
    """The kinds that damage several replicas leave a copy: of what the third one lacks, because it
    was cut off, nothing is harmed on both others. Else the group could only refuse, and a run that
    demands progress would blame it."""
    apart = FaultEvent(
        400 * MS,
        "isolate",
        {"node": "n3", "inbound": True, "outbound": True, "for_ns": 60_000 * MS, "salt": 0},
    )
    salts = range(20)
    rots = [
        FaultEvent(
            (2500 + 150 * k) * MS, "same-rot-majority", {"all": False, "for_ns": 20 * MS, "salt": k}
        )
        for k in salts
    ]
    for seed in range(3):
        outcome = World(seed).run(3 * STEPS, acting(Plan((apart, *rots))))
        assert outcome.passed, f"seed {seed}: {outcome.violation}"
