"""Total retention: what goes from the store, in an order that leaves a store from which the log can
be restored after every request."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.replica.background.file_carrier import FileCarrier
from ledgermq.node.replica.maintenance.tiering import TOTAL_EVERY_S
from ledgermq.proto.records.time_epochs import TimeEpoch, TimeEpochs
from ledgermq.storage.backups.tier_restore import HeldLog, check_store, restore_from_store
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.state.snapshot import read_snapshots
from ledgermq.storage.tiered import begins, manifests
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import AccessDenied, StoreFailure
from ledgermq.storage.tiered.total_retention import TotalLimits, TotalRetention, due
from tests.node.replica.test_node_hosting import Driver, single
from tests.tiered.fake_store import FakeStore
from tests.tiered.test_tiered_carrying import SIZE, TieredStage

DISK = RealDisk()
FILE = FileManifest("log", 0, SIZE, 0, 9, SIZE - 100, -1, 0, 1, 1, 1000, "ab" * 32)
FILES = [
    replace(FILE, base=n * SIZE, first=n * 10, last=n * 10 + 9, last_store_ms=(n + 1) * 1000)
    for n in range(5)
]


@pytest.mark.parametrize(
    ("limits", "keep_from", "first"),
    [
        (TotalLimits(), 5 * SIZE, None),
        (TotalLimits(max_bytes=5 * SIZE), 5 * SIZE, None),
        (TotalLimits(max_bytes=5 * SIZE - 1), 5 * SIZE, 1),
        (TotalLimits(max_bytes=2 * SIZE), 5 * SIZE, 3),
        (TotalLimits(max_bytes=2 * SIZE), 2 * SIZE, 2),
        (TotalLimits(max_bytes=1), 5 * SIZE, 4),
        (TotalLimits(max_bytes=1), 0, None),
        (TotalLimits(max_age_ms=7500), 5 * SIZE, 2),
        (TotalLimits(max_age_ms=7500, max_bytes=2 * SIZE), 5 * SIZE, 3),
        (TotalLimits(max_age_ms=1), 5 * SIZE, 4),
    ],
)
def test_due_files_are_the_oldest_beyond_the_limits(
    limits: TotalLimits, keep_from: int, first: int | None
) -> None:
    """By age or by size, oldest first, nothing that is kept, and never the last file."""
    found = due(FILES, limits, 10_000, keep_from)
    assert (None if found is None else found.pos) == (None if first is None else first * SIZE)
    assert found is None or found.index == found.pos // SIZE * 10


def test_the_age_counts_to_the_begin_of_a_time_epoch() -> None:
    """Files of before it are as old as the epoch, if their times are later; those that were older
    stay so. The epoch begins in the last file."""
    epochs = TimeEpochs([TimeEpoch(45, 4 * SIZE + 50, 2500)])
    for now_ms, first in ((2600, None), (3001, 1), (4001, 2), (4501, 4)):
        found = due(FILES, TotalLimits(max_age_ms=2000), now_ms, 5 * SIZE, epochs)
        assert (None if found is None else found.pos // SIZE) == first, now_ms


def test_empty_store_has_no_due_file() -> None:
    assert due([], TotalLimits(max_bytes=1), 1, SIZE) is None


def keep_definitions(one: TieredStage) -> None:
    """Without these nothing is restored."""
    controller = Path(one.stage.config.data) / "controller"
    controller.mkdir(exist_ok=True)
    (controller / "journal").write_bytes(b"definitions")
    one.tiering.keep_controller(1_700_000_000_000)


class Kept:
    """A store with six files, all but the last of which the local log no longer has, and the
    snapshots of the replica."""

    def __init__(self, directory: Path) -> None:
        one = TieredStage(directory, files=6)
        one.carry_all()
        one.carry_all()
        one.retain()
        one.stage.grow(2)
        one.carry_all()
        keep_definitions(one)
        group = one.stage.driver.group
        self.objects = dict(one.store.objects)
        self.where = manifests.folder("g1", group.store.identity.log_id)
        reader = one.tiering.reader("g1")
        assert reader is not None and reader.whole
        self.files = reader.files
        self.snapshots = [value for _, value in read_snapshots(DISK, group.store.state_directory)]
        self.end = group.machine.end("t", 0)
        asyncio.run(one.tiering.stop())
        one.stage.close()

    def store(self) -> FakeStore:
        store = FakeStore()
        store.objects = dict(self.objects)
        return store

    def retention(self, store: FakeStore) -> TotalRetention:
        return TotalRetention(store, self.where, lambda: self.snapshots, store.put)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))


def restored(store: FakeStore, target: Path) -> HeldLog:
    mint = lambda: str(uuid.uuid4())  # noqa: E731
    progress = lambda done, total: None  # noqa: E731
    _, [held] = restore_from_store(
        DISK, store, str(target), node="n1", groups=(), mint=mint, program="0", progress=progress
    )
    return held


def everything(store: FakeStore, kept: Kept, begin: Begin) -> None:
    """What the store must be when the removal is complete."""
    keys = [key for key in store.keys("") if "/snapshots/" not in key]
    names = sorted(
        key.rpartition("/")[2][:20] for key in keys if key.rpartition("/")[2][:20].isdigit()
    )
    assert (
        names[0] == f"{begin.pos:020d}" and begins.begin_key(kept.where, begin.pos) in store.objects
    )
    [held] = check_store(store, (), lambda done, total: None)
    assert (held.stored.begin, held.files[0].first, held.behind_gap) == (begin, begin.index, ())


def interrupted(kept: Kept, begin: Begin) -> Iterator[FakeStore]:
    """The store after 0, 1, … requests of a removal, as long as they do not complete it."""
    for steps in range(100):
        store, left = kept.store(), [steps]

        def before(operation: str, key: str, left: list[int] = left) -> None:
            if not left[0]:
                raise StoreFailure("cut off")
            left[0] -= 1

        store.before = before
        try:
            assert kept.retention(store).remove(begin, kept.files[-1].last) is None
            assert steps > 3 * 4, "each of the three files is four objects"
            return
        except StoreFailure:
            store.before = lambda operation, key: None
            yield store


def test_every_single_request_leaves_a_whole_store(kept: Kept) -> None:
    """The process ends before the n-th request of a removal: manifests, objects and snapshot are
    those of one log up to the same entry, and the next run completes the removal."""
    begin = kept.files[2].behind
    for store in interrupted(kept, begin):
        [held] = check_store(store, (), lambda done, total: None)
        assert held.files[-1] == kept.files[-1] and held.files[0].first in (0, begin.index)
        assert kept.retention(store).remove(begin, kept.files[-1].last) is None
        everything(store, kept, begin)


@pytest.mark.verify
def test_a_log_is_restored_after_every_single_request(kept: Kept, tmp_path: Path) -> None:
    """The same with a directory that is restored, and every entry in it verified."""
    for number, store in enumerate(interrupted(kept, kept.files[2].behind)):
        assert restored(store, tmp_path / str(number)).files[-1] == kept.files[-1]
        shutil.rmtree(tmp_path / str(number))


def test_the_restored_log_begins_where_the_store_does_and_goes_on(
    kept: Kept, tmp_path: Path
) -> None:
    """Its state comes from the snapshot: a queue goes on with its offsets, and the node starts,
    applies what follows, and takes more."""
    store, begin = kept.store(), kept.files[2].behind
    assert kept.retention(store).remove(begin, kept.files[-1].last) is None
    held = restored(store, tmp_path / "again")
    assert held.snapshot is not None and held.snapshot["applied_index"] >= begin.index - 1
    driver = Driver(single(tmp_path / "again", group={"data_file_bytes": "64KiB"}))
    try:
        driver.turn()
        log, machine = driver.group.store.log, driver.group.machine
        assert log.begin_index >= begin.index and log.end_index >= kept.files[-1].last
        end = machine.end("t", 0)
        assert 0 < machine.begin("t", 0) < end <= kept.end
        driver.produce(3)
        assert machine.end("t", 0) == end + 3
    finally:
        driver.crash()


def test_overlapping_leaders_do_no_harm(kept: Kept, tmp_path: Path) -> None:
    """A former leader removes less, later: the begin stays where it is."""
    store, further = kept.store(), kept.files[3].behind
    assert kept.retention(store).remove(further, kept.files[-1].last) is None
    after = {key for key in store.objects if "/begins/" not in key}
    assert kept.retention(store).remove(kept.files[1].behind, kept.files[-1].last) is None
    assert {key for key in store.objects if "/begins/" not in key} == after
    [held] = check_store(store, (), lambda done, total: None)
    assert (
        held.stored.begin == further
        and restored(store, tmp_path / "again").files[0].first == further.index
    )


def test_a_late_leader_replaces_no_snapshot(kept: Kept) -> None:
    """It does not know the newest files, so the snapshot of its successor reaches behind the last
    one it knows, and it waits. If it had looked before, and stores its own only now, what the begin
    in the store needs is still there."""
    store, further, last = kept.store(), kept.files[3].behind, kept.files[-1].last
    covers = lambda index: lambda: [{**kept.snapshots[0], "applied_index": index}]  # noqa: E731
    assert TotalRetention(store, kept.where, covers(last), store.put).remove(further, last) is None
    begin = kept.files[1].behind
    assert (
        TotalRetention(store, kept.where, covers(begin.index), store.put).remove(begin, last - 1)
        is not None
    )
    late = next(iter(covers(begin.index)()))
    store.put(begins.snapshot_key(kept.where, late["applied_index"]), sealed_json.encode(late))
    store.put(begins.begin_key(kept.where, begin.pos), begins.encode(begin))
    [held] = check_store(store, (), lambda done, total: None)
    assert (
        held.stored.begin == further
        and held.snapshot is not None
        and held.snapshot["applied_index"] == last
    )


def test_a_snapshot_must_not_reach_behind_the_last_stored_file(kept: Kept) -> None:
    """It waits in the store until the files reach it, even if the replica has removed it from its
    disk by then."""
    store, begin = kept.store(), kept.files[2].behind
    late = {**kept.snapshots[0], "applied_index": kept.files[-1].last + 5}
    snapshots = [late]
    retention = TotalRetention(store, kept.where, lambda: snapshots, store.put)
    assert f"entry {late['applied_index']}" in str(retention.remove(begin, kept.files[-1].last))
    assert (
        begins.snapshot_key(kept.where, late["applied_index"]) in store.objects
        and store.requests.get("delete") is None
    )
    snapshots[:] = [{**late, "applied_index": late["applied_index"] + 100}]
    puts = store.requests["put"]
    assert (
        retention.remove(begin, kept.files[-1].last + 4) is not None
        and store.requests["put"] == puts
    )
    assert retention.remove(begin, kept.files[-1].last + 5) is None
    assert [
        sealed_json.decode(store.objects[key], key) for key in store.objects if "/snapshots/" in key
    ] == [late]
    snapshots.clear()
    assert (
        TotalRetention(kept.store(), kept.where, lambda: snapshots, store.put).remove(begin, 0)
        == "a snapshot of this node"
    )


def test_a_snapshot_from_before_a_trim_covers_no_later_begin(tmp_path: Path) -> None:
    """It may reach as far, but it says of each queue where that began before: a node could not open
    the restored log with it."""
    one = TieredStage(tmp_path / "node", files=2)
    one.carry_all()
    one.retain()
    one.stage.grow(2)
    one.carry_all()
    keep_definitions(one)
    driver, group = one.stage.driver, one.stage.driver.group
    own = lambda: [value for _, value in read_snapshots(DISK, group.store.state_directory)]  # noqa: E731
    for _ in range(2):
        driver.hosted.running.snapshot_soon()
        driver.turn(elapsed_ns=30_000_000_000)
        driver.keep()
    early = own()[0]
    where = manifests.folder("g1", group.store.identity.log_id)
    one.store.put(begins.snapshot_key(where, early["applied_index"]), sealed_json.encode(early))
    one.retain()
    one.stage.grow(2)
    one.carry_all()
    reader = one.tiering.reader("g1")
    assert reader is not None
    begin, last = reader.files[2].behind, reader.files[-1].last
    assert early["retained"]["begin_index"] < begin.index <= early["applied_index"] + 1, (
        "it reaches as far"
    )
    carrier = FileCarrier(one.store, DISK, "g1", group.store.identity.log_id, 1e9)
    assert not carrier.keep_snapshot(
        group.store.state_directory, own()[0]["retained"]["begin_index"] + 1
    )
    assert (
        TotalRetention(one.store, where, lambda: [early], one.store.put).remove(begin, last)
        == "a snapshot of this node"
    )
    assert TotalRetention(one.store, where, own, one.store.put).remove(begin, last) is None
    held = restored(one.store, tmp_path / "again")
    assert (
        held.stored.begin == begin
        and held.snapshot is not None
        and held.snapshot["retained"]["begin_index"] >= begin.index
    )
    again = Driver(single(tmp_path / "again", group={"data_file_bytes": "64KiB"}))
    again.turn()
    assert again.group.machine.end("t", 0) > 0
    again.crash()
    asyncio.run(one.tiering.stop())
    one.stage.close()


@pytest.fixture
def total(tmp_path: Path) -> Iterator[Any]:
    made: list[TieredStage] = []

    def make(**options: Any) -> TieredStage:
        made.append(TieredStage(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        asyncio.run(one.tiering.stop())
        one.stage.close()


def grow_and_carry(one: TieredStage) -> None:
    """The stored files reach the snapshots that the trim waited for."""
    one.stage.grow(1)
    one.stage.seal_all()
    one.check(2)


def later(one: TieredStage) -> None:
    """Time for total retention to look again."""
    one.now_s += TOTAL_EVERY_S
    one.check(2)


def stored(one: TieredStage) -> list[int]:
    return [int(key.rpartition("/")[2][:20]) // SIZE for key in one.store.keys(".log")]


def test_leader_removes_due_files_absent_from_the_local_log(total: Any) -> None:
    """By size: only what the local log no longer has goes; a follower removes nothing; a pin of a
    reader keeps it; the status says it."""
    one = total(total={"max_bytes": 2 * SIZE}, files=5)
    one.carry_all()
    one.carry_all()
    assert stored(one) == [0, 1, 2, 3, 4], "all of it is on the local disk"
    one.retain()
    later(one)
    assert "to which the snapshot reaches" in one.state.not_removed and stored(one) == [
        0,
        1,
        2,
        3,
        4,
    ]
    group = one.stage.driver.group
    group.pins.take("p1", SIZE, "an audit", 60_000, one.stage.driver.now_ns)
    grow_and_carry(one)
    assert (
        stored(one)[0] == 1
        and one.state.stored_from_index == one.tiering.reader("g1").files[0].first > 0
    )
    leads, group.group.leader.serving = group.group.leader.serving, False
    group.pins.drop("p1")
    later(one)
    assert leads and stored(one)[0] == 1, "a follower removes nothing"
    group.group.leader.serving = True
    later(one)
    assert len(stored(one)) == 2 == one.state.stored_files and one.state.not_removed is None


def test_the_store_may_forbid_it(total: Any) -> None:
    """Then everything stays, is said, and is tried again; uploads go on."""
    one = total(total={"hours": 1}, files=3)
    one.carry_all()
    one.carry_all()
    one.retain()
    grow_and_carry(one)
    one.now_ms = one.tiering.reader("g1").files[-1].last_store_ms + 2 * 3_600_000

    def forbid(operation: str, key: str) -> None:
        if operation == "delete":
            raise AccessDenied("deleting is not allowed")

    one.store.before = forbid
    later(one)
    assert one.state.not_removed == "deleting is not allowed" and stored(one) == [0, 1, 2, 3]
    grow_and_carry(one)
    assert stored(one) == [0, 1, 2, 3, 4]
    one.store.before = lambda operation, key: None
    later(one)
    assert stored(one)[0] == 3 and one.state.not_removed is None


def test_another_node_learns_where_the_store_begins(total: Any) -> None:
    """A node that still links manifests while the leader removes them notes the new begin and
    counts nothing as wrong."""
    one = total(files=4)
    one.carry_all()
    one.carry_all()
    one.retain()
    grow_and_carry(one)
    reader = one.tiering.reader("g1")
    files = reader.files
    store = one.store
    snapshots = [
        value for _, value in read_snapshots(DISK, one.stage.driver.group.store.state_directory)
    ]
    RealDisk().unlink(f"{one.stage.driver.group.store.state_directory}/tiered.files")
    one.restarted()
    gone = []

    def before(operation: str, key: str) -> None:
        if (
            not gone
            and operation == "get"
            and key == manifests.manifest_key(reader._where, 2 * SIZE)
        ):
            gone.append(key)
            assert (
                TotalRetention(store, reader._where, lambda: snapshots, store.put).remove(
                    files[1].behind, files[-1].last
                )
                is None
            )

    store.before = before
    one.check(2)
    assert gone and one.state.unreadable is None and one.state.stored_from_index == files[2].first
