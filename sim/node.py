"""One simulated node: its medium, which lasts, and its lives, each started from what the medium holds by the product's own code.

Here lives the wiring of entry log, hard state and Raft replica over the forgetful disk, and what a checker may look at. Each of the nodes
appends to its log in another way. The planted bugs that prove the simulator's worth are in `bugs.py`.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ledgermq.node.core.flush import LazySync
from ledgermq.node.core.ports import SyncTicket
from ledgermq.node.core.replica import RaftReplica
from ledgermq.node.core.replica_boot import bootstrap
from ledgermq.proto.types import Identity, Role
from ledgermq.raft.config import MS, Chance, RaftConfig
from ledgermq.sim.bugs import Bug, disk_type, log_type, replica_type
from ledgermq.sim.checkers import Violation
from ledgermq.sim.disk import Chance as DiskChance
from ledgermq.sim.disk import ForgetfulDisk, Killed
from ledgermq.storage.entry_log import EntryLog
from ledgermq.storage.errors import StorageError
from ledgermq.storage.hard_state import HardStateFile
from ledgermq.storage.identity import mint
from ledgermq.storage.log_writer import MODES, make_writer

GROUP = "g1"
CLUSTER_ID = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
CREATED_MS = 1
DATA_FILE_BYTES = 16 << 10
INDEX_FILE_BYTES = 32 * 128
SMALL_FILE_BYTES = 4 << 10
"""For runs in which files of the log are trimmed."""
STORE_HOST = bytes(8)
LAZY = LazySync(interval_ns=100 * MS, least_bytes=4096, thorough_ns=600 * MS)
"""Long enough for crashes in between, short enough for a run to see their end."""
KEPT = 256


class Life:
    """One run of a node's process."""

    def __init__(self, medium: Medium, replica: RaftReplica) -> None:
        self.replica = replica
        self.finished: list[tuple[SyncTicket, OSError | None]] = []
        self._medium = medium

    def take_finished(self) -> list[tuple[SyncTicket, OSError | None]]:
        finished, self.finished = self.finished, []
        return finished

    # What checkers look at

    @property
    def role(self) -> Role:
        return self.replica.role

    @property
    def term(self) -> int:
        return self.replica.term

    @property
    def end_index(self) -> int:
        return self.replica.log.end_index

    @property
    def commit_index(self) -> int:
        return self.replica.commit_index

    @property
    def tip(self) -> tuple[int, int, int]:
        log = self.replica.log
        return log.end_index, log.end_term, log.end_chain

    def term_at(self, index: int) -> int:
        return self.replica.log.term_at(index)

    def chain_at(self, index: int) -> int:
        return self.replica.log.chain_at(index)

    @property
    def file_bytes(self) -> int:
        return self._medium.file_bytes

    @property
    def begin_index(self) -> int:
        return self.replica.log.begin_index

    def stored_on_medium(self, index: int) -> bool:
        entries = self.replica.log.read(index, 1)
        base = entries.pos - entries.pos % self.file_bytes
        path = f"{self._medium.directory}/data/{base:020d}"
        return self._medium.disk.on_medium(path, entries.pos - base, len(entries.data)) == bytes(entries.data)

    def bytes_behind_end(self) -> int:
        end, disk, left = self.replica.log.end_pos, self._medium.disk, 0
        for name in disk.listdir(f"{self._medium.directory}/data"):
            if name.isdigit():
                data = disk.read_file(f"{self._medium.directory}/data/{name}")
                rest = data[max(0, end - int(name)) :]
                left += len(rest) - rest.count(0)
        return left


def _left_of(life: Life, index: int) -> int | None:
    """The chain CRC of an entry that the medium holds; None for one that is not there, or was being cut when the life ended."""
    try:
        return life.chain_at(index) if life.stored_on_medium(index) else None
    except StorageError:
        return None


class Remains:
    """What a dead node's medium is known to hold: the chain CRCs of its last entries that a power cut would leave."""

    role = Role.FOLLOWER
    term = -1
    commit_index = -1
    tip = (-1, -1, 0)

    def __init__(self, chains: dict[int, int], begin_index: int = 0) -> None:
        self._chains = chains
        self.begin_index = begin_index
        self.end_index = max(chains, default=-1)

    def term_at(self, index: int) -> int:
        raise AssertionError("a dead node has no opinion")

    def chain_at(self, index: int) -> int:
        return self._chains.get(index, -1)

    def stored_on_medium(self, index: int) -> bool:
        return index in self._chains

    def bytes_behind_end(self) -> int:
        return 0


