"""Calls that read without a lease, and consumers' committed offsets. Reads see everything that was
acknowledged before them."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Result
from ledgermq.node.broker.ports import Filter
from ledgermq.proto.records.time_epochs import NO_EPOCHS, TimeEpochs


@dataclass(frozen=True, slots=True)
class Peek(Call):
    """Committed messages of one queue without a delivery lease: from `offset` (clamped to the
    queue), at most `max_messages`. The leader answers, and the answer includes everything that was
    acknowledged before the call. Answer: `Peeked`."""

    token: Token
    topic: str
    queue: int
    offset: int
    max_messages: int
    max_bytes: int = 16 << 20
    """The answer has at least one message, however long it is."""


@dataclass(frozen=True, slots=True)
class Peeked(Result):
    records: tuple[bytes, ...]
    next_offset: int
    end_offset: int
    begin_offset: int = 0
    """The first available offset. Messages below it were trimmed or belong to an earlier topic of
    this name."""
    time_epochs: TimeEpochs = NO_EPOCHS
    """They tell when messages count as stored."""


@dataclass(frozen=True, slots=True)
class Pull(Call):
    """Committed messages of one queue from `offset` on that match the filter, without a lease;
    waits for one until `deadline_ns`. The answer includes everything that was acknowledged before
    the call. Answer: `Pulled`; refused with `illegal-offset` outside of the queue."""

    token: Token
    topic: str
    queue: int
    offset: int
    filter: Filter
    max_messages: int
    max_bytes: int
    """The answer has at least one message, however long it is."""
    deadline_ns: int
    cold: Cold | None = None
    """If set, a follower may answer under these conditions."""
    patience_ns: int = 0
    """So long after `deadline_ns` it may still wait until its messages may be read."""


@dataclass(frozen=True, slots=True)
class Cold:
    """The conditions under which a follower's answer equals the leader's: its state is at most
    `max_age_ns` old, and the message at the offset lies more than `bytes_behind` before the end of
    its log. Followers do not let callers wait for messages."""

    max_age_ns: int
    bytes_behind: int


@dataclass(frozen=True, slots=True)
class Pulled(Result):
    """`offsets` and `records` are columns. `next_offset` follows the last message examined, even if
    none matched."""

    offsets: tuple[int, ...]
    records: tuple[bytes, ...]
    next_offset: int
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class CommitOffset(Call):
    """Store that a consumer group continues at `offset` of a queue. Answer: `OffsetCommitted` once
    it is applied; refused with `illegal-offset` if the offset is beyond the end of the queue."""

    token: Token
    group: str
    topic: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class OffsetCommitted(Result):
    pass


@dataclass(frozen=True, slots=True)
class ReadOffset(Call):
    """The offset that a consumer group has committed for a queue, as of everything acknowledged
    before the call. Answer: `OffsetRead`."""

    token: Token
    group: str
    topic: str
    queue: int
    tiered: bool = False
    """What was trimmed can still be read: a trim does not move the offset."""


@dataclass(frozen=True, slots=True)
class FindOffset(Call):
    """The offset where a queue begins, where it ends (`end`), or of its first message stored at or
    after `store_ms`. Answer: `OffsetRead`."""

    token: Token
    topic: str
    queue: int
    end: bool = False
    store_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRead(Result):
    """`offset` is None if the group has never committed one."""

    offset: int | None


@dataclass(frozen=True, slots=True)
class Confirm(Call):
    """Ensure that this replica leads and has applied everything that was acknowledged before this
    call. Answer: `Confirmed`."""

    token: Token


@dataclass(frozen=True, slots=True)
class Confirmed(Result):
    applied_index: int
