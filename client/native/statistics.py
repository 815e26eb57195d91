"""What a consumer has done and how far it is, as plain values. None is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue that is read. `queue` counts over all broker groups."""

    queue: int
    broker_group: str
    position: int | None
    """The next message to be handed out."""
    committed: int | None
    end: int | None
    """Where the queue ended when the server last said."""
    skipped: int
    """Messages that retention took before they were read."""

    @property
    def lag(self) -> int | None:
        """Messages that wait in the cluster or were read ahead."""
        return None if self.end is None or self.position is None else max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class ServedBy:
    """Who serves a broker group's stream, and how old what that replica knew was at most when it last said so; None: it leads."""

    broker_group: str
    replica: str
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Since the consumer was opened; `messages` and `bytes` (of whole entries) are what was handed out."""

    messages: int
    bytes: int
    batches: int
    buffered_bytes: int
    """Read ahead and not handed out."""
    streams: int
    """Fetch streams that were opened."""
    queues: tuple[QueueStatistics, ...]
    served_by: tuple[ServedBy, ...] = ()
    """Of the streams that are open."""

    @property
    def lag(self) -> int | None:
        """Over all queues; None while one is unknown."""
        lags = [queue.lag for queue in self.queues]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def skipped(self) -> int:
        return sum(queue.skipped for queue in self.queues)
