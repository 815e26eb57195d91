"""Real quorums on loopback: agreement, restarts, lost leaders, snapshots, and the order of syncing
and speaking."""

from __future__ import annotations

import asyncio
import errno
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pysyncobj.transport import TCPTransport

from ledgermq.node.controller import quorum as quorum_module
from ledgermq.node.controller.controller import DEFAULT_TIMEOUT_S, Controller
from ledgermq.node.controller.journal import NAME, Kept, scan
from ledgermq.node.controller.quorum import Quorum, require_library
from ledgermq.node.controller.state import State
from ledgermq.node.runtime.deadlines import bounded
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import BadRequest, Code, Conflict, LedgerError, NotFound
from ledgermq.proto.types import Permission, TopicKind
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import DiskFile
from ledgermq.storage.files.real_disk import RealDisk
from tests.controller.controller_cluster import FAST, Cluster, running_cluster


@pytest.mark.parametrize("nodes", [1, 3])
async def test_every_node_takes_commands_and_sees_the_result(tmp_path: Path, nodes: int) -> None:
    """Create, update, delete through each node; a barrier on any other node then sees it."""
    async with running_cluster(tmp_path, nodes) as cluster:
        for name, controller in cluster.running.items():
            topic, created = await controller.create_topic(
                "", f"t-{name}", TopicKind.FIFO, 5, timeout=20
            )
            again, repeated = await controller.create_topic(
                "", f"t-{name}", TopicKind.FIFO, 5, timeout=20
            )
            assert (created, repeated, topic) == (True, False, again)
            changed = await controller.update_topic(
                "", f"t-{name}", queues=6, permission=Permission.READ, timeout=20
            )
            group, _ = await controller.create_group("x", f"g-{name}", 3, timeout=20)
            for other in cluster.running.values():
                await other.barrier(timeout=20)
                assert other.state.topics["", f"t-{name}"] == changed
                assert other.state.groups["x", f"g-{name}"] == group
            await controller.delete_group("x", f"g-{name}", timeout=20)
            await controller.delete_topic("", f"t-{name}", timeout=20)
            with pytest.raises(NotFound):
                await controller.delete_topic("", f"t-{name}", timeout=20)
        assert not controller.state.topics and not controller.state.groups


async def test_a_reserved_name_of_a_group_is_refused_before_the_quorum_hears_of_it(
    tmp_path: Path,
) -> None:
    """A command that is already in a journal keeps its outcome: such a group can be changed and
    deleted."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        controller = cluster.running["n1"]
        with pytest.raises(LedgerError) as refused:
            await controller.create_group("", "%DLQ%zz")
        assert refused.value.code == Code.ILLEGAL_CONSUMER_GROUP
        outcome = await controller.submit(
            "create-group", {"ns": "", "name": "%DLQ%zz", "max_attempts": 17}, DEFAULT_TIMEOUT_S
        )
        assert outcome.changed and (await controller.delete_group("", "%DLQ%zz")).name == "%DLQ%zz"


async def test_refusals_are_errors_of_the_contract(tmp_path: Path) -> None:
    """Other settings: Conflict; illegal name: BadRequest with the naming code; unknown: NotFound;
    oversized: BadRequest."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        controller = cluster.running["n1"]
        await controller.create_topic("", "t", timeout=20)
        with pytest.raises(Conflict, match="other settings"):
            await controller.create_topic("", "t", queues=9, timeout=20)
        with pytest.raises(BadRequest) as caught:
            await controller.create_topic("", "not a name", timeout=20)
        assert caught.value.code == Code.ILLEGAL_TOPIC
        with pytest.raises(NotFound):
            await controller.update_topic("", "u", queues=9, timeout=20)
        with pytest.raises(BadRequest, match="limit"):
            await controller.create_topic("", "x" * 40_000, timeout=20)


async def test_controllers_keep_answered_changes_over_a_full_restart(tmp_path: Path) -> None:
    """After every node was stopped, each comes back with everything that was answered, even before
    a leader is found."""
    async with running_cluster(tmp_path) as cluster:
        for index in range(5):
            await cluster.running["n1"].create_topic("", f"t{index}", timeout=20)
        for controller in cluster.running.values():
            await controller.barrier(timeout=20)
        before = cluster.running["n1"].state.topics
        for _ in range(2):
            await cluster.stop()
            await cluster.start()
            await cluster.leader()
            for controller in cluster.running.values():
                await controller.barrier(timeout=20)
                assert controller.state.topics == before


