"""Installation of a log from peers: left behind a trim, or with nothing; over a bad wire;
interrupted anywhere."""

from __future__ import annotations

import copy
import errno
from collections.abc import Iterator
from functools import cache

import pytest

from ledgermq.node.replica.shipping.installation import Install
from ledgermq.proto.types import HardState
from ledgermq.sim.machine.disk import ForgetfulDisk, Killed
from ledgermq.storage.files.errors import DerivedLost, NoSpace, Unusable
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import snapshot
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from tests.shipping.shipping_material import (
    FILE_BYTES,
    MS,
    NODES,
    ROOT,
    Replica,
    Wire,
    append,
    copy_to,
    identity_of,
    log_of,
    run,
    synced,
    write_snapshot,
)
from tests.storage.kill_points import DIVISIBLE, KillDisk, after_power_cut

BEHIND = 4
"""The last entry of the replica that was left behind."""


@cache
def _group(behind: int, trimmed: bool, early: bool) -> dict[str, Replica]:
    made = {node: Replica(node) for node in NODES}
    stores = {node: replica.create() for node, replica in made.items()}
    for count, term, body_bytes in ((5, 1, 100), (30, 2, 300), (20, 4, 100)):
        ranges = append(stores["n2"], count, term=term, body_bytes=body_bytes, new_file=early)
        copy_to(stores["n3"], ranges)
        if stores["n1"].log.end_index < behind:
            copy_to(stores["n1"], ranges)
    for node, store in stores.items():
        synced(store)
        if node != "n1":
            store.hard_state.save(HardState(4, "n2"))
            store.queues.start({}, 0)
            if trimmed:
                keep_from_second_file(store)
            store.write_checkpoints(store.log.end_index, StoreCheckpoint())
        store.close()
    return made


def keep_from_second_file(store: GroupStore) -> None:
    log = store.log
    begin = next(index for index in range(log.end_index + 1) if log.pos_of(index) == 2 * FILE_BYTES)
    write_snapshot(store, 40)
    pos = log.pos_of(begin)
    store.queues.raise_minimums(pos)
    value = store.read_snapshot()
    assert value is not None
    value["minimums"] = snapshot.export_minimums(store.queues.minimums())
    store.write_snapshot(value)
    store.write_snapshot(value)
    log.trim(begin)
    synced(store)
    store.queues.trim(pos)


def group(behind: int = BEHIND, *, trimmed: bool = True, early: bool = False) -> dict[str, Replica]:
    """`early`: log files ended early."""
    return copy.deepcopy(_group(behind, trimmed, early))


def install(
    disk: Disk, *, source: str | None = "n2", floor_pos: int = 0, session: int = 7, now_ns: int = 0
) -> Install:
    return Install.begin(
        disk,
        ROOT,
        identity_of("n1"),
        others=NODES,
        source=source,
        floor_pos=floor_pos,
        session=session,
        now_ns=now_ns,
    )


def check(replica: Replica, like: Replica) -> None:
    """The log is that of its source; snapshot and hard state are right; the queues will be made
    again."""
    store = replica.open()
    other = like.open()
    log, theirs = store.log, other.log
    assert (log.begin_index, log.end_index, log.end_chain, log.begin_chain) == (
        theirs.begin_index,
        theirs.end_index,
        theirs.end_chain,
        theirs.begin_chain,
    )
    for index in range(log.begin_index, log.end_index + 1):
        assert bytes(log.read(index, 1).data) == bytes(theirs.read(index, 1).data)
    assert store.hard_state.value.term == 4
    found, expected = store.read_snapshot(), other.read_snapshot()
    assert found == expected
    if found is not None:
        assert store.durable_snapshot_index == found["applied_index"]
        with pytest.raises(DerivedLost):
            store.start_queues(found)
    store.close()
    other.close()
    names = replica.disk.files()
    assert not [name for name in names if name.endswith(".staged") or name.endswith("/install")]


@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize("behind", [-1, BEHIND])
@pytest.mark.parametrize(("loss", "early"), [(0.0, False), (0.25, False), (0.25, True)])
def test_a_replica_gets_the_log_it_lacks(
    behind: int, trimmed: bool, loss: float, early: bool
) -> None:
    """Left behind, or with nothing; of a whole and of a trimmed log; also over a wire that loses
    and reorders."""
    replicas = group(behind, trimmed=trimmed, early=early)
    new = install(replicas["n1"].disk)
    outputs = run(
        Wire(1, loss=loss, delay_ms=(0, 30)),
        {node: replicas[node].shipper() for node in ("n2", "n3")},
        {"n1": new},
    )
    progress = outputs["n1"].progress
    assert progress.done_bytes == progress.total_bytes > 0
    check(replicas["n1"], replicas["n2"])


