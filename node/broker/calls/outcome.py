"""What all calls and results have in common, and how a call ends: done, or refused with a
reason."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import NamedTuple

from ledgermq.node.broker.calls import Token


class Call:
    """What a client, a node or an operator asks of a broker group. One part of the group takes it.
    It is answered by exactly one `Done` with its token, unless it is a `Sign`."""

    __slots__ = ()
    token: Token


class Sign(Call):
    """A call that has no token and no answer."""

    __slots__ = ()


def kinds_of_calls() -> set[type[Call]]:
    """Every type of call in the modules that are imported."""
    # A class with slots is a copy of the one without that was declared.
    return {
        kind
        for kind in (*Call.__subclasses__(), *Sign.__subclasses__())
        if is_dataclass(kind) and "__slots__" in vars(kind)
    }


class Result:
    """The answer to a call that was done."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a call was not executed.

    `reason`: `not-leader` (nothing was appended; `leader` is the current one, if known),
    `disk-full` (nothing was appended), `unknown-outcome` (leadership was lost after the append; the
    entry may still commit; the node never retries), `unknown-topic` (not configured in this broker
    group's log), `too-large` (fits no log file), `illegal-offset` (outside of the queue),
    `too-many-transactions`, `too-many-recalls`, `too-many-letters`, `lite-topics` and
    `lite-subscriptions` (limit exceeded; nothing was appended), `in-sync-short` (an HA group has
    too few members in sync; nothing was appended; `detail` says what to do), `store-away` (a
    Receive or a dead letter for which only the object store has messages, and they have not come;
    nothing was appended; `detail` says why), `transfer-refused` (leadership stays; `detail` says
    why), `members-refused` (nothing was appended; `detail` says why), `members-not-yet` (likewise,
    but a later attempt can succeed), `time-epoch-refused` (likewise; `detail` says why no time
    epoch may begin), `seal-refused` (likewise; `detail` says why the log file cannot end),
    `seal-not-yet` (the next log file is being made).

    Of frames (nothing was appended): `unknown-producer` (never opened here, or silent for too
    long), `stale-epoch` (another client has opened the producer since), `sequence-gap` (an earlier
    message is missing), `partial-frame` (the frame's messages below `next_sequence` are stored, in
    one or several frames; the others are not), `wrong-kind` (the topic's messages come by the unary
    path). `next_sequence` is the sequence number of the producer's next new message.
    """

    reason: str
    leader: str | None = None
    detail: str = ""
    next_sequence: int | None = None


UNREAD = Refused(
    "busy",
    detail=(
        "the clients of this node have not taken earlier answers (limits.buffered_bytes); ask again"
        " later"
    ),
)
"""For a call whose messages were not read, because there was no room for them until its
deadline."""
NOTHING_DONE = frozenset({"not-leader"})
AGAIN = NOTHING_DONE | {"unknown-outcome"}
"""A call refused for one of these reasons is retried if executing it twice has the same effect as
once."""


class CallRefused(Exception):
    """A call was not executed, or its outcome is unknown (`unknown-outcome`).

    `refused.reason` is one of `Refused` (`not-leader`: nothing was done before the deadline), or
    `busy` or `internal`.
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__(
            refused.reason if not refused.detail else f"{refused.reason}: {refused.detail}"
        )
        self.refused = refused


class Done(NamedTuple):
    token: Token
    outcome: Result | Refused
