"""What the world asks of one broker group, and what it answers: the inputs and results of `Group.turn`.

Only frozen values. Calls arrive validated and with stored names (format §4.2); protobuf, deadlines of the transport and authentication
stay outside. `token` is opaque to the core and unique per node process: every call is answered by exactly one `Done` with its token, except
those marked "no answer". Times are monotonic nanoseconds (`…_ns`) of the node's clock unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ledgermq.node.core.filters import Filter
from ledgermq.proto.control import AuditRecord, SealRecord, TrimRecord
from ledgermq.proto.types import Draft, Frame, GroupConfig, TopicConfig
from ledgermq.raft.appointments import Appointment
from ledgermq.raft.transfer import Cause

Token = int


_VIA = " via "


def session_of(client_id: str, node_boot: str) -> str:
    """A client as one process of one node knows it.

    Leases that renew themselves belong to a session, not to the client alone: when the process that handed a message out is gone, nobody
    can say whether the message reached the client, so nobody renews its lease any more.
    """
    return f"{client_id}{_VIA}{node_boot}"


def client_of(session: str) -> str:
    """The client id of a session; a plain client id is its own session."""
    return session.rpartition(_VIA)[0] or session


@dataclass(frozen=True, slots=True)
class Produce:
    """Append these messages (all to this group's queues). Answer: `Produced`. A draft's queue is already chosen by the caller."""

    token: Token
    drafts: Sequence[Draft]


@dataclass(frozen=True, slots=True)
class Produced:
    """Acknowledged for `durability`: `durable` is committed, on stable storage on a majority; `memory` is held by a majority of processes
    and committed later, unless it is lost with them; `master` is on the stable storage of an HA group's master and committed later, unless
    another master follows before. Columns are in the order of the drafts."""

    first_index: int
    term: int
    queue_offsets: tuple[int, ...]
    store_ms: int
    durability: str = "durable"
    fire_ms: tuple[int, ...] = ()
    """Of a draft that waits, when its slot is due (then its offset is one of that slot); 0 for others. Empty if none waits."""


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer of native frames begins: a new one, or under a name the one that has it, with the next epoch. Answer: `ProducerOpened`
    once that is committed; frames of an older epoch are refused from then on. `owner`: the user who opens it, "" where calls are not
    signed."""

    token: Token
    name: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ResumeProducer:
    """Go on with a producer in the same epoch. Answer: `ProducerOpened`, and it misses nothing that the log holds; refused with
    `unknown-producer`, also where another user opened it, or `stale-epoch`."""

    token: Token
    producer_id: int
    epoch: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ProducerOpened:
    """`next_sequence`: of the next new message. It goes on over all epochs of a name."""

    producer_id: int
    epoch: int
    next_sequence: int


@dataclass(frozen=True, slots=True)
class ProduceFrame:
    """Append a frame of one topic, whole or not at all, once. Its bytes are the log's from now on: it is patched in place, and a frame
    that is sent again is another object. Answer: `FrameProduced`; `FrameKnown` when it was stored before the producer's last five frames;
    refused with `unknown-producer`, `stale-epoch`, `sequence-gap`, `partial-frame`, `wrong-kind`, or as `Produce` is.

    `memory`: a majority in memory is enough, where the topic allows it."""

    token: Token
    topic: str
    frame: Frame
    memory: bool = False


@dataclass(frozen=True, slots=True)
class FrameProduced:
    """The frame is stored, by this call or (`duplicate`) before it; for what it is acknowledged see `Produced`.

    `topic`: where its messages are, which of a duplicate need not be what was said this time.
    `ranges`: (queue, first queue offset, count) of each queue in the frame, by queue: its messages have consecutive offsets in their order
    in the frame. `chain_crc`: of the entry of the last message. `durable`: the replicas known to have all of it on stable storage when this
    was said, with their durable index, by node; empty for `memory`, the master at least for `master`."""

    topic: str
    first_index: int
    term: int
    count: int
    ranges: tuple[tuple[int, int, int], ...]
    chain_crc: int
    store_ms: int
    durability: str = "durable"
    duplicate: bool = False
    durable: tuple[tuple[str, int], ...] = ()

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1


@dataclass(frozen=True, slots=True)
class FrameKnown:
    """Every message of the frame is stored and committed, but what there was to say of it is not kept any more."""

    next_sequence: int


@dataclass(frozen=True, slots=True)
class Recall:
    """Take a delayed message back: its delivery time and the place where it was stored first (node/core/timers.py). Answer: `Recalled`."""

    token: Token
    deliver_ms: int
    fire_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """`ok` False: it is due, delivered or recalled already."""

    ok: bool


@dataclass(frozen=True, slots=True)
class Receive:
    """Lease up to `max_messages` of a topic's queues in this group; waits until `deadline_ns`. Answer: `Received` (maybe empty)."""

    token: Token
    group: str
    topic: str
    client_id: str
    """A session."""
    filter: Filter
    max_messages: int
    invisible_ms: int | None
    """None: auto-renewed while the client is alive."""
    deadline_ns: int
    patience_ns: int = 100_000_000
    """How much longer than its deadline the caller waits for messages whose lease is in the log already and not committed yet."""
    lite: bool = False
    """Messages of the lite topics of `topic` that the client reads from, instead of the topic's own."""
    attempt_id: str = ""
    """A FIFO group gives a Receive that comes again with the same one the same messages again, as long as they are leased."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One message handed out. `record` is the whole message record (format §4)."""

    queue: int
    queue_offset: int
    lease_number: int
    attempt: int
    record: bytes
    topic: str = ""
    """Where it lies if that is not the topic that was asked for: a lite topic of it."""


@dataclass(frozen=True, slots=True)
class Received:
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class CancelReceive:
    """The caller of a Receive or a Pull is gone. A lease already committed for it is made visible again at once. No answer to this; the
    call itself is answered with an empty result."""

    receive: Token


@dataclass(frozen=True, slots=True)
class Handle:
    """A receipt handle after its MAC was checked (design §7)."""

    group: str
    topic: str
    queue: int
    queue_offset: int
    lease_number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer: `Acked` with one flag per handle, in order: False = the handle is unknown, expired or replaced (40013)."""

    token: Token
    handles: Sequence[Handle]


@dataclass(frozen=True, slots=True)
class Acked:
    ok: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Change the invisible duration. Answer: `Changed`."""

    token: Token
    handle: Handle
    invisible_ms: int
    client_id: str


@dataclass(frozen=True, slots=True)
class Changed:
    """`lease_number` of the new lease; None when the handle was not valid (40013)."""

    lease_number: int | None


@dataclass(frozen=True, slots=True)
class Forward:
    """Move a leased message to the dead-letter topic of its group. Answer: `Forwarded`. May be repeated."""

    token: Token
    handle: Handle


@dataclass(frozen=True, slots=True)
class Forwarded:
    """`ok`: the message is done for its group, by this call or before. False: another lease of it is in force (40013)."""

    ok: bool


@dataclass(frozen=True, slots=True)
class ClientsAlive:
    """Signs of life: these sessions were heard of at `at_ns`. No answer."""

    client_ids: frozenset[str]
    at_ns: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """NotifyClientTermination: auto-renewed leases of all sessions of the client become visible one second later. No answer."""

    client_id: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Configure:
    """Bring these topics and consumer groups into force through control records (design §6). Entries equal to what is in force are skipped.
    Answer: `Configured` once all are applied. Deleted ones are listed by stored name."""

    token: Token
    topics: Sequence[TopicConfig] = ()
    groups: Sequence[GroupConfig] = ()
    deleted_topics: Sequence[str] = ()
    deleted_groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Configured:
    pass


@dataclass(frozen=True, slots=True)
class Reset:
    """Let a consumer group read these queues of a topic from other offsets on: (queue, offset) each, clamped to what the queue holds.
    Handles of what was in flight there stop counting. Answer: `ResetDone` once it is applied."""

    token: Token
    group: str
    topic: str
    queues: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ResetDone:
    """`queues`: the cursors as they are now."""

    queues: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Append half messages: drafts for their real topics and queues, as in `Produce`, that nobody sees before they are committed.
    `recovery_ms`: for each, after what time its producer wants to be asked, or None. Answer: `Produced`; its queue offsets are the halves'
    names, and it is always `durable`."""

    token: Token
    drafts: Sequence[Draft]
    recovery_ms: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Resolve:
    """Commit a half message, or roll it back. Topic and message id must be its own. Answer: `Resolved`."""

    token: Token
    offset: int
    """Of the half message."""
    topic: str
    message_id: str
    commit: bool


@dataclass(frozen=True, slots=True)
class Resolved:
    """`ok`: the transaction has ended as the call wants, by it or before. False: it is not known, or has ended otherwise; a leader that
    was replaced without knowing says so too, of a half that it never had."""

    ok: bool


@dataclass(frozen=True, slots=True)
class Overdue:
    """Which half messages are due to be asked about? Those that were asked about often enough are dropped. Answer: `OverdueHalves`."""

    token: Token
    limit: int


@dataclass(frozen=True, slots=True)
class OverdueHalves:
    """`halves`: (half offset, stored topic), the longest due first; each comes again after a while unless a check of it is counted.
    `dropped`: (half offset, stored topic, why) of those that this call has ended."""

    halves: tuple[tuple[int, str], ...]
    dropped: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CountChecks:
    """These halves are about to be asked about: count it, before it is done. Answer: `ChecksCounted`."""

    token: Token
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class UndecidedHalf:
    """A half message to be asked about; `checks`: the number of this check."""

    offset: int
    topic: str
    checks: int
    record: bytes


@dataclass(frozen=True, slots=True)
class ChecksCounted:
    """Those that are undecided still, and whose messages fit into one answer; the others are not to be asked about now."""

    halves: tuple[UndecidedHalf, ...]


LiteAction = Literal["add", "remove", "set"]
LiteStart = Literal["last", "min", "max", "offset", "tail", "time"]


@dataclass(frozen=True, slots=True)
class SyncLite:
    """Change the set of lite topics of `topic` that a client reads from; `set`: it becomes exactly `names`. `start` says where the group
    begins in those that are new to the client; `last`: where it was, and at the end of one that it does not know. A request older than the
    last one of this client changes nothing. Answer: `LiteSynced` once it is applied; refused with `lite-subscriptions` above `limit`."""

    token: Token
    group: str
    topic: str
    client_id: str
    action: LiteAction
    names: tuple[str, ...]
    version: int = 0
    start: LiteStart = "last"
    start_at: int = 0
    """Offset, number of messages or time in milliseconds, as `start` says."""
    limit: int = 2000


@dataclass(frozen=True, slots=True)
class LiteSynced:
    """`count`: lite topics in the client's set."""

    count: int


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """Remember that a consumer group goes on at `offset` of a queue. Answer: `OffsetCommitted` once it is applied; refused with
    `illegal-offset` when the queue does not reach that far."""

    token: Token
    group: str
    topic: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    pass


@dataclass(frozen=True, slots=True)
class Seal:
    """Put the digest that a majority found for a file into the log. Answer: `Kept`."""

    token: Token
    record: SealRecord


@dataclass(frozen=True, slots=True)
class Trim:
    """Let the log begin later. The caller has judged what may go (`retention.py`). Answer: `Kept`."""

    token: Token
    record: TrimRecord


@dataclass(frozen=True, slots=True)
class Mark:
    """Put an audit marker into the log. Answer: `Marked`."""

    token: Token
    record: AuditRecord


@dataclass(frozen=True, slots=True)
class Marked:
    """The marker is applied: it is the entry `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Kept:
    """The record is applied, or what it says was so already."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let another replica lead: `to`, or the most advanced voter. Answer: `HandedOver` once a replica other than this one leads,
    `HandingOver` when that has not happened by `until_ns`; it goes on for `patience_ns`, and asking again prolongs it. For a
    `PLANNED_STOP` this replica takes no leadership over any more, whoever leads now."""

    token: Token
    to: str | None
    cause: Cause
    patience_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """`leader` leads; it may have done so all the time."""

    leader: str


@dataclass(frozen=True, slots=True)
class HandingOver:
    """Still this replica: the target has not stored the last `lag_entries` entries, as far as is known."""

    to: str
    lag_entries: int


MembersKind = Literal["add", "remove", "promote", "demote", "rule"]


@dataclass(frozen=True, slots=True)
class Prefer:
    """Who is meant to lead from now on, as a node's `preferred_leader`; None: nobody in particular. No answer."""

    node: str | None


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """Change who replicates this broker group, by one node. `add`: a learner whose directory is `incarnation`; `promote`: a learner that
    is caught up becomes a voter; `demote`: a voter becomes a learner; `remove`; `rule`: of no node, the group is to have `rule`, and goes
    on by itself once the answer to the first of two records is there. Answer: `MembersChanged` once the record is committed;
    asking for what is so already is answered at once. Refused with `members-refused` and the reason in words when it would cost the
    quorum, the learner is not caught up, or another change is under way."""

    token: Token
    kind: MembersKind
    node: str
    incarnation: str | None = None
    """Of the node's directory; needed to add a node, and otherwise checked against what the group knows when given."""
    reason: str = ""
    """For the record: why, in the operator's words."""
    rule: str = ""
    observer: bool = False
    """Of `add`: a learner for good. Of `promote`: one of those, on purpose."""


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """Who replicates a group, as of the record at `index`. `incarnations`: node → the directory that counts; a node that is absent goes on
    with the directory it had when the group was bootstrapped. `returning`: learners that lost their directory and become voters again by
    themselves. `rule`, `towards`, `observers`, `since`: as in `ledgermq.raft.config.Members`."""

    index: int
    voters: tuple[str, ...]
    learners: frozenset[str] = frozenset()
    incarnations: Mapping[str, str] = field(default_factory=dict)
    returning: frozenset[str] = frozenset()
    rule: str = "majority"
    towards: str | None = None
    observers: frozenset[str] = frozenset()
    since: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Voters first."""
        return (*self.voters, *sorted(self.learners))


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members in effect."""

    members: GroupMembers


@dataclass(frozen=True, slots=True)
class Appointed:
    """What the controller agreed on for this HA group, told on every replica when it is news there, and now and then again. No answer."""

    appointment: Appointment


@dataclass(frozen=True, slots=True)
class Returned:
    """A node of this group greeted with a directory that the group does not know: the old one is gone. May be repeated, and told on any
    replica: whoever leads turns the voter into a learner of this incarnation that becomes a voter again once it is caught up. No answer."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Peek:
    """Committed messages of one queue without a delivery lease: from `offset` (clamped to what exists), at most `max_messages`. The leader
    answers, and misses nothing that was acknowledged before the call. Answer: `Peeked`."""

    token: Token
    topic: str
    queue: int
    offset: int
    max_messages: int
    max_bytes: int = 16 << 20
    """At least one message comes, however long it is."""


@dataclass(frozen=True, slots=True)
class Peeked:
    records: tuple[bytes, ...]
    next_offset: int
    end_offset: int
    begin_offset: int = 0
    """The first offset there is: below it, messages were trimmed or belong to an earlier topic of this name."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Committed messages of one queue from `offset` on without a lease, those that the filter wants; waits for one until `deadline_ns`.
    It misses nothing that was acknowledged before the call. Answer: `Pulled`; refused with `illegal-offset` outside of what the queue
    holds."""

    token: Token
    topic: str
    queue: int
    offset: int
    filter: Filter
    max_messages: int
    max_bytes: int
    """At least one message comes, however long it is."""
    deadline_ns: int
    cold: Cold | None = None
    """Where another replica leads: answer from here, if so."""


@dataclass(frozen=True, slots=True)
class Cold:
    """Any replica gives the answer that the leader would: its state is no older than `max_age_ns`, and the message at the offset lies more
    than `bytes_behind` before the end of its log. Nobody is let wait for messages there."""

    max_age_ns: int
    bytes_behind: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """`offsets` and `records` are columns. `next_offset` lies behind the last message looked at, also when none was wanted."""

    offsets: tuple[int, ...]
    records: tuple[bytes, ...]
    next_offset: int
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class ReadOffset:
    """What a consumer group committed for a queue, as of everything acknowledged before the call. Answer: `OffsetRead`."""

    token: Token
    group: str
    topic: str
    queue: int


@dataclass(frozen=True, slots=True)
class FindOffset:
    """Where a queue begins, where it ends (`end`), or its first message stored at or after `store_ms`. Answer: `OffsetRead`."""

    token: Token
    topic: str
    queue: int
    end: bool = False
    store_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRead:
    """None: the group never committed one."""

    offset: int | None


@dataclass(frozen=True, slots=True)
class Confirm:
    """Make sure that this replica leads and has applied everything that was acknowledged before this call. Answer: `Confirmed`."""

    token: Token


@dataclass(frozen=True, slots=True)
class Confirmed:
    applied_index: int


Call = (
    Produce
    | OpenProducer
    | ResumeProducer
    | ProduceFrame
    | Receive
    | CancelReceive
    | Ack
    | Change
    | Forward
    | ClientsAlive
    | ClientGone
    | Configure
    | Reset
    | Recall
    | Prepare
    | Resolve
    | Overdue
    | CountChecks
    | CommitOffset
    | SyncLite
    | Seal
    | Trim
    | Mark
    | Peek
    | Pull
    | ReadOffset
    | FindOffset
    | HandOver
    | Prefer
    | Confirm
    | ChangeMembers
    | Returned
    | Appointed
)
Result = (
    Produced
    | ProducerOpened
    | FrameProduced
    | FrameKnown
    | Received
    | Acked
    | Changed
    | Forwarded
    | Configured
    | ResetDone
    | Recalled
    | Resolved
    | OverdueHalves
    | ChecksCounted
    | OffsetCommitted
    | LiteSynced
    | Kept
    | Marked
    | Peeked
    | Pulled
    | OffsetRead
    | Confirmed
    | HandedOver
    | HandingOver
    | MembersChanged
)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a call was not done.

    `reason`: `not-leader` (nothing was appended; `leader` may help), `disk-full` (nothing was appended), `unknown-outcome` (leadership was
    lost after the append; it may still commit; never retried by us), `unknown-topic` (not configured in this broker group's log),
    `too-large` (fits no log file), `illegal-offset` (the queue does not hold it), `too-many-transactions`, `too-many-recalls`,
    `lite-topics` and `lite-subscriptions` (too many; nothing was appended),
    `in-sync-short` (an HA group has fewer members in sync than it needs; nothing was appended; `detail` says what to do),
    `transfer-refused` (leadership stays; `detail` says why), `members-refused` (nothing was appended; `detail` says why).

    Of frames (nothing was appended): `unknown-producer` (never opened here, or silent for too long), `stale-epoch` (opened again by
    somebody else), `sequence-gap` (an earlier message is missing), `partial-frame` (its messages below `next_sequence` are stored, as one
    frame or several; the others are not), `wrong-kind` (the topic's messages come by the unary path). `next_sequence` is that of the next
    new message of the producer.
    """

    reason: str
    leader: str | None = None
    detail: str = ""
    next_sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    token: Token
    outcome: Result | Refused


@dataclass(frozen=True, slots=True)
class HaView:
    """An HA group as one of its replicas sees it. `generation`: the entry that made the rule. `in_sync`: None where nothing is known.
    `short`: on the master, why nothing can be committed while so few are in sync, and what to do."""

    generation: int
    in_sync: tuple[str, ...] | None
    minimum: int
    ack_async: bool
    pull: bool
    short: str = ""
    last_store_ms: int = 0
    """Of the last entry that this replica applied."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """What outsiders may know of a group between turns; rebuilt after each turn that changed it. Cheap, immutable, safe to share."""

    leader: str | None
    term: int
    serving: bool
    """True on a leader that has applied its term-start record."""
    topics: dict[str, TopicConfig]
    groups: dict[str, GroupConfig]
    queue_ends: dict[str, tuple[int, ...]]
    """Stored topic → number of committed messages per queue, client topics only."""
    statistics: dict[str, Any]
    members: GroupMembers | None = None
    """As of the applied index; None before the group's first record is applied."""
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """Node → the directory that the configuration in effect names: that of the log's newest membership record, applied or not. Whoever
    hears packets goes by it: the record that takes a directory in can be committed by the very node it belongs to."""
    in_effect: tuple[str, ...] = ()
    """Everyone whom that record names, voters first."""
    ha: HaView | None = None
    """Of a group that has the rule in-sync."""

    @property
    def short(self) -> str:
        """See `HaView`."""
        return "" if self.ha is None else self.ha.short
