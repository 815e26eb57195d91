"""A hosted broker group over real files: what it keeps beside the log, and what a stop, a crash or
a lost file leaves of it."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.calls.tier_calls import TierFetch
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.ports import Fenced, SyncTicket
from ledgermq.node.controller.roster import Roster
from ledgermq.node.replica.hosting import running
from ledgermq.node.replica.hosting.hosted_groups import open_groups
from ledgermq.node.replica.hosting.ports import State
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import validate
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind
from ledgermq.raft.config import MS
from ledgermq.raft.transfer import Cause, LeaderChange, Reason
from ledgermq.storage.files import memory
from ledgermq.storage.files.errors import LogFenced, NoSpace, StorageError
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.phases import PHASES
from ledgermq.storage.queues.queue_buffer import FEW_UNITS
from ledgermq.storage.state.heard import LastHeard
from ledgermq.storage.state.identity import write_peers
from ledgermq.storage.state.snapshot import read_snapshot, write_snapshot
from tests.storage.faulty_disk import FaultyDisk

TOPIC = TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1)
S = 1_000_000_000


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping follows every turn, so that a test need not wait for it."""
    monkeypatch.setattr(OpenReplica, "housekeeping_ns", 0)


def single(directory: Path, **changes: Any) -> NodeConfig:
    tree = yaml.safe_load(EXAMPLE)
    group = {
        "name": "g1",
        "replicas": ["n1"],
        "data_file_bytes": "1MiB",
        **changes.pop("group", {}),
    }
    tree["cluster"]["groups"] = [group]
    tree["nodes"] = {name: at for name, at in tree["nodes"].items() if name in group["replicas"]}
    return validate({**tree, "data": str(directory), **changes})


