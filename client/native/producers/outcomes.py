"""The outcomes of sent messages: acknowledged with a receipt, or failed with an error. Plain
values; no I/O and no waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ledgermq.client.errors import SendFailed
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.native_ids import native_id
from ledgermq.proto.types import I32


@dataclass(slots=True, eq=False)
class FrameAcknowledged:
    """A stored frame, or a part of one.

    `receipt` is None if the frame was stored so long ago that the broker group no longer knows its
    receipt; then its offsets are unknown. `queues`: the queue id of each message within the broker
    group, or one id for all.
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
    """Maps each queue to its number in the topic."""
    _offsets: np.ndarray[tuple[int], np.dtype[np.int64]] | None = field(default=None, repr=False)

    @property
    def offsets(self) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
        """The queue offset of each message."""
        if self._offsets is None and self.receipt is not None:
            offsets = np.empty(self.count, np.int64)
            queues = np.broadcast_to(self.queues, self.count)
            for run in self.receipt.ranges:
                offsets[queues == run.queue] = np.arange(
                    run.first_offset, run.first_offset + run.count
                )
            self._offsets = offsets
        return self._offsets


class Acknowledged(NamedTuple):
    """One acknowledged message, by its index in its frame."""

    frame: FrameAcknowledged
    position: int

    @property
    def receipt(self) -> pb.Receipt | None:
        """The receipt of the message's frame."""
        return self.frame.receipt

    @property
    def broker_group(self) -> str:
        return self.frame.broker_group

    @property
    def group_queue(self) -> int:
        """The id of the message's queue within the broker group."""
        queues = self.frame.queues
        return queues if isinstance(queues, int) else int(queues[self.position])

    @property
    def queue(self) -> int:
        """The number of the message's queue in the topic, as `peek --queue` takes it."""
        return self.frame.numbers[self.broker_group, self.group_queue]

    @property
    def offset(self) -> int | None:
        offsets = self.frame.offsets
        return None if offsets is None else int(offsets[self.position])

    @property
    def message_id(self) -> str:
        """The message id, as `query --id` takes it."""
        frame = self.frame
        return native_id(
            frame.log_tag, frame.producer_id, frame.epoch, frame.first_sequence + self.position
        )


@dataclass(slots=True)
class Statistics:
    """Counters of a producer, in messages unless the name says otherwise. Every accepted message is
    counted in `acknowledged`, `failed` or `waiting`."""

    accepted: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    """Of the failed: those that may be stored all the same."""
    late: int = 0
    """Of the failed: those that were acknowledged after they had failed."""
    duplicates: int = 0
    """Of the acknowledged: those stored by an earlier frame whose answer was lost."""
    frames: int = 0
    """Frames sent, including repeats."""
    frames_again: int = 0
    frames_cut: int = 0
    """Frames of which a leader change kept only a part."""
    bytes_sent: int = 0
    streams: int = 0
    redirects: int = 0
    disconnects: int = 0
    waiting_bytes: int = 0
    latency_ms: float = 0.0
    """Time from first send to acknowledgement, of the last acknowledged frame."""

    @property
    def waiting(self) -> int:
        return self.accepted - self.acknowledged - self.failed


class Failure(NamedTuple):
    """Rows of a batch that were not acknowledged."""

    rows: Sequence[int]
    error: Exception


@dataclass(frozen=True, slots=True)
class BatchAcknowledged:
    """The acknowledged part of a batch. `rows[i]`: the rows that `frames[i]` holds, in its
    order."""

    count: int
    frames: tuple[FrameAcknowledged, ...]
    rows: tuple[Sequence[int], ...]


class BatchFailed(SendFailed):
    """Some messages of a batch were not acknowledged: `failures` lists them with errors,
    `acknowledged` holds the others."""

    def __init__(self, failures: tuple[Failure, ...], acknowledged: BatchAcknowledged) -> None:
        first = failures[0].error
        failed = sum(len(failure.rows) for failure in failures)
        problem = (
            f"{failed} messages of the batch were not acknowledged, first row"
            f" {failures[0].rows[0]}: {getattr(first, 'what', first)}"
        )
        unknown = any(getattr(failure.error, "unknown", False) for failure in failures)
        super().__init__(problem, getattr(first, "remedy", "see the reason"), unknown=unknown)
        self.failures = failures
        self.acknowledged = acknowledged
        self.retryable = all(getattr(failure.error, "retryable", False) for failure in failures)
