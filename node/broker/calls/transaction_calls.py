"""Calls of transactions: half messages are stored, committed or rolled back, and checked with their
producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Result
from ledgermq.proto.types import Draft


@dataclass(frozen=True, slots=True)
class Prepare(Call):
    """Append half messages: drafts for their real topics and queues, as in `Produce`, that no
    consumer sees before they are committed. `recovery_ms`: for each, how long its producer wants to
    wait for the first check, or None. Answer: `Produced`, always `durable`; its queue offsets
    identify the halves."""

    token: Token
    drafts: Sequence[Draft]
    recovery_ms: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Resolve(Call):
    """Commit a half message, or roll it back. Topic and message id must match the half. Answer:
    `Resolved`."""

    token: Token
    offset: int
    """The queue offset of the half message."""
    topic: str
    message_id: str
    commit: bool
    user: str | None = None
    """The operator who rolls it back; None: a producer decides."""


@dataclass(frozen=True, slots=True)
class Resolved(Result):
    """`ok`: the transaction has ended as requested, by this call or an earlier one. False: it is
    unknown, or has ended otherwise. A deposed leader that does not know of its successor may also
    answer False, for a half that it never had."""

    ok: bool


@dataclass(frozen=True, slots=True)
class Overdue(Call):
    """Which half messages are due for a check? Those that were checked often enough are dropped.
    Answer: `OverdueHalves`."""

    token: Token
    limit: int


@dataclass(frozen=True, slots=True)
class OverdueHalves(Result):
    """`halves`: (half offset, stored topic), longest overdue first; each is listed again after a
    while unless a check of it is counted. `dropped`: (half offset, stored topic, reason) of those
    that this call has ended."""

    halves: tuple[tuple[int, str], ...]
    dropped: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CountChecks(Call):
    """Count a check of these halves before it is sent. Answer: `ChecksCounted`."""

    token: Token
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class UndecidedHalf:
    """A half message to check with its producer; `checks`: the number of this check."""

    offset: int
    topic: str
    checks: int
    record: bytes


@dataclass(frozen=True, slots=True)
class ChecksCounted(Result):
    """The halves that are still undecided and whose messages fit into one answer. The others are
    not to be checked now."""

    halves: tuple[UndecidedHalf, ...]
