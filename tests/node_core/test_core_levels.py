"""The feature level of a broker group: the log alone decides it, and a program that reads less than
it stops before it applies anything.

Nothing of today is above level 1. These tests plant a program that reads two levels, and a record
and a snapshot of level 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ledgermq.node.broker.calls.member_calls import ChangeMembers, GroupMembers, RaiseLevel
from ledgermq.node.broker.calls.operator_calls import Kept
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.restoring import restore
from ledgermq.proto import levels
from ledgermq.proto.records import control
from ledgermq.raft.config import Members
from ledgermq.storage.files.errors import UnknownFormat
from tests.audit.state_records import EPOCH_MS, Scribe
from tests.node_core.core_fakes import Bench, MemoryLog, MemoryQueues
from tests.node_core.core_world import exported, merged
from tests.node_core.test_core_group import records


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
    assert {*levels.RECORDS.values(), *levels.SNAPSHOTS.values()} <= set(
        range(levels.FIRST_LEVEL, levels.LEVEL_MAX + 1)
    )


@pytest.mark.parametrize(
    "record",
    [
        control.AuditRecord("a"),
        control.Membership(("n1",), reason="why"),
        control.Membership(("n1",), rule="in-sync"),
    ],
    ids=lambda record: f"{record.TAG}-{getattr(record, 'version', 1)}",
)
def test_the_encoder_asserts_the_level(
    monkeypatch: pytest.MonkeyPatch, record: control.ControlRecord
) -> None:
    """A record of level 2 can be encoded only for a group that has this level; every version of a
    kind has a level of its own."""
    monkeypatch.setitem(levels.RECORDS, (record.TAG, getattr(record, "version", 1)), 2)
    assert control.draft(record, EPOCH_MS, 2).body == record.encode()
    with pytest.raises(AssertionError, match="needs level 2, and the group has level 1"):
        control.draft(record, EPOCH_MS)
    other = control.TermStart(1, "n1")
    assert control.draft(other, EPOCH_MS).body == other.encode()


@pytest.mark.parametrize(
    ("records", "level"), [((), 1), ((2,), 2), ((2, 2), 2), ((2, 3), 3), ((3,), 1), ((2, 3, 1), 3)]
)
def test_the_log_raises_the_level_by_one_and_never_lowers_it(
    records: tuple[int, ...], level: int
) -> None:
    """A record that does not name the next level changes nothing."""
    assert raised(*records).machine.level == level


def test_a_snapshot_has_the_level_and_the_version_of_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At level 1 a newer program writes what the older one wrote, byte for byte, and no `level`; at
    level 2 it writes its own version."""
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


def test_program_below_the_level_stops_before_its_range() -> None:
    """A replica of the former level stops at the record with status 76, whichever entries come in
    the same range."""
    log = raised(2).log
    (entries,) = merged(log)
    old = machine(log, 1)
    with pytest.raises(
        control.UnknownControlRecord, match="to level 2, this program reads up to 1"
    ) as caught:
        old.apply(entries)
    assert caught.value.exit_code == 76 and (old.applied_index, old.level) == (-1, 1)
    new = machine(log, 2)
    while new.applied_index < log.end_index:
        new.apply(log.read(new.applied_index + 1))
    assert new.level == 2


class _Store:
    """As much of a store as `restore` needs, with a snapshot and a log that begins with an
    entry."""

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


