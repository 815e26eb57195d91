"""The ports of a broker group: its replicator, and the storage, queues and filters that its state
and decisions use.

`Replicator` keeps the group's log equal on several nodes; `raft_replica.py` implements it for Raft
groups and HA groups. This module has only protocols and their values. Every call is plain and
synchronous; time is passed in as monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ledgermq.proto.entries.layout import Columns
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import I32, I64, Range, ReplicaStatus, Role, UnsealedBatch
from ledgermq.raft.config import Members
from ledgermq.raft.ha_control import Appointment, HaRequest
from ledgermq.raft.membership import MemberChange
from ledgermq.raft.messages import LeaderContact
from ledgermq.raft.transfer import Cause, Handover, LeaderChange
from ledgermq.storage.files.errors import Damaged, is_exhausted
from ledgermq.storage.queues.consume_queue import Minimum, QueueUnits


@dataclass(slots=True)
class PeerPacket:
    """One replication message to or from a peer: a header (docs/format.md §19) and the raw entry
    bytes that belong to it.

    `payload` is empty or exactly the bytes of one Range. The transport leaves both unchanged; it
    may lose, repeat or reorder packets.
    """

    header: bytes
    payload: bytes | memoryview = b""


class ReadBudget(Protocol):
    """The memory that answers with messages may take. A group reads messages for a Receive or a
    pull only if it `admits` the call, and tells what it has read. `version` rises when calls that
    were not admitted may be admitted now; the group then gets a turn."""

    @property
    def version(self) -> int: ...
    @property
    def open(self) -> bool:
        """Whether any call may be admitted."""
        ...

    @property
    def crowded(self) -> bool:
        """Whether only some calls are admitted while it is open, so that each is to be asked
        for."""
        ...

    def admits(self, token: int) -> bool: ...
    def take(self, token: int, size: int) -> None: ...


class Unlimited:
    """A budget without a limit."""

    version = 0
    open = True
    crowded = False

    def admits(self, token: int) -> bool:
        return True

    def take(self, token: int, size: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class SyncTicket:
    """One group commit. `run` blocks (fdatasync of every file dirtied so far and of new
    directories) and raises OSError; it is called once, on any thread. The caller reports its
    outcome to `Replicator.synced`. At most one ticket of a group is under way. `entries` and `size`
    (bytes) count what this ticket is the first to cover; both are 0 if it only syncs the durable
    mark."""

    number: int
    run: Callable[[], None]
    entries: int = 0
    size: int = 0


@dataclass(slots=True)
class ReplicaOutput:
    """The work that a turn of the replicator leaves for its caller.

    Everything that must be durable before the packets are sent already is. The caller must, in this
    order: start `sync` (if any), send `packets`, then read the committed entries up to
    `commit_index` and apply them. `role_changed` says that `role`, `term` or `leader` changed.
    """

    packets: tuple[tuple[str, PeerPacket], ...]
    sync: SyncTicket | None
    commit_index: int
    role_changed: bool
    wake_at_ns: int
    reads: tuple[tuple[int, int | None], ...] = ()
    """(token, index) of decided `read_index` calls: the entry to apply before answering, or None if
    leadership was lost."""
    left_behind: tuple[str, int] | None = None
    """(leader, begin index): the leader reports that its log begins there, so it can no longer
    bring this replica up to date."""
    ha_requests: tuple[HaRequest, ...] = ()
    """Requests to the controller (HA groups). No caller waits for them; the controller's answers
    arrive in `Replicator.appointed`."""


class NotLeader(Exception):
    """A proposal reached a replica that does not lead. `leader` is the current leader, if known.
    Nothing was appended."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader (leader: {leader or 'unknown'})")
        self.leader = leader


class LogFull(Exception):
    """No space for another log file. Nothing was appended. Reads, elections and control records
    continue; writes resume without help."""


class Fenced(Exception):
    """The replica stopped for good after a failed sync or a proven divergence (invariants I2, I9).
    The process exits with `exit_code`."""

    def __init__(self, reason: str, exit_code: int = ExitCode.SYNC_FAILED) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class Diverged(Fenced):
    """The replica stopped because of a proven divergence: its entries and the leader's exclude each
    other. The disk is not at fault and the files are evidence. Only this group stops; the other
    groups of the process continue."""


