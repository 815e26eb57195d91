"""One reader's progress through the queues of a topic: from its start to the end, and then along
with new messages.

A reader *catches up* until it has read everything that existed at one moment. It reads queue by
queue, next the one whose last entry lies furthest back in the log, so that queues that were written
together are read together. Then it *follows*: what is applied after that moment comes from the
window of recent ranges, in log order. A reader that falls out of the window catches up again. Law:
`next_of` of a queue moves only over entries that were handed out, or that retention removed, which
are counted; so each offset comes once and in order.

This module does not wait for messages and knows no connection: `read` returns what is there. One
caller at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeVar

import numpy as np

from ledgermq.node.broker.recent import Applied
from ledgermq.node.frontend.native.answers import Answer, Batch, entries_answer
from ledgermq.node.frontend.native.reading import Ends, read_ends, waiting
from ledgermq.node.frontend.native.sources import GroupSource
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.types import I32, I64
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.log.entry_reader import Piece, gather

NOT_READ = 1 << 62
"""The next offset of a queue that the reader did not ask for; no message reaches it."""
FEW_ENTRIES = 256
"""Up to this many new entries are handed out without a thread, because they are in memory."""

T = TypeVar("T")


class Gone(Exception):
    """The topic is no longer in force in this broker group."""


class QueueTail:
    """Some queues of a topic. `places`: the first offset of each, within the queue. `goals`: where
    reading of each ends; None: reading never ends."""

    def __init__(
        self,
        source: GroupSource,
        topic: str,
        ends: Ends,
        places: Mapping[int, int],
        goals: Mapping[int, int] | None,
    ) -> None:
        self._source = source
        self._topic = topic
        self._next: I64 = np.full(max(places) + 1, NOT_READ, np.int64)
        for queue, offset in places.items():
            self._next[queue] = offset
        self._queues = tuple(places)
        self._goals = goals
        self._written: dict[int, int] = {}
        """By queue, the offset below which units are in files."""
        self._skipped: dict[int, int] = {}
        """By queue, the number of messages skipped since its last answer."""
        self._incarnation = ends.incarnation
        self._behind: list[tuple[int, int]] = []
        """(position of its last entry, queue) of the queues that still have to be read up to
        `_ends`, as a heap."""
        self._ends: Sequence[int] = ()
        self._cursor: int | None = None
        """While following: the next entry to look at; None while catching up."""
        self._catch_up(ends)

    @property
    def finished(self) -> bool:
        """Whether everything up to the goals was handed out."""
        return self._goals is not None and all(
            int(self._next[queue]) >= goal for queue, goal in self._goals.items()
        )

    def next_of(self, queue: int) -> int:
        return int(self._next[queue])

    @property
    def places(self) -> dict[int, int]:
        """The next offset of every queue."""
        return {queue: int(self._next[queue]) for queue in self._queues}

    @property
    def next_index(self) -> int:
        """Once the reader has caught up: everything before this log entry was handed out."""
        return self._follows if self._cursor is None else self._cursor

    async def read(self, ends: Sequence[int], incarnation: int, max_bytes: int) -> list[Answer]:
        """The next entries, within `max_bytes` but at least one; empty at the end. `ends`: the
        known ends of the queues. Raises Gone, OSError, LogDamaged, LedgerError."""
        if incarnation != self._incarnation:
            await self._renew()
        while not self.finished:
            if self._cursor is None:
                answers = await self._read_behind(ends, max_bytes)
                if answers:
                    return answers
                self._cursor = self._follows
            ranges = self._source.recent.since(self._cursor)
            if ranges is None:
                self._catch_up(await self._read_ends())
                continue
            if not ranges:
                return []
            answers = await self._follow(ranges, ends, max_bytes)
            if answers:
                return answers
        return []

    # Catching up

    def _catch_up(self, ends: Ends) -> None:
        """Read up to these ends from now on."""
        self._incarnation = ends.incarnation
        self._ends, self._follows, self._cursor = ends.ends, ends.applied_index + 1, None
        self._behind = [
            (0, queue)
            for queue in self._queues
            if queue < len(ends.ends) and self._next[queue] < self._stop(queue)
        ]
        heapify(self._behind)

    def _stop(self, queue: int) -> int:
        end = self._ends[queue]
        return end if self._goals is None else min(end, self._goals[queue])

    async def _read_ends(self) -> Ends:
        topic = self._topic
        ends = await self._source.run(lambda hosted: read_ends(hosted, topic))
        if ends is None:
            raise Gone(topic)
        return ends

    async def _renew(self) -> None:
        """The topic was created again: its queues continue behind the messages of the former
        topic."""
        ends = await self._read_ends()
        begins = ends.begins if self._source.tier is None else ends.floors
        for queue in self._queues:
            if queue < len(begins):
                self._skip(queue, begins[queue])
            elif self._goals is not None:
                # The topic has fewer queues now: this one gets no more messages.
                self._skip(queue, self._goals[queue])
        self._catch_up(ends)

    def _skip(self, queue: int, begin: int) -> bool:
        first = int(self._next[queue])
        if begin <= first:
            return False
        self._skipped[queue] = self._skipped.get(queue, 0) + begin - first
        self._next[queue] = begin
        return True

    async def _read_behind(self, ends: Sequence[int], max_bytes: int) -> list[Answer]:
        """The next entries of the queue that is furthest behind; empty if all queues have caught
        up."""
        while self._behind:
            queue = heappop(self._behind)[1]
            first, stop = int(self._next[queue]), self._stop(queue)
            if first >= stop:
                continue
            end, skipped = _end(ends, queue), self._skipped.get(queue, 0)
            batch, pos = await self._entries(queue, first, stop, max_bytes, end, skipped=skipped)
            if batch is None:
                batch, pos = await self._stored(queue, max_bytes, end)
            if batch is None:
                begins = (await self._read_ends()).begins
                if not self._skip(queue, begins[queue] if queue < len(begins) else stop):
                    raise LogDamaged(
                        f"message {first} of queue {queue} of topic {self._topic} is missing: audit"
                        " this replica"
                    )
                heappush(self._behind, (0, queue))
                continue
            first = int(self._next[queue])
            self._skipped.pop(queue, None)
            self._next[queue] = first + batch.count
            heappush(self._behind, (pos, queue))
            return [batch]
        return []

    async def _stored(self, queue: int, max_bytes: int, end: int) -> tuple[Answer | None, int]:
        """The next entries of a queue from the object store, behind those that total retention
        removed there, and their log position."""
        tier = self._source.tier
        if tier is None:
            return None, 0
        entries = await tier.entries(
            self._source.group, self._topic, queue, int(self._next[queue]), max_bytes
        )
        if entries is None:
            return None, 0
        self._skip(queue, entries.first)
        batch = Batch(
            queue=queue,
            first_offset=entries.first,
            sizes=entries.sizes,
            pieces=entries.pieces,
            source="stored",
            pos=entries.pos,
        )
        return _answer(batch, end, self._skipped.get(queue, 0))

    async def _entries(
        self, queue: int, first: int, stop: int, max_bytes: int, end: int, skipped: int
    ) -> tuple[Answer | None, int]:
        """Entries of a queue from `first` on, and their log position, by which queues are
        ordered."""
        topic, files = self._topic, self._source.files
        anyway = False
        if first < self._written.get(queue, 0):
            below = min(stop, self._written[queue])

            def read() -> tuple[Answer | None, int]:
                batch = files.read(topic, queue, first, below, max_bytes)
                return _answer(batch, end, skipped)

            answer = await self._source.cold(read)
            if answer[0] is None or answer[0].count:
                return answer
            # Committed, but not durable here: only the loop can read it, between two turns.
            anyway = True
        waited = await self._source.run(
            waiting(topic, queue, first, stop, max_bytes, anyway=anyway)
        )
        if isinstance(waited, int):
            self._written[queue] = waited
            return await self._entries(queue, first, stop, max_bytes, end, skipped=skipped)
        return _answer(waited, end, skipped)

    # Following

    async def _follow(
        self, ranges: list[Applied], ends: Sequence[int], max_bytes: int
    ) -> list[Answer]:
        def follow() -> list[Answer]:
            return [self._answer(batch, ends) for batch in self._select(ranges, max_bytes)]

        # Usually a reader is woken at once: then there are only a few entries, in memory.
        few = ranges[-1].entries.last_index - ranges[0].entries.first_index < FEW_ENTRIES
        return follow() if few else await self._source.hot(follow)

    def _answer(self, batch: Batch, ends: Sequence[int]) -> Answer:
        return entries_answer(
            batch,
            max(_end(ends, batch.queue), batch.next_offset),
            self._skipped.pop(batch.queue, 0),
        )

    def _select(self, ranges: list[Applied], max_bytes: int) -> list[Batch]:
        """The entries of the ranges for this reader, within `max_bytes`; moves the cursor behind
        the completed ranges."""
        parts_of: dict[int, list[tuple[int, I32, list[Piece]]]] = {}
        left = max_bytes
        for applied in ranges:
            rows = self._rows(applied)
            if len(rows):
                sizes = applied.columns.sizes[rows] + np.int32(HEADER_BYTES)
                fits = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), left, side="right"))
                taken = max(fits, 0 if parts_of else 1)
                if taken:
                    self._add_rows(applied, rows[:taken], sizes[:taken], parts_of)
                left -= int(sizes[:taken].sum(dtype=np.int64))
                if taken < len(rows):
                    break
            self._cursor = applied.entries.last_index + 1
        return [_merged(queue, parts) for queue, parts in parts_of.items()]

    def _rows(self, applied: Applied) -> I64:
        """The row numbers of a range's entries that this reader still needs."""
        columns = applied.columns
        if self._topic not in columns.topics:
            return np.zeros(0, np.int64)
        queues = columns.queues
        chosen = self._next[np.minimum(queues, len(self._next) - 1)] <= columns.queue_offsets
        if len(columns.topics) > 1:
            chosen &= columns.topic_of == columns.topics.index(self._topic)
        if int(queues.max()) >= len(self._next):
            chosen &= queues < len(self._next)
        return np.flatnonzero(chosen)

    def _add_rows(
        self,
        applied: Applied,
        rows: I64,
        sizes: I32,
        parts_of: dict[int, list[tuple[int, I32, list[Piece]]]],
    ) -> None:
        columns, entries = applied.columns, applied.entries
        queues = columns.queues[rows]
        starts = columns.physical_offsets[rows] - (HEADER_BYTES + entries.pos)
        offsets = columns.queue_offsets[rows]
        if bool((queues == queues[0]).all()):
            groups = [slice(None)]
        else:
            order = np.argsort(queues, kind="stable")
            queues, starts, offsets, sizes = (
                queues[order],
                starts[order],
                offsets[order],
                sizes[order],
            )
            bounds = [0, *(np.flatnonzero(np.diff(queues)) + 1).tolist(), len(queues)]
            groups = [slice(low, high) for low, high in pairwise(bounds)]
        for group in groups:
            queue, first = int(queues[group][0]), int(offsets[group][0])
            count = len(offsets[group])
            dense = first == self._next[queue] and int(offsets[group][-1]) == first + count - 1
            assert dense, (
                f"queue {queue} of topic {self._topic} has a gap at {self._next[queue]}"
                " (invariant I6)"
            )
            self._next[queue] = first + count
            parts_of.setdefault(queue, []).append(
                (first, sizes[group], gather(entries.data, starts[group], sizes[group]))
            )


def _end(ends: Sequence[int], queue: int) -> int:
    return ends[queue] if queue < len(ends) else 0


def _answer(batch: Batch | None, end: int, skipped: int) -> tuple[Answer | None, int]:
    if batch is None:
        return None, 0
    return entries_answer(batch, max(end, batch.next_offset), skipped), batch.pos


def _merged(queue: int, parts: list[tuple[int, I32, list[Piece]]]) -> Batch:
    first, sizes, pieces = parts[0]
    if len(parts) > 1:
        sizes = np.concatenate([sizes for _, sizes, _ in parts])
        pieces = [piece for _, _, of in parts for piece in of]
    return Batch(queue, first, sizes, pieces, "recent")
