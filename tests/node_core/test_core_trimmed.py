"""What a trim means for topics, queues and deliveries, and that snapshot and log bring all of it
back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ledgermq.node.broker.calls.operator_calls import Reset, Trim
from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.restoring import restore
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.records import control
from ledgermq.proto.records.control import TrimRecord
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind
from ledgermq.storage.files.errors import Damaged, UnknownFormat
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from tests.node_core.core_fakes import Bench
from tests.storage.log_material import HOST, make_identity

CREATED_MS = 1_700_000_000_000
ME = make_identity()
DISK = RealDisk()


def trimmed_bench() -> tuple[Bench, int]:
    """Ten messages, of which three are leased; then a trim whose begin is message 4. Returns the
    place of that message."""
    bench = Bench()
    bench.lead()
    bench.configure()
    for number in range(10):
        bench.send(f"m{number}")
    assert len(bench.receive(n=3)) == 3
    begin_pos = bench.queues.rows["t", 0][4][0] - 48
    bench.turn(Trim(next(bench.tokens), TrimRecord(6, begin_pos, 1, 0, 0, (), "disk")))
    bench.turn()
    return bench, begin_pos


def test_messages_below_the_begin_are_done_for_every_group() -> None:
    """Cursors move up, rows are removed, and the next receive gets the first kept message."""
    bench, begin_pos = trimmed_bench()
    machine = bench.machine
    assert (machine.begin_pos, machine.begin("t", 0)) == (begin_pos, 4)
    assert (machine.delivery.cursor(("g", "t", 0)), machine.delivery.in_flight) == (4, 0)
    assert [lease.queue_offset for lease in bench.receive(n=2)] == [4, 5]
    peeked = bench.ask(Peek(next(bench.tokens), "t", 0, 0, 100))
    assert isinstance(peeked, Peeked) and (
        len(peeked.records),
        peeked.begin_offset,
        peeked.next_offset,
    ) == (6, 4, 10)
    bench.ask(Reset(next(bench.tokens), "g", "t", ((0, 0),)))
    assert machine.delivery.cursor(("g", "t", 0)) == 4
    assert machine.offset_at("t", 0, 0) == 4
    with pytest.raises(AssertionError, match="was trimmed"):
        machine.units("t", 0, 3, 1)


def test_a_trim_and_its_neighbours_in_one_range_are_as_if_one_by_one() -> None:
    """However the log is cut into ranges, the same state comes out, and applying a record again
    changes nothing."""
    bench, _ = trimmed_bench()
    bench.send("behind")
    whole, states = bench.log, []
    for size in (1, 3, 1000):
        machine = Machine(type(bench.queues)(), whole.record)
        index = 0
        while index <= whole.end_index:
            entries = cut(whole.read(index), min(whole.end_index, index + size - 1))
            index = machine.apply(entries).entries.last_index + 1
        states.append(json.dumps(machine.export("log"), sort_keys=True))
    assert len(set(states)) == 1 and json.loads(states[0])["minimums"]["t"] == {"0": [4, None]}


class Built:
    """A store and a machine fed from its own log, without consensus."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / "identity.json").exists():
            GroupStore.create(DISK, str(root), ME)
        self.store = GroupStore.open(DISK, str(root), ME)
        bootstrap(self.store.log, ("n1",), CREATED_MS)
        self.machine = Machine(
            self.store.queues, lambda at, size: bytes(self.store.log.record_at(at, size))
        )
        self.lost = restore(self.store, self.machine)
        self.apply()

    def apply(self) -> None:
        log = self.store.log
        while self.machine.applied_index < log.end_index:
            self.machine.apply(log.read(self.machine.applied_index + 1, 1 << 20))

    def append(self, *drafts: Draft) -> None:
        for draft in drafts:
            batch = encode_entries([draft])
            offset = np.array([self.machine.end(draft.stored_topic, draft.queue)], np.int64)
            self.store.log.append_leader(1, batch, offset, CREATED_MS, HOST)
            self.apply()
        self.store.log.flush_mark()

    def trim(self, file: int) -> None:
        log = self.store.log
        begin = next(
            i
            for i in range(log.begin_index, log.end_index + 1)
            if log.pos_of(i) >= file * ME.data_file_bytes
        )
        before = log.term_at(begin - 1), log.chain_at(begin - 1)
        record = TrimRecord(begin, log.pos_of(begin), *before, log.begin_index, (), "time")
        self.append(control.draft(record, CREATED_MS))

    def snapshot(self) -> None:
        self.store.queues.sync()
        self.store.write_snapshot(self.machine.export(ME.log_id))

    def carry_out(self) -> None:
        self.snapshot()
        self.snapshot()
        self.store.log.trim(self.machine.begin_index)
        self.store.queues.trim(self.machine.begin_pos)
        self.store.queues.sync()

    def queue_bytes(self) -> dict[str, bytes]:
        folder = self.root / "consumequeue"
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def state(self) -> str:
        return json.dumps(self.machine.export(ME.log_id), sort_keys=True)


