"""What became of messages that were sent: acknowledged with a receipt, or failed and why. Plain values; nothing is sent or awaited here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ledgermq.client.errors import SendFailed
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.native_ids import native_id
from ledgermq.proto.types import I32


@dataclass(slots=True, eq=False)
class FrameAcknowledged:
    """A frame, or a part of one, that is stored as acknowledged.

    `receipt` is None of a frame that was stored before, too long ago for the broker group to know more than that; its offsets are not known
    then. `queues`: of each message its id within the broker group, or the one of all.
    """

    broker_group: str
    receipt: pb.Receipt | None
    duplicate: bool
    log_tag: int
    producer_id: int
    epoch: int
    first_sequence: int
    count: int
    queues: int | I32
    numbers: dict[tuple[str, int], int]
    """Number of each queue in its topic."""
    _offsets: np.ndarray[tuple[int], np.dtype[np.int64]] | None = field(default=None, repr=False)

    @property
    def offsets(self) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
        """Queue offset of each message."""
        if self._offsets is None and self.receipt is not None:
            offsets = np.empty(self.count, np.int64)
            queues = np.broadcast_to(self.queues, self.count)
            for found in self.receipt.ranges:
                offsets[queues == found.queue] = np.arange(found.first_offset, found.first_offset + found.count)
            self._offsets = offsets
        return self._offsets


class Acknowledged(NamedTuple):
    """One acknowledged message: its place in its frame."""

    frame: FrameAcknowledged
    position: int

    @property
    def receipt(self) -> pb.Receipt | None:
        """The receipt of its frame."""
        return self.frame.receipt

    @property
    def broker_group(self) -> str:
        return self.frame.broker_group

    @property
    def group_queue(self) -> int:
        """The id of its queue within the broker group."""
        queues = self.frame.queues
        return queues if isinstance(queues, int) else int(queues[self.position])

    @property
    def queue(self) -> int:
        """The number of its queue in the topic, as `peek --queue` takes it."""
        return self.frame.numbers[self.broker_group, self.group_queue]

    @property
    def offset(self) -> int | None:
        offsets = self.frame.offsets
        return None if offsets is None else int(offsets[self.position])

    @property
    def message_id(self) -> str:
        """As `query --id` takes it."""
        frame = self.frame
        return native_id(frame.log_tag, frame.producer_id, frame.epoch, frame.first_sequence + self.position)


@dataclass(slots=True)
class Statistics:
    """What a producer has done so far; messages, unless the name says otherwise. Every message that was accepted is in `acknowledged`, in
    `failed`, or in `waiting`."""

    accepted: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    """Of the failed: those that may be stored all the same."""
    late: int = 0
    """Of the failed: those that were acknowledged after they had failed."""
    duplicates: int = 0
    """Of the acknowledged: those that were stored before this answer, by a frame whose answer was lost."""
    frames: int = 0
    """Sent, the repeated ones included."""
    frames_again: int = 0
    frames_cut: int = 0
    """Frames of which a leader change had kept a part."""
    bytes_sent: int = 0
    streams: int = 0
    redirects: int = 0
    disconnects: int = 0
    waiting_bytes: int = 0
    latency_ms: float = 0.0
    """Of the last acknowledged frame, since it was first sent."""

    @property
    def waiting(self) -> int:
        return self.accepted - self.acknowledged - self.failed


class Failure(NamedTuple):
    """Rows of a batch that were not acknowledged."""

    rows: Sequence[int]
    error: Exception


@dataclass(frozen=True, slots=True)
class BatchAcknowledged:
    """What of a batch is acknowledged. `rows[i]`: the rows that `frames[i]` holds, in its order."""

    count: int
    frames: tuple[FrameAcknowledged, ...]
    rows: tuple[Sequence[int], ...]


class BatchFailed(SendFailed):
    """Some messages of a batch were not acknowledged: `failures` says which and why, `acknowledged` what was."""

    def __init__(self, failures: tuple[Failure, ...], acknowledged: BatchAcknowledged) -> None:
        first = failures[0].error
        failed = sum(len(failure.rows) for failure in failures)
        what = f"{failed} messages of the batch were not acknowledged, first row {failures[0].rows[0]}: {getattr(first, 'what', first)}"
        unknown = any(getattr(failure.error, "unknown", False) for failure in failures)
        super().__init__(what, getattr(first, "remedy", "see the reason"), unknown=unknown)
        self.failures = failures
        self.acknowledged = acknowledged
        self.retryable = all(getattr(failure.error, "retryable", False) for failure in failures)
