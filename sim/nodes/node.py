"""One simulated node: its permanent medium, and its processes, each started from the content of the
medium by the product's own code.

This module wires store, replica, machine and group over the forgetful disk, as a node does, and
exposes what checkers read. Each node uses another append mode for its log. The planted bugs are in
`bugs.py`.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import Effects
from ledgermq.node.broker.restoring import restore
from ledgermq.node.replica.background.indexing import Indexer
from ledgermq.node.replica.background.ports import Worker
from ledgermq.node.replica.background.scrubbing import Plan, Scrub
from ledgermq.node.replica.background.trim_reports import Trimming
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.node.replica.hosting.assembling import machine_of, replica_of
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.maintenance.digest_exchange import DigestExchange
from ledgermq.node.replica.retention.scrub import Differs, Scrubber
from ledgermq.proto.entries.layout import BODY_AT, HEADER_BYTES
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.records.control import SealRecord, UnknownControlRecord
from ledgermq.proto.types import Identity, Range, Role
from ledgermq.raft.config import MS, Chance, Members, RaftConfig, Rule
from ledgermq.raft.transfer import LeaderChange
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.truth import Truth, chains_of
from ledgermq.sim.machine.disk import ForgetfulDisk, Killed
from ledgermq.sim.machine.ports import DiskChance
from ledgermq.sim.machine.settings import Sections, Settings
from ledgermq.sim.nodes.bugs import (
    Bug,
    digests_type,
    exchange_type,
    group_type,
    hosted_type,
    install_type,
    keys_type,
    log_type,
    replica_type,
    retainer_type,
    scrubber_type,
    store_type,
)
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.lookup import TIME_MAX
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import MODES, make_writer
from ledgermq.storage.state.identity import mint

CLUSTER_ID = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
CREATED_MS = 1
BYTES_A_UNIT = 128
"""An index file has one unit per this many bytes of a log file."""
QUEUE_FILE_BYTES = 20 * 512
STORE_HOST = bytes(8)
KEY_SLOTS, KEY_UNITS = 64, 128
"""Small, so that key files are filled and removed."""
SCRUB = Plan(bytes_per_s=256 << 10, again_s=3.0)
"""Each file is read a few times in a run."""
RECORD_BODY_AT = BODY_AT - HEADER_BYTES
"""The offset of the body in a message record."""


class WatchedMachine(Machine):
    """The product's machine, which also reports every range it applies and every state it
    exports."""

    node: str
    truth: Truth

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.exported: list[tuple[int, dict[str, Any]]] = []
        """Applied index and state of exports that no checker has compared yet."""
        self._seals: Mapping[int, SealRecord] | None = None
        """The seals that were looked at last; they are replaced as a whole."""
        self._members: GroupMembers | None = None

    def export(self, log_id: str) -> dict[str, Any]:
        value = super().export(log_id)
        self.exported.append((self.applied_index, value))
        return value

    def apply(self, entries: Range) -> Effects:
        try:
            effects = super().apply(entries)
        except UnknownControlRecord as error:
            raise Violation("level", f"{self.node} has to stop: {error}") from error
        self.truth.applied(self.node, effects.entries)
        if self.members is not self._members:
            self._members = self.members
            self.truth.voted(len(self.members.voters) if self.members else 0)
        if self.retained.seals is not self._seals:
            self._seals = self.retained.seals
            self.truth.sealed(self.node, self._seals.values())
        if self.retained.tree is not None:
            self.truth.grown(self.node, self.retained)
        return effects


class CountedTrimming(Trimming):
    """A replica's removals, counted for the run."""

    files_removed = 0

    def file_removed(self, paths: list[str]) -> None:
        self.files_removed += 1


class WatchedScrubber(Scrubber):
    """The product's scrub, whose results are compared with what was committed."""

    medium: Medium

    def read(self, base: int) -> Iterator[int]:
        try:
            yield from super().read(base)
        except Differs:
            self._check(base)
            raise
        self._check(base)

    def _check(self, base: int) -> None:
        self.medium.read_whole(base, self._source.facts().committed_pos)


class FrequentIndexer(Indexer):
    """Collects entries for longer than on a node, and syncs more often, as a run takes seconds."""

    gather_s = 0.5
    sync_every_s = 1.5


