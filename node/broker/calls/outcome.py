"""Every call and every result there is, and how a call ends: done, or refused with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
    CancelReceive,
    Change,
    Changed,
    ClientGone,
    ClientsAlive,
    Forward,
    Forwarded,
    LiteSynced,
    Receive,
    Received,
    SyncLite,
)
from ledgermq.node.broker.calls.member_calls import (
    Appointed,
    ChangeMembers,
    HandedOver,
    HandingOver,
    HandOver,
    MembersChanged,
    Prefer,
    Returned,
)
from ledgermq.node.broker.calls.operator_calls import Configure, Configured, Kept, Mark, Marked, Reset, ResetDone, Seal, Trim
from ledgermq.node.broker.calls.read_calls import (
    CommitOffset,
    Confirm,
    Confirmed,
    FindOffset,
    OffsetCommitted,
    OffsetRead,
    Peek,
    Peeked,
    Pull,
    Pulled,
    ReadOffset,
)
from ledgermq.node.broker.calls.send_calls import (
    FrameKnown,
    FrameProduced,
    OpenProducer,
    Produce,
    Produced,
    ProduceFrame,
    ProducerOpened,
    Recall,
    Recalled,
    ResumeProducer,
)
from ledgermq.node.broker.calls.transaction_calls import ChecksCounted, CountChecks, Overdue, OverdueHalves, Prepare, Resolve, Resolved

Call = (
    Produce
    | OpenProducer
    | ResumeProducer
    | ProduceFrame
    | Receive
    | CancelReceive
    | Ack
    | Change
    | Forward
    | ClientsAlive
    | ClientGone
    | Configure
    | Reset
    | Recall
    | Prepare
    | Resolve
    | Overdue
    | CountChecks
    | CommitOffset
    | SyncLite
    | Seal
    | Trim
    | Mark
    | Peek
    | Pull
    | ReadOffset
    | FindOffset
    | HandOver
    | Prefer
    | Confirm
    | ChangeMembers
    | Returned
    | Appointed
)

Result = (
    Produced
    | ProducerOpened
    | FrameProduced
    | FrameKnown
    | Received
    | Acked
    | Changed
    | Forwarded
    | Configured
    | ResetDone
    | Recalled
    | Resolved
    | OverdueHalves
    | ChecksCounted
    | OffsetCommitted
    | LiteSynced
    | Kept
    | Marked
    | Peeked
    | Pulled
    | OffsetRead
    | Confirmed
    | HandedOver
    | HandingOver
    | MembersChanged
)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a call was not done.

    `reason`: `not-leader` (nothing was appended; `leader` may help), `disk-full` (nothing was appended), `unknown-outcome` (leadership was
    lost after the append; it may still commit; never retried by us), `unknown-topic` (not configured in this broker group's log),
    `too-large` (fits no log file), `illegal-offset` (the queue does not hold it), `too-many-transactions`, `too-many-recalls`,
    `lite-topics` and `lite-subscriptions` (too many; nothing was appended),
    `in-sync-short` (an HA group has fewer members in sync than it needs; nothing was appended; `detail` says what to do),
    `transfer-refused` (leadership stays; `detail` says why), `members-refused` (nothing was appended; `detail` says why),
    `members-not-yet` (the same, and asking again a moment later will help).

    Of frames (nothing was appended): `unknown-producer` (never opened here, or silent for too long), `stale-epoch` (opened again by
    somebody else), `sequence-gap` (an earlier message is missing), `partial-frame` (its messages below `next_sequence` are stored, as one
    frame or several; the others are not), `wrong-kind` (the topic's messages come by the unary path). `next_sequence` is that of the next
    new message of the producer.
    """

    reason: str
    leader: str | None = None
    detail: str = ""
    next_sequence: int | None = None


NOTHING_DONE = frozenset({"not-leader"})
AGAIN = NOTHING_DONE | {"unknown-outcome"}
"""Reasons for which a call that has the same effect when it is executed twice is tried again."""


class CallRefused(Exception):
    """A call was not executed, or its outcome is unknown (`unknown-outcome`).

    `refused.reason` is one of those of `Refused` (`not-leader`: the deadline passed first, and nothing was done), or `busy` or `internal`.
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason if not refused.detail else f"{refused.reason}: {refused.detail}")
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Done:
    token: Token
    outcome: Result | Refused
