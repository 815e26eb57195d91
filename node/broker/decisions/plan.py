"""The plan of one turn: drafts of one batch, in the order in which their entries will stand in the log, and what they answer.

Only bookkeeping lives here. Acknowledgements, changes and ends of transactions of one turn share one record each: a place in the batch is
reserved when the first one comes, so every lease number (the index of the entry that carries it) is known while planning.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import Lease
from ledgermq.node.broker.calls.outcome import Call, Done, Refused, Result
from ledgermq.node.broker.calls.send_calls import Produce, ProduceFrame
from ledgermq.node.broker.calls.transaction_calls import Prepare
from ledgermq.node.broker.decisions.polls import Pair, Poll
from ledgermq.node.broker.flush import Durability
from ledgermq.node.broker.state.delivery import QueueKey
from ledgermq.node.broker.state.message_ids import Place as Known
from ledgermq.proto.types import Draft

AckEntry = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Awaited:
    """An answer that waits until the entry at `index` of this `term` is applied here or, for one of an earlier class, replicated."""

    index: int
    term: int
    token: Token
    result: Result | Refused | None
    """None: a Receive, to be answered with `leases`."""
    poll: Poll | None = None
    """The Receive, as long as this node leads: it may be cancelled meanwhile."""
    leases: tuple[Lease, ...] = ()


@dataclass(slots=True)
class Plan:
    """What a turn wants to append, and whom it serves with that."""

    first_index: int
    now_ns: int
    now_ms: int
    full: bool
    """No client message is accepted."""
    alone: bool = False
    """The master of an HA group acknowledges alone (`flush.py`)."""
    drafts: list[Draft | None] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    """Answers that need no entry."""
    assured: list[Done] = field(default_factory=list)
    """Answers that count if this replica still leads."""
    frames: list[ProduceFrame] = field(default_factory=list)
    """Frames, to be judged and appended one by one behind the drafts."""
    held: set[int] = field(default_factory=set)
    """Producers with a frame among the deferred calls: those behind it wait, too."""
    produced: list[tuple[Produce | Prepare, int, Durability]] = field(default_factory=list)
    """Produce and Prepare calls with the place of their first draft and what their acknowledgement waits for."""
    known: dict[Token, tuple[int | Known, ...]] = field(default_factory=dict)
    """Of calls of `produced` with duplicates, for every message: its place among those that are new, or where it is already."""
    memory_drafts: int = 0
    """How many drafts belong to calls of the class `memory`."""
    awaited: list[tuple[int, Token, Result | Refused]] = field(default_factory=list)
    leased: list[tuple[int, Poll, tuple[Lease, ...]]] = field(default_factory=list)
    settled: list[Pair] = field(default_factory=list)
    """Pairs for which nothing is left."""
    unserved: list[Poll] = field(default_factory=list)
    """Receives for a topic which is not in force."""
    acks: dict[tuple[str, str, int], AckEntry] = field(default_factory=dict)
    changes: list[tuple[str, str, int, int, int, int, str]] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)
    """Half messages that end without becoming visible, and how."""
    checked: list[tuple[int, int]] = field(default_factory=list)
    """Half messages that are asked about, and the number of the check."""
    halves: int = 0
    """How many half messages are among the drafts."""
    fired: bool = False
    """Copies of delayed messages are among the drafts."""
    recalls: int = 0
    """How many recalls are among the drafts."""
    deferred: list[Call] = field(default_factory=list)
    """Calls that must wait until an entry already in the log is applied."""
    releases: dict[tuple[QueueKey, int], int] = field(default_factory=dict)
    """Leases to be given back later: (queue, offset) → lease number."""
    rows: int = 0
    """Roughly how many handles stand in the shared records."""
    counts: dict[str, int] = field(default_factory=dict)
    size: int = 0
    """Roughly how many bytes the calls so far put into the log."""
    lite_new: dict[str, dict[str, None]] = field(default_factory=dict)
    """Topic of kind lite → its lite topics that get their first message by this plan."""
    members_dropped: list[str] = field(default_factory=list)
    """Members of broadcasting groups that this plan forgets."""
    lite_dropped: list[str] = field(default_factory=list)
    """Clients that are gone, whose sets of lite topics this plan empties."""
    ack_place: int = -1
    change_place: int = -1
    transaction_place: int = -1
    offsets: dict[QueueKey, int] = field(default_factory=dict)
    """What consumer groups commit in this turn."""
    offset_place: int = -1

    @property
    def next_index(self) -> int:
        """Index of the entry the next draft becomes."""
        return self.first_index + len(self.drafts)

    @property
    def urgent(self) -> bool:
        """Somebody waits for the commit of a draft. Whatever is no client message is urgent: leases and acknowledgements do not wait."""
        return len(self.drafts) > self.memory_drafts

    def refuse(self, token: Token, reason: str, detail: str = "") -> None:
        self.done.append(Done(token, Refused(reason, detail=detail)))

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def ack_index(self) -> int:
        """Index of this turn's ack record; reserves its place."""
        if self.ack_place < 0:
            self.ack_place = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + self.ack_place

    def change_index(self) -> int:
        """Index of this turn's change record; reserves its place."""
        if self.change_place < 0:
            self.change_place = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + self.change_place

    def transaction_index(self) -> int:
        """Index of this turn's transaction record; reserves its place."""
        if self.transaction_place < 0:
            self.transaction_place = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + self.transaction_place

    def offset_index(self) -> int:
        """Index of this turn's offset record; reserves its place."""
        if self.offset_place < 0:
            self.offset_place = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + self.offset_place

    def add_ack(self, key: tuple[str, str, int], offset: int, lease: int) -> None:
        offsets, leases = self.acks.setdefault(key, ([], []))
        offsets.append(offset)
        leases.append(lease)
