"""Calls of transactions: half messages are stored, resolved, and asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.proto.types import Draft


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