class Driver:
    """Drives one hosted group as the engine would: syncs at once, time as the test says."""

    def __init__(self, settings: NodeConfig) -> None:
        hosted = open_groups(settings, RealDisk())["g1"]
        self.identity = hosted.identity
        self.hosted = hosted.group
        self.group: OpenReplica = hosted.group.running
        self.now_ns = time.monotonic_ns()
        self.tokens = 0
        self.view: GroupView | None = None
        self.done: dict[int, Any] = {}
        self.fetches: list[TierFetch] = []
        """What the leader asks the object store for."""
        while self.view is None or not self.view.serving:
            self.turn(elapsed_ns=S)

    def turn(self, *calls: Any, elapsed_ns: int = 0) -> None:
        """One turn, and as many more as its syncs lead to. What the background thread was given
        before is finished first: it takes one thing at a time, and a test that raced with it would
        see the next thing now and then only."""
        self.keep()
        self.now_ns += elapsed_ns
        synced: list[tuple[SyncTicket, OSError | None]] = []
        pending = list(calls)
        for _ in range(20):
            output = self.group.turn(self.now_ns, time.time_ns() // 1_000_000, pending, [], synced)
            pending, synced = [], []
            self.view = output.view or self.view
            self.fetches += output.tier_fetches
            for done in output.done:
                assert isinstance(done, Done)
                self.done[done.token] = done.outcome
            if output.sync is None:
                return
            output.sync.run()
            synced = [(output.sync, None)]

    def call(self, make: Callable[[int], Any]) -> Any:
        self.tokens += 1
        self.turn(make(self.tokens))
        while self.tokens not in self.done:
            self.turn(elapsed_ns=S)
        return self.done.pop(self.tokens)

    def produce(self, count: int, size: int = 10) -> None:
        drafts = [
            Draft("t", 0, bytes(size), encode(Fields(message_id=f"m{k}")), 1) for k in range(count)
        ]
        assert isinstance(self.call(lambda token: Produce(token, drafts)), Produced)

    def configure(self) -> None:
        assert self.call(lambda token: Configure(token, [TOPIC])) == Configured()

    def count(self) -> int:
        peeked = self.call(lambda token: Peek(token, "t", 0, 0, 10_000))
        assert isinstance(peeked, Peeked) and peeked.end_offset == len(peeked.records)
        return peeked.end_offset

    def keep(self) -> None:
        """Let the background thread finish what it was given."""
        if self.group._keeping is not None:
            self.group._keeping.result()

    def crash(self) -> None:
        """Leave everything as it is."""
        self.keep()
        self.group._executor.shutdown()
        self.group.indexer.abandon()
        self.group.store.abandon()


def filled(directory: Path, count: int = 50) -> Driver:
    driver = Driver(single(directory))
    driver.configure()
    driver.produce(count)
    return driver


def test_clean_stop_leaves_snapshot_and_checkpoint_and_no_abort_file(tmp_path: Path) -> None:
    """After a clean stop, the next start applies nothing again and knows the committed index."""
    driver = filled(tmp_path)
    index = driver.group.machine.applied_index
    assert (tmp_path / "g1" / "abort").exists()
    driver.group.close()
    assert not (tmp_path / "g1" / "abort").exists()
    again = open_groups(single(tmp_path), RealDisk())["g1"].group.running
    assert again.store.was_clean
    assert again.machine.applied_index == index == again.replicator.commit_index
    assert again.machine.topics == {"t": TOPIC} and again.machine.end("t", 0) == 50
    again.close()


@pytest.mark.parametrize("snapshot", [False, True])
def test_crash_loses_no_committed_message_with_or_without_a_snapshot(
    tmp_path: Path, snapshot: bool
) -> None:
    """Derived state is rebuilt from the snapshot and the log behind it, or from the log alone."""
    driver = filled(tmp_path)
    if snapshot:
        driver.turn(elapsed_ns=running.SNAPSHOT_EVERY_NS)
        driver.keep()
        assert (tmp_path / "g1" / "state" / "snapshot").exists()
    driver.produce(25)
    driver.crash()
    again = Driver(single(tmp_path))
    assert not again.group.store.was_clean
    assert again.count() == 75
    again.group.close()


def test_a_long_log_is_applied_in_slices(tmp_path: Path) -> None:
    """A replica that restarts with much to apply gives the loop back after about 1 MiB, and asks
    for its next turn at once."""
    driver = Driver(single(tmp_path, group={"data_file_bytes": "8MiB"}))
    driver.configure()
    for _ in range(3):
        driver.produce(20, size=65_000)
    end_pos = driver.group.machine.applied_end_pos
    driver.crash()
    group = open_groups(single(tmp_path, group={"data_file_bytes": "8MiB"}), RealDisk())[
        "g1"
    ].group.running
    now_ns, slices = time.monotonic_ns(), []
    synced: list[tuple[SyncTicket, OSError | None]] = []
    while group.machine.applied_end_pos < end_pos:
        before = group.machine.applied_end_pos
        output = group.turn(now_ns, time.time_ns() // 1_000_000, [], [], synced)
        synced = []
        if output.sync is not None:
            output.sync.run()
            synced = [(output.sync, None)]
        slices.append(group.machine.applied_end_pos - before)
        assert (
            output.wake_at_ns <= now_ns
            or group.replicator.commit_index == group.machine.applied_index
        )
        now_ns += S
    assert max(slices) <= 2 << 20 and len([size for size in slices if size]) >= 2
    group.close()


def test_units_above_the_snapshot_are_erased_at_start(tmp_path: Path) -> None:
    """A power cut may keep a page of a queue and lose the entry of its unit: such a unit must not
    survive the start."""
    driver = filled(tmp_path, 20)
    driver.turn(elapsed_ns=running.SNAPSHOT_EVERY_NS)
    driver.keep()
    driver.produce(5)
    driver.crash()
    path = next((tmp_path / "g1" / "consumequeue" / "t" / "0").iterdir())
    assert any(path.read_bytes()[20 * 20 : 25 * 20])
    again = open_groups(single(tmp_path), RealDisk())["g1"].group.running
    assert again.machine.end("t", 0) == 20
    content = path.read_bytes()
    assert any(content[: 20 * 20]) and not any(content[20 * 20 :])
    again._executor.shutdown()
    again.store.abandon()


def test_housekeeping_keeps_its_own_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many turns there are. A turn that changed something says when the group must be woken
    for it; one that changed nothing does not, because an idle group would then be woken twice for
    each heartbeat."""
    driver = filled(tmp_path, 1)
    monkeypatch.setattr(OpenReplica, "housekeeping_ns", 50 * MS)
    kept: list[int] = []
    began_ns = driver.now_ns + 1
    monkeypatch.setattr(
        driver.group, "_clean", lambda now_ns: kept.append((now_ns - began_ns) // MS)
    )
    synced: list[tuple[SyncTicket, OSError | None]] = []

    def wake_after(at_ms: int, *calls: Any) -> float:
        """One turn; a sync that it asks for ends before the next. When the next turn is due, in
        milliseconds."""
        output = driver.group.turn(began_ns + at_ms * MS, 0, calls, [], synced)
        synced.clear()
        if output.sync is not None:
            output.sync.run()
            synced.append((output.sync, None))
        return (output.wake_at_ns - began_ns) / MS

    wakes = [wake_after(at_ms) for at_ms in range(0, 101, 10)]
    assert kept == [0, 50, 100]
    assert all(wake > 50 for wake in wakes[1:5])
    wake_after(101)
    draft = Draft("t", 0, b"body", encode(Fields(message_id="one")), 1)
    assert wake_after(110, Produce(99, [draft])) == 150
    assert wake_after(120) == 150 and wake_after(130) == 150, (
        "housekeeping has not looked at it yet"
    )
    wake_after(150)
    assert kept[3:] == [150]
    for at_ms in (210, 220, 260):
        wake_after(at_ms)
    assert kept[4:] == [210, 260] and not synced
    driver.group.close()


def test_a_change_of_leadership_is_noted_in_the_turn_that_publishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of leadership does not wait for housekeeping: a caller may ask for it right after
    the first answer of the new leader."""
    driver = filled(tmp_path, 1)
    driver.turn(elapsed_ns=S)
    monkeypatch.setattr(OpenReplica, "housekeeping_ns", 50 * MS)
    driver.group.turn(driver.now_ns, 0, [], [], [])
    change = LeaderChange(7, "n1", "n2", Reason(Cause.FOLLOWED, "n2"))
    view = replace(driver.group.group.view(), term=7, leader="n2")
    monkeypatch.setattr(driver.group.replicator, "take_changes", lambda: [change])
    monkeypatch.setattr(
        driver.group.group, "turn", lambda *_: TurnOutput([], [], None, driver.now_ns + S, view)
    )
    kept: list[int] = []
    monkeypatch.setattr(driver.group, "_clean", kept.append)
    driver.group.turn(driver.now_ns + 1, 5, [], [], [])
    assert kept == [] and driver.group.leaders()[-1].leader == "n2"
    driver.crash()


def test_a_failed_write_beside_the_log_ends_the_group_with_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged after a failed sync (invariant I9), so what the background thread
    found does not wait for housekeeping."""
    driver = filled(tmp_path, 1)
    monkeypatch.setattr(OpenReplica, "housekeeping_ns", 50 * MS)

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(driver.group.store, "write_checkpoints", fail)
    now_ns = driver.now_ns + running.CHECKPOINT_EVERY_NS
    driver.keep()
    driver.group._keeping = None
    output = driver.group.turn(now_ns, 0, [], [], [])
    assert driver.group._keeping is not None and isinstance(
        driver.group._keeping.exception(), Fenced
    )
    assert output.sync is not None
    output.sync.run()
    with pytest.raises(Fenced, match="the checkpoint could not be written"):
        driver.group.turn(now_ns + 1, 0, [], [], [(output.sync, None)])
    driver.crash()


def test_a_failure_of_the_key_index_ends_the_group_with_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a turn that applies nothing: it could acknowledge what was applied or replicated
    before (invariant I9)."""
    driver = filled(tmp_path, 1)
    monkeypatch.setattr(OpenReplica, "housekeeping_ns", 50 * MS)
    driver.turn(elapsed_ns=S)
    driver.group.indexer.failure = Fenced("the key index could not be synced")
    with pytest.raises(Fenced, match="the key index could not be synced"):
        driver.group.turn(driver.now_ns + 1, 0, [], [], [])
    driver.crash()


@pytest.mark.parametrize("busy", [False, True])
def test_observer_with_an_unwritten_contact_does_not_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Only housekeeping hands it to the background thread, and that may still write something else:
    no turn helps before."""
    driver = filled(tmp_path, 1)
    driver.turn(elapsed_ns=S)
    driver.keep()
    monkeypatch.setattr(OpenReplica, "housekeeping_ns", 50 * MS)
    driver.group.turn(driver.now_ns, 0, [], [], [])
    driver.group._heard, driver.group._next_heard_ns = (
        LastHeard("n1", 1, 0, 0, 0),
        driver.now_ns + 10 * MS,
    )
    now_ns = driver.now_ns + (60 * MS if busy else 20 * MS)
    release = threading.Event()
    if busy:
        monkeypatch.setattr(driver.group, "_keeping", driver.group._executor.submit(release.wait))
    assert driver.group.turn(now_ns, 0, [], [], []).wake_at_ns > now_ns
    release.set()
    driver.crash()


def test_snapshot_follows_time_and_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is written after a minute or a number of applied bytes, but not if nothing was
    applied since."""
    monkeypatch.setattr(running, "SNAPSHOT_EVERY_BYTES", 20_000)
    driver = filled(tmp_path, 1)
    path = tmp_path / "g1" / "state" / "snapshot"
    assert not path.exists()
    driver.produce(10, size=3000)
    driver.keep()
    assert path.exists(), "grown enough"
    written = path.stat().st_mtime_ns, path.stat().st_ino
    driver.produce(1)
    driver.keep()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written, (
        "one small message is no growth"
    )
    driver.turn(elapsed_ns=running.SNAPSHOT_EVERY_NS)
    driver.keep()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) != written, "but a minute is long enough"
    written = path.stat().st_mtime_ns, path.stat().st_ino
    driver.turn(elapsed_ns=running.SNAPSHOT_EVERY_NS)
    driver.turn(elapsed_ns=running.SNAPSHOT_EVERY_NS)
    driver.keep()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written, "nothing new to say"
    driver.group.close()


def test_snapshot_waits_until_its_log_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower applies what a majority stored; its own disk may be behind, and a power cut would
    leave a snapshot of a log not there."""
    driver = filled(tmp_path)
    path = tmp_path / "g1" / "state" / "snapshot"
    applied = driver.group.machine.applied_index
    behind = SimpleNamespace(last_contact=None, durable_index=applied - 1, commit_index=applied)
    monkeypatch.setattr(driver.group, "replicator", behind)
    for _ in range(3):
        driver.turn(elapsed_ns=running.SNAPSHOT_EVERY_NS)
        driver.keep()
        assert not path.exists()
    behind.durable_index += 1
    driver.turn()
    driver.keep()
    assert path.exists()
    driver.group.close()


def test_snapshot_is_written_only_after_the_queues_it_names_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot says how far each consume queue reaches; written first, a power cut would leave it
    without the units."""
    driver = filled(tmp_path)
    steps: list[str] = []
    monkeypatch.setattr(driver.group.store, "write_snapshot", lambda *_: steps.append("snapshot"))
    driver.group._write_snapshot({}, SimpleNamespace(run=lambda: steps.append("queues")))  # type: ignore[arg-type]
    assert steps == ["queues", "snapshot"]
    driver.crash()


def test_checkpoint_commit_is_limited_to_the_durable_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A majority may be ahead of this node's disk: after a power cut an older tail could lie where
    the note says committed."""
    driver = filled(tmp_path)
    monkeypatch.setattr(
        driver.group,
        "replicator",
        SimpleNamespace(last_contact=None, durable_index=3, commit_index=7),
    )
    driver.turn(elapsed_ns=running.CHECKPOINT_EVERY_NS)
    driver.keep()
    noted = driver.group.store.read_checkpoint()
    assert noted is not None and noted.committed_index == 3
    driver.crash()


def test_snapshot_never_shows_half_a_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a full disk prevents the units of a range in one of its queues, no snapshot contains
    those of the other queue (I8)."""
    driver = Driver(single(tmp_path))
    two = TopicConfig("", "t", TopicKind.NORMAL, 2, Permission.READ_WRITE, 1)
    assert driver.call(lambda token: Configure(token, [two])) == Configured()
    queues = driver.group.store.queues
    real = queues._append_units

    def full(key: tuple[str, int], *rest: Any) -> None:
        if key == ("t", 1):
            raise NoSpace("full")
        real(key, *rest)

    monkeypatch.setattr(queues, "_append_units", full)
    # So many for each queue that none waits in memory.
    driver.turn(
        Produce(
            99,
            [
                Draft("t", queue, b"x", encode(Fields(message_id="m")), 1)
                for queue in (0, 1)
                for _ in range(FEW_UNITS)
            ],
        )
    )
    assert (queues.next_offset("t", 0), queues.next_offset("t", 1)) == (FEW_UNITS, 0)
    driver.turn(elapsed_ns=running.SNAPSHOT_EVERY_NS)
    driver.keep()
    driver.turn()
    assert driver.group.store.read_snapshot() is None
    monkeypatch.undo()
    driver.turn(elapsed_ns=S)
    driver.turn(elapsed_ns=running.SNAPSHOT_EVERY_NS)
    driver.turn()
    driver.keep()
    found = driver.group.store.read_snapshot()
    assert found is not None and found["queues"]["t"] == {"0": FEW_UNITS, "1": FEW_UNITS}
    driver.group.close()


def test_checkpoint_follows_the_commit_index_and_stays_durable(tmp_path: Path) -> None:
    """Every three seconds, if the commit index moved."""
    driver = filled(tmp_path)
    driver.turn(elapsed_ns=running.CHECKPOINT_EVERY_NS)
    driver.turn()
    driver.keep()
    found = driver.group.store.read_checkpoint()
    assert found is not None and found.committed_index == driver.group.replicator.commit_index
    assert found.committed_index <= driver.group.replicator.durable_index
    driver.group.close()


def test_lost_consume_queue_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    """The snapshot claims missing units: snapshot and queues are discarded and rebuilt from the
    log."""
    driver = filled(tmp_path)
    driver.group.close()
    for path in (tmp_path / "g1" / "consumequeue" / "t" / "0").iterdir():
        path.unlink()
    again = Driver(single(tmp_path))
    assert again.count() == 50
    again.group.close()


def test_snapshot_of_another_version_is_not_interpreted(tmp_path: Path) -> None:
    """Its keys may have another meaning, so the state is rebuilt from the log."""
    driver = filled(tmp_path)
    driver.group.close()
    state = str(tmp_path / "g1" / "state")
    found = read_snapshot(RealDisk(), state)
    assert found is not None
    write_snapshot(RealDisk(), state, {**found, "v": 1, "queues": {"t": {"0": 7}}, "topics": {}})
    again = Driver(single(tmp_path))
    assert again.count() == 50
    again.group.close()


def test_a_start_on_a_full_disk_has_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the abort file finds room: a node that went down can come up again and clean up, as
    one that lives could."""
    driver = filled(tmp_path)
    assert driver.group.reserve.fill()
    driver.crash()
    reserve = tmp_path / "g1" / "state" / running.RESERVE_FILE
    replace = RealDisk.replace_file

    def replace_file(disk: RealDisk, path: str, data: bytes) -> None:
        if reserve.exists():
            raise OSError(28, "No space left on device", path)
        replace(disk, path, data)

    monkeypatch.setattr(RealDisk, "replace_file", replace_file)
    monkeypatch.setattr(
        RealDisk, "free_bytes", lambda disk, path: 0 if reserve.exists() else 8 << 20
    )
    again = Driver(single(tmp_path))
    assert again.count() == 50 and not reserve.exists()
    again.group.close()


def test_sizes_are_fixed_when_a_group_is_created_and_members_are_the_logs_affair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configuration with other sizes is refused with an explanation; one with other replicas is
    logged, and the log's members count."""
    driver = filled(tmp_path)
    driver.group.close()
    with pytest.raises(ConfigError, match="log files of 1048576 bytes, not 2097152"):
        open_groups(single(tmp_path, group={"data_file_bytes": "2MiB"}), RealDisk())
    again = open_groups(single(tmp_path, group={"replicas": ["n1", "n2"]}), RealDisk())["g1"].group
    assert again.running.replicator.members.voters == ("n1",)
    assert "the configuration names other replicas than the log" in capsys.readouterr().out
    again.close()


def test_a_group_with_a_reserved_name_does_not_begin(tmp_path: Path) -> None:
    """One that exists is opened, and another node may join it: its name was free once."""
    tree = yaml.safe_load(EXAMPLE)
    tree["cluster"]["groups"] = [
        {"name": "rmq_sys_ledgermq_timer", "replicas": ["n2", "n3"], "data_file_bytes": "1MiB"}
    ]
    joining = validate({**tree, "data": str(tmp_path), "join": True})
    tree["cluster"]["groups"][0]["replicas"] = ["n1"]
    founding = validate({**tree, "data": str(tmp_path)})
    with pytest.raises(ConfigError, match="'rmq_sys_ledgermq_timer' is reserved"):
        open_groups(founding, RealDisk())
    assert not list(tmp_path.glob("rmq_sys_*"))
    for config in (joining, founding):
        open_groups(config, RealDisk())["rmq_sys_ledgermq_timer"].group.close()


def test_a_group_that_is_joined_begins_with_an_empty_log(tmp_path: Path) -> None:
    """It is neither bootstrapped nor a voter: its membership comes from the members."""
    tree = yaml.safe_load(EXAMPLE)
    tree["cluster"]["groups"] = [
        {"name": "g1", "replicas": ["n2", "n3"], "data_file_bytes": "1MiB"}
    ]
    settings = validate({**tree, "data": str(tmp_path), "join": True})
    hosted = open_groups(settings, RealDisk())["g1"].group
    assert hosted.state is State.JOINING and hosted.running.store.log.end_index == -1
    late = time.monotonic_ns() + 60 * S
    output = hosted.turn(late, 0, [], [], [])
    assert not output.packets
    if output.sync is not None:
        # The name of a file that was made ahead, or the mark at rest.
        output.sync.run()
        hosted.turn(late, 0, [], [], [(output.sync, None)])
    assert not hosted.running.replicator.members.voters and hosted.status().state == "joining"
    hosted.close()


def test_joined_replica_without_greetings_is_not_admitted(tmp_path: Path) -> None:
    """The first node of a group of one, which others have joined since, lost its directory. Copied
    from them, the first entry of the log names it as the only voter: did it count by that, it would
    elect itself beside the members that are left."""
    tree = yaml.safe_load(EXAMPLE)
    nodes = {**tree["nodes"], "n9": {**tree["nodes"]["n1"], "host": "127.0.0.9"}}
    tree["cluster"]["groups"] = [{"name": "g1", "replicas": ["n1"], "data_file_bytes": "1MiB"}]
    hosted = open_groups(
        validate({**tree, "nodes": nodes, "data": str(tmp_path), "join": True}), RealDisk()
    )["g1"]
    assert hosted.group.running.replicator.status().extra["admitted"] == 0
    assert hosted.others is None, "no other node vouches for it"
    hosted.group.close()


def test_only_replica_of_a_group_counts_at_once_in_a_single_node_cluster(
    tmp_path: Path,
) -> None:
    """Other nodes in the configuration, or recorded from the quorum before a restart, may know of a
    log that continues without it."""
    tree = yaml.safe_load(EXAMPLE)
    alone = single(tmp_path / "alone")
    among = single(tmp_path / "among").model_copy(
        update={"nodes": {name: alone.address for name in tree["nodes"]}}
    )
    told = single(tmp_path / "told")
    roster = Roster("n1", {"n1": {}}, RealDisk(), str(tmp_path / "told" / "controller"))
    roster.on_addresses(1, {"n1": {}, "n2": {"peer": "n2:1"}}, [], current=True)
    roster.save()
    for settings, admitted in ((alone, 1), (among, 0), (told, 0)):
        hosted = open_groups(settings, RealDisk())["g1"]
        assert hosted.group.running.replicator.status().extra["admitted"] == admitted
        hosted.group.close()


def test_replica_takes_part_once_every_other_voter_has_met_its_directory(tmp_path: Path) -> None:
    """Read from state/peers.json at each start; before, no turn leaves a packet, however late it
    is; admission makes it campaign."""
    trio = single(tmp_path, group={"replicas": ["n1", "n2", "n3"]})
    state = str(tmp_path / "g1" / "state")
    for vouched in (None, False, True):
        if vouched is not None:
            write_peers(RealDisk(), state, {"n2": "b", "n3": "c"}, {"n2", "n3"}, vouched=vouched)
        hosted = open_groups(trio, RealDisk())["g1"]
        assert hosted.others == {"n2", "n3"}
        late = time.monotonic_ns() + 100 * S
        waiting = hosted.group.turn(late, 0, [], [], []).packets
        assert hosted.group.status().extra["admitted"] == int(vouched is True)
        if vouched:
            assert {to for to, _ in waiting} == {"n2", "n3"}
        else:
            assert not waiting
            hosted.group.admit()
            assert {to for to, _ in hosted.group.turn(late, 0, [], [], []).packets} == {"n2", "n3"}
        hosted.group.close()


def test_foreign_group_directory_is_refused(tmp_path: Path) -> None:
    """Another cluster's replica stays untouched."""
    driver = filled(tmp_path)
    driver.group.close()
    tree = single(tmp_path).model_dump(mode="json")
    tree["cluster"]["id"] = "00000000-0000-4000-8000-000000000000"
    with pytest.raises(StorageError, match="belongs to cluster") as caught:
        open_groups(validate(tree), RealDisk())
    assert caught.value.exit_code == 71


def test_damage_below_the_mark_stops_the_start(tmp_path: Path) -> None:
    """Exit 75, with every byte left as it is."""
    driver = filled(tmp_path)
    last = driver.group.store.log.pos_of(driver.group.store.log.end_index)
    driver.group.close()
    path = next((tmp_path / "g1" / "dledger-n1" / "data").iterdir())
    data = bytearray(path.read_bytes())
    data[last : last + 48] = bytes(48)
    path.write_bytes(data)
    (tmp_path / "g1" / "abort").write_text("1")
    with pytest.raises(LogFenced) as caught:
        open_groups(single(tmp_path), RealDisk())
    assert caught.value.exit_code == 75 and path.read_bytes() == data


def test_recovery_is_measured_by_phase(tmp_path: Path) -> None:
    """After a crash every phase of the start is a gauge, the replay of what the snapshot lacks
    among them."""
    filled(tmp_path).crash()
    for name in PHASES:
        metrics.RECOVERY_SECONDS.labels("g1", name).set(-1)
    driver = Driver(single(tmp_path))
    assert driver.count() == 50
    found = {name: metrics.RECOVERY_SECONDS.labels("g1", name)._value.get() for name in PHASES}
    assert all(value >= 0 for value in found.values()), found
    assert found["identity"] > 0 and found["above_mark"] > 0 and found["replay"] > 0
    driver.group.close()


@pytest.mark.parametrize("append", ["pwrite", "map", "pool"])
def test_append_modes_keep_committed_messages_over_crash_and_stop(
    tmp_path: Path, append: str
) -> None:
    """Committed messages are there after a crash and after a good stop, whatever wrote them; memory
    is counted."""
    storage = {
        "append": append,
        "pool_buffers": 2,
        "pool_buffer_bytes": "64KiB",
        "lock_memory": True,
    }
    settings = single(tmp_path, storage=storage, flush={"policy": "memory"})
    driver = Driver(settings)
    driver.configure()
    driver.produce(300, size=1000)
    driver.turn(elapsed_ns=60 * S)
    assert driver.count() == 300
    counts = driver.group.status().extra
    assert counts["mapped-bytes"] >= 1 << 20
    assert counts["locked-bytes"] >= 0
    driver.crash()
    driver = Driver(settings)
    assert driver.count() == 300
    driver.produce(1500, size=1000)
    driver.turn(elapsed_ns=60 * S)
    driver.group.close()
    driver = Driver(settings)
    assert driver.count() == 1800
    driver.group.close()


def test_unavailable_pool_memory_names_the_setting_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool that cannot be had is a matter of configuration."""

    def none(size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory, "anonymous", none)
    with pytest.raises(ConfigError, match=r"no memory for 5 buffers.*lower storage\.pool_buffers"):
        open_groups(
            single(tmp_path, storage={"append": "pool"}, flush={"policy": "memory"}), RealDisk()
        )


@pytest.mark.one_in(7)
@pytest.mark.parametrize("left", range(0, 40, 3))
def test_a_crash_while_the_queues_are_made_again_loses_no_unit(tmp_path: Path, left: int) -> None:
    """Files of consume queues that exist but are not filled yet are never taken for what the
    snapshot claims."""
    filled(tmp_path).group.close()
    for path in (tmp_path / "g1" / "consumequeue").rglob("0*"):
        if path.is_file():
            path.unlink()
    disk = FaultyDisk(RealDisk())
    disk.fail_writes_after(left, errno_of="EIO")
    with contextlib.suppress(StorageError):
        open_groups(single(tmp_path), disk)["g1"].group.running.store.abandon()
    again = Driver(single(tmp_path))
    assert again.count() == 50
    again.group.close()


def test_the_history_of_leadership_survives_stops_and_crashes(tmp_path: Path) -> None:
    """Each life adds its own changes to those of the lives before it, however it ended."""
    driver = Driver(single(tmp_path))
    driver.turn(elapsed_ns=S)
    driver.crash()
    driver = Driver(single(tmp_path))
    driver.group.close()
    driver = Driver(single(tmp_path))
    events = driver.group.leaders()
    assert [(event.term, event.leader, event.cause) for event in events] == [
        (term, "n1", Cause.STARTED) for term in (1, 2, 3)
    ]
    driver.group.close()


@pytest.mark.parametrize("content", [b"", b"noise", b'{"v":1,"crc32c":1}'])
def test_a_damaged_history_of_leadership_begins_anew(tmp_path: Path, content: bytes) -> None:
    """Only people read it: no replica stops for it."""
    Driver(single(tmp_path)).group.close()
    path = tmp_path / "g1/state/leadership"
    assert path.exists()
    path.write_bytes(content)
    driver = Driver(single(tmp_path))
    assert [event.term for event in driver.group.leaders()] == [2]
    driver.group.close()
