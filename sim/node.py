"""One simulated node: its permanent medium, and its processes, each started from the content of the medium by the product's own code.

This module wires store, replica, machine and group over the forgetful disk, as a node does, and exposes what checkers read. Each node uses
another append mode for its log. The planted bugs are in `bugs.py`.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ledgermq.node.broker.calls.outcome import Call
from ledgermq.node.broker.group import Group
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import Effects
from ledgermq.node.broker.parts.members.member_forms import as_raft
from ledgermq.node.broker.ports import PeerPacket, SyncTicket, reading
from ledgermq.node.broker.restoring import restore
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.proto.control import UnknownControlRecord
from ledgermq.proto.layout import BODY_AT, HEADER_BYTES
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.types import Identity, Range, Role
from ledgermq.raft.config import Chance, Members, RaftConfig, Rule
from ledgermq.sim.bugs import Bug, disk_type, group_type, install_type, keeper_type, log_type, replica_type
from ledgermq.sim.checkers import Violation
from ledgermq.sim.disk import Chance as DiskChance
from ledgermq.sim.disk import ForgetfulDisk, Killed
from ledgermq.sim.keeping import Keeper
from ledgermq.sim.settings import Settings
from ledgermq.sim.truth import Truth, chains_of
from ledgermq.storage.identity import mint
from ledgermq.storage.log_writer import MODES, make_writer
from ledgermq.storage.store import GroupStore

CLUSTER_ID = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
CREATED_MS = 1
BYTES_A_UNIT = 128
"""An index file has one unit per this many bytes of a log file."""
QUEUE_FILE_BYTES = 20 * 512
STORE_HOST = bytes(8)
RECORD_BODY_AT = BODY_AT - HEADER_BYTES
"""The offset of the body in a message record."""


class WatchedMachine(Machine):
    """The product's machine, which also reports every range it applies."""

    node: str
    truth: Truth

    def apply(self, entries: Range) -> Effects:
        try:
            effects = super().apply(entries)
        except UnknownControlRecord as error:
            raise Violation("level", f"{self.node} has to stop: {error}") from error
        self.truth.applied(self.node, effects.entries)
        if self.retained.tree is not None:
            self.truth.grown(self.node, self.retained)
        return effects


class Life:
    """One run of a node's process: a store, a machine, a group, and the input for its next turn."""

    def __init__(
        self, disk: ForgetfulDisk, store: GroupStore, machine: WatchedMachine, group: Group, replica: RaftReplica, keeper: Keeper
    ) -> None:
        self.disk = disk
        self.store = store
        self.machine = machine
        self.group = group
        self.replica = replica
        self.keeper = keeper
        self.log = store.log
        self.calls: list[Call] = []
        self.packets: list[tuple[str, PeerPacket]] = []
        self.synced: list[tuple[SyncTicket, OSError | None]] = []
        self.syncing = False
        self.hold_calls = True
        """As the group said after its last turn: calls that arrive during a sync can wait for its end."""

    # What checkers look at

    @property
    def role(self) -> Role:
        return self.replica.role

    @property
    def term(self) -> int:
        return self.replica.term

    @property
    def end_index(self) -> int:
        return self.log.end_index

    @property
    def begin_index(self) -> int:
        return self.log.begin_index

    @property
    def commit_index(self) -> int:
        return self.replica.commit_index

    @property
    def tip(self) -> tuple[int, int, int]:
        return self.log.end_index, self.log.end_term, self.log.end_chain

    @property
    def counted(self) -> tuple[Members, ...]:
        """The members by which this replica may have counted last: an uncommitted change may have been appended after that."""
        known = self.replica.core.configurations
        return (known.at(self.commit_index), *(members for index, members in known.runs if index > self.commit_index))

    @property
    def promise(self) -> tuple[int, str | None]:
        return self.store.hard_state.value.term, self.store.hard_state.value.vote

    @property
    def open_changes(self) -> tuple[tuple[int, Members, Members], ...]:
        known = self.replica.core.configurations
        if known.latest_index <= self.commit_index:
            return ()
        return tuple((index, known.at(index - 1), members) for index, members in known.runs if index > self.commit_index)

    def term_at(self, index: int) -> int:
        return self.log.term_at(index)

    def chain_at(self, index: int) -> int:
        with self.disk.inspected():
            return self.log.chain_at(index)

    def entry(self, index: int) -> Range:
        with self.disk.inspected():
            return self.log.read(index, 1)

    def bytes_behind_end(self) -> int:
        """The number of nonzero bytes behind the end of the log."""
        end, left = self.log.end_pos, 0
        directory = f"{self.store.log_directory}/data"
        with self.disk.inspected():
            for name in self.disk.listdir(directory):
                if name.isdigit() and int(name) + self.store.identity.data_file_bytes > end:
                    rest = self.disk.read_file(f"{directory}/{name}")[max(0, end - int(name)) :]
                    left += len(rest) - rest.count(0)
        return left


