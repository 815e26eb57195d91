"""A consumer's counters and progress, as plain values. Unknown is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """The progress of one queue. `queue` counts over all broker groups."""

    queue: int
    broker_group: str
    position: int | None
    """The offset of the next message to be handed out."""
    committed: int | None
    end: int | None
    """The end of the queue, as last reported by the server."""
    skipped: int
    """Messages that retention removed before they were read."""

    @property
    def lag(self) -> int | None:
        """Messages in the cluster, or read ahead, that were not handed out yet."""
        return (
            None if self.end is None or self.position is None else max(0, self.end - self.position)
        )


@dataclass(frozen=True, slots=True)
class ServedBy:
    """The node that serves a broker group's stream, and the maximal age of its state when it last
    reported; None: it leads."""

    broker_group: str
    replica: str
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Counters since the consumer was opened; `messages` and `bytes` (of whole entries) count what
    was handed out."""

    messages: int
    bytes: int
    batches: int
    buffered_bytes: int
    """Messages read ahead but not handed out."""
    streams: int
    """The number of Fetch streams opened."""
    queues: tuple[QueueStatistics, ...]
    served_by: tuple[ServedBy, ...] = ()
    """The serving nodes of the open streams."""

    @property
    def lag(self) -> int | None:
        """The lag over all queues; None while one is unknown."""
        lags = [queue.lag for queue in self.queues]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def skipped(self) -> int:
        return sum(queue.skipped for queue in self.queues)