async def test_the_quorum_goes_on_without_its_leader(tmp_path: Path) -> None:
    """Another node leads, takes commands, and brings the old leader up to date when it returns;
    below a majority nothing is changed."""
    async with running_cluster(tmp_path) as cluster:
        for round_ in range(2):
            leader = await cluster.leader()
            await cluster.stop([leader])
            other = next(iter(cluster.running.values()))
            await other.create_topic("", f"t{round_}", timeout=20)
            await cluster.start([leader])
            await cluster.running[leader].barrier(timeout=20)
            assert ("", f"t{round_}") in cluster.running[leader].state.topics
        await cluster.stop(["n1", "n2"])
        survivor = cluster.running["n3"]
        await cluster.until(lambda: not survivor.health.has_quorum)
        with pytest.raises(LedgerError, match="try again") as caught:
            await survivor.create_topic("", "lonely", timeout=0.3)
        assert (
            caught.value.code in (Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT)
            and caught.value.retryable
        )
        with pytest.raises(LedgerError, match="majority of n1, n2, n3"):
            await survivor.barrier(timeout=0.1)
        assert not survivor.health.ready and len(survivor.state.topics) == 2


async def test_a_node_far_behind_is_brought_up_by_a_snapshot(tmp_path: Path) -> None:
    """While a node is away the others compact their journals; it gets the snapshot, and all restart
    from theirs."""
    async with running_cluster(
        tmp_path, timing=replace(FAST, compact_entries=8, compact_again_s=0.0)
    ) as cluster:
        away = await cluster.leader()
        await cluster.stop([away])
        controller = next(iter(cluster.running.values()))
        for index in range(40):
            await controller.create_topic("", f"t{index}", timeout=20)
        await cluster.until(
            lambda: all(len(c._quorum.journal) < 30 for c in cluster.running.values() if c._quorum)
        )
        await cluster.start([away])
        await cluster.running[away].barrier(timeout=20)
        assert cluster.running[away].state.topics == controller.state.topics
        assert (tmp_path / away / "controller" / "snapshot").exists()
        await cluster.stop()
        await cluster.start()
        await cluster.leader()
        for each in cluster.running.values():
            await each.barrier(timeout=20)
            assert len(each.state.topics) == 40
            # What was answered before the snapshot is still known after it.
            assert each.state.answered


async def test_a_damaged_snapshot_stops_the_node(tmp_path: Path) -> None:
    """The library would log it and start with half a state."""
    async with running_cluster(
        tmp_path, nodes=1, timing=replace(FAST, compact_entries=4, compact_again_s=0.0)
    ) as cluster:
        for index in range(12):
            await cluster.running["n1"].create_topic("", f"t{index}", timeout=20)
        path = tmp_path / "n1" / "controller" / "snapshot"
        await cluster.until(path.exists)
        quorum: Any = cluster.running["n1"]._quorum
        await cluster.stop()
        text = path.read_text()
        path.write_text(text.replace('"queues":8', '"queues":9', 1))
        with pytest.raises(Damaged, match="checksum"):
            await cluster.start()
        # The same when it arrives from a leader.
        with pytest.raises(Damaged, match="checksum"):
            quorum._SyncObj__loadDumpFile(True)


async def test_a_change_is_told_on_the_loop(tmp_path: Path) -> None:
    """Callbacks run on the event loop with ever newer states, on all nodes, also for changes made
    elsewhere."""
    async with running_cluster(tmp_path) as cluster:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        done = asyncio.Event()

        def changed(state: State) -> None:
            assert asyncio.get_running_loop() is loop
            seen.append(state.revision)
            if ("", "t") in state.topics:
                done.set()

        cluster.running["n3"].on_change(changed)
        await cluster.running["n1"].create_topic("", "t", timeout=20)
        await done.wait()
        assert seen == sorted(set(seen))


async def test_waiting_barriers_share_a_round(tmp_path: Path) -> None:
    """A hundred callers cost a few log entries, and none of them joins a round that began before
    its call."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        controller = cluster.running["n1"]
        before = controller.health.applied_index
        await asyncio.gather(*(controller.barrier(timeout=20) for _ in range(100)))
        await controller.barrier(timeout=20)
        assert controller._quorum is not None
        assert controller._quorum.raftLastApplied - before <= 6


async def test_a_repeated_submission_makes_one_topic(tmp_path: Path) -> None:
    """The same request id through two nodes is carried out once and answered twice alike."""
    async with running_cluster(tmp_path) as cluster:
        settings = {"ns": "", "name": "t", "kind": "normal", "queues": 8, "permission": "rw"}
        answers = []
        for name in ("n1", "n2"):
            (outcome, _) = await cluster.running[name]._attempt(
                {"op": "create-topic", "id": "same", **settings}, 20
            )
            answers.append(outcome)
        assert answers[0] == answers[1] and answers[0] is not None and answers[0].changed


async def test_a_taken_port_is_a_sentence(tmp_path: Path) -> None:
    """The second controller on an address does not start and says why (exit 72)."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        config = replace(cluster.config("n1"), directory=str(tmp_path / "second"))
        with pytest.raises(FatalError, match="choose another controller_port") as caught:
            await Controller(config).start()
        assert caught.value.exit_code == 72


