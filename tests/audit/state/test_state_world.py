"""The audit derives the state that the node has: over random calls of every kind, from the first
entry and from an older snapshot.

Two implementations of one page: the node's machine made the snapshots, the audit's parts read the
log. And the other way round: whatever is changed in a snapshot is found, by the rule of its key.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.state.derive import StateReport, check_state
from ledgermq.sim.faults import FAULTS, schedule
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES
from ledgermq.sim.runs.world import World
from ledgermq.storage.files import sealed_json
from tests.audit.planting import Planted, plant
from tests.audit.state_worlds import Lived, Step, fresh
from tests.example_counts import examples
from tests.node_core.core_world import NAMES

STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 11), st.integers(0, 11)),
    min_size=30,
    max_size=120,
)
PATIENT = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


def steps_of(seed: int) -> list[Step]:
    rng = Random(seed)
    return [
        (rng.choice(NAMES), rng.randrange(12), rng.randrange(12))
        for _ in range(rng.randrange(60, 160))
    ]


def passes(report: StateReport) -> None:
    assert (report.reason, [(flaw.rule, flaw.proof) for flaw in report.flaws]) == ("", [])
    assert "state/snapshot" in report.compared


def check(directory: Path, lived: Lived, number: int) -> None:
    """Derive what the world saw from the beginning, and from the snapshot of this number where its
    log was trimmed by then."""
    *older, last = lived.indexes
    previous = lived.snapshots[older[number % len(older)]] if older else None
    passes(check_state(lived.write(fresh(directory), previous, lived.snapshots[last])))
    if previous is not None:
        passes(
            check_state(
                lived.write(fresh(directory), previous, lived.snapshots[last], trimmed=True)
            )
        )


def run(directory: Path, steps: list[Step], number: int) -> None:
    lived = Lived(steps)
    check(directory, lived, number)
    lived.settle()
    check(directory, lived, number)


@settings(max_examples=examples(10), derandomize=True, suppress_health_check=PATIENT)
@given(STEPS, st.integers(0, 9))
def test_derived_state_equals_the_state_of_the_node(
    tmp_path: Path, steps: list[Step], number: int
) -> None:
    """Whatever clients, clocks and leaders did."""
    run(tmp_path, steps, number)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, 25))
@pytest.mark.verify
def test_derived_state_equals_the_state_of_the_node_over_many_seeds(
    tmp_path: Path, first: int
) -> None:
    """The same over many seeds."""
    for seed in range(first, first + 25):
        run(tmp_path, steps_of(seed), seed)


def test_all_that_a_snapshot_can_say_was_there() -> None:
    """The seeds above are worth what they meet: every value of the parts that are not in every
    log."""
    met: dict[str, Any] = {}
    for seed in range(8):
        lived = Lived(steps_of(seed), 6)
        lived.settle()
        for snapshot in lived.snapshots.values():
            timers, transactions = snapshot["timers"], snapshot["transactions"]
            met |= {
                "waiting" if terms == ["", 0] else f"leased {len(terms)}": 1
                for rows in _rows(snapshot)
                for terms in rows["terms"]
            }
            met |= {
                name: 1
                for name in (
                    "letters",
                    "lite",
                    "lite_floors",
                    "offsets",
                    "ids",
                    "producers",
                    "minimums",
                )
                if snapshot[name]
            }
            met |= {f"timers {name}": 1 for name in ("slots", "recalled") if timers[name]}
            met |= {f"timers {name}": 1 for name, count in timers["counts"].items() if count}
            met |= {f"transactions {name}": 1 for name in ("halves", "ended") if transactions[name]}
    wanted = {
        "leased 2",
        "leased 3",
        "waiting",
        "ids",
        "letters",
        "lite",
        "lite_floors",
        "minimums",
        "offsets",
        "producers",
    }
    wanted |= {
        f"timers {name}" for name in ("slots", "stored", "fired", "rolled", "recalled", "dropped")
    }
    assert met.keys() == wanted | {"transactions ended", "transactions halves"}


def _rows(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        rows
        for topics in snapshot["delivery"].values()
        for queues in topics.values()
        for _, rows in queues.values()
    ]


def found(lived: Lived, directory: Path, index: int, rng: Random, times: int) -> list[Planted]:
    """Plant a number of changes in the snapshot of an index, one at a time. Returns those not
    found, or found under another rule."""
    task = lived.write(fresh(directory), None, lived.snapshots[index])
    path, missed = Path(task.root) / "state" / "snapshot", []
    for _ in range(times):
        planted = plant(lived.snapshots[index], rng)
        text = sealed_json.encode(planted.value)
        path.write_bytes(text)
        report = check_state(task)
        flaws = [
            flaw for flaw in report.flaws if flaw.rule in (f"state.{planted.key}", "state.keys")
        ]
        places = all(0 <= flaw.byte_from < flaw.byte_to <= len(text) for flaw in flaws)
        indexes = all(flaw.index is None or 0 <= flaw.index <= index for flaw in flaws)
        if not flaws or not places or not indexes or len(flaws) < len(report.flaws):
            missed.append(planted)
    return missed


@pytest.mark.parametrize("seed", range(3))
def test_changed_snapshot_value_is_found(tmp_path: Path, seed: int) -> None:
    """A number more or less, a row or a key that is missing or there twice, in plain values and in
    columns: found, and nothing else."""
    lived, rng = Lived(steps_of(seed), 6), Random(seed)
    for index in rng.sample(lived.indexes, 3):
        assert found(lived, tmp_path, index, rng, 15) == []


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.parametrize("first", range(100, 132, 8))
def test_changed_snapshot_value_is_found_over_many_seeds(tmp_path: Path, first: int) -> None:
    """The same over many seeds."""
    for seed in range(first, first + 8):
        lived, rng = Lived(steps_of(seed), 6), Random(seed)
        for index in rng.sample(lived.indexes, 4):
            assert found(lived, tmp_path, index, rng, 15) == []


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(10))
def test_replicas_that_lived_through_faults_have_the_state_of_their_logs(
    tmp_path: Path, seed: int
) -> None:
    """Directories of the simulator's nodes, after power cuts, kills, trims, repairs and
    installations."""
    trims = seed % 2 == 1
    mixture = (*FAULTS, *["trim"] * (len(FAULTS) // 2)) if trims else None
    world = World(seed, file_bytes=SMALL_FILE_BYTES) if trims else World(seed)
    assert world.run(2000, schedule(mixture)).passed
    for name, station in world.stations.items():
        for file in station.medium.disk.files():
            path = tmp_path / file.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(station.medium.disk.read_file(file))
        (replica,) = find_replicas(str(tmp_path / name))
        report = check_state(replica.task(f"{0:020d}"))
        assert report.flaws == []
        assert report.compared or report.reason == "there is no snapshot to compare with"