def test_its_vote_and_identity_stay() -> None:
    """A vote in a term not below the log's is not forgotten, nor is the incarnation."""
    replicas = group()
    store = replicas["n1"].open()
    store.hard_state.save(HardState(4, "n3"))
    store.close()
    before = replicas["n1"].disk.read_file(f"{ROOT}/identity.json")
    run(Wire(), {"n2": replicas["n2"].shipper()}, {"n1": install(replicas["n1"].disk)})
    store = replicas["n1"].open()
    assert store.hard_state.value == HardState(4, "n3")
    store.close()
    assert replicas["n1"].disk.read_file(f"{ROOT}/identity.json") == before


def test_source_shorter_than_acknowledged_entries_is_refused() -> None:
    """A source whose committed part ends before what this replica may have acknowledged is refused,
    in words, until it knows more."""
    replicas = group()
    store = replicas["n2"].open()
    floor = store.log.end_pos + 1
    store.close()
    before = replicas["n1"].log_files()
    wire = Wire()
    new = install(replicas["n1"].disk, floor_pos=floor)
    outputs = run(
        wire,
        {node: replicas[node].shipper() for node in ("n2", "n3")},
        {"n1": new},
        until=lambda last: last["n1"].refused is not None,
    )
    assert "may have acknowledged more" in str(outputs["n1"].refused)
    assert replicas["n1"].log_files() == before
    store = replicas["n2"].open()
    append(store, 1, term=4)
    synced(store)
    store.write_checkpoints(store.log.end_index, StoreCheckpoint())
    store.close()
    run(wire, {"n2": replicas["n2"].shipper()}, {"n1": new})
    check(replicas["n1"], replicas["n2"])


def test_damage_at_the_source_is_fetched_from_another() -> None:
    """Entries come from a replica that has them intact."""
    replicas = group()
    path = f"{log_of('n2')}/data/{3 * FILE_BYTES:020d}"
    replicas["n2"].disk.flip(path, 700)
    new = install(replicas["n1"].disk)
    run(Wire(), {node: replicas[node].shipper() for node in ("n2", "n3")}, {"n1": new})
    check(replicas["n1"], replicas["n3"])


def test_interrupted_installation_reuses_staged_bytes() -> None:
    """What was verified stays staged over a restart; the old log counts until the exchange."""
    replicas = group()
    wire = Wire(2)
    disk = replicas["n1"].disk
    first = install(disk)
    run(
        wire,
        {"n2": replicas["n2"].shipper()},
        {"n1": first},
        until=lambda last: first.received_bytes > 8_000,
    )
    first.close()
    store = replicas["n1"].open()
    assert store.log.end_index == BEHIND
    store.close()
    second = install(disk, session=1000, now_ns=wire.now_ns)
    run(wire, {"n2": replicas["n2"].shipper()}, {"n1": second})
    assert second.reused_bytes > 0
    source = replicas["n2"].shipper()
    source.close()
    check(replicas["n1"], replicas["n2"])


def kill_points(base: dict[str, Replica]) -> Iterator[tuple[str, ForgetfulDisk]]:
    """The disk of n1 after a kill at every file operation of an installation, the last of the
    exchange included."""

    def attempt(at: int, half: bool) -> tuple[KillDisk, bool]:
        made = copy.deepcopy(base)
        disk = KillDisk(made["n1"].disk, at, half=half)
        try:
            run(Wire(), {"n2": made["n2"].shipper()}, {"n1": install(disk)})
        except Killed:
            return disk, False
        return disk, True

    whole, done = attempt(-1, False)
    assert done
    for at, (name, path) in enumerate(whole.operations):
        for half in (False, True) if name in DIVISIBLE else (False,):
            disk, done = attempt(at, half)
            assert not done
            yield f"{at}{' half' if half else ''} {name} {path}", disk.disk


def test_a_crash_at_any_point_leaves_the_old_log_or_the_new_one() -> None:
    """With the page cache kept and after a power cut; and then the installation is begun again and
    ends."""
    base = group()
    for replica in base.values():
        replica.disk.any_names = True
    seen = set()
    for number, (name, disk) in enumerate(kill_points(base)):
        for cut in (None, number):
            replica = Replica(
                "n1", copy.deepcopy(disk) if cut is None else after_power_cut(disk, cut)
            )
            store = replica.open()
            log = store.log
            assert (log.begin_index, log.end_index) in {(0, BEHIND), (base_begin(), 54)}, (
                f"{name}, {cut}: {log.report}"
            )
            seen.add(log.end_index)
            store.close()
        if number % 7 == 0:
            run(Wire(), {"n2": copy.deepcopy(base["n2"]).shipper()}, {"n1": install(replica.disk)})
            check(replica, copy.deepcopy(base["n2"]))
    assert seen == {BEHIND, 54}


def test_staged_bytes_of_a_killed_attempt_are_synced_before_use() -> None:
    """Killed with the page cache kept, resumed, finished, and then the power goes: bytes of the
    former life were in the cache only."""
    base = group()
    for replica in base.values():
        replica.disk.any_names = True
    for number, (name, disk) in enumerate(kill_points(base)):
        if number % 4:
            continue
        run(Wire(), {"n2": copy.deepcopy(base["n2"]).shipper()}, {"n1": install(disk, session=99)})
        after = Replica("n1", after_power_cut(disk, number))
        try:
            check(after, copy.deepcopy(base["n2"]))
        except Exception as error:
            raise AssertionError(name) from error


