"""A Parquet file of the messages that a consumer received and acknowledged: one row per delivery
(docs/audit.md, "Against clients").

Law: a row has `acknowledged_ms` only after the cluster has answered the commit. A delivery is kept
in memory until then. If deliveries are never committed, at most `PENDING_ROWS` are kept; the oldest
are then written as not acknowledged, which claims too little, never too much. `parquet_log.py`
writes the file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ledgermq.client.errors import BadArgument
from ledgermq.client.native.consumers.positions import Place
from ledgermq.client.native.parquet_log import GROUP_ROWS, GROUP_S, ParquetLog
from ledgermq.proto.types import I64

if TYPE_CHECKING:
    from ledgermq.client.native.consumers.received import Batch

PENDING_ROWS = 1 << 20
EVERYTHING = (1 << 63) - 1
COLUMNS = (
    "consumer_group",
    "topic",
    "broker_group",
    "queue",
    "offset",
    "message_id",
    "message_group",
    "attempt",
    "delivered_ms",
    "acknowledged_ms",
    "sought",
)


@dataclass(frozen=True, slots=True)
class Delivered:
    """A run of deliveries of one queue, whose rows differ only in offset and message id."""

    place: Place
    offsets: I64
    message_ids: Any
    delivered_ms: int
    sought_below: int
    """The application itself asked again for offsets below this one."""
    acknowledged_ms: int | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, begin: int, end: int, acknowledged_ms: int | None) -> Delivered:
        ids = self.message_ids.slice(begin, end - begin)
        return replace(
            self, offsets=self.offsets[begin:end], message_ids=ids, acknowledged_ms=acknowledged_ms
        )


class DeliveryLog(ParquetLog[Delivered]):
    """Deliveries of one consumer, written to one new file. A context manager. For one thread."""

    what = "deliveries"

    def __init__(
        self, path: str | Path, *, group_rows: int = GROUP_ROWS, group_s: float = GROUP_S
    ) -> None:
        """As for `ParquetLog`. Raises BadArgument."""
        super().__init__(path, group_rows=group_rows, group_s=group_s)
        self._topic = self._consumer_group = ""
        self._pending: dict[Place, deque[Delivered]] = {}
        self._pending_rows = 0
        self._sought: dict[Place, int] = {}

    def of(self, stored_topic: str, stored_group: str) -> None:
        """Set the topic and the consumer group ("": no group, so nothing is ever committed)."""
        self._topic, self._consumer_group = stored_topic, stored_group

    def delivered(self, place: Place, batch: Batch) -> None:
        """Record that a batch is handed to the application now. Raises OSError."""
        if not len(batch):
            return
        ids = batch.to_arrow(("message_id",)).column(0)
        offsets = np.asarray(batch.offsets, np.int64)
        run = Delivered(place, offsets, ids, _now_ms(), self._sought.get(place, 0))
        if not self._consumer_group:
            self._add(run, len(run))
            return
        self._pending.setdefault(place, deque()).append(run)
        self._pending_rows += len(run)
        while self._pending_rows > PENDING_ROWS:
            self._oldest_goes()

    def sought(self, place: Place, below: int | None) -> None:
        """Record a seek in a queue that holds messages up to `below` (None: unknown). Deliveries
        below that offset are then repeated at the application's own wish, whichever member of the
        consumer group received them before."""
        self._sought[place] = EVERYTHING if below is None else below

    def committed(self, ends: Mapping[Place, int]) -> None:
        """Record that the cluster has committed: everything before the end of each queue is
        acknowledged. Raises OSError."""
        now = _now_ms()
        for place, end in ends.items():
            waiting = self._pending.get(place, deque())
            keep: deque[Delivered] = deque()
            for run in waiting:
                count = int(np.searchsorted(run.offsets, end))
                if count:
                    self._add(run.part(0, count, now), count)
                    self._pending_rows -= count
                if count < len(run):
                    keep.append(run.part(count, len(run), None))
            self._pending[place] = keep

    def close(self) -> None:
        """Also write deliveries that were never acknowledged, then complete and sync the file.
        Raises OSError."""
        while self._writer is not None and self._pending_rows:
            self._oldest_goes()
        super().close()

    def _oldest_goes(self) -> None:
        waiting = [runs for runs in self._pending.values() if runs]
        run = min(waiting, key=lambda runs: runs[0].delivered_ms).popleft()
        self._pending_rows -= len(run)
        self._add(run, len(run))

    def _columns(self) -> Any:
        return schema()

    def _table(self, parts: Sequence[Delivered]) -> Any:
        import pyarrow as pa

        counts = np.array([len(part) for part in parts])
        offsets = np.concatenate([part.offsets for part in parts])
        total = len(offsets)

        def each(values: Sequence[Any], kind: Any) -> Any:
            return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(parts)), counts)))

        columns = {
            "consumer_group": pa.repeat(self._consumer_group, total),
            "topic": pa.repeat(self._topic, total),
            "broker_group": each([part.place.broker_group for part in parts], pa.string()),
            "queue": each([part.place.queue for part in parts], pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "message_id": pa.concat_arrays([part.message_ids for part in parts]),
            "message_group": pa.nulls(total, pa.string()),
            "attempt": pa.nulls(total, pa.int32()),
            "delivered_ms": each([part.delivered_ms for part in parts], pa.int64()),
            "acknowledged_ms": each([part.acknowledged_ms for part in parts], pa.int64()),
            "sought": pa.array(offsets < np.repeat([part.sought_below for part in parts], counts)),
        }
        return pa.table(columns, schema=self._schema)


class Deliveries:
    """The optional delivery log of a consumer. A path is opened here, and closed with the consumer;
    a given log stays its owner's to close. A failure of the file raises BadArgument."""

    def __init__(
        self, given: DeliveryLog | str | Path | None, stored_topic: str, stored_group: str
    ) -> None:
        self._own = isinstance(given, str | Path)
        self._log = DeliveryLog(given) if isinstance(given, str | Path) else given
        if self._log is not None:
            self._log.of(stored_topic, stored_group)

    def delivered(self, place: Place, batch: Batch) -> None:
        if self._log is not None:
            with self._told(self._log):
                self._log.delivered(place, batch)

    def sought(self, place: Place, below: int | None) -> None:
        if self._log is not None:
            self._log.sought(place, below)

    def committed(self, ends: Mapping[Place, int]) -> None:
        if self._log is not None:
            with self._told(self._log):
                self._log.committed(ends)

    def close(self, *, opened: bool) -> None:
        """Complete the file. A consumer that could not be opened leaves none, so that the next
        attempt does not find it in its way."""
        if self._log is not None and self._own:
            with self._told(self._log):
                self._log.close() if opened else self._log.abandon()

    @staticmethod
    @contextmanager
    def _told(log: DeliveryLog) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"deliveries cannot be written to {log.path} ({error.strerror or error})"
            raise BadArgument(
                problem,
                "free disk space, then continue from the committed offsets with another file",
            ) from error


def schema() -> Any:
    """The Arrow schema of a delivery file. Null means unknown; in `acknowledged_ms`, not
    acknowledged."""
    import pyarrow as pa

    kinds = {"queue": pa.int32(), "attempt": pa.int32(), "offset": pa.int64(), "sought": pa.bool_()}
    kinds |= {"delivered_ms": pa.int64(), "acknowledged_ms": pa.int64()}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in COLUMNS])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
