"""The replication port: how a broker group's machine reaches whatever keeps its log equal on several nodes.

Raft (`replica.py`) is the first implementation; HA push will be the second. Here live only the protocol and its values. Everything is a
plain synchronous call; time comes in as monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ledgermq.proto.layout import Columns
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import I32, I64, Range, ReplicaStatus, Role, UnsealedBatch
from ledgermq.raft.config import Members
from ledgermq.raft.ha_control import Appointment, HaRequest
from ledgermq.raft.membership import MemberChange
from ledgermq.raft.messages import LeaderContact
from ledgermq.raft.transfer import Cause, Handover, LeaderChange
from ledgermq.storage.consume_queue import Minimum, QueueUnits
from ledgermq.storage.errors import Damaged, is_exhausted


@dataclass(frozen=True, slots=True)
class PeerPacket:
    """One replication message to or from a peer: a serialised `ledgermq.v1` header and the raw entry bytes that belong to it.

    `payload` is empty or exactly the bytes of one Range. The transport carries both unchanged, may lose, repeat or reorder packets.
    """

    header: bytes
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class SyncTicket:
    """One group commit. `run` blocks (fdatasync of every file dirtied so far and of new directories) and raises OSError; it is called once,
    on any thread. Its outcome comes back through `Replicator.synced`. At most one ticket of a group is under way. `entries` and `size`
    (bytes) say what it is the first to cover; both are 0 for a sync of the mark alone."""

    number: int
    run: Callable[[], None]
    entries: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaOutput:
    """What a turn of the replicator leaves for its caller.

    Everything that must be durable first already is. Duties in this order: start `sync` (if any), send `packets`, then read the committed
    entries up to `commit_index` through `read_committed` and apply them. `role`/`term`/`leader` changed when `role_changed` is set.
    """

    packets: tuple[tuple[str, PeerPacket], ...]
    sync: SyncTicket | None
    commit_index: int
    role_changed: bool
    wake_at_ns: int
    reads: tuple[tuple[int, int | None], ...] = ()
    """(token, index) of `read_index` calls that are decided: the entry to apply before answering, None when leadership was lost."""
    left_behind: tuple[str, int] | None = None
    """(leader, begin index): the leader says that its log, which begins there, cannot help this replica any more."""
    ha_requests: tuple[HaRequest, ...] = ()
    """What the controller is to be asked for (HA groups). Nobody waits for it; what came of it is told to `Replicator.appointed`."""


class NotLeader(Exception):
    """A proposal reached a replica that does not lead; `leader` names who does, if known. Nothing was appended."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader (leader: {leader or 'unknown'})")
        self.leader = leader


class LogFull(Exception):
    """No space for another log file. Nothing was appended; reads, elections and control records go on; writing resumes by itself."""


class Fenced(Exception):
    """The replica stopped for good after a failed sync or a proven divergence (invariants I2, I9). The process exits with `exit_code`."""

    def __init__(self, reason: str, exit_code: int = ExitCode.SYNC_FAILED) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class Diverged(Fenced):
    """The second of the two: entries here and those of the replica that leads exclude each other. The disk did nothing wrong, and the files
    are evidence; so the group ends, and what else the process carries goes on."""