class Medium:
    """A node's disk through all its processes, and its replacement after it was lost. A founder's directory begins with the group's first
    entry, that of a joining node is empty."""

    def __init__(self, name: str, settings: Settings, bug: Bug = Bug.NONE, *, founder: bool = True) -> None:
        self.name = name
        self.founder = founder
        self.level_max = LEVEL_MAX
        """The highest feature level that the program on this node reads, from its next start."""
        self.directories = 1
        """How many directories this node ever had."""
        self.install_type = install_type(bug)
        self.former: ForgetfulDisk | None = None
        """The disk that was lost last."""
        self.settings = settings
        self.file_bytes = settings.file_bytes
        self.voters = settings.names
        self.root = f"/{name}/{settings.group}"
        self.data_directory = f"{self.root}/dledger-{name}/data"
        self.disk: ForgetfulDisk = disk_type(bug)()
        self.sync_failed = False
        """Whether a sync of this process was made to fail."""
        self.harmed = False
        """Whether safe bytes on this medium were ever damaged: the node may then find its log damaged, and must repair it."""
        self.wounded = False
        """Whether it was damaged, and not fully verified since."""
        self.busy = False
        """Whether the node's own code is running, not a checker's."""
        self._accesses_left: int | None = None
        self._kills_to_come: list[int] = []
        self._bug = bug
        self.identity = self._make()

    def _make(self) -> Identity:
        incarnation = str(uuid.uuid5(uuid.UUID(CLUSTER_ID), self.name if self.directories == 1 else f"{self.name} {self.directories}"))
        identity = mint(
            CLUSTER_ID,
            self.settings.group,
            self.name,
            incarnation,
            CREATED_MS,
            data_file_bytes=self.file_bytes,
            index_file_bytes=32 * (self.file_bytes // BYTES_A_UNIT),
            consume_queue_file_bytes=QUEUE_FILE_BYTES,
        )
        GroupStore.create(self.disk, self.root, identity)
        store = GroupStore.open(self.disk, self.root, identity)
        if self.founder:
            bootstrap(store.log, self.voters, CREATED_MS, self.settings.rule)
        store.close()
        for directory in (self.root, f"{self.root}/state", f"{self.root}/dledger-{self.name}", self.data_directory):
            self.disk.sync_dir(directory)
        return identity

    def live(self, now_ns: int, chance: Chance, boot_id: int, truth: Truth) -> Life:
        """Recover and start, as a node opens a group."""
        self.sync_failed = False
        self.disk.on_access = self._on_access
        settings = self.settings
        mode = settings.append or MODES[(sorted(self.voters).index(self.name) if self.name in self.voters else 0) % len(MODES)]
        writer = make_writer(mode, buffers=3, buffer_bytes=4096)
        store = GroupStore.open(self.disk, self.root, self.identity, writer=writer, log_type=log_type(self._bug))
        if store.log.fenced is not None:
            if not self.harmed:
                raise Violation("I10", f"{self.name} finds its log damaged at start: {store.log.fenced}")
            store.abandon()
            raise store.log.fenced
        machine = WatchedMachine(store.queues, _record_of(store), store.log.index_at)
        machine.node, machine.truth, machine.level_max = self.name, truth, self.level_max
        restore(store, machine)
        checkpoint = store.read_checkpoint()
        noted = -1 if checkpoint is None else min(checkpoint.committed_index, store.log.durable_index)
        replica = replica_type(self._bug)(
            settings.group,
            RaftConfig(
                self.name,
                self.voters if self.founder else (),
                boot_id,
                timing=settings.timing,
                incarnation=self.identity.incarnation,
                rule=settings.rule if self.founder else Rule.MAJORITY,
                ha=settings.ha,
            ),
            store.log,
            store.hard_state,
            chance,
            now_ns,
            store_host=STORE_HOST,
            commit_index=max(0, machine.applied_index, noted),
            # At first all founders have met. A later node takes part when the log says so.
            admitted=self.founder and self.directories == 1,
            lazy=settings.lazy,
            members=_known_members(machine),
        )
        # A reader waits at one of the nodes, so that commit news travels in both ways.
        replica.watch(self.name == settings.names[0])
        replica.check_every_ns = 0
        largest = settings.file_bytes - 8
        leads = LeaderSettings(
            times=settings.times,
            entry_bytes_max=largest,
            policy=settings.policy,
            preferred=settings.preferred,
            transactions=settings.transactions,
            ha=settings.ha,
        )
        group = group_type(self._bug)(settings.group, self.name, replica, machine, leads)
        return Life(self.disk, store, machine, group, replica, keeper_type(self._bug)(store, machine, group, now_ns))

    def holds(self, pos: int, data: bytes) -> bool:
        """Whether these bytes would survive a power cut now at this position of the log. A lying medium is believed, because no node could
        know."""
        if self.harmed or self.disk.lies:
            return True
        base = pos - pos % self.file_bytes
        path = f"{self.data_directory}/{base:020d}"
        # Entries in the lost directory may have been counted: without this node's vote no node that lacks them can lead.
        disks = (self.disk,) if self.former is None else (self.disk, self.former)
        return any(disk.on_medium(path, pos - base, len(data)) == data for disk in disks)

    def wipe(self) -> None:
        """The directory is lost, and the node creates a new one. No process runs."""
        self.former = self.disk
        self.directories += 1
        self.repair()
        self.sync_failed = self.harmed = self.wounded = False
        self.disk = disk_type(self._bug)()
        self.identity = self._make()

    def first_difference(self, pieces: Iterable[Range], life: Life) -> int | None:
        """The first entry of the first of these ranges that differs in the log; None if all are equal. Durable entries are read from the
        files themselves."""
        last, durable = life.machine.applied_index, life.replica.durable_index
        for piece in pieces:
            if piece.first_index < life.begin_index or piece.last_index > last:
                continue
            if piece.last_index <= durable:
                base = piece.pos - piece.pos % self.file_bytes
                same = self.disk.read_file(f"{self.data_directory}/{base:020d}")[piece.pos - base : piece.end_pos - base] == piece.data
            else:
                same = all(life.chain_at(piece.first_index + at) == chain for at, chain in enumerate(chains_of(piece)))
            if not same:
                return piece.first_index
        return None

    def crash(self, chance: DiskChance | None) -> None:
        """End a process; with a random source the power is cut, too."""
        if chance is not None:
            self.disk.power_cut(chance)
        self.disk = self.disk.successor()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Context for everything that the node's own code does."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def kill_after(self, accesses: int, *again: int) -> None:
        """End the node in the middle of its work after this many disk accesses, and so its next processes."""
        self._accesses_left = accesses
        self._kills_to_come = list(again)

    def _on_access(self) -> None:
        if self._accesses_left is None or not self.busy:
            return
        self._accesses_left -= 1
        if self._accesses_left < 0:
            self._accesses_left = self._kills_to_come.pop(0) if self._kills_to_come else None
            raise Killed

    def fail_next_sync(self) -> None:
        """The next sync of any file reports EIO, and its data is lost (docs/architecture.md, Durability)."""

        def fail(path: str) -> None:
            self.disk.on_sync = None
            self.sync_failed = True
            raise OSError(errno.EIO, "simulated medium error", path)

        self.disk.on_sync = fail

    def repair(self) -> None:
        """End all faults of this medium."""
        self.disk.on_sync = None
        self.disk.capacity_bytes = None
        self.disk.mend()
        self._accesses_left = None
        self._kills_to_come.clear()

    def fill(self) -> None:
        """Leave no free space on the disk."""
        self.disk.capacity_bytes = self.disk.used_bytes

    def free(self) -> None:
        """Free the space again."""
        self.disk.capacity_bytes = None


def _record_of(store: GroupStore) -> Callable[[int, int], bytes]:
    """Read a message as a node does: whole and verified; an unreadable one ends the run of the group, not the process."""

    def record(offset: int, size: int) -> bytes:
        with reading():
            return bytes(store.log.whole_record_at(offset, size))

    return record


def _known_members(machine: Machine) -> tuple[int, Members] | None:
    """The members at the applied index, as a node passes them to its replica."""
    members = machine.members
    if members is None:
        return None
    return machine.applied_index, as_raft(members)