def test_a_newer_program_takes_the_snapshot_of_its_groups_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A snapshot in the version of the level is complete, so a whole log is not applied again; one
    of an older version is."""
    monkeypatch.setitem(levels.SNAPSHOTS, 7, 2)
    snapshot = exported(raised().machine)
    found, rebuilt = restored(snapshot, 0, 2)
    assert not rebuilt and found.applied_index == snapshot["applied_index"]
    assert restored({**snapshot, "v": 5}, 0, 2)[1]
    assert not restored({**snapshot, "v": 5}, 3, 2)[1]


# -- raising the level


def raising(*asked: str, level: int = 2, user: str = "") -> Callable[[Bench], RaiseLevel]:
    return lambda bench: RaiseLevel(
        next(bench.tokens), control.LevelRecord(level, user), frozenset(asked)
    )


def leading() -> Bench:
    bench = Bench()
    bench.machine.level_max = 3
    bench.replicator.members = Members(("n1", "n2", "n3"))
    bench.machine.members = GroupMembers(-1, ("n1", "n2", "n3"))
    bench.lead()
    return bench


def raises(log: MemoryLog) -> list[object]:
    """The level records in the log."""
    return [record for record in records(log) if isinstance(record, control.LevelRecord)]


def joining(bench: Bench, level_max: int) -> ChangeMembers:
    return ChangeMembers(next(bench.tokens), "add", "n4", "dir-4", "because", level_max=level_max)


ALL = raising("n1", "n2", "n3")


def test_a_raise_is_answered_when_its_record_is_applied_and_repeated_at_once() -> None:
    """The record says who asked. Asking for a level that is in force appends nothing, also with a
    member that was not asked."""
    bench = leading()
    bench.replicator.commit_at_once = False
    call = raising("n1", "n2", "n3", user="root")(bench)
    bench.turn(call)
    assert call.token not in bench.done and bench.machine.level == 1
    bench.replicator.commit_index = bench.log.end_index
    bench.turn()
    assert bench.done[call.token] == Kept() and bench.group.view().level == 2
    assert raises(bench.log) == [control.LevelRecord(2, "root")]
    bench.replicator.commit_at_once = True
    end = bench.log.end_index
    assert bench.ask(raising("n1")(bench)) == Kept() and bench.log.end_index == end
    assert (
        bench.ask(raising("n1", "n2", "n3", level=3)(bench)) == Kept() and bench.machine.level == 3
    )


def test_two_raises_at_once_append_one_record() -> None:
    bench = leading()
    bench.replicator.commit_at_once = False
    first, second = ALL(bench), ALL(bench)
    bench.turn(first)
    bench.turn(second)
    bench.replicator.commit_index = bench.log.end_index
    bench.turn()
    assert bench.done[first.token] == bench.done[second.token] == Kept()
    assert raises(bench.log) == [control.LevelRecord(2)]


def test_a_member_that_was_not_asked_keeps_the_level_down() -> None:
    """Learners and observers too, from the moment their record is appended; and no level is left
    out."""
    bench = leading()
    outcome = bench.ask(raising("n1", "n3")(bench))
    assert (
        isinstance(outcome, Refused)
        and outcome.reason == "members-not-yet"
        and outcome.detail.startswith("n2 became a member meanwhile")
    )
    bench.replicator.commit_at_once = False
    bench.turn(joining(bench, 1))
    call = ALL(bench)
    bench.turn(call)
    outcome = bench.done[call.token]
    assert isinstance(outcome, Refused) and outcome.detail.startswith(
        "n4 became a member meanwhile"
    )
    far = raising("n1", "n2", "n3", "n4", level=3)(bench)
    bench.turn(far)
    outcome = bench.done[far.token]
    assert (
        isinstance(outcome, Refused)
        and outcome.detail == "the level is 1, and levels are raised one by one"
    )
    assert not raises(bench.log)


def test_a_node_that_reads_less_does_not_join_behind_an_uncommitted_level_record() -> None:
    bench = leading()
    bench.replicator.commit_at_once = False
    bench.turn(ALL(bench))
    end = bench.log.end_index
    old = joining(bench, 1)
    bench.turn(old)
    said = "the group has feature level 2, and n4 reads up to 1: upgrade n4 first"
    assert (
        bench.done[old.token] == Refused("members-refused", "n1", said)
        and bench.log.end_index == end
    )
    bench.turn(joining(bench, 2))
    assert bench.log.end_index == end + 1


def test_a_raise_needs_a_serving_leader_and_room_on_its_disk() -> None:
    bench = leading()
    bench.replicator.full = bench.replicator.full_for_control = True
    assert bench.ask(ALL(bench)) == Refused("disk-full", "n1")
    bench.replicator.full = bench.replicator.full_for_control = False
    bench.replicator.commit_at_once = False
    call = ALL(bench)
    bench.turn(call)
    bench.replicator.follow(2, "n2")
    bench.turn()
    assert bench.done[call.token] == Refused("unknown-outcome", "n2")
    assert bench.ask(ALL(bench)) == Refused("not-leader", "n2")


def test_a_lost_record_is_appended_again_by_the_next_term() -> None:
    """A leader whose record was replaced after it lost its office does not take the record for
    pending when it leads again."""
    bench = leading()
    bench.replicator.commit_at_once = False
    end, members = bench.log.end_index, bench.replicator.members
    bench.turn(joining(bench, 2))
    bench.turn(raising("n1", "n2", "n3", "n4")(bench))
    assert raises(bench.log) == [control.LevelRecord(2)]
    bench.replicator.follow(2, "n2")
    bench.turn()
    bench.log.cut(end)
    bench.replicator.members, bench.replicator.members_index = members, -1
    bench.replicator.commit_at_once = True
    bench.lead(3)
    assert not raises(bench.log)
    bench.replicator.commit_at_once = False
    bench.turn(ALL(bench))
    assert raises(bench.log) == [control.LevelRecord(2)]