class Unreadable(Exception):
    """A committed range of the log could not be read, or is not what it was; `failure` is what the store said. Nothing was decided on it,
    nothing was written: peers can mend it."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


@contextmanager
def reading() -> Iterator[None]:
    """Around a read of the log: what a repair may help is `Unreadable`. A limit of the operating system is no damage."""
    try:
        yield
    except Damaged as failure:
        raise Unreadable(failure) from failure
    except OSError as failure:
        if is_exhausted(failure):
            raise
        raise Unreadable(failure) from failure


class Replicator(Protocol):
    """One replica of one broker group. Not thread-safe: one caller owns it."""

    @property
    def role(self) -> Role: ...
    @property
    def term(self) -> int: ...
    @property
    def leader(self) -> str | None: ...
    @property
    def begin_index(self) -> int: ...
    @property
    def end_index(self) -> int: ...
    @property
    def durable_index(self) -> int: ...
    @property
    def commit_index(self) -> int: ...

    @property
    def replicated_index(self) -> int:
        """On a leader the last entry of its term that an earlier acknowledgement may rest on, ≥ `commit_index`: a majority holds it in
        memory, or, in an HA group that acknowledges alone, the master on stable storage. Elsewhere `commit_index`."""
        ...

    @property
    def appointment(self) -> Appointment | None:
        """What is agreed for this HA group as far as this replica knows; None in other groups, and before the first election."""
        ...

    def missing_isr(self, now_ns: int) -> int:
        """Leader of an HA group only: how many members of the in-sync set it would need to hear of to commit anything; 0: none."""
        ...

    def appointed(self, now_ns: int, appointment: Appointment) -> None:
        """What the controller agreed on, whenever it is news here; late or repeated words mean nothing."""
        ...

    @property
    def accepting(self) -> bool:
        """Whether `propose` may succeed: on a leader, but for the last moments of a handover."""
        ...

    @property
    def handover(self) -> Handover | None:
        """The handover under way, if any."""
        ...

    @property
    def handover_failure(self) -> str:
        """Why the last handover of this leader came to nothing, for people."""
        ...

    @property
    def last_contact(self) -> LeaderContact | None:
        """What the leader said last, on a replica that follows one; None elsewhere."""
        ...

    def durable_indexes(self) -> Mapping[str, int]:
        """Voter → how far its log is known to be on stable storage; this replica among them. Only a leader knows of the others."""
        ...

    def keeps_up(self, node: str, now_ns: int) -> bool:
        """Leader only: whether this peer was heard lately and lacks nothing that is not under way to it."""
        ...

    def lag_of(self, node: str) -> int:
        """Leader only: how many entries this peer has not stored durably, as far as is known."""
        ...

    def transfer(self, now_ns: int, to: str | None, cause: Cause, patience_ns: int) -> str | None:
        """Leader only: hand over to this voter, or to the most advanced one. None: it is under way; else why not, for people."""
        ...

    def leave(self) -> None:
        """This node is about to stop: it takes no leadership over any more. Everything else goes on."""
        ...

    @property
    def members(self) -> Members:
        """In effect as of the log's end; nobody's on a replica that joins and has heard nothing yet."""
        ...

    @property
    def members_index(self) -> int:
        """The entry that made them; they are certain once it is committed. −1 for what was true before the log."""
        ...

    def propose_members(
        self, now_ns: int, change: MemberChange, queue_offsets: I64, store_ms: int
    ) -> Sequence[Range] | str:
        """Leader only: append the membership record after `change`, alone (int64 (1,): its offset in the queue of its system topic), and
        replicate it; or why the members cannot be changed so now, for people, with nothing appended. Raises NotLeader, LogFull, Fenced."""
        ...

    def due_change(self, now_ns: int) -> MemberChange | None:
        """Leader only: the change it owes a returning learner that has caught up; for `propose_members` in the same turn."""
        ...

    def lease_index(self, now_ns: int) -> int | None:
        """The entry that must be applied before a read is answered now from this leader alone; None: it has no lease. To be asked again
        after the data was read."""
        ...

    def read_index(self, token: int, now_ns: int) -> None:
        """Ask a majority whether this replica leads; the answer comes in `ReplicaOutput.reads` under this token, on whatever role."""
        ...

    def take_changes(self) -> Sequence[LeaderChange]:
        """Leaders that came and went since the last call."""
        ...

    def tick(self, now_ns: int) -> None: ...

    def admit(self) -> None:
        """Every other voter knows this directory by now: take part from the next `tick` on. May be repeated."""
        ...

    def step(self, now_ns: int, sender: str, packet: PeerPacket) -> None:
        """Take in one packet. Malformed or stale packets are dropped and counted."""
        ...

    def synced(self, now_ns: int, ticket: SyncTicket, error: OSError | None) -> None:
        """The outcome of a ticket. Any error raises Fenced."""
        ...

    def propose(
        self,
        now_ns: int,
        batch: UnsealedBatch,
        queue_offsets: I64,
        store_ms: int,
        *,
        control: bool = False,
        urgent: bool = True,
        early: bool = False,
    ) -> Sequence[Range]:
        """Leader only: seal `batch` (server fields, CRCs, chain), append it, and replicate it. One Range per log file touched.

        `queue_offsets` (int64, n) come from the caller, who alone decides against the state at the log's end. `control` may use the
        reserve of a full disk. Without `urgent` the syncs of the batch may wait for company; with `early` somebody waits for the moment
        when a majority holds it. Raises NotLeader, LogFull or Fenced, with nothing appended.
        """
        ...

    def request_flush(self) -> None:
        """Leader only: somebody waits for the commit of what was not urgent. The next `take` begins its sync, here and on the peers."""
        ...

    def take(self, now_ns: int) -> ReplicaOutput:
        """Carry out what the core decided since the last call (truncate, append, persist term and vote) and return what is left to do."""
        ...

    def read(self, first_index: int, max_bytes: int) -> Range:
        """Entries from `first_index` on (at least one), to the end of their term run, their file, or `max_bytes`, whichever comes first.
        Raises Unreadable, and so does every call that has to read the log."""
        ...

    def status(self) -> ReplicaStatus: ...


class Messages(Protocol):
    """Committed messages of a broker group, by their place in consume queues and in the log."""

    def begin(self, topic: str, queue: int) -> int:
        """The first queue offset that can be read."""
        ...

    def end(self, topic: str, queue: int) -> int:
        """One past the last queue offset that can be read."""
        ...

    def units(self, topic: str, queue: int, first: int, count: int) -> tuple[I64, I32, I64]:
        """Physical offsets, sizes and tags codes of consecutive messages."""
        ...

    def record(self, physical_offset: int, size: int) -> bytes:
        """One message record (format §4)."""
        ...

    def properties(self, physical_offset: int, size: int) -> bytes:
        """The property string of one message record."""
        ...

    def tags_code(self, tag: str) -> int:
        """The hash of a tag as consume queues hold it."""
        ...

    def message_group(self, physical_offset: int, size: int) -> str:
        """The message group of one message record, empty without one."""
        ...

    def index_at(self, physical_offset: int) -> int:
        """The index of the entry that begins there."""
        ...


class Filter(Protocol):
    """What the picker asks of a filter."""

    @property
    def tags(self) -> frozenset[str]:
        """A message without one of these exact tags does not match; empty: the tag alone rules nobody out."""
        ...

    @property
    def cost(self) -> int:
        """What `matches` costs, as a multiple of reading a short record; 0: every message matches, and none needs to be looked at."""
        ...

    def matches(self, properties: bytes) -> bool:
        """Does a message with this property string match?"""
        ...


class Queues(Protocol):
    """The consume queues (`ledgermq.storage.consume_queue`)."""

    def next_offset(self, topic: str, queue: int) -> int:
        """One past the last unit."""
        ...

    def next_offsets(self) -> dict[str, dict[int, int]]:
        """Of every queue that ever had a message."""
        ...

    def min_offset(self, topic: str, queue: int) -> int:
        """The first offset that was not trimmed."""
        ...

    def minimums(self) -> dict[str, dict[int, Minimum]]:
        """Of every queue of which something was trimmed."""
        ...

    def raise_minimums(self, begin_pos: int) -> object:
        """The log begins at `begin_pos` from now on. Raises NoSpace, after which the same call may be repeated."""
        ...

    def forget(self, topic: str, queue: int) -> None:
        """A queue of which nothing is kept is there no more."""
        ...

    def begin_at(self, topic: str, queue: int, offset: int) -> None:
        """A queue that is not there begins at this offset."""
        ...

    def append(self, columns: Columns) -> None:
        """Add units; those that are there already are skipped. Raises NoSpace, after which the same call may be repeated."""
        ...

    def read(self, topic: str, queue: int, first: int, count: int) -> QueueUnits:
        """Consecutive units; fewer at the end of the queue. `first` of the answer is another one where units were trimmed."""
        ...
