"""Adds applied entries to the key index of one broker group, beside the turns, in small steps.

The engine calls `advance` and `trim`, which never wait: they say which entries are committed and
durable here. The steps read those entries from the files. They collect the entries of a short time,
work in pieces, and rest as long as they worked, so that they never keep the engine from the
interpreter for long. The index is derived data: a full disk pauses it. Damage of the log goes to a
repair; any other disk failure ends the node (invariant I9).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ledgermq.node.broker.ports import Fenced, Unreadable
from ledgermq.node.replica.background.ports import Rest, Steps, Worker
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.records.time_epochs import NO_EPOCHS, TimeEpochs
from ledgermq.storage.files.errors import LogDamaged, NoSpace, is_exhausted, is_no_space
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.keys.lookup import TIME_MAX, Found, Lookup
from ledgermq.storage.log.log_reader import Limits, LogReader, Piece

STEP_BYTES = 1 << 20
GATHER_S = 0.1
"""New entries wait this long for others: a wake-up and a step cost more than a few hundred keys do.
Queries wait for the index anyway."""
SYNC_EVERY_S = 60.0
SYNC_EVERY_BYTES = 64 << 20
"""Limits for how much of the log is indexed again after a crash."""
PAUSE_S = 1.0
FILTER_PAUSE_S = 60.0

T = TypeVar("T")

log = get_logger()


class MeasuredLookup(Lookup):
    """A lookup that reports its duration as a metric."""

    def __init__(self, group: str, reader: LogReader, index: KeyIndex) -> None:
        super().__init__(reader, index)
        self._seconds = metrics.LOOKUP_SECONDS.labels(group)

    def each_by_key(
        self,
        stored_topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        epochs: TimeEpochs = NO_EPOCHS,
    ) -> Iterator[Found]:
        spent = 0.0
        each = super().each_by_key(stored_topic, key, begin_ms, end_ms, epochs)
        try:
            while True:
                began = time.perf_counter()
                one = next(each, None)
                spent += time.perf_counter() - began
                if one is None:
                    return
                yield one
        finally:
            self._seconds.observe(spent)


class Indexer:
    """The indexing of one group. Call `start` once; `close` for a clean stop, `abandon`
    otherwise."""

    gather_s = GATHER_S
    sync_every_s = SYNC_EVERY_S

    def __init__(self, group: str, index: KeyIndex, reader: LogReader, worker: Worker) -> None:
        self.index = index
        self.failure: Exception | None = None
        self._group = group
        self._reader = reader
        self._worker = worker
        self._woken = False
        """Whether the worker was woken since its last step began."""
        self._applied_index = -1
        self._applied_ms = 0
        self._trim_pos = 0
        self._trimmed_pos = 0
        self._bytes = 0
        self._next_sync_s = worker.now_s() + self.sync_every_s
        self._next_filter_s = 0.0
        self._paused = False
        metrics.KEY_INDEX_LAG_ENTRIES.labels(group).set_function(lambda: self.lag)
        metrics.KEY_INDEX_LAG_SECONDS.labels(group).set_function(lambda: self.lag_seconds)

    def start(self) -> None:
        self._worker.start(self.steps())

    # -- the engine's side

    def advance(self, limits: Limits, applied_index: int, applied_ms: int) -> None:
        """Allow entries up to `limits` to be read and indexed; `applied_index` is the group's
        progress. Raises the failure of a step."""
        if self.failure is not None:
            raise self.failure
        self._applied_index, self._applied_ms = applied_index, applied_ms
        self._reader.limits = limits
        if limits.end_index > self.index.next_index and not self._woken:
            self._woken = True
            self._worker.wake()

    def trim(self, begin_pos: int) -> None:
        """Let a step remove index files wholly below `begin_pos`."""
        self._trim_pos = begin_pos
        self._worker.wake()

    @property
    def lag(self) -> int:
        """Number of applied entries that are not indexed yet."""
        return max(0, self._applied_index - self.index.next_index + 1)

    @property
    def lag_seconds(self) -> float:
        """The lag in seconds of store time."""
        return (
            max(0, self._applied_ms - self.index.store_ms) / 1000
            if self.lag and self.index.store_ms
            else 0.0
        )

    def close(self) -> None:
        """Make everything indexed durable; the next run indexes the rest. Raises the failure
        of a step."""
        self._worker.stop()
        if self.failure is not None:
            raise self.failure
        try:
            if self.index.dirty:
                self._guarded(self.index.sync)
        except NoSpace as full:
            log.warning("key index not synced", group=self._group, reason=str(full))
        self.index.close()

    def abandon(self) -> None:
        """Stop without a sync."""
        self._worker.stop()
        self.index.close()

    # -- in steps

    def steps(self) -> Steps:
        """The steps: each does one piece of work, and rests as long as it took."""
        try:
            while True:
                # Before the limits are read: what comes later wakes the worker again.
                self._woken = False
                began = self._worker.now_s()
                if self._step(began):
                    yield Rest(self._worker.now_s() - began)
                else:
                    yield Rest(self._limit_s(), wakes=True)
                    yield Rest(PAUSE_S if self._paused else self.gather_s)
        # the engine raises any failure in its next turn, and the node ends
        except Exception as failure:
            self.failure = failure
            log.error("key index failed", group=self._group, reason=str(failure))

    def _limit_s(self) -> float | None:
        """How long to wait for entries."""
        if self._paused:
            return PAUSE_S
        return max(0.0, self._next_sync_s - self._worker.now_s()) if self.index.dirty else None

    def _until_stopped(self) -> Iterator[None]:
        while not self._worker.stopping:
            yield

    def _step(self, now_s: float) -> bool:
        """Do one piece of work; False if there is none, or no disk space for it."""
        try:
            worked = self._guarded(lambda: self._advance(now_s))
        except NoSpace as full:
            if not self._paused:
                log.warning("key index paused", group=self._group, reason=str(full))
            self._paused = True
            return False
        if self._paused:
            log.info("key index resumed", group=self._group)
        self._paused = False
        return worked

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            if is_no_space(error) or is_exhausted(error):
                raise NoSpace(
                    f"the key index found no room ({error}): free disk space, or raise limits"
                ) from error
            raise Fenced(f"the key index failed: {error}") from error

    def _advance(self, now_s: float) -> bool:
        index, limits = self.index, self._reader.limits
        # After a full disk interrupted the index, its slots must be built again.
        if not index.load(self._until_stopped()):
            return False
        index.skip_to(limits.begin_index)
        if self._trim_pos > self._trimmed_pos:
            self._trimmed_pos = self._trim_pos
            for path in index.trim(self._trimmed_pos):
                log.info("key index file removed", group=self._group, file=path)
            return True
        if self._bytes >= SYNC_EVERY_BYTES or (index.dirty and now_s >= self._next_sync_s):
            index.sync()
            self._bytes, self._next_sync_s = 0, now_s + self.sync_every_s
            return True
        if index.next_index < limits.end_index:
            entries = self._read(index.next_index)
            if entries is None:
                # The entries were just trimmed; the engine will call `trim`.
                return False
            index.append(entries)
            self._bytes += len(entries.data)
            return True
        return self._tend(now_s)

    def _read(self, index: int) -> Piece | None:
        """Entries of the log. What cannot be read is damage of the log, which a repair mends."""
        try:
            return self._reader.read(index, STEP_BYTES)
        except OSError as error:
            if is_exhausted(error):
                raise
            raise Unreadable(LogDamaged(f"entry {index} cannot be read: {error}")) from error

    def _tend(self, now_s: float) -> bool:
        """Build a missing filter. This reads a whole file, so if there is no space for the result,
        retry only after a pause."""
        if now_s < self._next_filter_s:
            return False
        try:
            return self.index.tend(self._until_stopped())
        except NoSpace:
            self._next_filter_s = now_s + FILTER_PAUSE_S
            return False