class Unreadable(Exception):
    """A committed range of the log cannot be read, or its content is damaged; `failure` is the
    storage error. No decision was based on it and nothing was written, so peers can repair the
    range."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


class reading:
    """Wraps a read of the log: failures that a repair can fix become `Unreadable`. Limits of the
    operating system are passed on as OSError."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, failure: BaseException | None, __: object) -> None:
        if isinstance(failure, Damaged) or (
            isinstance(failure, OSError) and not is_exhausted(failure)
        ):
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
    def standing(self) -> tuple[Role, int, str | None, Members]:
        """`role`, `term`, `leader` and `members` after the last `tick` or `take`."""
        ...

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
        """On a leader, the last entry of its term that an early acknowledgement may rely on, ≥
        `commit_index`: a majority holds it in memory, or, in an HA group that acknowledges alone,
        the master has it on stable storage. Elsewhere `commit_index`."""
        ...

    @property
    def appointment(self) -> Appointment | None:
        """The newest appointment of this HA group that this replica knows; None in other groups,
        and before the first election."""
        ...

    def missing_isr(self, now_ns: int) -> int:
        """Leader of an HA group only: how many members of the in-sync set it has not heard from and
        would need in order to commit; 0: none."""
        ...

    def appointed(self, now_ns: int, appointment: Appointment) -> None:
        """Takes in the controller's appointment for this group. Late or repeated appointments have
        no effect."""
        ...

    @property
    def accepting(self) -> bool:
        """Whether `propose` may succeed: on a leader, except in the last moments of a handover."""
        ...

    @property
    def handover(self) -> Handover | None:
        """The handover under way, if any."""
        ...

    @property
    def handover_failure(self) -> str:
        """Why the last handover of this leader failed, for people."""
        ...

    @property
    def last_contact(self) -> LeaderContact | None:
        """The last message from the leader, on a replica that follows one; None elsewhere."""
        ...

    def durable_indexes(self) -> Mapping[str, int]:
        """Maps each voter, this replica included, to the last entry known to be on its stable
        storage. Only a leader knows those of others."""
        ...

    def keeps_up(self, node: str, now_ns: int) -> bool:
        """Leader only: whether this peer was heard recently, and every entry that it lacks is on
        its way."""
        ...

    def lag_of(self, node: str) -> int:
        """Leader only: how many entries this peer has not yet stored durably, as far as the leader
        knows."""
        ...

    def transfer(self, now_ns: int, to: str | None, cause: Cause, patience_ns: int) -> str | None:
        """Leader only: start handing over to this voter, or to the most advanced one for None.
        Returns None, or why it is refused, for people."""
        ...

    def note_full(self, nodes: frozenset[str]) -> None:
        """The nodes, possibly this one, whose disks take no messages, as far as is known here.
        Elections and handovers avoid them."""
        ...

    def leave(self) -> None:
        """This node is about to stop: from now on the replica does not take leadership. Everything
        else continues."""
        ...

    @property
    def members(self) -> Members:
        """The members in effect as of the log's end; empty on a joining replica that has heard
        nothing yet."""
        ...

    @property
    def members_index(self) -> int:
        """The index of the entry that defines `members`; they are certain once it is committed. −1
        for the members before the log."""
        ...

    def propose_members(
        self, now_ns: int, change: MemberChange, queue_offsets: I64, store_ms: int
    ) -> Sequence[Range] | str:
        """Leader only: append the membership record of `change` as a batch of one entry and
        replicate it. `queue_offsets` (int64, shape (1,)) is its offset in the queue of its system
        topic. Returns the ranges, or why the change is impossible now, for people, with nothing
        appended. Raises NotLeader, LogFull or Fenced."""
        ...

    def due_change(self, now_ns: int) -> MemberChange | None:
        """Leader only: the change due for a returning learner that has caught up, to pass to
        `propose_members` in the same turn."""
        ...

    def read_index(self, token: int, now_ns: int) -> None:
        """Ask a quorum whether this replica leads. The answer comes in `ReplicaOutput.reads` under
        this token, whatever the role is then."""
        ...

    def take_changes(self) -> Sequence[LeaderChange]:
        """Changes of leadership since the last call."""
        ...

    def tick(self, now_ns: int) -> None: ...

    def admit(self) -> None:
        """Every other voter now knows this directory: take part from the next `tick` on. May be
        repeated."""
        ...

    def step(self, now_ns: int, sender: str, packet: PeerPacket) -> None:
        """Take in one packet. Malformed and stale packets are dropped and counted."""
        ...

    def synced(self, now_ns: int, ticket: SyncTicket, error: OSError | None) -> None:
        """Report the outcome of a ticket. Any error raises Fenced."""
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
        new_file: bool = False,
    ) -> Sequence[Range]:
        """Leader only: seal `batch` (server fields, CRCs, chain), append it, and replicate it. One
        Range per log file touched.

        `queue_offsets` (int64, n) come from the caller, who alone decides them against the state at
        the log's end. `control` may use the reserve of a full disk. Without `urgent` the syncs of
        the batch may wait for more entries; with `early` a caller waits until a majority holds the
        batch in memory. With `new_file` the log file being written ends, and the batch begins the
        next one. Raises NotLeader, LogFull or Fenced, with nothing appended.
        """
        ...

    def is_in_last_file(self, index: int) -> bool:
        """Whether an entry of the log is in the file being written."""
        ...

    def prepare_file(self) -> bool:
        """Have the log file behind the one being written made, which takes time; returns whether it
        is there."""
        ...

    def watch(self, watched: bool) -> None:
        """Whether a reader waits here for committed entries. While one does, a leader elsewhere
        sends news of commits without delay."""
        ...

    def calm_until(self, now_ns: int) -> int | None:
        """When the next turn is needed, if `take` would return nothing: no packet, no sync, no
        answer; and if commit index and `standing` are those of the last `take`. None if `take` may
        return something. Many answers of peers, and most of the leader's own syncs, leave a replica
        calm."""
        ...

    def request_flush(self) -> None:
        """Leader only: a caller waits for the commit of entries that were not urgent. The next
        `take` starts their sync, here and on the peers."""
        ...

    def take(self, now_ns: int) -> ReplicaOutput:
        """Carry out what the core decided since the last call (truncate, append, persist term and
        vote) and return the work left to do."""
        ...

    def read(self, first_index: int, max_bytes: int) -> Range:
        """Entries from `first_index` on (at least one), to the end of their term run, their file,
        or `max_bytes`, whichever comes first. Raises Unreadable, as does every call that has to
        read the log."""
        ...

    def status(self) -> ReplicaStatus: ...


