"""Calls of the node itself and of operators: configuration, offsets reset, and the records that keep the log in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.proto.control import AuditRecord, SealRecord, TrimRecord
from ledgermq.proto.types import GroupConfig, TopicConfig


@dataclass(frozen=True, slots=True)
class Configure:
    """Bring these topics and consumer groups into force through control records (docs/architecture.md, The controller).
    Entries equal to what is in force are skipped. Answer: `Configured` once all are applied. Deleted ones are listed by stored name."""

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
class Seal:
    """Put the digest that a majority found for a file into the log. Answer: `Kept`."""

    token: Token
    record: SealRecord


@dataclass(frozen=True, slots=True)
class Trim:
    """Let the log begin later. The caller has judged what may go (`retention_rules.py`). Answer: `Kept`."""

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
