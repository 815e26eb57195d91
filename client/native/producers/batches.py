"""Messages on their way to a node: batches that become frames, the sinks that learn their outcome,
and the gathering of single messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ledgermq.client.native.producers.columns import Columns
from ledgermq.client.native.producers.outcomes import (
    Acknowledged,
    BatchAcknowledged,
    BatchFailed,
    Failure,
    FrameAcknowledged,
)
from ledgermq.client.native.producers.ports import AnyFuture, OutcomeSink
from ledgermq.proto.frames import EncodedFrame

OVERHEAD_BYTES = 192
"""About the bytes of an entry besides body, topic, tag, keys and properties."""


@dataclass(slots=True, eq=False)
class Batch:
    """Messages that are sent as one frame.

    `first_sequence` is set when the batch is sent, until its sequence numbers may be reused.
    `in_doubt`: a stream broke before the frame was answered, so a node may have the frame.
    """

    columns: Columns
    sink: OutcomeSink
    row: int
    size: int
    deadlines: float | Sequence[float]
    """Deadlines: one for all messages, or rising from message to message."""
    first_sequence: int | None = None
    frame: EncodedFrame | None = None
    in_doubt: bool = False
    reported: int = 0
    """The number of messages, counted from the first, that were already reported as failed although
    a node may have them."""
    sent_s: float = 0.0
    """Time of the first send."""
    on_wire_s: float = 0.0
    """Time of the last send."""

    def __len__(self) -> int:
        return len(self.columns)

    def expired(self, now: float) -> int:
        """How many messages, counted from the first, are past their deadline."""
        if isinstance(self.deadlines, float):
            return len(self) if self.deadlines <= now else 0
        return bisect_right(self.deadlines, now)

    def next_deadline(self) -> float | None:
        """The deadline of the first message that has not failed."""
        if self.reported == len(self):
            return None
        return (
            self.deadlines if isinstance(self.deadlines, float) else self.deadlines[self.reported]
        )

    def split(self, at: int) -> tuple[Batch, Batch]:
        """Split into two batches without sequence numbers."""
        size = self.size * at // len(self)
        head, rest = (
            (self.deadlines, self.deadlines)
            if isinstance(self.deadlines, float)
            else (self.deadlines[:at], self.deadlines[at:])
        )
        parts = (
            Batch(self.columns.part(0, at), self.sink, self.row, size, head),
            Batch(
                self.columns.part(at, len(self)), self.sink, self.row + at, self.size - size, rest
            ),
        )
        parts[0].reported, parts[1].reported = min(self.reported, at), max(0, self.reported - at)
        for part in parts:
            part.sent_s = self.sent_s
        return parts


class Message(NamedTuple):
    """One message of `send`. `queue`: its id within the broker group."""

    body: bytes
    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str] | None
    queue: int
    born_ms: int
    deadline: float
    size: int
    future: AnyFuture


class Futures:
    """The sink of messages that were sent one by one."""

    def __init__(self, futures: list[AnyFuture]) -> None:
        self._futures = futures

    def acknowledged(self, row: int, frame: FrameAcknowledged) -> None:
        for position, future in enumerate(self._futures[row : row + frame.count]):
            if not future.done():
                future.set_result(Acknowledged(frame, position))

    def failed(self, row: int, count: int, error: Exception) -> None:
        for future in self._futures[row : row + count]:
            if not future.done():
                future.set_exception(error)


class Rows:
    """The sink of a whole batch: its future is done when every row has an outcome."""

    def __init__(self, count: int, future: AnyFuture) -> None:
        self._count = count
        self._future = future
        self._open = count
        self._frames: list[tuple[Sequence[int], FrameAcknowledged]] = []
        self._failures: list[Failure] = []

    def acknowledged(self, row: int, frame: FrameAcknowledged) -> None:
        self.stored(range(row, row + frame.count), frame)

    def failed(self, row: int, count: int, error: Exception) -> None:
        self.lost(range(row, row + count), error)

    def stored(self, rows: Sequence[int], frame: FrameAcknowledged) -> None:
        """As `acknowledged`, for rows in any order."""
        failed = {row for failure in self._failures for row in failure.rows}
        late = len(failed.intersection(rows)) if failed else 0
        self._frames.append((rows, frame))
        self._settled(frame.count - late)

    def lost(self, rows: Sequence[int], error: Exception) -> None:
        self._failures.append(Failure(rows, error))
        self._settled(len(rows))

    def _settled(self, count: int) -> None:
        self._open -= count
        if self._open or self._future.done():
            return
        frames = sorted(self._frames, key=lambda item: item[0][0])
        done = BatchAcknowledged(
            self._count, tuple(frame for _, frame in frames), tuple(rows for rows, _ in frames)
        )
        if self._failures:
            self._future.set_exception(
                BatchFailed(
                    tuple(sorted(self._failures, key=lambda failure: failure.rows[0])), done
                )
            )
        else:
            self._future.set_result(done)


class RowsOfGroup:
    """The sink of the rows of a batch that go to one broker group."""

    def __init__(self, rows: Rows, order: Sequence[int]) -> None:
        self._rows = rows
        self._order = order

    def acknowledged(self, row: int, frame: FrameAcknowledged) -> None:
        self._rows.stored(self._order[row : row + frame.count], frame)

    def failed(self, row: int, count: int, error: Exception) -> None:
        self._rows.lost(self._order[row : row + count], error)


@dataclass(slots=True)
class Gathering:
    """Collects single messages until the batch is large enough, or until a frame may be sent."""

    messages: list[Message] = field(default_factory=list)
    size: int = 0
    since_s: float = 0.0

    def add(self, message: Message, now: float) -> None:
        if not self.messages:
            self.since_s = now
        self.messages.append(message)
        self.size += message.size

    def seal(self) -> Batch:
        """Return the batch; there must be at least one message."""
        messages, size = self.messages, self.size
        self.messages, self.size = [], 0
        bodies, tags, keys, properties, queues, born_ms, deadlines, _, futures = zip(
            *messages, strict=True
        )
        columns = Columns(
            bodies=bodies,
            queues=queues[0]
            if queues.count(queues[0]) == len(queues)
            else np.array(queues, np.int32),
            born_ms=np.array(born_ms, np.int64),
            tags=tags if any(tags) else None,
            keys=keys if any(keys) else None,
            properties=[user or {} for user in properties] if any(properties) else None,
        )
        return Batch(columns, Futures(list(futures)), 0, size, deadlines)
