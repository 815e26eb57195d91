"""The plan of one turn: the drafts of one batch, in the order of their log entries, and the answers that depend on them.

Bookkeeping only. The acknowledgements, changes, transaction ends and committed offsets of one turn share one record each. The first of a
kind reserves the record's place in the batch, so every lease number (the index of the entry that carries it) is known during planning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import Lease
from ledgermq.node.broker.calls.outcome import Call, Done, Refused, Result
from ledgermq.node.broker.calls.send_calls import Produce, ProduceFrame
from ledgermq.node.broker.calls.transaction_calls import Prepare
from ledgermq.node.broker.decisions.polls import Poll
from ledgermq.node.broker.decisions.traffic import Leased
from ledgermq.node.broker.flush import Durability
from ledgermq.node.broker.queues import Pair, QueueKey
from ledgermq.node.broker.state.message_ids import Place as Known
from ledgermq.proto.types import Draft

AckEntry = tuple[list[int], list[int]]
OWN_REASONS = frozenset(("disk-full", "too-large"))
"""Reasons of a refusal that depend on this replica or on the call alone, and not on the state."""


@dataclass(slots=True)
class Awaited:
    """An answer that waits until the entry at `index` of this `term` is applied here or, for an early durability class, replicated."""

    index: int
    term: int
    token: Token
    result: Result | Refused | None
    """None: the answer to a Receive, with `leases`."""
    poll: Poll | None = None
    """The Receive, while this node leads; it may be cancelled meanwhile."""
    leases: tuple[Lease, ...] = ()
    topic: str = ""
    """The topic of the leases. Those without a record are of messages in the same batch, whose records are read when it is applied."""


@dataclass(slots=True)
class Sent:
    """The messages of one queue among the drafts of a plan: their first queue offset, and the messages in order."""

    first: int
    drafts: list[Draft] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The queue offset behind the last one."""
        return self.first + len(self.drafts)


def _unknown_offset(topic: str, queue: int) -> int:
    raise AssertionError(f"this plan has no messages, but one for queue {queue} of topic {topic}")


