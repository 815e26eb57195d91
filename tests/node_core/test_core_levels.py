"""The feature level of a broker group: the log alone decides it, and a program that reads less than it stops before it applies anything.

Nothing of today is above level 1. These tests plant a program that reads two levels, and a record and a snapshot of level 2.
"""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.node.broker.state.machine import Machine
from ledgermq.node.broker.state.restoring import restore
from ledgermq.proto import control, levels
from ledgermq.storage.errors import UnknownFormat
from tests.audit.state_records import EPOCH_MS, Scribe
from tests.node_core.core_fakes import MemoryLog, MemoryQueues
from tests.node_core.core_world import exported, merged


def machine(log: MemoryLog, reads: int) -> Machine:
    found = Machine(MemoryQueues(), log.record, log.index_at)
    found.level_max = reads
    return found


def raised(*wanted: int) -> Scribe:
    scribe = Scribe(1, 5)
    for level in wanted:
        scribe.record(control.LevelRecord(level))
    return scribe


def test_the_table_has_every_record_and_only_known_levels() -> None:
    """A new kind, or a new version, needs a level before it can be encoded or read."""
    assert {kind for kind, _ in levels.RECORDS} == control.KINDS.keys()
    assert {*levels.RECORDS.values(), *levels.SNAPSHOTS.values()} <= set(range(levels.FIRST_LEVEL, levels.LEVEL_MAX + 1))


@pytest.mark.parametrize(
    "record",
    [control.AuditRecord("a"), control.Membership(("n1",), reason="why"), control.Membership(("n1",), rule="in-sync")],
    ids=lambda record: f"{record.TAG}-{getattr(record, 'version', 1)}",
)
def test_the_encoder_asserts_the_level(monkeypatch: pytest.MonkeyPatch, record: control.ControlRecord) -> None:
    """A record of level 2 can be encoded only for a group that has this level; every version of a kind has a level of its own."""
    monkeypatch.setitem(levels.RECORDS, (record.TAG, getattr(record, "version", 1)), 2)
    assert control.draft(record, EPOCH_MS, 2).body == record.encode()
    with pytest.raises(AssertionError, match="needs level 2, and the group has level 1"):
        control.draft(record, EPOCH_MS)
    other = control.TermStart(1, "n1")
    assert control.draft(other, EPOCH_MS).body == other.encode()


@pytest.mark.parametrize(("records", "level"), [((), 1), ((2,), 2), ((2, 2), 2), ((2, 3), 3), ((3,), 1), ((2, 3, 1), 3)])
def test_the_log_raises_the_level_by_one_and_never_lowers_it(records: tuple[int, ...], level: int) -> None:
    """A record that does not name the next level changes nothing."""
    assert raised(*records).machine.level == level


def test_a_snapshot_has_the_level_and_the_version_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """At level 1 a newer program writes what the older one wrote, byte for byte, and no `level`; at level 2 it writes its own version."""
    before = raised()
    monkeypatch.setitem(levels.SNAPSHOTS, 7, 2)
    assert exported(before.machine)["v"] == 6 and "level" not in exported(before.machine)
    after = exported(raised(2).machine)
    assert (after["v"], after["level"]) == (7, 2)
    again = machine(MemoryLog(), 2)
    again.restore(after)
    assert again.level == 2 and {**exported(again), "queues": after["queues"]} == after
    again.restore(exported(before.machine))
    assert again.level == 1


def test_a_program_that_reads_less_than_the_level_applies_nothing_of_its_range() -> None:
    """A replica of the former level stops at the record with status 76, whichever entries come in the same range."""
    log = raised(2).log
    (entries,) = merged(log)
    old = machine(log, 1)
    with pytest.raises(control.UnknownControlRecord, match="to level 2, this program reads up to 1") as caught:
        old.apply(entries)
    assert caught.value.exit_code == 76 and (old.applied_index, old.level) == (-1, 1)
    new = machine(log, 2)
    while new.applied_index < log.end_index:
        new.apply(log.read(new.applied_index + 1))
    assert new.level == 2


class _Store:
    """As much of a store as `restore` needs, with a snapshot and a log that begins with an entry."""

    state_directory = "g1/state"

    def __init__(self, snapshot: dict[str, Any], begin_index: int) -> None:
        self.snapshot = snapshot
        self.log = self
        self.begin_index = begin_index
        self.queues = self
        self.rebuilt = False

    def read_snapshot(self) -> dict[str, Any]:
        return self.snapshot

    def start_queues(self, snapshot: dict[str, Any]) -> None:
        assert snapshot is self.snapshot

    def discard_derived(self) -> None:
        self.rebuilt = True

    def start(self, ends: dict[str, Any], pos: int) -> None:
        assert (ends, pos) == ({}, 0)


def restored(snapshot: dict[str, Any], begin_index: int, reads: int) -> tuple[Machine, bool]:
    """What `restore` makes of a snapshot, and whether the state is derived from the log again."""
    store: Any = _Store(snapshot, begin_index)
    found = machine(MemoryLog(), reads)
    restore(store, found)
    return found, store.rebuilt


@pytest.mark.parametrize("begin_index", [0, 3])
def test_a_directory_above_the_level_of_the_program_is_refused(begin_index: int) -> None:
    """Status 76, also where the log is whole: it contains the record."""
    snapshot = exported(raised(2).machine)
    with pytest.raises(UnknownFormat, match="is of level 2, this program reads up to 1") as refused:
        restored(snapshot, begin_index, 1)
    assert refused.value.exit_code == 76
    assert restored(snapshot, begin_index, 2)[0].level == 2


def test_a_newer_program_takes_the_snapshot_of_its_groups_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot in the version of the level is complete, so a whole log is not applied again; one of an older version is."""
    monkeypatch.setitem(levels.SNAPSHOTS, 7, 2)
    snapshot = exported(raised().machine)
    found, rebuilt = restored(snapshot, 0, 2)
    assert not rebuilt and found.applied_index == snapshot["applied_index"]
    assert restored({**snapshot, "v": 5}, 0, 2)[1]
    assert not restored({**snapshot, "v": 5}, 3, 2)[1]
