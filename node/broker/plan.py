"""The plan of one turn: the drafts of one batch, in the order of their log entries, and the answers
that depend on them.

Bookkeeping only. The acknowledgements, changes, transaction ends and committed offsets of one turn
share one record each. The first of a kind reserves the record's place in the batch
(`shared_index`), so every lease number (the index of the entry that carries it) is known during
planning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import Lease, Receive
from ledgermq.node.broker.calls.outcome import Call, Done, Refused, Result
from ledgermq.node.broker.calls.send_calls import Produce, ProduceFrame
from ledgermq.node.broker.calls.transaction_calls import Prepare
from ledgermq.node.broker.flush import Durability
from ledgermq.node.broker.queues import Pair, QueueKey
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft

NEVER_NS = 1 << 62
PLAN_BYTES = 8 << 20
"""Calls beyond this many bytes go into the next batch of the same turn."""
AckEntry = tuple[list[int], list[int]]
OWN_REASONS = frozenset(("disk-full", "too-large"))
"""Reasons of a refusal that depend on this replica or on the call alone, and not on the state."""


class Known(NamedTuple):
    """Where the first message with an id was stored: in its topic, or in the waiting topic that
    held it."""

    store_ms: int
    queue: int
    offset: int
    fire_ms: int = 0
    """When the slot of a delayed message is due; 0 for others."""


@dataclass(slots=True)
class Poll:
    """One Receive. `leasing`: a lease for it is in the log but not applied yet."""

    call: Receive
    pair: Pair
    leasing: bool = False


@dataclass(slots=True)
class Awaited:
    """An answer that waits until the entry at `index` of this `term` is applied here or, for an
    early durability class, replicated."""

    index: int
    term: int
    token: Token
    result: Result | Refused | None
    """None: the answer to a Receive, with `leases`."""
    poll: Poll | None = None
    """The Receive, while this node leads; it may be cancelled meanwhile."""
    leases: tuple[Lease, ...] = ()
    topic: str = ""
    """The topic of the leases. Those without a record are of messages in the same batch, whose
    records are read when it is applied."""


class Leased(NamedTuple):
    """The leases that a plan has for one Receive, or (`dead`) a dead letter."""

    group: str
    topic: str
    messages: int = 0
    bytes: int = 0
    again: int = 0
    dead: int = 0


@dataclass(slots=True)
class Sent:
    """The messages of one queue among the drafts of a plan: their first queue offset, and the
    messages in order."""

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
    """Answers that need no entry, but were derived from the applied state: valid only if this
    replica still leads. A deposed leader that does not know it yet would otherwise refuse an
    acknowledgement that its successor has confirmed, or call a configuration unchanged that its
    successor has replaced."""
    frames: list[ProduceFrame] = field(default_factory=list)
    """Frames, to be judged and appended one by one after the drafts."""
    held: set[int] = field(default_factory=set)
    """Producers with a frame among the deferred calls; their later frames must wait as well."""
    produced: list[tuple[Produce | Prepare, int, Durability]] = field(default_factory=list)
    """Produce and Prepare calls with the place of their first draft and the durability class of
    their acknowledgement."""
    known: dict[Token, tuple[int | Known, ...]] = field(default_factory=dict)
    """For calls of `produced` with duplicates, per message: its place among the new ones, or where
    it is already stored."""
    memory_drafts: int = 0
    """The number of drafts of calls of the class `memory`."""
    awaited: list[tuple[int, Token, Result | Refused]] = field(default_factory=list)
    leased: list[tuple[int, Poll, tuple[Lease, ...]]] = field(default_factory=list)
    settled: list[tuple[Pair, bool]] = field(default_factory=list)
    """Pairs without remaining work, and whether none of their queues has a visible message."""
    _sent: dict[str, dict[int, Sent]] = field(default_factory=dict)
    shared: dict[Callable[[Plan], control.ControlRecord], int] = field(default_factory=dict)
    """What makes a shared record → its place among the drafts."""
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
    recalls: int = 0
    """The number of recalls among the drafts."""
    deferred: list[Call] = field(default_factory=list)
    """Calls that must wait until an entry in the log is applied, or for the next batch."""
    rows: int = 0
    """The approximate number of rows in the shared records."""
    counts: dict[str, int] = field(default_factory=dict)
    traffic: list[Leased] = field(default_factory=list)
    """What it hands out, for metrics."""
    size: int = 0
    """The approximate number of bytes that the planned calls add to the log."""
    lite_new: dict[str, dict[str, None]] = field(default_factory=dict)
    """Topic of kind lite → its lite topics that get their first message from this plan."""
    kept: list[Callable[[Plan], None]] = field(default_factory=list)
    """To be called when the plan is in the log."""
    offsets: dict[QueueKey, int] = field(default_factory=dict)
    """Offsets that consumer groups commit in this turn."""

    @property
    def next_index(self) -> int:
        """The index of the entry that the next draft becomes."""
        return self.first_index + len(self.drafts)

    def sent(self) -> Mapping[str, Mapping[int, Sent]]:
        """The messages among the drafts so far, by stored topic and queue. Messages that follow
        other entries of the plan are included."""
        for draft in self.drafts[self._sent_drafts :]:
            if draft is not None:
                queues = self._sent.setdefault(draft.stored_topic, {})
                found = queues.get(draft.queue)
                if found is None:
                    found = queues[draft.queue] = Sent(
                        self.next_offset(draft.stored_topic, draft.queue)
                    )
                found.drafts.append(draft)
        self._sent_drafts = len(self.drafts)
        return self._sent

    def refuse(self, token: Token, reason: str, detail: str = "") -> None:
        told = self.done if reason in OWN_REASONS else self.assured
        told.append(Done(token, Refused(reason, detail=detail)))

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def shared_index(self, make: Callable[[Plan], control.ControlRecord]) -> int:
        """The index of the record that the calls of this turn share and that `make` makes when all
        are decided; reserves its place."""
        place = self.shared.get(make)
        if place is None:
            place = self.shared[make] = len(self.drafts)
            self.drafts.append(None)
        return self.first_index + place

    def finish(self) -> None:
        """Every call is decided: make the shared records."""
        for make, place in self.shared.items():
            self.drafts[place] = control.draft(make(self), self.now_ms)

    def add_ack(self, key: tuple[str, str, int], offset: int, lease: int) -> None:
        offsets, leases = self.acks.setdefault(key, ([], []))
        offsets.append(offset)
        leases.append(lease)