class Medium:
    """A node's disk through all its lives."""

    def __init__(self, name: str, voters: tuple[str, ...], bug: Bug = Bug.NONE, file_bytes: int = DATA_FILE_BYTES) -> None:
        self.name = name
        self.file_bytes = file_bytes
        self.voters = voters
        self.directory = f"/{name}/{GROUP}/dledger-{name}"
        self.disk: ForgetfulDisk = disk_type(bug)()
        self.sync_failed = False
        """Whether a sync of this life was made to fail."""
        self.busy = False
        """The node's own code is running, not a checker's."""
        self._accesses_left: int | None = None
        self._kills_to_come: list[int] = []
        self._bug = bug
        self._life: Life | None = None
        self._remains = Remains({})
        self._identity = self._make()

    def _make(self) -> Identity:
        incarnation = str(uuid.uuid5(uuid.UUID(CLUSTER_ID), self.name))
        identity = mint(
            CLUSTER_ID,
            GROUP,
            self.name,
            incarnation,
            CREATED_MS,
            data_file_bytes=self.file_bytes,
            index_file_bytes=INDEX_FILE_BYTES * self.file_bytes // DATA_FILE_BYTES,
        )
        self.disk.mkdirs(self.directory)
        EntryLog.create(self.disk, self.directory, identity)
        HardStateFile.create(self.disk, f"{self.directory}/hardstate").close()
        log = EntryLog.open(self.disk, self.directory, identity, clean=True)
        bootstrap(log, self.voters, CREATED_MS)
        log.close()
        for path in self.disk.files():
            self.disk.open(path).sync()
        for directory in (self.directory, f"{self.directory}/data", f"{self.directory}/index"):
            self.disk.sync_dir(directory)
        return identity

    def live(self, now_ns: int, chance: Chance, boot_id: int) -> Life:
        """Recover and start."""
        self.sync_failed = False
        self.disk.on_access = self._on_access
        writer = make_writer(MODES[sorted(self.voters).index(self.name) % len(MODES)], buffers=3, buffer_bytes=4096)
        log = log_type(self._bug).open(self.disk, self.directory, self._identity, clean=False, writer=writer)
        if log.fenced is not None:
            raise Violation("I10", f"{self.name} finds its log damaged at start: {log.fenced}")
        hard_state = HardStateFile.open(self.disk, f"{self.directory}/hardstate")
        config = RaftConfig(self.name, self.voters, boot_id)
        replica = replica_type(self._bug)(GROUP, config, log, hard_state, chance, now_ns, store_host=STORE_HOST, lazy=LAZY)
        self._life = Life(self, replica)
        return self._life

    def watched(self) -> Life | Remains:
        """The living replica, or what is known of a dead one's medium."""
        return self._life if self._life is not None else self._remains

    def crash(self, chance: DiskChance | None) -> None:
        """End the life; with a source of chance the power goes, too."""
        life, self._life = self._life, None
        assert life is not None
        last = life.end_index
        begin = life.begin_index
        indexes = range(max(begin, last - KEPT), last + 1)
        self._remains = Remains({index: chain for index in indexes if (chain := _left_of(life, index)) is not None}, begin)
        if chance is not None:
            self.disk.power_cut(chance)
        self.disk = self.disk.successor()

    def abandon(self, chance: DiskChance | None = None) -> None:
        """A life that did not get through its recovery; with a source of chance the power goes, too."""
        if chance is not None:
            self.disk.power_cut(chance)
        self.disk = self.disk.successor()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around everything the node's own code does."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def kill_after(self, accesses: int, *again: int) -> None:
        """After so many accesses of its disk the node ends in the middle of what it does, between two lines, and so do its next lives."""
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
        """The next sync of anything reports EIO, and what it should have stored is lost (design §3)."""

        def fail(path: str) -> None:
            self.disk.on_sync = None
            self.sync_failed = True
            raise OSError(errno.EIO, "simulated medium error", path)

        self.disk.on_sync = fail

    def repair(self) -> None:
        """No more faults from this medium."""
        self.disk.on_sync = None
        self.disk.capacity_bytes = None
        self.disk.mend()
        self._accesses_left = None
        self._kills_to_come.clear()

    def fill(self) -> None:
        """The disk has no room for anything more."""
        self.disk.capacity_bytes = self.disk.used_bytes

    def free(self) -> None:
        """Space came back."""
        self.disk.capacity_bytes = None