def message(topic: str, number: int, queue: int = 0) -> Draft:
    return Draft(
        topic, queue, f"{number:04d}".encode() * 30, b"UNIQ_KEY\x01x\x02TAGS\x01a\x02", CREATED_MS
    )


def built(root: Path) -> Built:
    """Some log files, two trims carried out, messages before, between and after them, one queue
    that is empty for good."""
    made = Built(root)
    made.append(
        control.draft(
            control.TopicRecord(
                TopicConfig("", "t", TopicKind.NORMAL, 2, Permission.READ_WRITE, 1)
            ),
            CREATED_MS,
        )
    )
    made.append(*[message("gone", number) for number in range(3)])
    for round_ in range(3):
        made.append(*[message("t", number, number % 2) for number in range(40)])
        if round_ < 2:
            made.trim(2 * round_ + 1)
            made.append(message("t", 40))
            made.carry_out()
    made.snapshot()
    return made


def test_snapshot_and_log_bring_queues_back_byte_for_byte(tmp_path: Path) -> None:
    """After the loss of a file, and of all of them, a start makes equal files and an equal state
    from what is kept."""
    whole = built(tmp_path / "g1")
    bytes_, state = whole.queue_bytes(), whole.state()
    assert whole.store.log.begin_index > 10 and whole.machine.voters == ("n1",)
    whole.store.close()
    again = Built(tmp_path / "g1")
    assert again.lost is None and again.state() == state
    again.store.queues.trim(again.machine.begin_pos)
    assert again.queue_bytes() == bytes_
    again.store.close()
    victims = sorted(path for path in (tmp_path / "g1/consumequeue").rglob("*") if path.is_file())
    for loss in (victims[:1], victims[-1:], victims):
        for victim in loss:
            victim.unlink()
        again = Built(tmp_path / "g1")
        assert again.lost is not None and "rebuilt from the log" in again.lost
        assert (again.queue_bytes(), again.state()) == (bytes_, state)
        again.store.close()
    shutil.rmtree(tmp_path / "g1/consumequeue")
    again = Built(tmp_path / "g1")
    assert (again.queue_bytes(), again.state()) == (bytes_, state)


def test_the_previous_snapshot_is_enough(tmp_path: Path) -> None:
    """A damaged newest one costs nothing but time, even right after a trim."""
    whole = built(tmp_path / "g1")
    state = whole.state()
    whole.store.close()
    newest = tmp_path / "g1/state/snapshot"
    newest.write_bytes(newest.read_bytes()[:-5])
    assert Built(tmp_path / "g1").state() == state


def test_a_trimmed_log_without_a_usable_snapshot_is_refused(tmp_path: Path) -> None:
    """Exit codes 75 and 76, and a message that says what to do; nothing is thrown away."""
    whole = built(tmp_path / "g1")
    whole.store.close()
    state = tmp_path / "g1/state"
    good = (state / "snapshot").read_bytes()
    for name in ("snapshot", "snapshot.previous"):
        (state / name).unlink()
    with pytest.raises(Damaged, match="restore this replica from peers or a backup"):
        Built(tmp_path / "g1")
    old = {**whole.machine.export(ME.log_id), "v": 1}
    whole = replace_snapshot(tmp_path / "g1", old)
    with pytest.raises(UnknownFormat, match="start the program that wrote it"):
        restore(whole, Machine(whole.queues, lambda at, size: b""))
    (state / "snapshot").write_bytes(good)
    (state / "snapshot.previous").unlink(missing_ok=True)
    assert Built(tmp_path / "g1").lost is None


def leased(made: Built) -> None:
    """A message is leased twice, so that its first lease lapses."""
    begin = made.machine.begin("t", 0)
    for attempt in (1, 2):
        record = control.LeaseRecord("g", "t", "c", 1000, ((0, (begin,), (attempt,)),), (), ())
        made.append(control.draft(record, CREATED_MS))
    assert len(made.machine.delivery.lapsed) == 1


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_snapshot_from_before_leases_lapsed(tmp_path: Path, trimmed: bool) -> None:
    """A log that is whole says what it did not: everything is applied again. Of a trimmed one
    leases until then are not remembered."""
    made = built(tmp_path / "g1") if trimmed else Built(tmp_path / "g1")
    if not trimmed:
        made.append(
            control.draft(
                control.TopicRecord(
                    TopicConfig("", "t", TopicKind.NORMAL, 2, Permission.READ_WRITE, 1)
                ),
                CREATED_MS,
            )
        )
        made.append(message("t", 0))
    leased(made)
    state, applied = made.state(), made.machine.applied_index
    old = {**made.machine.export(ME.log_id), "v": 4}
    del old["lapsed"]
    made.store.close()
    replace_snapshot(tmp_path / "g1", old).close()
    again = Built(tmp_path / "g1")
    assert (again.state() == state) is not trimmed
    assert again.machine.delivery.lapsed.since == (applied if trimmed else -1)
    assert again.machine.delivery.export() == made.machine.delivery.export()


def replace_snapshot(root: Path, value: dict[str, object]) -> GroupStore:
    store = GroupStore.open(DISK, str(root), replace(ME))
    store._generations = {}
    store.write_snapshot(value)
    return store
