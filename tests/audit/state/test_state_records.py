"""Records that no leader would write mean the same to the node and to the audit: stale lease
numbers, offsets beyond the end, places twice.

A log is written by leaders that may be wrong, or of another version; what the state is nevertheless
follows from the format alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.audit.state import derive, lapsed, records, timers, transactions
from ledgermq.audit.state.derive import check_state
from ledgermq.node.broker.parts.delivery import lapsed_leases as node_lapsed
from ledgermq.node.broker.parts.timers import timers as node_timers
from ledgermq.node.broker.parts.transactions import transactions as node_transactions
from ledgermq.proto import levels
from ledgermq.proto.records import control
from tests.audit.state_records import EPOCH_MS, LEVEL_MAX, Scribe
from tests.audit.state_worlds import fresh, write_replica

REMEMBERED = 5


def agrees(directory: Path, seed: int) -> None:
    """From the first entry, and from an older snapshot of a log that lost its files."""
    scribe = Scribe(seed, 150, level=1 + 2 * (seed % 2))
    *older, last = sorted(scribe.snapshots)
    previous = scribe.snapshots[older[seed % len(older)]] if older else None
    for trimmed in (False, True):
        task = write_replica(
            scribe.log, fresh(directory), previous, scribe.snapshots[last], trimmed=trimmed
        )
        report = check_state(task)
        assert (seed, trimmed, report.reason, [flaw.proof for flaw in report.flaws]) == (
            seed,
            trimmed,
            "",
            [],
        )
        assert "state/snapshot" in report.compared


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few transactions that have ended and leases that lapsed are remembered, so that some are
    forgotten."""
    assert transactions.ENDED_MAX == node_transactions.ENDED_MAX
    monkeypatch.setattr(transactions, "ENDED_MAX", REMEMBERED)
    monkeypatch.setattr(node_transactions, "ENDED_MAX", REMEMBERED)
    assert lapsed.LAPSED_MAX == node_lapsed.LAPSED_MAX
    monkeypatch.setattr(lapsed, "LAPSED_MAX", REMEMBERED)
    monkeypatch.setattr(node_lapsed, "LAPSED_MAX", REMEMBERED)
    monkeypatch.setattr(records, "LEVEL_MAX", LEVEL_MAX)


