"""The audit fuzzer: seeded damage of every kind to directories that the product wrote, and healthy
directories in every state.

A sample runs every time; `make soak` runs thousands (`python -m tests.audit.fuzz`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from ledgermq.audit.run.jobs import audit
from tests.audit.fuzz.case import matrix
from tests.audit.fuzz.clusters import HEALTHY, at_rest
from tests.audit.fuzz.damage import KINDS
from tests.audit.fuzz.runner import Tally, run_cases, run_healthy
from tests.audit.fuzz.suites import SCENARIOS, STATES, Damaged

SEED = 20261122
SAMPLE, SLICE = 150, 30
BENCH_SAMPLE, BENCH_MORE, BENCH_SOAK = 12, 36, 3_000
SOAK_CASES, SOAK_HEALTHY = 10_000, 600


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    """One small cluster; every case undoes what it did."""
    yield Damaged(at_rest(5, steps=150), tmp_path_factory.mktemp("fuzzer"))


def test_damaged_replica_with_the_only_intact_copy_proves_it(stage: Damaged) -> None:
    """Of a committed entry one copy is intact: that no majority agrees on it is no damage of this
    copy."""
    one, *others = stage.replicas
    changes = {}
    for entry in (one.entries[0], *(other.entries[-1] for other in others)):
        data = bytearray(stage.cluster.image[entry.path])
        data[entry.at + entry.size - 9] ^= 0x5A
        changes[entry.path] = bytes(data)
    with stage.changed(changes):
        found = stage.audit().findings
    bodies = {(f.replica, f.klass) for f in found if f.flaw.rule == "entry.body"}
    assert bodies == {(replica.node, "bit-rot") for replica in stage.replicas}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("part", range(SAMPLE // SLICE))
def test_damage_is_found_at_its_place_by_its_class_and_on_its_replica(
    stage: Damaged, part: int
) -> None:
    """A sample over the whole matrix of damages, kinds of files, places and numbers of replicas."""
    tally = Tally()
    for case in islice(stage.cases(SEED), part * SLICE, (part + 1) * SLICE):
        case_result = stage.try_case(case)
        if case_result is not None:
            tally.add("sample", case_result)
    assert not tally.complaints, tally.complaints
    assert tally.cases > SLICE // 2


def test_the_sample_is_of_the_whole_matrix(stage: Damaged) -> None:
    """Every way of damage is in it, and nothing is found where nothing was done."""
    strata = list(matrix(stage.replicas))
    assert {case.damage for case in strata} >= set(KINDS)
    result = stage.audit(deep=True)
    assert (result.verdict, result.findings) == ("PASS", [])


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "sample", [BENCH_SAMPLE, pytest.param(BENCH_MORE, marks=pytest.mark.verify)]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.verify if name == "running" else ())
        for name in SCENARIOS
    ],
)
def test_damage_beside_the_logs_accuses_only_its_replica(
    tmp_path: Path, name: str, sample: int
) -> None:
    """Seals, quick comparisons, files of clients, backups, groups with appointed masters: a sample
    of damaged and of healthy ones."""
    tally = run_cases(tmp_path, {name: SCENARIOS[name]}, sample, SEED)
    assert not tally.complaints, tally.complaints
    assert tally.cases


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.slow
def test_healthy_clusters_have_no_findings(tmp_path: Path, name: str) -> None:
    """Whole, lagging, freshly failed over and trimmed: no finding; a replica that cannot be
    compared makes it INCOMPLETE at most."""
    cluster = HEALTHY[name]()
    result = audit(cluster.write(tmp_path), deep=True)
    assert [finding.text for finding in result.findings] == []
    assert (
        result.verdict == "PASS" if cluster.complete else result.verdict in ("PASS", "INCOMPLETE")
    )


@pytest.mark.soak
def test_ten_thousand_damaged_directories(tmp_path: Path) -> None:
    """100 % found, at its place, by its class, on its replica."""
    tally = run_cases(tmp_path, STATES, SOAK_CASES, SEED, tell=print)
    print(tally.as_object())
    assert not tally.complaints, tally.complaints[:20]


@pytest.mark.soak
def test_thousands_of_cases_beside_the_logs(tmp_path: Path) -> None:
    """The same of seals, quick comparisons, files of clients, backups and groups with appointed
    masters."""
    tally = run_cases(tmp_path, SCENARIOS, BENCH_SOAK, SEED, tell=print)
    print(tally.as_object())
    assert not tally.complaints, tally.complaints[:20]


@pytest.mark.soak
def test_hundreds_of_healthy_directories(tmp_path: Path) -> None:
    """No false alarm, whatever happened to the cluster that damages no medium."""
    tally = run_healthy(tmp_path, SOAK_HEALTHY, SEED, tell=print)
    assert not tally.complaints, tally.complaints[:20]
