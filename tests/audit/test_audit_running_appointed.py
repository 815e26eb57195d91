"""Running groups whose masters a controller appoints: the marker is confirmed by the in-sync set,
which may be the master alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ledgermq.audit.cli.report import as_json, as_text, for_repair
from ledgermq.audit.reading import remote
from ledgermq.audit.reading.remote import Access
from ledgermq.audit.repairs.plan import make_plan
from ledgermq.audit.repairs.told import report_of
from ledgermq.audit.run.jobs import Audit, audit_running
from ledgermq.audit.run.running import RunningCluster
from ledgermq.proto.records.repair_plan import Plan
from tests.audit.checks.test_audit_appointed import COMMON, messages, told
from tests.audit.damage_cases import NODES, flip
from tests.audit.log_writer import Message, Writer, election
from tests.audit.running_nodes import FakeCluster

MARKER = len(COMMON) - 1


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)


Running = tuple[FakeCluster, list[Writer]]


def running(
    base: Path, logs: Sequence[Sequence[Message]], applied: Sequence[int], marker: int = MARKER
) -> Running:
    """Nodes that have written these logs, n1 first, and applied them so far."""
    writers = []
    for name, log, index in zip(NODES, logs, applied, strict=True):
        writer = Writer(base / name)
        for message in log:
            writer.append(message)
        writers.append(writer.finish(committed=index, clean=False, snapshot=False))
    cluster = FakeCluster.of(writers, marker)
    for node, index in zip(cluster.nodes.values(), applied, strict=True):
        node.applied = index
    return cluster, writers


def spoil(writer: Writer, index: int, inside: int = 70) -> None:
    at = writer.entries[index].pos + inside
    flip(writer.log / "data" / f"{at - at % writer.data_bytes:020d}", at % writer.data_bytes)


def lagging(base: Path) -> Running:
    """The master alone is in sync: it confirmed twenty entries, the marker the last of them. n2 is
    behind, n3 keeps a lost epoch's tail."""
    alone = [*COMMON, election(2, "n1"), *messages(2, 19)]
    return running(base, [alone, COMMON, [*COMMON, *messages(1, 20, "tail")]], [59, 39, 39], 59)


def reached(result: Audit) -> list[str]:
    return [
        name
        for name in NODES
        for reason in result.reasons
        if f"{name} ends 20 entries before the compared index 59" in reason
    ]


def test_tails_behind_the_marker_of_an_ha_group_are_no_finding(tmp_path: Path) -> None:
    """A master that went on alone, a slave with a tail of its own, and one that ends at the
    marker."""
    logs = [[*COMMON, *messages(1, 9)], [*COMMON, *messages(1, 4, "tail")], COMMON]
    cluster, _ = running(tmp_path, logs, [MARKER + 9, MARKER, MARKER])
    result = cluster.audit()
    assert (result.verdict, result.compared, result.reasons, result.findings) == (
        "PASS",
        MARKER,
        [],
        [],
    ), as_text(result)


def test_slaves_outside_of_the_in_sync_set_lag(tmp_path: Path) -> None:
    """Only the master has applied the marker: INCOMPLETE with the names of the slaves, and no
    finding about entries that a slave has not applied."""
    cluster, _ = lagging(tmp_path)
    result = cluster.audit()
    assert (result.verdict, result.compared, told(result)) == ("INCOMPLETE", 59, []), as_text(
        result
    )
    assert reached(result) == ["n2", "n3"], result.reasons


@pytest.mark.parametrize(
    ("node", "index", "expected"),
    [("n1", 20, "bit-rot"), ("n3", 20, "bit-rot"), ("n1", 50, "undecidable")],
)
def test_damage_is_found_on_master_and_slave(
    tmp_path: Path, node: str, index: int, expected: str
) -> None:
    """If another replica has the entry, damage is rot; an entry that only the master confirmed is
    undecidable."""
    cluster, writers = lagging(tmp_path)
    spoil(writers[NODES.index(node)], index)
    result = cluster.audit()
    assert result.verdict == "FAIL" and told(result) == [(expected, node, "entry.body")], as_text(
        result
    )


def planned(cluster: FakeCluster) -> Plan:
    """What `ledgermq repair` would do about the findings of an audit."""
    with cluster.serving(), Access().connect(cluster.nodes["n1"].address, 1.0) as connection:
        result = audit_running(RunningCluster(connection, 0.2))
        return make_plan(report_of({**as_json(result), "repair": for_repair(result)}))


def test_plan_fetches_only_entries_that_another_replica_holds(tmp_path: Path) -> None:
    """Reading the damaged entry from its only holder would stop the group on its master. n2 has the
    common entries that n1 lost; no replica has the master's own entries, and entries before a lost
    one cannot be restored alone; n3 has others in their place."""
    cluster, writers = lagging(tmp_path)
    for index in (20, 38, 39, 40, 50):
        spoil(writers[0], index)
    plan = planned(cluster)
    assert [(ranged.replica, ranged.first_index, ranged.last_index) for ranged in plan.ranges] == [
        ("n1", 20, 20)
    ]
    texts = [left.reason for left in plan.undecided]
    assert texts == [
        f"no other replica that was audited holds entries {low} to {high}"
        for low, high in ((38, 40), (50, 50))
    ]
    assert not plan.directories and not plan.remaining


def test_a_rotten_word_of_a_header_is_put_back_with_its_entry(tmp_path: Path) -> None:
    """The body and the chain prove the entry: nothing of it is lost, and yet its words are not what
    they were."""
    cluster, writers = lagging(tmp_path)
    spoil(writers[0], 20, 41)
    plan = planned(cluster)
    assert [(ranged.replica, ranged.first_index, ranged.last_index) for ranged in plan.ranges] == [
        ("n1", 20, 20)
    ]
    assert not plan.undecided and not plan.remaining


def test_a_slave_that_applied_another_entry_is_a_divergence(tmp_path: Path) -> None:
    """Applied entries are confirmed, whatever its files have recorded so far: they are no
    unconfirmed tail."""
    right, other = (
        [*COMMON[:30], election(2, "n1"), *messages(2, 9)],
        [*COMMON[:30], *messages(1, 10, "other")],
    )
    cluster, writers = running(tmp_path, [right, right, other], [MARKER] * 3)
    for path in (writers[2].root / "consumequeue").glob("*/*/0*"):
        path.write_bytes(bytes(path.stat().st_size))
    (writers[2].log / "checkpoint").unlink()
    result = cluster.audit()
    assert result.verdict == "FAIL" and ("divergence", "n3", "replica.divergence") in told(
        result
    ), as_text(result)
    assert result.groups[0].proven_by in ("n1", "n2")
