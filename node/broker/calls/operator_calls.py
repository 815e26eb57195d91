"""Calls of the node itself and of operators: configuration, offset resets, and the records that
maintain the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Result
from ledgermq.proto.records.control import AuditRecord, SealRecord, TrimRecord
from ledgermq.proto.types import GroupConfig, TopicConfig


@dataclass(frozen=True, slots=True)
class Configure(Call):
    """Put these topics and consumer groups into force by control records (docs/architecture.md, The
    controller). Configurations that are already in force are skipped. Deleted topics and groups are
    given by stored name. Answer: `Configured` once all are applied."""

    token: Token
    topics: Sequence[TopicConfig] = ()
    groups: Sequence[GroupConfig] = ()
    deleted_topics: Sequence[str] = ()
    deleted_groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Configured(Result):
    pass


@dataclass(frozen=True, slots=True)
class Reset(Call):
    """Set the offsets from which a consumer group continues: (queue, offset) each, clamped to the
    queue. Handles of messages in flight there become invalid. Answer: `ResetDone` once it is
    applied."""

    token: Token
    group: str
    topic: str
    queues: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ResetDone(Result):
    """`queues`: (queue, cursor) as now in force."""

    queues: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SettleLetters(Call):
    """Settle dead letters of a dead-letter topic, given by their offsets: `resent` delivers each
    original message to its consumer group again, `purged` does not. May be repeated: a settled
    letter stays as it is. At most `LETTERS_MAX` offsets. Answer: `LettersSettled`; refused with
    `too-many-letters`."""

    token: Token
    topic: str
    offsets: Sequence[int]
    how: str
    user: str = ""


LETTERS_MAX = 100
"""The most dead letters of one call: the leader reads each of them in a turn."""


@dataclass(frozen=True, slots=True)
class LettersSettled(Result):
    """For each offset, in order: `resent` or `purged`, by this call or an earlier one; or why the
    letter was not settled: `gone` (no such letter) or `orphaned` (the original message, or the
    position of its consumer group, is gone)."""

    states: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seal(Call):
    """Record the digest that a majority found for a log file. Answer: `Kept`."""

    token: Token
    record: SealRecord


@dataclass(frozen=True, slots=True)
class EndFile(Call):
    """End the log file being written, if it holds the committed entry `index`, so that it can be
    sealed; an audit marker of `user` begins the next file. May be repeated. Answer: `Kept` once the
    marker is applied, or at once if the entry's file has ended. Refused with `seal-refused`
    (`detail` says why), or with `seal-not-yet` while the next file is being made."""

    token: Token
    index: int
    user: str = ""
    """Empty if calls are not signed."""


@dataclass(frozen=True, slots=True)
class Trim(Call):
    """Move the beginning of the log. The caller has decided what may be removed
    (`retention_rules.py`). Answer: `Kept`."""

    token: Token
    record: TrimRecord


@dataclass(frozen=True, slots=True)
class Mark(Call):
    """Append an audit marker to the log. Answer: `Marked`."""

    token: Token
    record: AuditRecord


@dataclass(frozen=True, slots=True)
class Marked(Result):
    """The marker is applied; it is the entry at `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Kept(Result):
    """The record is applied, or had no effect because its content was already in force."""