@dataclass(slots=True)
class Plan:
    """The drafts that a turn wants to append, and the calls that it thereby answers."""

    first_index: int
    now_ns: int
    now_ms: int
    full: bool
    """Client messages are not accepted."""
    alone: bool = False
    """The master of an HA group acknowledges alone (`flush.py`)."""
    next_offset: Callable[[str, int], int] = _unknown_offset
    """The queue offset of the first draft for a queue."""
    drafts: list[Draft | None] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    """Answers that need no entry, and that no state of a later leader could contradict."""
    assured: list[Done] = field(default_factory=list)
    """Answers that need no entry, but were derived from the applied state: valid only if this replica still leads. A deposed leader that
    does not know it yet would otherwise refuse an acknowledgement that its successor has confirmed, or call a configuration unchanged that
    its successor has replaced."""
    frames: list[ProduceFrame] = field(default_factory=list)
    """Frames, to be judged and appended one by one after the drafts."""
    held: set[int] = field(default_factory=set)
    """Producers with a frame among the deferred calls; their later frames must wait as well."""
    produced: list[tuple[Produce | Prepare, int, Durability]] = field(default_factory=list)
    """Produce and Prepare calls with the place of their first draft and the durability class of their acknowledgement."""
    known: dict[Token, tuple[int | Known, ...]] = field(default_factory=dict)
    """For calls of `produced` with duplicates, per message: its place among the new ones, or where it is already stored."""
    classes: dict[tuple[str, int], Durability] = field(default_factory=dict)
    """Stored topic and priority → the durability class of such a message."""
    memory_drafts: int = 0
    """The number of drafts of calls of the class `memory`."""
    awaited: list[tuple[int, Token, Result | Refused]] = field(default_factory=list)
    leased: list[tuple[int, Poll, tuple[Lease, ...]]] = field(default_factory=list)
    settled: list[tuple[Pair, bool]] = field(default_factory=list)
    """Pairs without remaining work, and whether none of their queues has a visible message."""
    _sent: dict[str, dict[int, Sent]] = field(default_factory=dict)
    _sent_drafts: int = 0
    """How many drafts are sorted into `_sent`."""
    unserved: list[Poll] = field(default_factory=list)
    """Receives for a topic that is not in force."""
    acks: dict[tuple[str, str, int], AckEntry] = field(default_factory=dict)
    changes: list[tuple[str, str, int, int, int, int, str]] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)
    """Half messages that end without becoming visible, and the kind of end."""
    checked: list[tuple[int, int]] = field(default_factory=list)
    """Half messages that are checked, and the number of the check."""
    halves: int = 0
    """The number of half messages among the drafts."""
    fired: bool = False
    """Whether copies of delayed messages are among the drafts."""
    recalls: int = 0
    """The number of recalls among the drafts."""
    deferred: list[Call] = field(default_factory=list)
    """Calls that must wait until an entry in the log is applied, or for the next batch."""
    releases: dict[tuple[QueueKey, int], int] = field(default_factory=dict)
    """Leases to give back later: (queue, offset) → lease number."""
    rows: int = 0
    """The approximate number of rows in the shared records."""
    counts: dict[str, int] = field(default_factory=dict)
    traffic: list[Leased] = field(default_factory=list)
    """What it hands out, for metrics."""
    size: int = 0
    """The approximate number of bytes that the planned calls add to the log."""
    lite_new: dict[str, dict[str, None]] = field(default_factory=dict)
    """Topic of kind lite → its lite topics that get their first message from this plan."""
    members_dropped: list[str] = field(default_factory=list)
    """Members of broadcasting groups that this plan deletes."""
    lite_dropped: list[str] = field(default_factory=list)
    """Clients that are gone and whose lite sets this plan empties."""
    ack_place: int = -1
    change_place: int = -1
    transaction_place: int = -1
    offsets: dict[QueueKey, int] = field(default_factory=dict)
    """Offsets that consumer groups commit in this turn."""
    offset_place: int = -1

    @property
    def next_index(self) -> int:
        """The index of the entry that the next draft becomes."""
        return self.first_index + len(self.drafts)

    @property
    def urgent(self) -> bool:
        """Whether a caller waits for the commit of a draft. Every draft but a `memory` message is urgent, such as leases and
        acknowledgements."""
        return len(self.drafts) > self.memory_drafts

    def sent(self) -> Mapping[str, Mapping[int, Sent]]:
        """The messages among the drafts so far, by stored topic and queue. Messages that follow other entries of the plan are included."""
        for draft in self.drafts[self._sent_drafts :]:
            if draft is not None:
                queues = self._sent.setdefault(draft.stored_topic, {})
                found = queues.get(draft.queue)
                if found is None:
                    found = queues[draft.queue] = Sent(self.next_offset(draft.stored_topic, draft.queue))
                found.drafts.append(draft)
        self._sent_drafts = len(self.drafts)
        return self._sent

    def refuse(self, token: Token, reason: str, detail: str = "") -> None:
        told = self.done if reason in OWN_REASONS else self.assured
        told.append(Done(token, Refused(reason, detail=detail)))

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def ack_index(self) -> int:
        """The index of this turn's ack record; reserves its place."""
        if self.ack_place < 0:
            self.ack_place = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + self.ack_place

    def change_index(self) -> int:
        """The index of this turn's change record; reserves its place."""
        if self.change_place < 0:
            self.change_place = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + self.change_place

    def transaction_index(self) -> int:
        """The index of this turn's transaction record; reserves its place."""
        if self.transaction_place < 0:
            self.transaction_place = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + self.transaction_place

    def offset_index(self) -> int:
        """The index of this turn's offset record; reserves its place."""
        if self.offset_place < 0:
            self.offset_place = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + self.offset_place

    def add_ack(self, key: tuple[str, str, int], offset: int, lease: int) -> None:
        offsets, leases = self.acks.setdefault(key, ([], []))
        offsets.append(offset)
        leases.append(lease)
