"""Calls that read without a lease, and the offsets of those who do: they see everything that was acknowledged before them."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.ports import Filter


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