class Life(OpenReplica):
    """The group while it is open in a process, as the checkers see it. Its snapshots follow each
    other faster than on a node, because a run takes seconds, and its housekeeping more slowly,
    because a turn for it alone shows nothing new."""

    machine: WatchedMachine
    disk: ForgetfulDisk
    log: EntryLog
    replica: RaftReplica
    trimming: CountedTrimming
    trimming_type = CountedTrimming
    indexer_type = FrequentIndexer
    housekeeping_ns = 200 * MS
    checkpoint_every_ns = 1_500 * MS
    snapshot_every_ns = 4_000 * MS
    changed: Callable[[LeaderChange], None]

    def leader_changed(self, change: LeaderChange) -> None:
        self.changed(change)

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
        """The members by which this replica may have counted last: an uncommitted change may have
        been appended after that."""
        known = self.replica.core.configurations
        return (
            known.at(self.commit_index),
            *(members for index, members in known.runs if index > self.commit_index),
        )

    @property
    def promise(self) -> tuple[int, str | None]:
        return self.store.hard_state.value.term, self.store.hard_state.value.vote

    @property
    def open_changes(self) -> tuple[tuple[int, Members, Members], ...]:
        known = self.replica.core.configurations
        if known.latest_index <= self.commit_index:
            return ()
        return tuple(
            (index, known.at(index - 1), members)
            for index, members in known.runs
            if index > self.commit_index
        )

    def term_at(self, index: int) -> int:
        return self.log.term_at(index)

    def chain_at(self, index: int) -> int:
        with self.disk.inspected():
            return self.log.chain_at(index)

    def entry(self, index: int) -> Range:
        with self.disk.inspected():
            return self.log.read(index, 1)

    def positions_of(self, key: int) -> list[int]:
        """The positions that the key index has under this hash, newest first."""
        with self.disk.inspected():
            return list(dict.fromkeys(self.key_index.find(key, 0, TIME_MAX)))

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
    """A node's disk through all its processes, and its replacement after it was lost. A founder's
    directory begins with the group's first entry, that of a joining node is empty."""

    def __init__(
        self, name: str, settings: Settings, bug: Bug = Bug.NONE, *, founder: bool = True
    ) -> None:
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
        self.disk: ForgetfulDisk = ForgetfulDisk()
        self.sync_failed = False
        """Whether a sync of this process was made to fail."""
        self.harmed = False
        """Whether safe bytes on this medium were ever damaged: the node may then find its log
        damaged, and must repair it."""
        self.wounded = False
        """Whether it was damaged, and not fully verified since."""
        self.busy = False
        """Whether the node's own code is running, not a checker's."""
        self._accesses_left: int | None = None
        self._kills_to_come: list[int] = []
        self._bug = bug
        broken = hosted_type(bug)
        # Nothing else needs the processor while a digest is computed.
        digests = type("Digests", (digests_type(bug),), {"pause": lambda self, length: None})
        self.exchange_type: type[DigestExchange] = type(
            "Exchange", (exchange_type(bug),), {"digests_type": digests}
        )
        self.retainer_type = retainer_type(bug)
        self.sections = Sections(name, Path("/") / name)
        scrubber = type("Watched", (WatchedScrubber, scrubber_type(bug)), {"medium": self})
        self._life_type: type[Life] = type(
            "Watched" + Life.__name__,
            (Life,) if broken is OpenReplica else (Life, broken),
            {"scrub_type": type("Scrub", (Scrub,), {"scrubber_type": scrubber})},
        )
        self.identity = self._make()

    def _make(self) -> Identity:
        incarnation = str(
            uuid.uuid5(
                uuid.UUID(CLUSTER_ID),
                self.name if self.directories == 1 else f"{self.name} {self.directories}",
            )
        )
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
        for directory in (
            self.root,
            f"{self.root}/state",
            f"{self.root}/dledger-{self.name}",
            self.data_directory,
        ):
            self.disk.sync_dir(directory)
        return identity

    def live(
        self,
        clock_ns: Callable[[], int],
        chance: Chance,
        boot_id: int,
        truth: Truth,
        worker: Callable[[str], Worker],
        thread: Callable[[], Executor] = Executor,
    ) -> Life:
        """Recover and start, as a node opens a group. `worker` makes workers, and `thread`
        executors. Raises Unreadable, OSError, StorageError."""
        self.sync_failed = False
        self.truth = truth
        self.disk.on_access = None if self._accesses_left is None else self._on_access
        settings = self.settings
        mode = (
            settings.append
            or MODES[
                (sorted(self.voters).index(self.name) if self.name in self.voters else 0)
                % len(MODES)
            ]
        )
        writer = make_writer(mode, buffers=3, buffer_bytes=4096)
        store = store_type(self._bug).open(
            self.disk, self.root, self.identity, writer=writer, log_type=log_type(self._bug)
        )
        try:
            if store.log.fenced is not None:
                raise store.log.fenced
            return self._life(store, clock_ns, chance, boot_id, worker=worker, thread=thread)
        except BaseException:
            # Also when the process is killed in between: its files must be free for the next one.
            store.abandon()
            raise

    def _life(
        self,
        store: GroupStore,
        clock_ns: Callable[[], int],
        chance: Chance,
        boot_id: int,
        worker: Callable[[str], Worker],
        thread: Callable[[], Executor],
    ) -> Life:
        settings = self.settings
        machine = machine_of(store, WatchedMachine)
        machine.node, machine.truth, machine.level_max = self.name, self.truth, self.level_max
        restore(store, machine)
        replica = replica_of(
            store,
            machine,
            RaftConfig(
                self.name,
                self.voters if self.founder else (),
                boot_id,
                timing=settings.timing,
                incarnation=self.identity.incarnation,
                rule=settings.rule if self.founder else Rule.MAJORITY,
                ha=settings.ha,
            ),
            chance,
            clock_ns,
            store_host=STORE_HOST,
            # At first all founders have met. A later node takes part when the log says so.
            admitted=self.founder and self.directories == 1,
            lazy=settings.lazy,
            replica_type=replica_type(self._bug),
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
        index = keys_type(self._bug)(
            self.disk, self.root, self.identity.log_id, slots=KEY_SLOTS, units=KEY_UNITS
        )
        index.start(store.log.begin_index, store.log.end_index, store.log.chain_at)
        life = self._life_type(
            store,
            machine,
            group,
            index,
            executor=thread(),
            clock_ns=clock_ns,
            worker=worker,
            scrub=SCRUB,
        )
        life.disk, life.log, life.replica = self.disk, store.log, replica
        return life

    def holds(self, pos: int, data: bytes) -> bool:
        """Whether these bytes would survive a power cut now at this position of the log. A lying
        medium is believed, because no node could know."""
        if self.harmed or self.disk.lies:
            return True
        base = pos - pos % self.file_bytes
        path = f"{self.data_directory}/{base:020d}"
        # Entries in the lost directory may have been counted: without this node's vote no node that
        # lacks them can lead.
        disks = (self.disk,) if self.former is None else (self.disk, self.former)
        return any(disk.on_medium(path, pos - base, len(data)) == data for disk in disks)

    def read_whole(self, base: int, end_pos: int) -> None:
        """The scrub calls a log file right, up to this end of what it knows to be committed."""
        if not self.harmed:
            # All bytes are compared at the end of the run.
            return
        with self.disk.inspected():
            data = self.disk.read_file(f"{self.data_directory}/{base:020d}")
        for piece in self.truth.pieces_from(base):
            if piece.end_pos > min(end_pos, base + self.file_bytes):
                return
            if data[piece.pos - base : piece.end_pos - base] != piece.data:
                raise Violation(
                    "scrub",
                    f"{self.name} read the log file at {base} and did not see that entries"
                    f" {piece.first_index} to {piece.last_index} are damaged",
                )

    def wipe(self) -> None:
        """The directory is lost, and the node creates a new one. No process runs."""
        self.former = self.disk
        self.directories += 1
        self.repair()
        self.sync_failed = self.harmed = self.wounded = False
        self.disk = ForgetfulDisk()
        self.identity = self._make()

    def first_difference(self, pieces: Iterable[Range], life: Life) -> int | None:
        """The first entry of the first of these ranges that differs in the log; None if all are
        equal. Durable entries are read from the files themselves."""
        last, durable = life.machine.applied_index, life.replica.durable_index
        for piece in pieces:
            if piece.first_index < life.begin_index or piece.last_index > last:
                continue
            if piece.last_index <= durable:
                base = piece.pos - piece.pos % self.file_bytes
                same = (
                    self.disk.read_file(f"{self.data_directory}/{base:020d}")[
                        piece.pos - base : piece.end_pos - base
                    ]
                    == piece.data
                )
            else:
                same = all(
                    life.chain_at(piece.first_index + at) == chain
                    for at, chain in enumerate(chains_of(piece))
                )
            if not same:
                return piece.first_index
        return None

    def crash(self, chance: DiskChance | None) -> None:
        """End a process; with a random source the power is cut, too."""
        if chance is not None:
            self.disk.power_cut(chance)
        self.disk = self.disk.successor()

    def kill_after(self, accesses: int, *again: int) -> None:
        """End the node in the middle of its work after this many disk accesses, and so its next
        processes."""
        self._accesses_left = accesses
        self.disk.on_access = self._on_access
        self._kills_to_come = list(again)

    def _on_access(self) -> None:
        if self._accesses_left is None or not self.busy:
            return
        self._accesses_left -= 1
        if self._accesses_left < 0:
            self._accesses_left = self._kills_to_come.pop(0) if self._kills_to_come else None
            raise Killed

    def fail_next_sync(self) -> None:
        """The next sync of any file reports EIO, and its data is lost (docs/architecture.md,
        Durability)."""

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
