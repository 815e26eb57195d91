"""Tiered storage over a hosted group with real files and a store in memory: what is stored,
verified and kept, whatever the store does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.broker.calls.member_calls import GroupMembers, RaiseLevel
from ledgermq.node.replica.maintenance.tiering import (
    NO_DIGEST,
    NOT_UPLOADED,
    PATIENCE_RETRIES,
    Tiering,
)
from ledgermq.node.replica.retention.retention_rules import STORE, Pin
from ledgermq.node.runtime import metrics
from ledgermq.proto.records.control import LevelRecord
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.file_digest import file_digest
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.tiered import manifests
from ledgermq.storage.tiered.ports import StoreFailure
from tests.node.replica.test_node_retention import HOURS_MS, Stage
from tests.tiered.fake_store import FakeStore

SIZE = 64 << 10
RETRY_S = 10.0


class TieredStage:
    """One leading replica with sealed files, and a store."""

    def __init__(self, directory: Path, total: Any = None, **options: Any) -> None:
        """`total`: the total retention."""
        self.stage = Stage(
            directory,
            tiered={"url": "s3://fake/log", "retry_ms": "10s", "retention": total or {}},
            **options,
        )
        self.store = FakeStore()
        self.now_s = 1000.0
        self.now_ms = 1
        self.tiering = self.restarted()

    def restarted(self) -> Tiering:
        """Another life of the process, as far as this module remembers."""
        one = self.stage
        hosted = {"g1": one.driver.hosted}
        times = lambda: self.now_ms, lambda: self.now_s
        self.tiering = Tiering(one.config, RealDisk(), hosted, one.engine, self.store, *times)  # type: ignore[arg-type]
        return self.tiering

    def check(self, times: int = 1) -> None:
        for _ in range(times):
            asyncio.run(self.tiering.check("g1"))

    def carry_all(self) -> None:
        self.stage.seal_all()
        self.check()

    def retry(self) -> None:
        self.now_s += RETRY_S
        self.check()

    @property
    def state(self) -> Any:
        return self.tiering.state("g1")

    @property
    def pin(self) -> Any:
        return self.stage.driver.group.pins.store

    def path(self, base: int) -> str:
        return f"{self.stage.driver.group.store.log_directory}/data/{file_name(base)}"

    def retain(self) -> None:
        """Everything is due by age, and there is time for the snapshots that a trim waits for."""
        self.stage.later_ms = 100 * HOURS_MS
        self.stage.check_and_keep(6)

    @property
    def begin(self) -> int:
        """Where the log begins on the disk."""
        return int(self.stage.driver.group.store.log.begin_pos)


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Any]:
    made: list[TieredStage] = []

    def make(**options: Any) -> TieredStage:
        made.append(TieredStage(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        asyncio.run(one.tiering.stop())
        one.stage.close()


def metric(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, {"broker_group": "g1", **labels}) or 0.0


def test_every_sealed_file_is_stored_read_back_and_described(tiered: Any) -> None:
    """Objects are named by their digest and equal the local files; the manifests link up to one
    log; the rest is counted."""
    one = tiered()
    one.carry_all()
    where = manifests.folder("g1", one.stage.driver.group.store.identity.log_id)
    begin = manifests.decode_log(one.store.get(f"{where}/log.json"), "").begin
    assert begin.index == 0 and begin.pos == 0
    for base in (0, SIZE, 2 * SIZE):
        held = manifests.decode_manifest(one.store.get(manifests.manifest_key(where, base)), "")
        assert held.follows(begin) and held.sha256 == file_digest(
            RealDisk(), one.path(base), lambda length: None
        )
        assert one.store.get(
            manifests.object_key(where, base, held.sha256)
        ) == RealDisk().read_file(one.path(base))
        begin = held.behind
    assert (one.state.verified_pos, one.state.waiting_files, one.state.waits_for) == (
        3 * SIZE,
        0,
        None,
    )
    assert len(one.store.keys(".log")) == 3 and one.pin.pos == 3 * SIZE


def test_a_file_waits_for_the_digest_of_a_majority(tiered: Any) -> None:
    """Without a seal there is nothing to compare the object with."""
    one = tiered(files=1)
    one.check()
    assert (
        one.state.waits_for == NO_DIGEST
        and one.store.keys(".log") == []
        and one.state.waiting_files == 1
    )
    one.carry_all()
    assert len(one.store.keys(".log")) == 1 and one.state.waits_for is None


def test_file_is_removed_after_its_object_was_verified(tiered: Any) -> None:
    """T1: the pin is there from the opening on, holds while the store is away, also on a full disk,
    and moves file by file."""
    one = tiered()
    one.stage.seal_all()
    assert one.pin.pos == 0
    one.store.away()
    one.check()
    one.stage.fill(95)
    one.retain()
    assert one.begin == 0 and one.stage.machine.begin_pos == 0
    assert one.stage.retainer.files_kept["g1"]["store"] == 4, (
        "the three, and the active one, which is due by age too"
    )
    assert any("the store does not answer" in line for line in one.stage.ask(0).evidence)
    one.store.back()
    one.store.before = lambda operation, key: one.store.away() if f"{SIZE:020d}-" in key else None
    one.retry()
    one.retain()
    assert one.begin == SIZE, "the first file is in the store, the second is not"
    one.store.before = lambda operation, key: None
    one.store.back()
    one.retry()
    one.retain()
    assert one.begin == 3 * SIZE


def test_a_replica_keeps_its_copy_after_another_leader_trimmed(tiered: Any) -> None:
    """The trim record is committed, but this replica has not seen the files in the store: it
    verifies them by the digests in the record."""
    one = tiered()
    one.carry_all()
    one.stage.later_ms = 100 * HOURS_MS
    for _ in range(4):
        one.stage.driver.group.pins.store = None
        one.stage.check()
        one.stage.driver.group.pins.store = Pin(STORE, 0, "not asked")
        one.stage.driver.turn(elapsed_ns=30_000_000_000)
        one.stage.driver.turn()
    assert one.stage.machine.begin_pos == 3 * SIZE and one.begin == 0, (
        "decided, and not carried out here"
    )
    RealDisk().unlink(f"{one.stage.driver.group.store.state_directory}/tiered")
    content = one.store.keys(".log")[0]
    kept = one.store.objects[content]
    one.store.objects[content] = kept[:-1] + b"!"
    one.store.written = lambda key, data: None if key.endswith(".log") else data
    one.restarted()
    one.check()
    one.retain()
    assert one.begin == 0 and "has the digest" in one.state.waits_for
    one.store.written = lambda key, data: data
    one.retry()
    one.retain()
    assert one.begin == 3 * SIZE and one.store.objects[content] == kept


@pytest.mark.parametrize("lie", ["other bytes", "older version", "shorter", "nothing"])
def test_a_lying_store_is_found_by_the_digest(tiered: Any, lie: str) -> None:
    """A store that acknowledges and keeps something else gets the file again; as long as it lies,
    the local file stays."""
    one = tiered(files=2)
    lies = {
        "other bytes": lambda key, data: data[:1000] + bytes([data[1000] ^ 1]) + data[1001:],
        "older version": lambda key, data: (one.store.versions.get(key) or [b"first"])[0],
        "shorter": lambda key, data: data[:-1],
        "nothing": lambda key, data: None,
    }
    honest = one.store.written
    before = metric("ledgermq_tiered_wrong_objects_total")
    one.store.written = lambda key, data: lies[lie](key, data) if key.endswith(".log") else data
    one.carry_all()
    one.retain()
    assert one.begin == 0 and one.state.verified_pos == 0 and one.state.waits_for is not None
    assert (
        metric("ledgermq_tiered_wrong_objects_total") == before + 1
        and one.store.requests["put_parts"] == 2
    )
    assert [key for key in one.store.keys(".json") if file_name(0) in key] == [], (
        "no manifest before the object was read back"
    )
    one.store.written = honest
    one.retry()
    one.retain()
    assert one.begin == 2 * SIZE and one.state.waits_for is None


def test_a_manifest_that_the_store_lost_or_damaged_is_written_again(tiered: Any) -> None:
    """What was just written and reads back differently is no manifest."""
    one = tiered(files=1)
    one.store.written = lambda key, data: data[:-2] if f"{file_name(0)}.json" in key else data
    one.carry_all()
    assert one.state.verified_pos == 0
    one.store.written = lambda key, data: data
    one.retry()
    assert one.state.verified_pos == SIZE


@pytest.mark.one_in(3)
@pytest.mark.parametrize("step", range(1, 25))
def test_an_interruption_anywhere_is_continued(tiered: Any, step: int) -> None:
    """The process ends before the n-th request; the next life brings everything to the same end,
    and uploads no file more than twice."""
    one = tiered(files=2)
    one.stage.seal_all()
    count = [0]

    def before(operation: str, key: str) -> None:
        count[0] += 1
        if count[0] == step:
            raise StoreFailure("cut off")

    one.store.before = before
    one.check()
    one.store.before = lambda operation, key: None
    one.restarted()
    one.check()
    assert one.state.verified_pos == 2 * SIZE and one.state.waits_for is None
    assert all(len(versions) <= 2 for versions in one.store.versions.values())
    assert len(one.store.keys(".log")) == 2 and len(one.store.keys(".json")) == 3


def test_the_steps_above_cover_a_whole_run(tiered: Any) -> None:
    """Two files need fewer requests than the test before interrupts."""
    one = tiered(files=2)
    one.carry_all()
    assert 16 <= sum(one.store.requests.values()) <= 24


def test_follower_verifies_uploads_of_the_leader(tiered: Any) -> None:
    """It uploads nothing, verifies everything, and steps in only after it has waited in vain for a
    while."""
    one = tiered(files=2)
    one.stage.seal_all()
    leader, one.stage.driver.group.group.leader.serving = (
        one.stage.driver.group.group.leader.serving,
        False,
    )
    assert leader
    one.check(3)
    assert one.state.waits_for == NOT_UPLOADED and one.store.keys("") == []
    one.now_s += PATIENCE_RETRIES * RETRY_S - 1
    one.check()
    assert one.store.keys("") == []
    one.now_s += 1
    one.check()
    assert one.state.verified_pos == SIZE and one.state.waits_for == NOT_UPLOADED, (
        "each file is waited for in its turn"
    )
    one.stage.driver.group.group.leader.serving = True
    one.check()
    assert one.state.verified_pos == 2 * SIZE
    one.stage.driver.group.group.leader.serving = False
    RealDisk().unlink(f"{one.stage.driver.group.store.state_directory}/tiered")
    reads, puts = one.store.requests["read"], one.store.requests["put_parts"]
    one.restarted()
    one.check()
    assert one.state.verified_pos == 2 * SIZE
    assert (one.store.requests["read"], one.store.requests["put_parts"]) == (reads + 2, puts)


def test_restart_keeps_verified_positions_of_the_same_place(tiered: Any) -> None:
    """The note is a hint for the same log and the same place; another place is verified from the
    begin of the local log."""
    one = tiered(files=2)
    one.carry_all()
    reads = one.store.requests["read"]
    one.restarted()
    one.check()
    assert one.store.requests["read"] == reads and one.pin.pos == 2 * SIZE
    one.store.place = "s3://fake/elsewhere"
    one.restarted()
    one.check()
    assert one.store.requests["read"] == reads + 2


@pytest.mark.parametrize("content", [b"", b"junk", b'{"verified_pos":131072}', None])
def test_a_note_that_is_damaged_or_missing_only_costs_reading(
    tiered: Any, content: bytes | None
) -> None:
    """Nothing is released by a note that cannot be trusted."""
    one = tiered(files=2)
    one.carry_all()
    reads, note = (
        one.store.requests["read"],
        Path(f"{one.stage.driver.group.store.state_directory}/tiered"),
    )
    note.unlink()
    if content is not None:
        note.write_bytes(content)
    one.restarted()
    one.check()
    assert one.store.requests["read"] == reads + 2 and one.pin.pos == 2 * SIZE


def test_gap_or_another_history_in_the_store_stops_uploads(tiered: Any) -> None:
    """T3: files went while tiering was off; the manifest before the local log is missing, or its
    chain ends in another word."""
    one = tiered(files=2)
    one.carry_all()
    one.retain()
    assert one.begin == 2 * SIZE
    one.stage.grow(1)
    one.stage.seal_all()
    RealDisk().unlink(f"{one.stage.driver.group.store.state_directory}/tiered")
    key = next(key for key in one.store.keys(".json") if file_name(SIZE) in key)
    held = one.store.objects.pop(key)
    one.restarted()
    one.check()
    assert "went while tiered was off" in one.state.waits_for and one.pin.pos == 0
    changed = {**sealed_json.decode(held, key), "last_chain": 7}
    one.store.objects[key] = sealed_json.encode(changed)
    one.retry()
    assert "belongs to another history" in one.state.waits_for and len(one.store.keys(".log")) == 2
    one.store.objects[key] = held
    one.retry()
    assert one.state.verified_pos == 3 * SIZE


def test_the_way_out_of_another_history_is_told_and_leads_out(tiered: Any) -> None:
    """After the restore of an older backup the store is ahead of the log, and the log began before
    what its disks hold. A new prefix needs a copy of that beginning, and both messages say of which
    objects."""
    one = tiered(files=2)
    one.stage.driver.call(
        lambda token: RaiseLevel(token, LevelRecord(2, "tester"), frozenset({"n1"}))
    )
    one.carry_all()
    one.retain()
    for _ in range(3):
        one.stage.grow(1)
        one.carry_all()
    ahead = next(key for key in one.store.keys(".json") if file_name(3 * SIZE) in key)
    one.store.objects[ahead] = sealed_json.encode(
        {**sealed_json.decode(one.store.objects[ahead], ahead), "last_chain": 7}
    )
    RealDisk().unlink(f"{one.stage.driver.group.store.state_directory}/tiered")
    former = one.store
    one.restarted()
    one.check()
    assert (
        "belongs to another history" in one.state.waits_for
        and "set tiered.url to a new prefix" in one.state.waits_for
    )
    told = [
        re.search(
            r"copy the objects of (\S+) from before position (\d+) there", one.state.waits_for
        )
    ]
    one.store = FakeStore()
    one.store.place = "s3://fake/new"
    one.restarted()
    one.check()
    assert "holds nothing from before the log on the disks" in one.state.waits_for
    told.append(
        re.search(
            r"copy the objects of (\S+) from before position (\d+) there", one.state.waits_for
        )
    )
    assert [(found[1], int(found[2])) for found in told if found] == [
        (ahead.rpartition("/")[0], 3 * SIZE),
        (ahead.rpartition("/")[0], 2 * SIZE),
    ]
    for found in told:
        assert found is not None
        folder, pos = found[1], int(found[2])
        one.store = FakeStore()
        one.store.place = f"s3://fake/new-{pos}"
        numbered = {
            key: int(digits[0]) for key in former.objects if (digits := re.findall(r"\d{20}", key))
        }
        one.store.objects = {
            key: data
            for key, data in former.objects.items()
            if key.startswith(folder) and numbered.get(key, 0) < pos
        }
        one.restarted()
        one.check(3)
        assert one.state.waits_for is None and one.state.verified_pos == 5 * SIZE


def test_another_cluster_in_the_same_place_is_refused(tiered: Any) -> None:
    one = tiered(files=1)
    one.carry_all()
    key = one.store.keys("log.json")[0]
    one.store.objects[key] = sealed_json.encode(
        {**sealed_json.decode(one.store.objects[key], key), "cluster_id": "other"}
    )
    one.restarted()
    one.check()
    assert "describes another log (cluster other)" in one.state.waits_for
    assert one.pin.pos == 0


def test_expired_credentials_are_reported_and_uploads_resume(tiered: Any) -> None:
    """They are counted by kind, named in the status, and everything goes on with new ones."""
    one = tiered(files=1)
    one.stage.seal_all()
    one.store.deny()
    before = metric("ledgermq_tiered_failures_total", kind="AccessDenied")
    one.check(5)
    assert metric("ledgermq_tiered_failures_total", kind="AccessDenied") == before + 1, (
        "one attempt in the pause"
    )
    assert one.state.waits_for == "the credentials have ended"
    one.now_s += RETRY_S - 1
    one.check()
    assert metric("ledgermq_tiered_waiting_seconds") == 0
    one.stage.driver.produce(10)
    one.now_s += 1
    one.check()
    assert (
        metric("ledgermq_tiered_waiting_seconds") == RETRY_S
        and metric("ledgermq_tiered_waiting_bytes") == SIZE
    )
    one.store.back()
    one.retry()
    assert one.state.waits_for is None and metric("ledgermq_tiered_waiting_seconds") == 0


def test_a_damaged_local_file_is_never_uploaded(tiered: Any) -> None:
    """The digest of what is read on the way decides; nothing of it becomes an object."""
    one = tiered(files=1)
    one.stage.seal_all()
    path = Path(one.path(0))
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    one.check()
    assert (
        "does not have the digest that a majority sealed" in one.state.waits_for
        and one.store.keys(".log") == []
    )


def test_the_store_of_a_trimmed_log_gets_a_snapshot(tiered: Any) -> None:
    """Its state cannot be derived from the files that are stored; a whole log needs none."""
    one = tiered(files=2)
    one.stage.seal_all()
    one.stage.driver.group.pins.store = None
    one.retain()
    assert one.begin == 2 * SIZE
    one.stage.grow(1)
    one.carry_all()
    [key] = one.store.keys("snapshot")
    value = sealed_json.decode(one.store.objects[key], key)
    begin = manifests.decode_log(one.store.get(one.store.keys("log.json")[0]), "").begin
    assert value["applied_index"] >= begin.index - 1 and begin.pos == 2 * SIZE


def test_members_need_not_agree_about_the_store(tiered: Any) -> None:
    """T4: with the store away, calls are answered and files sealed as ever."""
    one = tiered(files=1)
    one.store.away()
    one.stage.machine.members = GroupMembers(0, ("n1",))
    one.check()
    one.stage.grow(3)
    one.stage.seal_all()
    assert len(one.stage.machine.seals) == 4


def test_definitions_are_stored_when_they_change(tiered: Any) -> None:
    one = tiered(files=1)
    directory = Path(one.stage.config.data) / "controller"
    directory.mkdir(exist_ok=True)
    (directory / "journal").write_bytes(b"one" + bytes(1 << 20))
    (directory / "half.tmp").write_bytes(b"unfinished")
    one.tiering.keep_controller(1_700_000_000_000)
    one.tiering.keep_controller(1_700_000_000_000)
    assert one.store.requests["put"] == 1 and len(one.store.objects["controller/n1.json"]) < 10_000
    (directory / "journal").write_bytes(b"two")
    one.tiering.keep_controller(1_700_000_000_000)
    assert len(one.store.versions["controller/n1.json"]) == 2