@pytest.mark.usefixtures("short_memory")
def test_any_record_means_the_same_to_both(tmp_path: Path) -> None:
    """Every kind about everything, in any order. A trim of the last seed ends leases in a lite
    topic that vanishes, and others."""
    for seed in (*range(6), 1174):
        agrees(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.usefixtures("short_memory")
@pytest.mark.parametrize("first", range(1000, 1200, 50))
@pytest.mark.verify
def test_any_record_means_the_same_to_both_for_long(tmp_path: Path, first: int) -> None:
    """The same over many seeds."""
    for seed in range(first, first + 50):
        agrees(tmp_path, seed)


def audited(directory: Path, scribe: Scribe, *, trimmed: bool = False) -> derive.StateReport:
    *older, last = sorted(scribe.snapshots)
    previous = scribe.snapshots[older[0]] if older else None
    return check_state(
        write_replica(
            scribe.log, fresh(directory), previous, scribe.snapshots[last], trimmed=trimmed
        )
    )


def test_a_level_that_the_audit_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit derives nothing of a group above its own level, neither from the record nor from a
    snapshot behind it, and says so."""
    monkeypatch.setattr(records, "LEVEL_MAX", 2)
    scribe = Scribe(1, 0)
    scribe.record(control.LevelRecord(2))
    scribe.look()
    scribe.record(control.AuditRecord("a"))
    scribe.look()
    assert audited(tmp_path, scribe).flaws == audited(tmp_path, scribe, trimmed=True).flaws == []
    monkeypatch.setattr(records, "LEVEL_MAX", 1)
    for trimmed in (False, True):
        report = audited(tmp_path, scribe, trimmed=trimmed)
        assert (
            report.unknown
            and not report.flaws
            and "level 2, and this program knows levels up to 1" in report.reason
        )


def test_a_record_above_the_level_of_its_group_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record is allowed only behind the entry that raised the group to the record's level."""
    monkeypatch.setattr(records, "LEVEL_MAX", 2)
    monkeypatch.setitem(derive.RECORD_LEVELS, ("audit", 1), 2)
    for raised in (False, True):
        scribe = Scribe(1, 0)
        if raised:
            scribe.record(control.LevelRecord(2))
        at = scribe.record(control.AuditRecord("a"))
        scribe.look()
        found = [
            (flaw.rule, flaw.index, "record of level 2" in flaw.proof)
            for flaw in audited(tmp_path, scribe).flaws
        ]
        assert found == ([] if raised else [("record.control", at, True)])


@pytest.mark.parametrize("level", [2, 3])
def test_a_minimum_is_among_the_members_from_its_level_on(tmp_path: Path, level: int) -> None:
    """The snapshot has it like the record; below the level no leader writes such a record, so it is
    a finding."""
    scribe = Scribe(1, 0)
    for wanted in range(2, level + 1):
        scribe.record(control.LevelRecord(wanted))
    members = control.Membership(
        ("n1", "n2", "n3"), reason="asked for", rule="in-sync", since=1, minimum=1
    )
    at = scribe.write(control.draft(members, EPOCH_MS, 3))
    scribe.look()
    assert scribe.machine.members is not None and scribe.machine.members.minimum == 1
    found = [
        (flaw.rule, flaw.index, "record of level 3" in flaw.proof)
        for flaw in audited(tmp_path, scribe).flaws
    ]
    assert found == ([] if level == 3 else [("record.control", at, True)])


@pytest.mark.parametrize("stored", [False, True])
def test_where_a_group_begins_is_in_the_snapshot(tmp_path: Path, stored: bool) -> None:
    """Behind a snapshot, the last trim before it says whether a new group begins below the local
    begin."""
    scribe = Scribe(1, 0)
    scribe.record(control.LevelRecord(2))
    last = [scribe.send("n", 0, {}) for _ in range(4)][-1]
    before = scribe.log.ranges[last - 1]
    named = scribe.log.ranges[last].pos, before.term, before.last_chain, 0
    scribe.record(control.TrimRecord(last, *named, ((0, None),), "operator", stored))
    scribe.snapshots.clear()
    scribe.look()
    scribe.record(control.LeaseRecord("g", "n", "c", 1000, ((0, (), ()),)))
    scribe.look()
    assert scribe.machine.delivery.cursor(("g", "n", 0)) == (0 if stored else 3)
    for trimmed in (False, True):
        report = audited(tmp_path, scribe, trimmed=trimmed)
        assert (report.reason, report.flaws) == ("", []) and "state/snapshot" in report.compared


def test_the_levels_are_the_same() -> None:
    """The audit's own table has the levels of the writer's, and both know the same highest
    level."""
    assert records.LEVEL_MAX == levels.LEVEL_MAX
    assert {
        known: level for known, level in levels.RECORDS.items() if level > levels.FIRST_LEVEL
    } == derive.RECORD_LEVELS
    assert set(derive.READ) == levels.SNAPSHOTS.keys()
    assert {level: levels.snapshot_version(level) for level in derive.VERSIONS} == derive.VERSIONS
    assert max(derive.VERSIONS) == levels.LEVEL_MAX == max(levels.SNAPSHOTS.values())


def test_the_wheel_is_the_same_size() -> None:
    """Numbers that are part of the format, of which a short test meets nothing."""
    assert (timers.SLOTS, timers.MINUTE_MS, sorted(timers.COUNTS)) == (
        node_timers.SLOTS,
        node_timers.SLOT_MS,
        sorted(node_timers.Timers(lambda topic, slot: 0).counts),
    )