async def test_unresolvable_listen_address_is_a_configuration_error(tmp_path: Path) -> None:
    """A host that cannot be resolved is a configuration error, not a traceback."""
    cluster = Cluster(tmp_path, 1)
    with pytest.raises(FatalError, match="listen_host") as caught:
        await Controller(replace(cluster.config("n1"), listen="no such host:1")).start()
    assert caught.value.exit_code == 64


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private names are used, so the version is asserted at start (exit 76)."""
    require_library()
    monkeypatch.setattr(quorum_module, "VERSION", "0.3.18")
    with pytest.raises(FatalError, match=r"0\.3\.18") as caught:
        require_library()
    assert caught.value.exit_code == 76


class DurableView(RealDisk):
    """A real disk that remembers what each file held at its last sync, and can fail syncs."""

    def __init__(self) -> None:
        self.durable: dict[str, bytes] = {}
        self.failing = False

    def open(self, path: str) -> DiskFile:
        return self._watched(super().open(path))

    def create(self, path: str, size: int, *, allocate: bool) -> DiskFile:
        return self._watched(super().create(path, size, allocate=allocate))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if old in self.durable:
            self.durable[new] = self.durable.pop(old)

    def _watched(self, file: DiskFile) -> DiskFile:
        really = file.sync

        def sync() -> None:
            if self.failing:
                raise OSError(errno.EIO, "Input/output error")
            really()
            self.durable[file.path] = file.pread(0, file.size)

        file.sync = sync  # type: ignore[method-assign]
        return file

    def kept(self, path: str) -> Kept:
        """What would come back if the power went now."""
        kept = Kept()
        for changes in scan(self.durable[path], path):
            for change in changes:
                kept.carry_out(change)
        return kept


def forgotten(quorum: Quorum) -> str | None:
    """What this replica believes to have and would not have after a power cut."""
    disk = quorum._disk
    assert isinstance(disk, DurableView)
    kept, journal = disk.kept(quorum.journal._path), quorum.journal
    if (kept.term, kept.vote) != (journal.getCurrentTerm(), journal.getVotedForNodeId()):
        return f"term and vote {journal.getCurrentTerm()} {journal.getVotedForNodeId()}"
    return None if kept.entries == list(journal[:]) else f"entries up to {journal[-1][1]}"


def watch(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """Check every message at the moment it leaves and every command when it is applied: (kinds
    seen, violations)."""
    seen: list[str] = []
    violations: list[str] = []
    send, carry_out = TCPTransport.send, Quorum._SyncObj__doApplyCommand  # type: ignore[attr-defined]

    def checked_send(self: Any, node: Any, message: Any) -> bool:
        seen.append(message["type"])
        if (lost := forgotten(self._quorum)) is not None:
            violations.append(f"{message['type']} left before {lost}")
        return bool(send(self, node, message))

    def checked_apply(self: Any, command: bytes) -> Any:
        seen.append("apply")
        index = self.raftLastApplied + 1
        kept = self._disk.kept(self.journal._path)
        if not kept.entries or kept.entries[-1][1] < index:
            violations.append(f"entry {index} applied before it was durable")
        return carry_out(self, command)

    monkeypatch.setattr(TCPTransport, "send", checked_send)
    monkeypatch.setattr(Quorum, "_SyncObj__doApplyCommand", checked_apply)
    return seen, violations


async def exercise(root: Path, nodes: int) -> None:
    """Elections, commands through every node, a lost leader and its return."""
    cluster = Cluster(root, nodes, disk=DurableView)
    try:
        await cluster.start()
        await cluster.leader()
        await cluster.describe()
        for name, controller in cluster.running.items():
            await controller.create_topic("", f"t-{name}", timeout=20)
        if nodes > 1:
            leader = await cluster.leader()
            await cluster.stop([leader])
            await next(iter(cluster.running.values())).create_topic("", "u", timeout=20)
            await cluster.start([leader])
            await cluster.leader()
    finally:
        await cluster.stop()


@pytest.mark.parametrize("nodes", [1, 3])
def test_journal_is_synced_before_messages_and_applied_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """At every message that leaves (votes, acknowledgements, pushes) and at every applied command,
    the journal as of its last sync holds all that the node believes to have promised."""
    seen, violations = watch(monkeypatch)
    asyncio.run(exercise(tmp_path, nodes))
    expected = (
        {"apply", "request_vote", "response_vote", "append_entries", "next_node_idx"}
        if nodes > 1
        else {"apply"}
    )
    assert expected <= set(seen)
    assert violations == []


def test_the_durability_check_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the flush before sending, the same trace names votes, pushes and acknowledgements
    that left too early."""
    _, violations = watch(monkeypatch)
    monkeypatch.setattr(Quorum, "make_durable", lambda self: None)
    asyncio.run(exercise(tmp_path, 3))
    early = {line.split()[0] for line in violations}
    assert {"request_vote", "response_vote", "append_entries"} <= early