class Messages(Protocol):
    """The committed messages of a broker group, addressed by consume queue or by physical offset in
    the log."""

    def begin(self, topic: str, queue: int) -> int:
        """The first queue offset that can be read."""
        ...

    def end(self, topic: str, queue: int) -> int:
        """One past the last queue offset that can be read."""
        ...

    def units(self, topic: str, queue: int, first: int, count: int) -> tuple[I64, I32, I64]:
        """Physical offsets (int64), sizes (int32) and tags codes (int64) of consecutive
        messages."""
        ...

    def record(self, physical_offset: int, size: int) -> bytes:
        """One message record (format §4)."""
        ...

    def properties(self, physical_offset: int, size: int) -> bytes:
        """The property string of one message record."""
        ...

    def tags_code(self, tag: str) -> int:
        """The hash of a tag as stored in consume queues."""
        ...

    def index_at(self, physical_offset: int) -> int:
        """The index of the entry that begins at this physical offset."""
        ...


class Filter(Protocol):
    """What the picker needs of a filter."""

    @property
    def tags(self) -> frozenset[str]:
        """A message without one of these exact tags does not match. Empty: the tag excludes no
        message."""
        ...

    @property
    def cost(self) -> int:
        """The cost of `matches`, as a multiple of reading a short record; 0: every message matches,
        and none has to be read."""
        ...

    def matches(self, properties: bytes) -> bool:
        """Whether a message with this property string matches."""
        ...


class Queues(Protocol):
    """The consume queues (`ledgermq.storage.queues.consume_queue`)."""

    def next_offset(self, topic: str, queue: int) -> int:
        """One past the last unit."""
        ...

    def ends(self, topic: str, queues: int) -> tuple[int, ...]:
        """One past the last unit of each of the first `queues` queues of a topic."""
        ...

    def next_offsets(self) -> dict[str, dict[int, int]]:
        """The next offset of every queue that ever had a message, by topic and queue."""
        ...

    def min_offset(self, topic: str, queue: int) -> int:
        """The first offset that was not trimmed."""
        ...

    def minimums(self) -> dict[str, dict[int, Minimum]]:
        """The minimum of every queue that was trimmed, by topic and queue."""
        ...

    def raise_minimums(self, begin_pos: int) -> object:
        """The log begins at position `begin_pos` from now on. Raises NoSpace; the caller may then
        repeat the call."""
        ...

    def forget(self, topic: str, queue: int) -> None:
        """Remove a queue of which no unit is kept."""
        ...

    def begin_at(self, topic: str, queue: int, offset: int) -> None:
        """Create a queue that begins at this offset."""
        ...

    def append(self, columns: Columns) -> None:
        """Add units; existing ones are skipped. Raises NoSpace; the caller may then repeat the
        call."""
        ...

    def read(self, topic: str, queue: int, first: int, count: int) -> QueueUnits:
        """Consecutive units; fewer at the end of the queue. The `first` of the answer is higher
        than asked if units were trimmed."""
        ...
