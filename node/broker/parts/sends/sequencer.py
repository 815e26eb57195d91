"""The sequencer: assigns the queue offset of the next message of a queue, against the state as of
the log's end.

Only the leader of a broker group has one. The next offset of a queue is the applied one plus the
entries of the log beyond it. A new leader rebuilds it from the uncommitted tail; afterwards it
moves only with appends. Offsets must be dense for ever (invariant I6), so `assign` only plans and
`appended` confirms: a batch that the log refuses leaves no gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from ledgermq.proto.entries.layout import FEW_ENTRIES
from ledgermq.proto.types import I64, UnsealedBatch

_SHORT = 1 << 15


@dataclass(slots=True)
class Assignment:
    """Queue offsets (int64, n) of one batch, and the next offsets once it is in the log."""

    queue_offsets: I64
    next_offsets: dict[tuple[str, int], int]
    store_ms: int


class Sequencer:
    """Next queue offsets and the last store time at the log's end. `applied(topic, queue)` is the
    next offset in the applied state."""

    def __init__(self, applied: Callable[[str, int], int]) -> None:
        self._applied = applied
        self._next: dict[tuple[str, int], int] = {}
        self._store_ms = 0

    def reset(self, store_ms: int) -> None:
        """Forget the tail: the log ends with the applied state, whose last store time is
        `store_ms`."""
        self._next.clear()
        self._store_ms = store_ms

    def forget(self, topics: Iterable[str]) -> None:
        """These topics, with one queue each, start over where the applied state says."""
        for topic in topics:
            self._next.pop((topic, 0), None)

    def seen(self, topic: str, queue: int, queue_offset: int, store_ms: int) -> None:
        """Take in an entry of the uncommitted tail; called in log order."""
        self._next[topic, queue] = queue_offset + 1
        self._store_ms = store_ms

    def next_offset(self, topic: str, queue: int) -> int:
        """The queue offset of the next message appended to this queue."""
        known = self._next.get((topic, queue))
        return self._applied(topic, queue) if known is None else known

    def assign(self, batch: UnsealedBatch, now_ms: int) -> Assignment:
        """Plan the queue offsets and the store time of a batch. Store times never decrease along
        the log."""
        store_ms = max(now_ms, self._store_ms)
        if batch.count <= FEW_ENTRIES:
            offsets, after = self._assign_each(batch)
        else:
            offsets, after = self._assign_columns(batch)
        return Assignment(offsets, after, store_ms)

    def assign_time_epoch(self, batch: UnsealedBatch, now_ms: int) -> Assignment:
        """The same for a record that begins a time epoch: the only one with a store time that may
        be lower than the last."""
        return replace(self.assign(batch, now_ms), store_ms=now_ms)

    @property
    def store_ms(self) -> int:
        """The last store time at the log's end."""
        return self._store_ms

    def _assign_each(self, batch: UnsealedBatch) -> tuple[I64, dict[tuple[str, int], int]]:
        after: dict[tuple[str, int], int] = {}
        offsets: list[int] = []
        for key in batch.keys:
            offset = after.get(key)
            if offset is None:
                offset = self._next.get(key)
            if offset is None:
                topic, queue = key
                offset = self._applied(topic, queue)
            offsets.append(offset)
            after[key] = offset + 1
        return np.array(offsets, np.int64), after

    def _assign_columns(self, batch: UnsealedBatch) -> tuple[I64, dict[tuple[str, int], int]]:
        n, queues = batch.count, batch.queues
        one_topic, most = len(batch.topics) == 1, int(queues.max())
        if one_topic and most == int(queues.min()):
            first = self.next_offset(batch.topics[0], most)
            return np.arange(first, first + n), {(batch.topics[0], most): first + n}
        # int16 keys are sorted by radix sort, without comparisons.
        keys = (
            queues.astype(np.int16)
            if one_topic and most < _SHORT
            else (batch.topic_of.astype(np.int64) << 32) | queues.astype(np.int64)
        )
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        begins = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
        counts = np.diff(begins, append=n)
        named = [(batch.topics[key >> 32], key & 0xFFFFFFFF) for key in ordered[begins].tolist()]
        firsts = np.array([self.next_offset(topic, queue) for topic, queue in named], np.int64)
        offsets = np.empty(n, np.int64)
        # In `order` the messages of a queue are adjacent, in batch order: offset = the queue's
        # first offset + place within its run.
        offsets[order] = np.arange(n) + np.repeat(firsts - begins, counts)
        return offsets, dict(zip(named, (firsts + counts).tolist(), strict=True))

    def appended(self, assignment: Assignment) -> None:
        """The batch of this assignment is in the log."""
        self._next.update(assignment.next_offsets)
        self._store_ms = assignment.store_ms