async def test_a_failed_sync_ends_the_controller_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node gets exit code 73 and one message, and no traceback is logged; calls fail with the
    reason; nothing was promised."""
    cluster = Cluster(tmp_path, 1, disk=DurableView)
    try:
        await cluster.start()
        await cluster.leader()
        await cluster.describe()
        controller = cluster.running["n1"]
        told: asyncio.Future[FatalError] = asyncio.get_running_loop().create_future()
        controller.on_failure(told.set_result)
        assert isinstance(controller._disk, DurableView)
        controller._disk.failing = True
        with pytest.raises(LedgerError, match="has stopped"):
            await controller.create_topic("", "t", timeout=0.5)
        async with asyncio.timeout(20):
            fatal = await told
        assert (
            fatal.exit_code == 73
            and fatal.__cause__ is None
            and fatal.what.endswith("cannot be written (Input/output error)")
        )
        assert fatal.remedy == "check the disk, then start the node again"
        assert [record.getMessage() for record in caplog.records if record.exc_info] == []
        assert not controller.health.ready and "Input/output error" in (
            controller.health.failed or ""
        )
        assert ("", "t") not in controller.state.topics
    finally:
        await cluster.stop()


@pytest.mark.parametrize(
    ("error", "exit_code", "traced"),
    [
        (OSError(errno.EIO, "Input/output error"), 73, False),
        (OSError(errno.EMFILE, "Too many open files"), 79, False),
        (Damaged("the snapshot is damaged: restore it"), 75, False),
        (OSError(errno.ECONNRESET, "Connection reset by peer"), 70, True),
        (ValueError("x"), 70, True),
    ],
)
async def test_controller_failure_has_a_status_and_bugs_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int, traced: bool
) -> None:
    """What happens to files has a status and no trace; anything else is a bug, and its trace goes
    with it."""
    cluster = Cluster(tmp_path, 1)
    try:
        await cluster.start()
        controller = cluster.running["n1"]
        told: asyncio.Future[FatalError] = asyncio.get_running_loop().create_future()
        controller.on_failure(told.set_result)

        def fail(quorum: Quorum) -> None:
            raise error

        monkeypatch.setattr(Quorum, "tick", fail)
        async with asyncio.timeout(20):
            fatal = await told
        assert (fatal.exit_code, fatal.__cause__ is error) == (exit_code, traced)
    finally:
        await cluster.stop()


async def test_the_journal_holds_no_pickle(tmp_path: Path) -> None:
    """What a quorum leaves on disk is framed JSON, whose commands are JSON."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        await cluster.running["n1"].create_topic("", "t", timeout=20)
    path = tmp_path / "n1" / "controller" / NAME
    kept = Kept()
    for changes in scan(path.read_bytes(), str(path)):
        for change in changes:
            kept.carry_out(change)
    commands = [command for command, _, _ in kept.entries]
    assert {command[:1] for command in commands} == {b"\x01", b"\x02", b"J"}
    assert commands[0] == b'\x02["voters",["n1"]]', "the first entry says who votes"
    assert [json.loads(c[1:])["op"] for c in commands if c[:1] == b"J"] == [
        "set-cluster",
        "create-topic",
    ]


async def test_a_caller_hears_that_there_is_no_quorum_while_he_still_listens(
    tmp_path: Path,
) -> None:
    """However short his patience; another one's barrier, in the same round, is as patient as it
    was."""

    async with running_cluster(tmp_path) as cluster:
        await cluster.stop(["n2", "n3"])
        alone = cluster.running["n1"]
        await cluster.until(lambda: not alone.health.has_quorum)
        patient = asyncio.create_task(alone.barrier(20))

        async def ask(request: Any, context: Any) -> None:
            await alone.barrier()

        async def change(request: Any, context: Any) -> None:
            await alone.create_topic("", "never")

        for method in map(bounded, (ask, change)):
            async with asyncio.timeout(DEFAULT_TIMEOUT_S - 1):
                with pytest.raises(LedgerError, match="controller quorum"):
                    await method(None, SimpleNamespace(time_remaining=lambda: 0.5))
        await cluster.start(["n2"])
        await patient
