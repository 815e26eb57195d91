"""The promise watched on the disk port: nothing is committed, answered or voted before the sync
that covers it finished.

SIGKILL proves nothing about fsync, so this test does not kill anything: it wraps the disk of every
node and keeps its own picture of which bytes are on stable storage. Every time a replica lets
something out, the picture must already contain what that promises.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_wire import decode
from ledgermq.proto.types import HardState
from ledgermq.raft.core import Core
from ledgermq.raft.log_state import LogState
from ledgermq.raft.messages import AppendReply, VoteReply, VoteRequest
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.ports import Buffer, DiskFile
from ledgermq.storage.state.hard_state import HardStateFile
from tests.replica.replica_cluster import Node, Trio, messages


class TracedFile:
    """A file whose synced content is remembered by the trace."""

    def __init__(self, file: DiskFile, disk: TracedDisk) -> None:
        self._file, self._disk = file, disk
        self.path, self.size = file.path, file.size

    def pread(self, offset: int, length: int) -> bytes:
        return self._file.pread(offset, length)

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._file.pwrite(offset, data)

    def sync(self) -> None:
        content = self._file.pread(0, self.size)
        self._file.sync()
        self._disk.stable[self.path] = content

    def view(self) -> memoryview:
        return self._file.view()

    def store(self, offset: int, data: Buffer) -> None:
        self._file.store(offset, data)

    def warm(self, *, stores: bool) -> None:
        self._file.warm(stores=stores)

    def lock(self) -> None:
        self._file.lock()

    def unlock(self) -> None:
        self._file.unlock()

    def swap_out(self) -> bool:
        return self._file.swap_out()

    @property
    def mapped_bytes(self) -> int:
        return self._file.mapped_bytes

    @property
    def locked_bytes(self) -> int:
        return self._file.locked_bytes

    def close(self) -> None:
        self._file.close()


class TracedDisk(ForgetfulDisk):
    """`stable`: path → what an fdatasync that returned had covered."""

    def __init__(self) -> None:
        super().__init__()
        self.stable: dict[str, bytes] = {}

    def open(self, path: str) -> TracedFile:  # type: ignore[override]
        return TracedFile(super().open(path), self)

    def create(self, path: str, size: int, *, allocate: bool) -> TracedFile:  # type: ignore[override]
        return TracedFile(super().create(path, size, allocate=allocate), self)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if old in self.stable:
            self.stable[new] = self.stable.pop(old)


class Witness:
    """Checks every packet and every commit index against the traced disks."""

    def __init__(self) -> None:
        self.disks: dict[str, TracedDisk] = {}
        self.commits = 0
        self.replies = 0
        self.votes = 0

    def disk_of(self, name: str) -> tuple[TracedDisk, str]:
        self.disks[name] = TracedDisk()
        return self.disks[name], f"/data/{name}"

    def holds(self, node: Node, index: int, like: Node) -> bool:
        """Whether the bytes of `like`'s entry are on `node`'s stable storage, at the same place."""
        entry = like.log.read(index, 1)
        base = entry.pos // 4096 * 4096
        stable = self.disks[node.name].stable.get(f"{node.log_directory}/data/{base:020d}", b"")
        data = bytes(entry.data[: int(entry.sizes[0])])
        return stable[entry.pos - base : entry.pos - base + len(data)] == data

    def look(self, trio: Trio) -> None:
        """A commit index that a turn shows is durable on a majority."""
        for node in trio.up():
            if node.last is not None and node.last.commit_index > 0:
                index = node.last.commit_index
                holders = [
                    other.name for other in trio.nodes.values() if self.holds(other, index, node)
                ]
                assert len(holders) >= 2, (
                    f"{node.name} calls {index} committed, durable on {holders}"
                )
                self.commits += 1

    def hear(self, trio: Trio) -> Callable[[str, str, PeerPacket], bool]:
        """A packet promises only what is durable at its sender."""

        def keep(sender: str, to: str, packet: PeerPacket) -> bool:
            message, node = decode(packet, sender).message, trio[sender]
            saved = self.stable_hard_state(node)
            assert saved == node.replica._hard_state.value, (
                f"{sender} sends before term and vote are synced"
            )
            if isinstance(message, AppendReply) and not message.rejected:
                assert message.durable <= 0 or self.holds(node, message.durable, node), (
                    f"{sender} claims {message.durable} durable"
                )
                self.replies += 1
            if isinstance(message, VoteReply) and message.granted and not message.pre:
                assert saved == HardState(message.term, to), (
                    f"{sender} votes for {to} with {saved} on disk"
                )
                self.votes += 1
            if isinstance(message, VoteRequest) and not message.pre:
                assert saved == HardState(message.term, sender)
            return True

        return keep

    def stable_hard_state(self, node: Node) -> HardState:
        copy = ForgetfulDisk()
        copy.mkdirs("/c")
        content = self.disks[node.name].stable[f"{node.log_directory}/hardstate"]
        copy.create("/c/hardstate", len(content), allocate=False).pwrite(0, content)
        return HardStateFile.open(copy, "/c/hardstate").value


def live(trio_type: type[Trio] = Trio, replica_type: type[RaftReplica] = RaftReplica) -> Witness:
    """Elections, pipelined batches over several files, a leader change and a divergent tail, all
    under the witness."""
    witness = Witness()
    trio = trio_type(witness.disk_of)
    for node in trio.nodes.values():
        node.replica_type = replica_type  # type: ignore[misc]
        node.start(0)
    trio.watch = witness.look
    trio.keep = witness.hear(trio)
    leader = trio.elect("n1")
    for i in range(10):
        trio.propose(leader, messages(6, mark=f"a{i}-"))
        trio.deliver()
        if i % 3 == 0:
            trio.sync(trio["n2"])
        elif i % 3 == 1:
            trio.sync(leader)
    trio.settle()
    trio.keep = lambda sender, to, packet: (
        "n1" not in (sender, to) and witness.hear(trio)(sender, to, packet)
    )
    trio.propose(leader, messages(8, mark="lost"))
    trio.settle()
    second = trio.elect("n2")
    trio.propose(second, messages(8, mark="kept"))
    trio.settle()
    trio.keep = witness.hear(trio)
    trio.advance(300)
    assert [node.replica.commit_index for node in trio.nodes.values()] == [
        second.replica.end_index
    ] * 3
    return witness


def test_commits_claims_and_votes_leave_after_their_sync() -> None:
    """Every commit index, durable claim and vote that leaves a replica is on stable storage, where
    it has to be, at that moment."""
    witness = live()
    assert min(witness.commits, witness.replies, witness.votes) >= 2


class NoSync(RaftReplica):
    """Planted: the group commit reports success without fdatasync."""

    def _begin_sync(self, now_ns: int) -> SyncTicket | None:
        ticket = super()._begin_sync(now_ns)
        if ticket is None or self._underway is None:
            return ticket
        lazy = SyncTicket(ticket.number, lambda: None)
        self._underway = (lazy, *self._underway[1:])
        return lazy


class EagerCore(Core):
    """Planted: received counts as durable."""

    class log_type(LogState):
        def leader_claim(self) -> int:
            return self.view.end_index

        def follower_claim(self) -> int:
            return self.verified_index


class EagerReplica(RaftReplica):
    core_type = EagerCore


class ForgetfulVoter(RaftReplica):
    """Planted: term and vote are written but not synced."""

    def _persist(self, hard_state: HardState) -> None:
        self._hard_state._slots.sync = lambda: None  # type: ignore[method-assign]
        super()._persist(hard_state)


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        (NoSync, "committed, durable on|claims .* durable"),
        (EagerReplica, "committed, durable on|claims .* durable"),
        (ForgetfulVoter, "before term and vote are synced"),
    ],
)
def test_the_witness_notices_a_missing_sync(planted: type[RaftReplica], complaint: str) -> None:
    """Without the sync, or with a claim ahead of it, the same run turns red: the trace can fail."""
    with pytest.raises(AssertionError, match=complaint):
        live(replica_type=planted)
