"""Retention over a hosted group with real files: seals by quorum, trims by age, pins, a nearly full
disk, and the answers about it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Call, CallRefused, Refused
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.ports import Fenced
from ledgermq.node.replica.background.disk_watch import used_by_kind
from ledgermq.node.replica.hosting.ports import State
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.maintenance.digest_exchange import DigestExchange
from ledgermq.node.replica.maintenance.retention_loop import Retainer
from ledgermq.node.replica.retention.pins import PINS_MAX
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.records.time_epochs import TimeEpoch, TimeEpochs
from ledgermq.proto.status import Code, LedgerError, refused
from ledgermq.proto.types import Draft, GroupConfig
from ledgermq.storage.files.errors import NoSpace
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.files.reserve import Reserve
from tests.node.replica.test_node_hosting import Driver, single

HOURS_MS = 3_600_000


class FullDisk(RealDisk):
    """A file system as large and as full as the test says."""

    def __init__(self) -> None:
        self.total, self.free = 1000 << 20, 900 << 20

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return self.total


class DirectEngine:
    """The engine without threads: work runs at once, calls drive the group."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.now_ns = time.monotonic_ns
        self.woken: list[str] = []

    def wake(self, group: str) -> None:
        self.woken.append(group)

    async def run(self, group: str, work: Callable[[OpenReplica], Any]) -> Any:
        return work(self.driver.group)

    def new_token(self) -> int:
        self.driver.tokens += 1
        return self.driver.tokens

    async def call(self, group: str, call: Call) -> Any:
        token = call.token  # type: ignore[union-attr]
        self.driver.turn(call)
        while token not in self.driver.done:
            self.driver.turn(elapsed_ns=1_000_000_000)
        return self.driver.done.pop(token)


class Peers:
    """Other nodes: what they say about the digests of files, and how much room they have."""

    def __init__(self) -> None:
        self.digests: dict[str, dict[int, str]] = {}
        self.roots: dict[str, dict[int, str]] = {}
        self.free: dict[str, int] = {}
        self.begin = 0

        self.said: dict[str, tuple[bool, int]] = {}
        """Node → whether it says that its disk is full, and how many bytes it wants gone; a program
        that is absent here says nothing."""

    async def ask(self, node: str, method: str, request: bytes, deadline: float) -> Sequence[bytes]:
        if node not in self.digests:
            raise CallRefused(Refused("unknown-outcome"))
        question = peer_pb2.StorageQuestion.FromString(request)
        reply = peer_pb2.StorageReply(
            disk_total_bytes=1000 << 20,
            disk_free_bytes=self.free.get(node, 900 << 20),
            begin_index=self.begin,
        )
        if node in self.said:
            reply.full, reply.wanted_bytes = self.said[node]
        for base in question.bases:
            if base in self.digests[node]:
                root = self.roots.get(node, {}).get(base, "")
                reply.digests.add(base=base, sha256=self.digests[node][base], tree_root=root)
        return [reply.SerializeToString()]

    async def submit(self, *_: Any) -> Sequence[bytes]:
        raise AssertionError("not asked here")


