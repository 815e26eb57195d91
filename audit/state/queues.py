"""The begin and end of the queues of a broker group: next offsets, minimums after trims, and lite
topics that appeared and vanished.

Messages are counted in columns. A trim always ends at the start of a log file, so only the first
offset of each queue in each file is kept; positions of single messages are not, except for the last
one of each queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.reader import LITE, Entry, Messages, parent_of, unit_of

STEP = 300_000
"""A lite topic that is used again begins at a multiple of this."""


@dataclass(slots=True)
class _Queue:
    """One queue: messages low … end − 1 are kept."""

    end: int = 0
    low: int | None = None
    """None if no message was trimmed."""
    gone: tuple[int, int, int] | None = None
    """The unit before `low`, for a queue that was empty when it was trimmed."""
    starts: dict[int, int] = field(default_factory=dict)
    """Base of a kept log file → the queue's first offset in it, ascending."""
    last: tuple[int, int, bytes] = (0, 0, b"")
    """Position, size and properties of the last message."""
    counted_at: int | None = None
    trimmed_at: int | None = None
    """Index of the entry that moved `end`, and of the one that moved `low`."""


class Queues(Part):
    """The keys `queues`, `minimums` and `lite_floors`."""

    keys = ("queues", "minimums", "lite_floors")

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._begin = 0
        """Index of the log's first entry, according to the trim records."""
        self.stored = False
        """Whether the last trim that moved it left what it removed in the object store."""
        self._lite: dict[str, dict[str, None]] = {}
        """Topic of kind lite → its lite topics that have a queue."""
        self._lite_begins: dict[str, int] = {}
        """Lite topic → its first offset of the current incarnation, if that began after its first
        message."""
        self._floors: dict[str, int] = {}
        self._floors_at: dict[str, int] = {}
        self.gone: dict[str, None] = {}
        """The lite topics that the current trim record left without messages."""

    # What other parts ask

    def end(self, topic: str, queue: int) -> int:
        """One past the last offset; for a lite topic without a queue, where it begins."""
        known = self._queues.get((topic, queue))
        if known is None:
            return self._floors.get(parent_of(topic), 0) if LITE in topic else 0
        return known.end

    def minimum(self, topic: str, queue: int) -> int:
        """The first offset that was not trimmed; 0 for a lite topic without a queue."""
        known = self._queues.get((topic, queue))
        return 0 if known is None else known.low or 0

    def lite_begin(self, topic: str) -> int:
        """The first offset of a lite topic in the current incarnation that was not trimmed."""
        if topic not in self.lite_topics(parent_of(topic)):
            return self._floors.get(parent_of(topic), 0)
        return max(self.minimum(topic, 0), self._lite_begins.get(topic, 0))

    def lite_topics(self, parent: str) -> Mapping[str, None]:
        """Stored names of a topic's lite topics that have a queue."""
        return self._lite.get(parent, {})

    # The part

    def messages(self, messages: Messages) -> None:
        for key, first, last in _queues_in(messages):
            self._count(self._queues.get(key) or self._make(key), messages, first, last)

    def _make(self, key: tuple[str, int]) -> _Queue:
        topic = key[0]
        made = self._queues[key] = _Queue()
        if LITE in topic:
            parent = parent_of(topic)
            self._lite.setdefault(parent, {})[topic] = None
            if self._floors.get(parent):
                made.end = made.low = self._floors[parent]
        return made

    @staticmethod
    def _count(queue: _Queue, messages: Messages, first: int, last: int) -> None:
        queue.starts.setdefault(messages.base, int(messages.queue_offset[first]))
        queue.end = int(messages.queue_offset[last]) + 1
        queue.last = (
            int(messages.pos[last]),
            int(messages.size[last]),
            messages.raw_properties(last),
        )
        queue.counted_at = int(messages.index[last])

    def apply(self, entry: Entry) -> None:
        if entry.kind != "trim":
            return
        self.gone = {}
        if entry.fields["begin"] <= self._begin:
            return
        self._begin, self.stored = entry.fields["begin"], entry.fields.get("stored") is True
        for key, queue in self._queues.items():
            _trim(key[0], queue, entry)
        for parent, topics in self._lite.items():
            for topic in topics:
                queue = self._queues[topic, 0]
                if queue.low == queue.end:
                    self.gone[topic] = None
                    self._floors[parent] = max(
                        self._floors.get(parent, 0), -(-queue.end // STEP) * STEP
                    )
                    self._floors_at[parent] = entry.index
        for topic in self.gone:
            del self._lite[parent_of(topic)][topic], self._queues[topic, 0]
            self._lite_begins.pop(topic, None)

    def topic_ended(self, topic: str, entry: Entry) -> None:
        for lite in self.lite_topics(topic):
            if entry.fields["deleted"]:
                self._lite_begins.pop(lite, None)
            else:
                self._lite_begins[lite] = self._queues[lite, 0].end

    def values(self) -> dict[str, Any]:
        ends: dict[str, dict[str, int]] = {}
        lows: dict[str, dict[str, list[Any]]] = {}
        for (topic, number), queue in self._queues.items():
            if queue.end:
                ends.setdefault(topic, {})[str(number)] = queue.end
            if queue.low is not None:
                lows.setdefault(topic, {})[str(number)] = [
                    queue.low,
                    None if queue.gone is None else list(queue.gone),
                ]
        return {"queues": ends, "minimums": lows, "lite_floors": dict(self._floors)}

    def canonical(self, key: str, stored: Any) -> Any:
        return stored or {}

    def touched(self, path: Path) -> int | None:
        if path[0] == "lite_floors":
            return self._floors_at.get(path[1]) if len(path) > 1 else None
        queue = (
            self._queues.get((path[1], int(path[2])))
            if len(path) > 2 and path[2].isdigit()
            else None
        )
        if queue is None:
            return None
        return queue.counted_at if path[0] == "queues" else queue.trimmed_at

    # Beginning with an older snapshot

    def load(self, snapshot: Mapping[str, Any]) -> None:
        """The snapshot does not say where the kept messages are: `warm` follows with all of
        them."""
        self._begin = snapshot["retained"]["begin_index"]
        self.stored = any(
            trim.get("stored") is True for _, _, trim in snapshot["retained"]["trims"][-1:]
        )
        self._floors = dict(snapshot.get("lite_floors") or {})
        for topic, ends in snapshot["queues"].items():
            for queue, end in ends.items():
                self._queues[topic, int(queue)] = _Queue(end)
                if LITE in topic:
                    self._lite.setdefault(parent_of(topic), {})[topic] = None
        for topic, lows in snapshot["minimums"].items():
            for queue, (low, gone) in lows.items():
                known = self._queues[topic, int(queue)]
                known.low, known.gone = low, None if gone is None else (gone[0], gone[1], gone[2])
        for parent, fields in snapshot["topics"].items():
            if fields.get("begin_pos"):
                # Valid until the first message of the current incarnation is read.
                self._lite_begins |= {
                    topic: self._queues[topic, 0].end for topic in self.lite_topics(parent)
                }

    def warm(self, messages: Messages, topics: Mapping[str, Any]) -> None:
        """Entries of the log that the loaded snapshot covers. `topics`: its value under that
        key."""
        for key, first, last in _queues_in(messages):
            queue = self._queues.get(key)
            if queue is None or int(messages.queue_offset[last]) < (queue.low or 0):
                # These messages are trimmed by a record that the files do not follow yet.
                continue
            end, counted_at = queue.end, queue.counted_at
            self._count(queue, messages, first, last)
            queue.end, queue.counted_at = end, counted_at
            begin_pos = (
                topics.get(parent_of(key[0]), {}).get("begin_pos", 0) if LITE in key[0] else 0
            )
            if begin_pos:
                rows = messages.rows_of(key[0])
                later = rows[messages.pos[rows] >= begin_pos]
                if len(later):
                    self._lite_begins[key[0]] = min(
                        self._lite_begins[key[0]], int(messages.queue_offset[later[0]])
                    )


def _queues_in(messages: Messages) -> Iterator[tuple[tuple[str, int], int, int]]:
    """((stored topic, queue), first row, last row) of every queue with messages in a stretch."""
    keys = messages.topic_of << 32 | messages.queue
    order = np.argsort(keys, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(keys[order])) + 1).tolist(), len(order)]
    for start, stop in pairwise(edges):
        first, last = int(order[start]), int(order[stop - 1])
        yield (
            (messages.topics[int(messages.topic_of[first])], int(messages.queue[first])),
            first,
            last,
        )


def _trim(topic: str, queue: _Queue, entry: Entry) -> None:
    """The log begins with the file at the position in a trim record."""
    before = [base for base in queue.starts if base < entry.fields["pos"]]
    for base in before:
        del queue.starts[base]
    if not before or queue.low == queue.end:
        return
    queue.trimmed_at = entry.index
    queue.low, queue.gone = (
        (min(queue.starts.values()), None)
        if queue.starts
        else (queue.end, unit_of(topic, *queue.last))
    )
