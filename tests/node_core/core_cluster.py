"""Three complete replicas in one thread on virtual time: `Group` over the Raft replica, the entry
log and consume queues on forgetful disks.

The network delays and drops packets and is partitioned, syncs take time, and nodes crash with or
without their page cache, or return with an empty directory. Clocks may run at different rates. A
seed determines the run.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from random import Random
from typing import Any

from ledgermq.node.broker.calls.member_calls import Returned
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.broker.group import Group
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.broker.restoring import restore
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.raft.config import MS, Members, RaftConfig
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state.identity import mint

CLUSTER = "6b1d6a3c-6a0e-4f2b-9a59-0d4c6e1f7a10"
CREATED_MS = 1_700_000_000_000
NAMES = ("n1", "n2", "n3")
SETTINGS = LeaderSettings(
    times=LeaseTimes(handover_ns=0, liveness_ns=2000 * MS), entry_bytes_max=65536 - 8
)


class Node:
    """One node: its disk, its current process, and the time of its next turn."""

    def __init__(self, name: str, settings: LeaderSettings) -> None:
        self.name = name
        self.settings = settings
        self.boots = 0
        self.wake_serial = 0
        self.rate = 1.0
        """The rate of its clock."""
        self.slept_ns = 0
        """By how much its clock is behind, because it stood still while the machine was
        suspended."""
        self.suspended_at_ns: int | None = None
        self.held: list[tuple[str, Any]] = []
        """What ended while the machine was suspended; it is told when the machine goes on."""
        self.directories = 0
        self._new_directory()
        self.alive = False
        self.group: Group

    def _new_directory(self) -> None:
        self.disk = ForgetfulDisk()
        incarnation = f"00000000-0000-4000-8000-0000000000{self.directories}{self.name[-1]}"
        sizes = {
            "data_file_bytes": 65536,
            "index_file_bytes": 32 * 512,
            "consume_queue_file_bytes": 20 * 50,
        }
        self.identity = mint(CLUSTER, "g", self.name, incarnation, CREATED_MS, **sizes)
        GroupStore.create(self.disk, "/data/g", self.identity)
        self.directories += 1

    def wipe(self) -> None:
        """Its directory is lost: it returns with an empty one and its old name."""
        assert not self.alive
        self._new_directory()

    def start(self, now_ns: int) -> None:
        self.boots += 1
        self.store = GroupStore.open(self.disk, "/data/g", self.identity)
        assert self.store.log.fenced is None
        joins = self.directories > 1
        if not joins:
            bootstrap(self.store.log, NAMES, CREATED_MS)
        self.machine = Machine(
            self.store.queues,
            lambda offset, size: bytes(self.store.log.record_at(offset, size)),
            self.store.log.index_at,
        )
        self.restored = self._restore()
        config = RaftConfig(
            self.name, () if joins else NAMES, self.boots, incarnation=self.identity.incarnation
        )
        commit = max(0, self.machine.applied_index)
        chance = Random(f"{self.name}/{self.boots}")
        log, hard_state = self.store.log, self.store.hard_state
        said = self.machine.members
        members = (
            None
            if said is None
            else Members(said.voters, said.learners, said.incarnations, said.returning)
        )
        known: dict[str, Any] = {"commit_index": commit, "admitted": not joins}
        known["members"] = None if members is None else (self.machine.applied_index, members)
        replica = RaftReplica(
            "g", config, log, hard_state, chance, self.clock(now_ns), store_host=bytes(8), **known
        )
        self.group = Group("g", self.name, replica, self.machine, self.settings)
        self.alive = True

    def clock(self, now_ns: int) -> int:
        """The time of its own clock."""
        return round(now_ns * self.rate) - self.slept_ns

    def _restore(self) -> bool:
        restore(self.store, self.machine)
        return self.machine.applied_index >= 0

    def save(self) -> None:
        self.store.queues.sync()
        self.store.write_snapshot(self.machine.export(self.identity.log_id))

    def crash(self, chance: Random, *, power: bool) -> None:
        self.alive = False
        old, self.disk = self.disk, self.disk.successor()
        del old
        if power:
            self.disk.power_cut(chance)


class Cluster:
    """Nodes, a network, and a queue of events by time."""

    def __init__(self, seed: int, settings: LeaderSettings = SETTINGS) -> None:
        self.rng = Random(seed)
        self.now_ns = 0
        self.nodes = {name: Node(name, settings) for name in NAMES}
        self.events: list[tuple[int, int, str, str, Any]] = []
        self.serial = 0
        self.cut: set[str] = set()
        self.drop = 0.0
        self.outcomes: dict[int, Result | Refused] = {}
        for node in self.nodes.values():
            self.boot(node)

    def later(self, delay_ns: int, what: str, node: str, value: Any) -> None:
        self.serial += 1
        heappush(self.events, (self.now_ns + delay_ns, self.serial, what, node, value))

    def boot(self, node: Node) -> None:
        node.start(self.now_ns)
        self.wake(node, self.now_ns)

    def wake(self, node: Node, at_ns: int) -> None:
        """Schedule the next turn of a node; an earlier schedule is replaced."""
        self.later(max(0, at_ns - self.now_ns), "wake", node.name, self.serial + 1)
        node.wake_serial = self.serial

    def leader(self) -> Node | None:
        """The serving leader of the highest term."""
        serving = [node for node in self.nodes.values() if node.alive and node.group.leader.serving]
        return max(serving, key=lambda node: node.group.replicator.term, default=None)

    def turn(
        self,
        node: Node,
        calls: list[Call] | None = None,
        packets: list[tuple[str, PeerPacket]] | None = None,
        synced: list[tuple[SyncTicket, OSError | None]] | None = None,
    ) -> None:
        output = node.group.turn(
            node.clock(self.now_ns),
            CREATED_MS + self.now_ns // MS,
            calls or [],
            packets or [],
            synced or [],
        )
        for done in output.done:
            assert done.token not in self.outcomes, f"token {done.token} was answered twice"
            self.outcomes[done.token] = done.outcome
        for to, packet in output.packets:
            lost = self.rng.random() < self.drop or (node.name in self.cut) != (to in self.cut)
            if not lost:
                payload = bytes(packet.payload)
                self.later(
                    self.rng.randint(1, 3) * MS,
                    "packet",
                    to,
                    (node.name, PeerPacket(packet.header, payload)),
                )
        if output.sync is not None:
            self.later(self.rng.randint(1, 8) * MS, "sync", node.name, (node.boots, output.sync))
        # Its clock may run slowly; the turn must not come before the requested time.
        wake_at_ns = output.wake_at_ns + node.slept_ns
        self.wake(node, math.ceil((wake_at_ns + 1) / node.rate) if node.rate != 1 else wake_at_ns)

    def run(self, until_ns: int) -> None:
        """Run all events up to a time."""
        while self.events and self.events[0][0] <= until_ns:
            at, _, what, name, value = heappop(self.events)
            self.now_ns = max(self.now_ns, at)
            node = self.nodes[name]
            if node.suspended_at_ns is not None:
                if what != "packet":
                    node.held.append((what, value))
            elif node.alive:
                self.happen(what, node, value)
        self.now_ns = until_ns

    def happen(self, what: str, node: Node, value: Any) -> None:
        """One event of a live node."""
        if what == "packet":
            self.turn(node, packets=[value])
        elif what == "sync" and value[0] == node.boots:
            value[1].run()
            self.turn(node, synced=[(value[1], None)])
        elif what == "wake" and value == node.wake_serial:
            self.turn(node)

    def suspend(self, node: Node) -> None:
        """Its machine is suspended: no turn, no packet, and its monotonic clock stands still."""
        node.suspended_at_ns = self.now_ns

    def resume(self, node: Node) -> None:
        """Its machine goes on, and does not know that time has passed."""
        assert node.suspended_at_ns is not None
        node.slept_ns += round((self.now_ns - node.suspended_at_ns) * node.rate)
        node.suspended_at_ns = None
        held, node.held = node.held, []
        for what, value in held:
            self.happen(what, node, value)

    def crash(self, name: str, *, power: bool) -> None:
        self.nodes[name].crash(self.rng, power=power)

    def lose(self, name: str) -> None:
        """A node returns without its directory; its greeting tells the other nodes about the new
        one."""
        node = self.nodes[name]
        if node.alive:
            self.crash(name, power=False)
        node.wipe()
        self.boot(node)
        self.greet(name)

    def greet(self, name: str) -> None:
        incarnation = self.nodes[name].identity.incarnation
        for other in self.nodes.values():
            if other.alive and other.name != name:
                self.turn(other, calls=[Returned(name, incarnation)])

    def heal(self) -> None:
        """Restart all nodes and heal the network."""
        self.cut.clear()
        self.drop = 0.0
        for node in self.nodes.values():
            if not node.alive:
                self.boot(node)
