"""One reader's progress through the log itself, entry by entry in log order, all kinds of entries;
for administrators.

As in `tailing.py`, it reads the object store where the local log does not reach, the files until it
reaches the window of the newest ranges, then the window. One caller at a time.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ledgermq.node.broker.recent import Applied
from ledgermq.node.frontend.native.answers import Answer, Batch, entries_answer
from ledgermq.node.frontend.native.sources import GroupSource
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.storage.files.errors import LogDamaged

ALL = -1
"""The queue number of entries that are read by log index."""


class LogTail:
    """The log from `first_index` on. `goal`: the index before which reading ends; None: reading
    never ends."""

    def __init__(self, source: GroupSource, first_index: int, goal: int | None) -> None:
        self._source = source
        self._next = first_index
        self._goal = goal
        self._skipped = 0

    @property
    def finished(self) -> bool:
        return self._goal is not None and self._next >= self._goal

    @property
    def next_index(self) -> int:
        return self._next

    async def read(self, max_bytes: int) -> list[Answer]:
        """The next entries, within `max_bytes` but at least one; empty at the end. Raises OSError,
        LogDamaged, LedgerError."""
        while not self.finished:
            ranges = self._source.recent.since(self._next)
            if ranges is not None:
                return [self._answer(self._cut(ranges[0], max_bytes))] if ranges else []
            batch = await self._source.cold(
                partial(self._source.files.read_log, self._next, max_bytes)
            )
            if batch is None:
                batch = await self._stored(max_bytes)
            if batch is None:
                await self._skip()
                continue
            if not len(batch.sizes):
                batch = await self._source.run(partial(_read_here, self._next, max_bytes))
            # None: the window begins behind what is applied, and nothing was appended since it was
            # opened.
            return [] if batch is None else [self._answer(self._until_goal(batch))]
        return []

    async def _stored(self, max_bytes: int) -> Batch | None:
        """The next entries from the object store; None if it does not have them."""
        tier = self._source.tier
        piece = None if tier is None else await tier.log(self._source.group, self._next, max_bytes)
        return (
            None if piece is None else Batch(ALL, self._next, piece.sizes, [piece.data], "stored")
        )

    async def _skip(self) -> None:
        begin = await self._source.run(lambda hosted: int(hosted.machine.begin_index))
        if self._source.tier is not None:
            begin = await self._source.tier.first_index(self._source.group, self._next, begin)
        if begin <= self._next:
            raise LogDamaged(f"entry {self._next} of the log is missing: audit this replica")
        self._skipped, self._next = self._skipped + begin - self._next, begin

    def _cut(self, applied: Applied, max_bytes: int) -> Batch:
        entries = applied.entries
        at = self._next - entries.first_index
        count = max(
            1,
            int(
                np.searchsorted(
                    np.cumsum(entries.sizes[at:], dtype=np.int64), max_bytes, side="right"
                )
            ),
        )
        last = at + count - 1
        data = memoryview(entries.data)[
            int(entries.starts[at]) : int(entries.starts[last]) + int(entries.sizes[last])
        ]
        return self._until_goal(
            Batch(ALL, self._next, entries.sizes[at : last + 1], [data], "recent")
        )

    def _until_goal(self, batch: Batch) -> Batch:
        if self._goal is None or batch.next_offset <= self._goal:
            return batch
        sizes = batch.sizes[: self._goal - batch.first_offset]
        return Batch(
            ALL,
            batch.first_offset,
            sizes,
            [memoryview(batch.pieces[0])[: int(sizes.sum(dtype=np.int64))]],
            batch.source,
        )

    def _answer(self, batch: Batch) -> Answer:
        self._next = batch.next_offset
        skipped, self._skipped = self._skipped, 0
        return entries_answer(batch, batch.next_offset, skipped)


def _read_here(first_index: int, max_bytes: int, hosted: RunningReplica) -> Batch | None:
    """Entries that are applied but not yet durable here; None if there are none. Runs between two
    turns."""
    machine = hosted.machine
    if first_index > machine.applied_index:
        return None
    entries = hosted.store.log.read(first_index, max_bytes)
    count = min(len(entries), machine.applied_index - first_index + 1)
    end = int(entries.starts[count - 1]) + int(entries.sizes[count - 1])
    return Batch(ALL, first_index, entries.sizes[:count], [entries.data[:end]], "waiting")