class Stage:
    """One leading replica with a few sealed files of 64 KiB."""

    def __init__(
        self,
        directory: Path,
        *,
        hours: float = 72,
        files: int = 3,
        tiered: Any = None,
        **retention: Any,
    ) -> None:
        more = {"retention": {"hours": hours, "reserve_bytes": 0, **retention}} | (
            {} if tiered is None else {"tiered": tiered}
        )
        config: NodeConfig = single(directory, group={"data_file_bytes": "64KiB"}, **more)
        self.config = config
        self.driver = Driver(config)
        self.driver.configure()
        self.disk = FullDisk()
        self.peers = Peers()
        self.later_ms = 0
        engine: Any = DirectEngine(self.driver)
        self.engine = engine
        hosted = {"g1": self.driver.hosted}
        self.digest_exchange = DigestExchange(
            config, self.disk, hosted, engine, self.peers, lambda name: ThreadPoolExecutor(1)
        )
        now_ms = lambda: time.time_ns() // 1_000_000 + self.later_ms  # noqa: E731
        self.retainer = Retainer(
            config, self.disk, hosted, engine, self.peers, self.digest_exchange, now_ms
        )
        self.grow(files)

    def grow(self, files: int) -> None:
        end = self.driver.group.store.log.end_pos + files * (64 << 10)
        while self.driver.group.store.log.end_pos < end:
            self.driver.produce(4, size=4000)

    @property
    def machine(self) -> Any:
        return self.driver.group.machine

    def fill(self, used_percent: int) -> None:
        """A disk that the group's own files fill so far."""
        own = sum(used_by_kind(self.driver.group.store.root).values())
        self.disk.total = own * 100 // used_percent
        self.disk.free = self.disk.total - own

    def check(self, times: int = 1) -> None:
        for _ in range(times):
            asyncio.run(self.digest_exchange.check("g1"))
            asyncio.run(self.retainer.check("g1"))

    def check_and_keep(self, times: int) -> None:
        """Checks, with time for the snapshots they ask for."""
        for _ in range(times):
            self.check()
            self.driver.turn(elapsed_ns=30_000_000_000)
            self.driver.keep()
            self.driver.turn()

    def seal_all(self) -> None:
        """Three files of 64 KiB are digested within one check; the next one finds them recorded."""
        self.check(2)

    def ask(self, base: int) -> admin_pb2.WhyKeptResponse:
        return asyncio.run(
            self.retainer.why_kept(admin_pb2.WhyKeptRequest(broker_group="g1", base=base))
        )

    def close(self) -> None:
        asyncio.run(self.retainer.stop())
        asyncio.run(self.digest_exchange.stop())
        self.driver.crash()


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    made: list[Stage] = []

    def make(**options: Any) -> Stage:
        made.append(Stage(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_sealed_files_get_their_digest_recorded_once(stage: Any) -> None:
    """Every complete file, none that still takes entries; asking again records nothing more."""
    one = stage()
    one.seal_all()
    assert sorted(one.machine.seals) == [0, 64 << 10, 128 << 10]
    seal = one.machine.seals[0]
    assert (seal.first_index, seal.replicas, len(seal.sha256)) == (0, ("n1",), 64)
    end = one.driver.group.store.log.end_index
    one.check(2)
    assert one.driver.group.store.log.end_index == end and one.machine.begin_index == 0


def test_seal_waits_for_a_majority_that_agrees(stage: Any) -> None:
    """One of three is no majority, nor are two that differ; the third decides, and the differing
    replica raises the alarm."""
    one = stage(files=1)
    one.machine.members = GroupMembers(0, ("n1", "n2", "n3"))
    one.check(3)
    assert not one.machine.seals, "alone"
    one.peers.digests = {"n2": {0: "ab" * 32}}
    one.check(2)
    assert not one.machine.seals, "two values, one report each"
    one.peers.digests["n3"] = {0: "ab" * 32}
    one.check(2)
    assert one.machine.seals[0].sha256 == "ab" * 32 and one.machine.seals[0].replicas == (
        "n2",
        "n3",
    )
    assert (
        metrics.REGISTRY.get_sample_value("ledgermq_digest_mismatches", {"broker_group": "g1"}) == 1
    )
    assert one.machine.begin_index == 0, "nothing is repaired or trimmed for it"


def test_old_files_are_trimmed_by_a_record_with_their_digests(stage: Any, tmp_path: Path) -> None:
    """Once their last message is old enough; the active file stays although it is as old."""
    one = stage()
    one.seal_all()
    digest = one.machine.seals[0].sha256
    one.later_ms = 71 * HOURS_MS
    one.check()
    assert one.machine.begin_index == 0
    one.later_ms = 73 * HOURS_MS
    one.check_and_keep(4)
    (trim,) = one.machine.trims
    assert trim.record.reason == "time" and trim.record.files[0] == (0, digest)
    assert one.machine.begin_pos == trim.record.begin_pos == 192 << 10
    one.check_and_keep(4)
    files = sorted(path.name for path in (tmp_path / "g1" / "dledger-n1" / "data").iterdir())
    assert files[0] == f"{192 << 10:020d}", "gone once both snapshots cover the record"
    answer = one.ask(0)
    assert (
        answer.reason == "trimmed"
        and digest in " ".join(answer.evidence)
        and "configured age" in answer.answer
    )
    assert (
        one.ask(192 << 10).reason == "active"
        and one.ask(1 << 40).reason == "missing"
        and one.ask(5).reason == "missing"
    )


def test_silent_follower_pins_every_file(stage: Any) -> None:
    """And why-kept names it."""
    one = stage()
    one.seal_all()
    one.machine.members = GroupMembers(0, ("n1", "n2", "n3"))
    one.later_ms = 73 * HOURS_MS
    one.check(2)
    assert one.machine.begin_index == 0
    answer = one.ask(0)
    assert (
        answer.reason == "follower"
        and "n2" in " ".join(answer.evidence)
        and "n3" in " ".join(answer.evidence)
    )
    assert one.retainer.files_kept["g1"]["follower"] == 4


def test_consumers_pins_and_snapshots_keep_files_and_say_so(stage: Any) -> None:
    """A configured consumer group that has not finished, and a reader's lease keep files; both are
    reported with their remedies."""
    one = stage()
    assert (
        one.driver.call(lambda token: Configure(token, groups=[GroupConfig("", "g")]))
        == Configured()
    )
    queue = one.machine.delivery._queue(("g", "t", 0))
    one.seal_all()
    taken = asyncio.run(
        one.retainer.take_pin(
            admin_pb2.TakePinRequest(broker_group="g1", reason="audit", ttl_ms=60_000)
        )
    )
    one.later_ms = 73 * HOURS_MS
    kinds = {line.partition(":")[0] for line in one.ask(0).evidence}
    assert {"consumer", "reader"} <= kinds
    assert asyncio.run(
        one.retainer.renew_pin(
            admin_pb2.RenewPinRequest(broker_group="g1", pin=taken.pin, ttl_ms=1000)
        )
    ).held
    assert asyncio.run(
        one.retainer.drop_pin(admin_pb2.DropPinRequest(broker_group="g1", pin=taken.pin))
    ).held
    queue.cursor = one.machine.end("t", 0)
    kinds = {line.partition(":")[0] for line in one.ask(0).evidence}
    assert not {"consumer", "reader"} & kinds


def test_full_disk_trims_early_and_refuses_messages(stage: Any) -> None:
    """Young files go without waiting for their digests; above the last watermark clients are
    refused, and served again below it."""
    one = stage()
    draft = Draft("t", 0, b"x", encode(Fields(message_id="m")), 1)
    one.fill(95)
    one.check()
    assert one.driver.call(lambda token: Produce(token, [draft])) == Refused("disk-full")
    kinds = {line.partition(":")[0] for line in one.ask(0).evidence}
    assert "due" in kinds and "digest" not in kinds
    assert one.retainer.disk == "full"
    one.fill(50)
    one.check()
    assert not isinstance(one.driver.call(lambda token: Produce(token, [draft])), Refused)


def test_full_disk_trims_again_only_after_removal_of_the_trimmed_files(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space of files that are trimmed and still there is not known yet; deciding again would
    take the next ones for the same bytes."""
    one = stage()
    monkeypatch.setattr(one.driver.group.trimming, "step", lambda *_: None)
    one.disk.free = one.disk.total - one.disk.total * 85 // 100 - 1
    for _ in range(20):
        if one.machine.trims:
            break
        one.check_and_keep(1)
    assert [len(trim.record.files) for trim in one.machine.trims] == [1], (
        "one file is enough for one byte"
    )
    one.check(3)
    assert len(one.machine.trims) == 1 and one.driver.group.trimming.pending
    monkeypatch.undo()
    for _ in range(20):
        if not one.driver.group.trimming.pending:
            break
        one.driver.turn(elapsed_ns=30_000_000_000)
        one.driver.keep()
    one.check_and_keep(2)
    assert len(one.machine.trims) >= 2, "still full: the next one"


def test_two_full_followers_of_three_refuse_as_well(stage: Any) -> None:
    """No majority could store anything; one full follower is not asked for its opinion."""
    one = stage(files=0)
    one.machine.members = GroupMembers(0, ("n1", "n2", "n3"))
    one.peers.digests = {"n2": {}, "n3": {}}
    one.peers.free = {"n2": 1 << 20}
    one.check()
    assert not one.driver.group.group.writes_refused and one.driver.group.group.full_nodes == {"n2"}
    one.engine.woken.clear()
    one.peers.free["n3"] = 1 << 20
    one.check()
    assert one.driver.group.group.writes_refused and one.engine.woken == ["g1"], (
        "a turn refuses what is held"
    )
    one.check()
    assert one.engine.woken == ["g1"]


def test_changed_full_disks_are_logged_and_applied(stage: Any) -> None:
    """Whose disks are full may change while sends go on, and what they need while the same disks
    are full."""
    one = stage(files=0)
    one.machine.members = GroupMembers(0, ("n1", "n2", "n3"))
    one.peers.digests, one.peers.free = {"n2": {}, "n3": {}}, {"n2": 1 << 20}
    one.engine.woken.clear()
    with capture_logs() as logs:
        one.check(2)
    assert (
        one.driver.group.group.full_nodes == {"n2"}
        and not one.driver.group.group.writes_refused
        and one.engine.woken == ["g1"]
    )
    one.machine.members = GroupMembers(1, ("n1", "n2"))
    with capture_logs() as later:
        one.check(2)
    assert (
        one.driver.group.group.full_nodes == {"n2"}
        and one.driver.group.group.writes_refused
        and one.engine.woken == ["g1", "g1"]
    )
    told = [
        (entry["nodes"], entry["consequence"])
        for entry in logs + later
        if entry["event"] == "disks take no messages"
    ]
    assert told == [
        (["n2"], "sends go on, and none of these nodes is to lead"),
        (["n2"], "sends are refused here"),
    ]


def test_a_follower_knows_of_its_own_disk(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It campaigns later, and says that sends go on, because they are its leader's affair."""
    one = stage()
    one.check()
    monkeypatch.setattr(one.driver.group.group.leader, "serving", False)
    one.fill(95)
    with capture_logs() as logs:
        one.check()
    assert one.driver.group.group.full_nodes == {"n1"} and one.retainer.disk == "full"
    told = [entry["consequence"] for entry in logs if entry["event"] == "disks take no messages"]
    assert told == ["sends go on, and none of these nodes is to lead"]


def test_hurried_check_does_not_wait_for_the_period(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it could hand leadership on to the preferred one: a check that is asked for does not
    wait for the next period."""
    one = stage(files=0, check_ms=3_600_000)
    checked: list[str] = []

    async def check(group: str) -> None:
        checked.append(group)
        done.set()

    async def hurried() -> None:
        for number in range(3):
            await asyncio.wait_for(done.wait(), 30)
            assert len(checked) == number + 1
            done.clear()
            one.retainer.hurry()
        await one.retainer.stop()

    done = asyncio.Event()
    monkeypatch.setattr(one.retainer, "check", check)

    async def run() -> None:
        one.retainer.start()
        await hurried()

    asyncio.run(run())


def test_full_disk_of_one_follower_trims_no_file(stage: Any) -> None:
    """The disk of one follower of three is nearly full: no file goes, and why-kept names that node.
    Those of two are: files go early."""
    one = stage()
    one.seal_all()
    one.machine.members = GroupMembers(0, ("n1", "n2", "n3"))
    one.peers.digests = {"n2": {}, "n3": {}}
    one.peers.said = {"n2": (True, 100_000), "n3": (False, 0)}
    one.check_and_keep(4)
    assert one.machine.begin_index == 0
    answer = one.ask(0)
    assert (
        answer.reason == "young"
        and "nearly full: n2, less than a majority of the replicas" in " ".join(answer.evidence)
    )
    one.peers.said["n3"] = (False, 1)
    answer = one.ask(0)
    assert "due: the disks of a majority of the replicas are nearly full" in answer.evidence
    one.check_and_keep(4)
    assert (
        [(trim.record.reason, len(trim.record.files)) for trim in one.machine.trims]
        == [("disk", 1)] * len(one.machine.trims)
        != []
    )


def test_full_disk_of_the_leader_alone_trims_no_file(stage: Any) -> None:
    one = stage()
    one.seal_all()
    one.machine.members = GroupMembers(0, ("n1", "n2", "n3"))
    one.peers.digests, one.peers.said = {"n2": {}, "n3": {}}, {"n2": (False, 0), "n3": (False, 0)}
    one.fill(95)
    one.check_and_keep(4)
    assert one.machine.begin_index == 0 and one.driver.group.group.full_nodes == {"n1"}


def test_disk_filled_by_other_files_trims_no_log_file(stage: Any) -> None:
    """A disk that stays full if all log files go was not filled by them: they stay, and sends are
    refused until an operator makes room."""
    one = stage()
    one.seal_all()
    one.disk.free = 50 << 20
    one.check_and_keep(4)
    assert one.machine.begin_index == 0 and one.driver.group.group.writes_refused
    assert one.ask(0).reason == "young"


def test_no_group_has_a_share_before_all_that_run_were_measured(stage: Any) -> None:
    """A group gives its part of what has to go, and the parts of the others are not known yet. One
    that does not run is not measured."""
    one = stage()
    one.check()
    one.fill(95)
    hosted = one.retainer._hosted
    found = []
    for state in (State.RUNNING, State.INSTALLING):
        hosted["g2"] = SimpleNamespace(state=state)
        question = peer_pb2.StorageQuestion(broker_group="g1").SerializeToString()
        found.append(
            peer_pb2.StorageReply.FromString(
                asyncio.run(one.retainer.answer(question))
            ).wanted_bytes
        )
    assert (
        found == [0, one.disk.total - one.disk.total * 85 // 100 - one.disk.free] and found[1] > 0
    )


def test_an_older_program_is_judged_by_the_watermarks_of_the_leader(stage: Any) -> None:
    """Whether its disk is full, and how much has to go there."""
    one = stage()
    one.seal_all()
    one.machine.members = GroupMembers(0, ("n1", "n2", "n3"))
    one.peers.digests, one.peers.free = {"n2": {}, "n3": {}}, {"n2": 100 << 20, "n3": 1 << 20}
    one.check()
    assert one.driver.group.group.full_nodes == {"n3"}
    assert "due: the disks of a majority of the replicas are nearly full" in one.ask(0).evidence


def test_disk_state_counts_only_present_groups(stage: Any) -> None:
    """A log without room does not count any more when its group has left; a disk above the last
    watermark counts without any group."""
    one = stage(files=0)
    one.driver.group.group.log.full += 1
    one.check()
    assert one.retainer.disk == "full"
    left = one.retainer._hosted.pop("g1")
    assert one.retainer.disk == "fine"
    one.retainer._hosted["g1"] = left
    one.fill(95)
    one.check()
    del one.retainer._hosted["g1"]
    assert one.retainer.disk == "full"


def test_follower_reports_its_need_by_its_own_watermarks(stage: Any) -> None:
    """By its own watermarks; a leader of an older program reads the sizes instead."""
    one = stage()

    def reply() -> peer_pb2.StorageReply:
        question = peer_pb2.StorageQuestion(broker_group="g1")
        return peer_pb2.StorageReply.FromString(
            asyncio.run(one.retainer.answer(question.SerializeToString()))
        )

    found = reply()
    assert (found.full, found.wanted_bytes) == (False, 0) and found.HasField("full")
    one.check()
    one.fill(95)
    found = reply()
    own = one.disk.total - one.disk.free
    assert (
        found.full
        and found.wanted_bytes == one.disk.total - one.disk.total * 85 // 100 - one.disk.free <= own
    )


@pytest.mark.parametrize("leads", [True, False])
def test_log_without_room_counts_as_a_full_disk(
    stage: Any, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    """The next file may not fit long before the last watermark. It is full until a file fits again,
    not until the next refusal, be that of the leader's own batch or of what a follower was sent."""
    one = stage(files=0)
    data = one.driver.group.store.log._data
    monkeypatch.setattr(type(data), "has_room", property(lambda _: False))
    one.check()
    assert one.driver.group.group.full_nodes == frozenset(), "nothing was refused yet"
    if leads:
        one.driver.group.group.log.full += 1
    else:
        one.driver.group.replicator._counts["refused-disk-full"] += 1
    with capture_logs() as logs:
        one.check(2)
    assert one.driver.group.group.full_nodes == {"n1"} and one.retainer.disk == "full"
    told = [entry for entry in logs if entry["event"] == "disks take no messages"]
    assert [(entry["nodes"], entry["consequence"]) for entry in told] == [
        (["n1"], "sends are refused here")
    ]
    monkeypatch.undo()
    with capture_logs() as logs:
        one.check(2)
    assert one.driver.group.group.full_nodes == frozenset() and one.retainer.disk == "fine"
    assert [
        entry["group"] for entry in logs if entry["event"] == "all disks take messages again"
    ] == ["g1"]


def no_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_snapshot_that_finds_no_room_takes_the_reserve(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given back, it is enough; without it the snapshot is left out as before; it is made anew when
    there is room."""
    one = stage(files=0)
    group = one.driver.group
    group.reserve = Reserve(RealDisk(), f"{group.store.state_directory}/reserve", 64 << 10)
    one.check()
    assert group.reserve.held, "made by the first check"
    real = group.store.write_snapshot
    monkeypatch.setattr(
        group.store,
        "write_snapshot",
        lambda value: no_space() if group.reserve.held else real(value),
    )
    group._write_snapshot(group._export(), None)
    assert not group.reserve.held and group.store.read_snapshot() is not None
    monkeypatch.setattr(group.store, "write_snapshot", no_space)
    group._write_snapshot(group._export(), None)
    one.disk.free = 50 << 20
    one.check()
    assert not group.reserve.held, "not while the disk is nearly full"
    one.disk.free = 900 << 20
    one.check()
    assert group.reserve.held


@pytest.mark.parametrize(("number", "final"), [(5, True), (24, False)])
def test_reserve_that_could_not_be_synced_ends_the_node(
    stage: Any, number: int, final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be missing at any time, but a failed sync is not tried again (I9): nothing is
    acknowledged after it."""
    one = stage(files=0)

    def fill() -> bool:
        raise OSError(number, "no")

    monkeypatch.setattr(one.driver.group.reserve, "fill", fill)
    with contextlib.suppress(OSError):
        one.check()
    with pytest.raises(Fenced, match="reserve") if final else contextlib.nullcontext():
        one.driver.produce(1)


def test_messages_that_cannot_be_dispatched_take_the_reserve(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until they are dispatched no snapshot is due, and without a snapshot nothing may go."""
    one = stage(files=0)
    group = one.driver.group
    group.reserve = Reserve(RealDisk(), f"{group.store.state_directory}/reserve", 64 << 10)
    assert group.reserve.fill()
    real = group.store.queues.append

    def append(columns: Any) -> None:
        if group.reserve.held:
            raise NoSpace("full")
        real(columns)

    monkeypatch.setattr(group.store.queues, "append", append)
    one.driver.produce(1)
    assert not group.reserve.held and one.machine.end("t", 0) == 1


def test_trim_that_finds_no_room_takes_the_reserve_and_tries_again(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not whenever house is kept: a full disk is asked once a second."""
    monkeypatch.setattr(OpenReplica, "housekeeping_ns", 0)
    one = stage(files=0)
    group = one.driver.group
    group.reserve = Reserve(RealDisk(), f"{group.store.state_directory}/reserve", 64 << 10)
    assert group.reserve.fill()
    tried: list[int] = []

    def step(_: int, now_ns: int) -> None:
        tried.append(now_ns)
        raise NoSpace("full")

    monkeypatch.setattr(group.trimming, "step", step)
    one.driver.turn(elapsed_ns=10)
    one.driver.turn(elapsed_ns=10)
    assert len(tried) == 1 and not group.reserve.held
    one.driver.turn(elapsed_ns=1_000_000_000)
    assert len(tried) == 2
    monkeypatch.undo()


def test_check_of_a_group_that_begins_a_repair_is_one_line_of_the_log(stage: Any) -> None:
    """The group may stop running at any step of a check. That is no error of the node, and the
    checks go on."""
    one = stage(check_ms=50)

    async def meet_a_repair() -> None:
        runs, again = one.engine.run, asyncio.Event()

        async def refuse(group: str, work: Any) -> Any:
            one.engine.run = resume
            raise refused("not-leader", "broker group g1 does not run on node n1: repairing")

        async def resume(group: str, work: Any) -> Any:
            again.set()
            return await runs(group, work)

        one.engine.run = refuse
        one.retainer.start()
        async with asyncio.timeout(30):
            await again.wait()
        one.engine.run = runs
        await one.retainer.stop()

    with capture_logs() as lines:
        asyncio.run(meet_a_repair())
    told = [line for line in lines if line["event"].startswith("retention check")]
    assert [(line["log_level"], line["group"], "exc_info" in line) for line in told] == [
        ("info", "g1", False)
    ]
    assert "repairing" in told[0]["reason"]


def test_files_of_before_a_time_epoch_age_from_its_begin_on(tmp_path: Path) -> None:
    """Their times lie in the future; the age of their last entry, also for a follower's lag, counts
    from the epoch."""
    stage = Stage(tmp_path, files=3)
    book, machine = stage.driver.hosted.running.files, stage.machine
    sealed = [file for file in book.files() if file.sealed]
    assert len(sealed) >= 2
    now_ms = sealed[0].last_store_ms - 1000
    machine.time_epochs = TimeEpochs(
        [TimeEpoch(last := sealed[1].last_index, stage.driver.group.store.log.pos_of(last), now_ms)]
    )
    aged = [file for file in book.files() if file.sealed]
    assert [file.last_store_ms for file in aged[:1]] == [now_ms]
    assert [file.last_store_ms for file in aged[1:]] == [file.last_store_ms for file in sealed[1:]]
    assert (book.store_ms(sealed[0].last_index), book.store_ms(sealed[1].last_index)) == (
        now_ms,
        sealed[1].last_store_ms,
    )
    assert book.sealed_from(sealed[0].base)[0].last_store_ms == sealed[0].last_store_ms, (
        "manifests name the bytes"
    )


def test_a_pin_too_many_is_refused_with_a_status(stage: Any) -> None:
    """An operator's command may be repeated later: it is no fault of the node."""
    one = stage()
    request = admin_pb2.TakePinRequest(broker_group="g1", reason="audit", ttl_ms=60_000)
    for _ in range(PINS_MAX):
        asyncio.run(one.retainer.take_pin(request))
    with pytest.raises(LedgerError, match="pins are held already") as error:
        asyncio.run(one.retainer.take_pin(request))
    assert error.value.code == Code.TOO_MANY_REQUESTS