@cache
def base_begin() -> int:
    store = group()["n2"].open()
    return store.log.begin_index


def test_a_directory_without_a_replica_or_of_another_is_refused() -> None:
    """There must be an identity, and it must be the one that is wanted."""
    with pytest.raises(Unusable, match="holds no replica"):
        install(ForgetfulDisk())
    with pytest.raises(Unusable, match="belongs to node n2"):
        install(group()["n2"].disk)


def test_the_clock_of_these_tests_is_virtual() -> None:
    """A silent source is given up after about a second, and another one asked."""
    replicas = group()
    wire = Wire()
    wire.cut.add("n2")
    run(
        wire,
        {node: replicas[node].shipper() for node in ("n2", "n3")},
        {"n1": install(replicas["n1"].disk)},
    )
    assert 900 * MS < wire.now_ns < 10_000 * MS
    check(replicas["n1"], replicas["n3"])


def test_finished_installation_survives_a_power_cut() -> None:
    """Finished means durable: names, pages, and the state beside the log."""
    replicas = group()
    replicas["n1"].disk.any_names = True
    run(Wire(), {"n2": replicas["n2"].shipper()}, {"n1": install(replicas["n1"].disk)})
    for seed in range(5):
        check(
            Replica("n1", after_power_cut(replicas["n1"].disk, seed)), copy.deepcopy(replicas["n2"])
        )


def test_units_that_the_old_log_dispatched_are_not_taken_for_the_new_ones() -> None:
    """A consume queue file has its full length from its first unit on: without a note, units never
    written would count as there."""
    replicas = group(trimmed=False)
    for node, applied in (("n1", BEHIND), ("n2", BEHIND + 3)):
        store = replicas[node].open()
        store.queues.start({}, 0)
        write_snapshot(store, applied)
        store.close()
    run(Wire(), {"n2": replicas["n2"].shipper()}, {"n1": install(replicas["n1"].disk)})
    store = replicas["n1"].open()
    found = store.read_snapshot()
    assert found is not None and found["applied_index"] > BEHIND
    with pytest.raises(DerivedLost, match="being rebuilt"):
        store.start_queues(found)
    store.abandon()


def test_uncommitted_tail_of_a_peer_is_not_installed() -> None:
    """The chain says that entries continue each other, not that they are the committed ones: a
    former leader's unconfirmed tail has the same sizes at the same places. Nothing of it may stand
    in for what the source could not give."""
    made = {node: Replica(node) for node in NODES}
    stores = {node: replica.create() for node, replica in made.items()}
    common = append(stores["n2"], 5, term=1)
    copy_to(stores["n3"], common)
    append(stores["n3"], 20, term=2)
    append(stores["n2"], 20, term=3)
    stores["n1"].close()
    for node, committed in (("n2", 24), ("n3", 4)):
        synced(stores[node])
        stores[node].write_checkpoints(committed, StoreCheckpoint())
        stores[node].close()
    at = common[-1].end_pos + 60
    made["n2"].disk.flip(f"{log_of('n2')}/data/{0:020d}", at)
    new = install(made["n1"].disk, floor_pos=common[-1].end_pos + 1)
    wire = Wire()
    shippers = {node: made[node].shipper() for node in ("n2", "n3")}
    outputs = run(
        wire,
        shippers,
        {"n1": new},
        until=lambda last: last["n1"].finished or wire.now_ns > 5_000 * MS,
    )
    assert not outputs["n1"].finished, (
        "only n3 has the entries that n2 cannot read, and no replica knows them as committed"
    )
    made["n2"].disk.flip(f"{log_of('n2')}/data/{0:020d}", at)
    run(wire, shippers, {"n1": new})
    store, other = made["n1"].open(), made["n2"].open()
    assert (store.log.end_index, store.log.end_term, store.log.end_chain) == (
        24,
        3,
        other.log.end_chain,
    )


def test_a_full_disk_makes_it_wait_and_a_failed_sync_does_not() -> None:
    """Staged files are sparse, so a write may find no room. The host retries after NoSpace; a sync
    with the same error is a failed sync (invariant I9)."""
    replicas = group()
    disk, shippers = replicas["n1"].disk, {"n2": replicas["n2"].shipper()}
    disk.capacity_bytes = disk.used_bytes + 3 * FILE_BYTES // 2
    wire = Wire()
    with pytest.raises(NoSpace, match="free disk space"):
        run(wire, shippers, {"n1": install(disk)})
    disk.capacity_bytes = None

    def refuse(path: str) -> None:
        if path.endswith(".staged"):
            raise OSError(errno.ENOSPC, "no space", path)

    disk.on_sync = refuse
    with pytest.raises(OSError, match="no space"):
        run(wire, shippers, {"n1": install(disk, session=100, now_ns=wire.now_ns)})
    disk.on_sync = None
    run(wire, shippers, {"n1": install(disk, session=200, now_ns=wire.now_ns)})
    check(replicas["n1"], replicas["n2"])
