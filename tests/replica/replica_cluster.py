"""Three replicas of one broker group in one thread: packets are kept in a list, and syncs run when
the test says so."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from bench.tools.drafts import drafts
from ledgermq.node.broker.ports import PeerPacket, ReplicaOutput, SyncTicket
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.records import control
from ledgermq.proto.types import Range, Role, UnsealedBatch
from ledgermq.raft.config import MS, RaftConfig, Timing
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.state.identity import mint

CLUSTER = "6b1d6a3c-6a0e-4f2b-9a59-0d4c6e1f7a10"
GROUP = "g1"
CREATED_MS = 1_700_000_000_000
NAMES = ("n1", "n2", "n3")
TIMING = Timing(window_bytes=16_000, range_bytes_max=4000, window_ranges=8, news_ns=0)


def messages(count: int, size: int = 60, mark: str = "m") -> UnsealedBatch:
    bodies = [f"{mark}{i:06d}".encode().ljust(size, b".") for i in range(count)]
    return encode_entries(drafts("flights", bodies, born_ms=CREATED_MS))


def term_start(term: int, leader: str) -> UnsealedBatch:
    return encode_entries([control.draft(control.TermStart(term, leader), CREATED_MS)])


class Node:
    """One replica, its disk, and its output."""

    replica_type: type[RaftReplica] = RaftReplica
    watched = True
    """Whether a reader waits at it for committed entries, so that commit news travels at once."""

    def __init__(
        self,
        name: str,
        disk: Disk,
        directory: str,
        data_file_bytes: int,
        names: tuple[str, ...] = NAMES,
        *,
        joins: bool = False,
    ) -> None:
        """`joins`: its log is empty, and it knows no members."""
        self.joins = joins
        self.name, self.disk, self.directory, self.names = name, disk, directory, names
        incarnation = f"00000000-0000-4000-8000-00000000000{name[-1]}"
        self.identity = mint(
            CLUSTER,
            GROUP,
            name,
            incarnation,
            CREATED_MS,
            data_file_bytes=data_file_bytes,
            index_file_bytes=32 * 4096,
        )
        self.boots = 0
        self.ticket: SyncTicket | None = None
        self.last: ReplicaOutput | None = None
        GroupStore.create(disk, directory, self.identity)
        store = GroupStore.open(disk, directory, self.identity)
        if not joins:
            bootstrap(store.log, names, CREATED_MS)
        store.close()
        self.replica: RaftReplica
        self.start(0)

    def start(self, now_ns: int) -> None:
        self.boots += 1
        self.ticket = None
        self.store = GroupStore.open(self.disk, self.directory, self.identity)
        named = {
            "voters": () if self.joins else self.names,
            "incarnation": self.identity.incarnation,
        }
        config = RaftConfig(self.name, boot_id=self.boots, timing=TIMING, **named)
        chance = Random(f"{self.name}/{self.boots}")
        start = (GROUP, config, self.store.log, self.store.hard_state, chance, now_ns)
        self.replica = self.replica_type(*start, store_host=bytes(8), admitted=not self.joins)
        self.replica.watch(self.watched)

    @property
    def log_directory(self) -> str:
        return self.store.log_directory

    @property
    def log(self) -> EntryLog:
        return self.replica.log

    def word(self, index: int) -> tuple[int, int]:
        return self.log.term_at(index), self.log.chain_at(index)


class Trio:
    """Three nodes; the network delivers in order, unless a test removes packets."""

    def __init__(
        self,
        disk_of: Callable[[str], tuple[Disk, str]],
        data_file_bytes: int = 4096,
        names: tuple[str, ...] = NAMES,
    ) -> None:
        self.now_ns = 0
        self.nodes = {name: Node(name, *disk_of(name), data_file_bytes, names) for name in names}
        self.network: list[tuple[str, str, PeerPacket]] = []
        self.down: set[str] = set()
        self.stalled: set[str] = set()
        """Nodes with a stalled disk: `settle` does not run their syncs."""
        self.keep: Callable[[str, str, PeerPacket], bool] = lambda sender, to, packet: True
        self.watch: Callable[[Trio], None] = lambda trio: None

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.name not in self.down]

    def take(self, node: Node) -> ReplicaOutput:
        output = node.replica.take(self.now_ns)
        if output.sync is not None:
            assert node.ticket is None
            node.ticket = output.sync
        self.network += [
            (node.name, to, packet)
            for to, packet in output.packets
            if self.keep(node.name, to, packet)
        ]
        node.last = output
        self.watch(self)
        return output

    def sync(self, node: Node, error: OSError | None = None) -> None:
        """Run the pending sync, if any, and report its end."""
        ticket, node.ticket = node.ticket, None
        if ticket is not None:
            if error is None:
                ticket.run()
            node.replica.synced(self.now_ns, ticket, error)
            self.take(node)

    def deliver(self) -> None:
        """Deliver all packets, without syncing."""
        while self.network:
            sender, to, packet = self.network.pop(0)
            if to in self.nodes and to not in self.down:
                self.nodes[to].replica.step(self.now_ns, sender, packet)
                self.take(self.nodes[to])

    def settle(self) -> None:
        """Deliver and sync until no work is left."""
        while self.network or any(
            node.ticket for node in self.up() if node.name not in self.stalled
        ):
            self.deliver()
            for node in self.up():
                if node.name not in self.stalled:
                    self.sync(node)

    def advance(self, ms: int) -> None:
        """Let time pass in small steps, settling after each."""
        for _ in range(0, ms, 10):
            self.now_ns += 10 * MS
            for node in self.up():
                node.replica.tick(self.now_ns)
                self.take(node)
            self.settle()

    def elect(self, name: str) -> Node:
        """Let the election timer of `name` run out first, and let it append its term start."""
        node = self.nodes[name]
        self.now_ns += 3000 * MS
        for other in self.up():
            if other.replica.role is Role.LEADER and other is not node:
                other.replica.tick(self.now_ns)
                self.take(other)
        self.network.clear()
        for _ in range(2):
            # A follower whose tick comes late waits for one more timeout.
            node.replica.tick(self.now_ns)
            if node.replica.role is not Role.FOLLOWER:
                break
            self.now_ns = node.replica.core.wake_at_ns(self.now_ns)
        self.take(node)
        self.settle()
        assert node.replica.role is Role.LEADER, node.replica.core
        self.propose(node, term_start(node.replica.term, name))
        self.settle()
        return node

    def propose(self, node: Node, batch: UnsealedBatch, **options: Any) -> list[Range]:
        ranges = node.replica.propose(
            self.now_ns, batch, np.arange(len(batch)), CREATED_MS, **options
        )
        self.take(node)
        return list(ranges)

    def crash(self, name: str) -> None:
        """Stop a node without cleanup."""
        self.down.add(name)
        self.network = [packet for packet in self.network if name not in packet[:2]]

    def restart(self, name: str) -> None:
        self.down.discard(name)
        self.nodes[name].start(self.now_ns)

    def isolate(self, name: str) -> None:
        self.keep = lambda sender, to, packet: name not in (sender, to)
        self.network = [packet for packet in self.network if name not in packet[:2]]

    def heal(self) -> None:
        self.keep = lambda sender, to, packet: True

    def agree(self, index: int) -> bool:
        words = {
            node.word(index) if node.log.end_index >= index else None
            for node in self.nodes.values()
        }
        return len(words) == 1 and None not in words
