"""Topics and queues of a broker group at one applied index: which there are, where they begin and
end, and their messages.

This is what every capability may know of the whole state. Only `machine.py` changes it, by applying
the log (invariant I8).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq.node.broker.ports import Queues
from ledgermq.proto.entries.layout import java_hash, split_record
from ledgermq.proto.levels import FIRST_LEVEL
from ledgermq.proto.names import LITE_SEPARATOR, parent_of
from ledgermq.proto.records.time_epochs import NO_EPOCHS
from ledgermq.proto.types import I32, I64, GroupConfig, TopicConfig, TopicKind

_STORE_MS_IN_RECORD = slice(56, 64)


@dataclass(slots=True)
class Topic:
    """A topic in force. `begins`: per queue, the first offset of this incarnation. `begin_pos`: the
    log position from which messages of its lite topics belong to this incarnation; 0 if there were
    none before."""

    config: TopicConfig
    begins: list[int] = field(default_factory=list)
    begin_pos: int = 0


QueueKey = tuple[str, str, int]
"""(consumer group, stored topic, queue)"""
Touched = list[tuple[QueueKey, Sequence[int]]]
"""Rows that records may have changed, for modules that keep something beside them: a queue and the
offsets, for each record and queue."""
Pair = tuple[str, str]
"""(consumer group, stored topic), or the result of `lite_pair`"""
LiteKey = tuple[str, str, str]
"""(consumer group, stored topic of kind lite, client id)"""
LITE_FLOOR_STEP = 300_000
"""Lite topics begin at multiples of this, which is where a consume-queue file begins if files have
their default length."""


def lite_pair(group: str, topic: str, client: str) -> Pair:
    """The pair of a client that reads lite topics. Each client has its own set of lite topics, so
    it has a pair of its own."""
    return group, f"{topic}\n{client}"


class Places:
    """Topics, consumer groups and queues of one replica of a broker group."""

    def __init__(
        self,
        queues: Queues,
        read_record: Callable[[int, int], bytes | memoryview],
        index_at: Callable[[int], int] | None = None,
    ) -> None:
        """`index_at` maps the log position of a record to its entry index; only a leader needs
        it."""
        self._queues = queues
        self._read_record = read_record
        self._index_at = index_at
        self._topics: dict[str, Topic] = {}
        self._ends: dict[str, tuple[int, ...]] = {}
        self.topics: dict[str, TopicConfig] = {}
        """Topics in force. Replaced, never mutated, because outsiders hold it."""
        self.groups: dict[str, GroupConfig] = {}
        """Consumer groups with a record. Replaced, never mutated."""
        self._lite_topics: dict[str, dict[str, None]] = {}
        """Topic of kind lite → stored names of its lite topics that have a queue."""
        self._lite_floors: dict[str, int] = {}
        """Topic of kind lite → where its lite topics begin that are created (again) after others
        have vanished."""
        self._lite_begins: dict[str, int] = {}
        """Stored lite topic → its first message of the current incarnation, cached if it had to be
        searched for."""
        self.level = FIRST_LEVEL
        """The feature level (`levels.py`); never lowered."""
        self.applied_index = -1
        self.applied_term = -1
        self.applied_end_pos = 0
        self.chain_crc = 0
        self.store_ms = 0
        """Store time of the last applied entry."""
        self.time_epochs = NO_EPOCHS
        """Replaced, never mutated, because other threads hold it."""
        self.settled = True
        """Whether no part of the range after `applied_index` is applied. False while a full disk
        leaves a range half applied."""

    # Reading

    def begin(self, topic: str, queue: int) -> int:
        """The first queue offset of the topic's current incarnation that was not trimmed."""
        if LITE_SEPARATOR in topic:
            return self._lite_begin(topic)
        return max(self.floor(topic, queue), self._queues.min_offset(topic, queue))

    def floor(self, topic: str, queue: int) -> int:
        """The first queue offset of the topic's current incarnation, trimmed or not. What was
        trimmed of a lite topic counts as never there."""
        if LITE_SEPARATOR in topic:
            return self._lite_begin(topic)
        known = self._topics.get(topic)
        return known.begins[queue] if known is not None and queue < len(known.begins) else 0

    def _lite_begin(self, topic: str) -> int:
        """`begin` for a lite topic. Lite topics have no incarnation of their own; that of the
        parent topic begins at a log position."""
        parent = parent_of(topic)
        if topic not in self._lite_topics.get(parent, ()):
            return self._lite_floors.get(parent, 0)
        low = self._queues.min_offset(topic, 0)
        known = self._topics.get(parent)
        if known is None or not known.begin_pos:
            return low
        begin = self._lite_begins.get(topic)
        if begin is None:
            stored = range(low, self._queues.next_offset(topic, 0))
            begin = low + bisect_left(
                stored,
                known.begin_pos,
                key=lambda offset: int(self.units(topic, 0, offset, 1)[0][0]),
            )
            self._lite_begins[topic] = begin
        return max(low, begin)

    def lite_topics(self, parent: str) -> Mapping[str, None]:
        """Stored names of a topic's lite topics that have a queue here."""
        return self._lite_topics.get(parent, {})

    def end(self, topic: str, queue: int) -> int:
        """One past the last applied queue offset."""
        if LITE_SEPARATOR in topic and topic not in self._lite_topics.get(parent_of(topic), ()):
            return self._lite_floors.get(parent_of(topic), 0)
        return self._queues.next_offset(topic, queue)

    def takes(self, topic: str, incarnation: int, queue: int) -> bool:
        """Whether the incarnation of a topic to which a message was sent still exists, and has this
        queue."""
        config = self.topics.get(topic)
        return config is not None and config.incarnation == incarnation and queue < config.queues

    def units(self, topic: str, queue: int, first: int, count: int) -> tuple[I64, I32, I64]:
        """Consecutive consume-queue units: physical offsets (int64), sizes (int32), tags codes
        (int64)."""
        units = self._queues.read(topic, queue, first, count)
        assert units.first == first, (
            f"unit {first} of {topic}/{queue} was trimmed: the queue begins at {units.first}"
        )
        return units.physical_offsets, units.sizes, units.tags_codes

    def record(self, physical_offset: int, size: int) -> bytes:
        """One message record (format §4)."""
        return bytes(self._read_record(physical_offset, size))

    def index_at(self, physical_offset: int) -> int:
        """The index of the entry whose message record is at this physical offset."""
        assert self._index_at is not None, "this copy of the state makes no messages from others"
        return self._index_at(physical_offset)

    def properties(self, physical_offset: int, size: int) -> bytes:
        """The property string of one message record; its body is not copied."""
        record = self._read_record(physical_offset, size)
        return bytes(record[split_record(record)[3] :])

    def tags_code(self, tag: str) -> int:
        """The hash of a tag as stored in consume queues."""
        return java_hash(tag)

    def queues_of(self, topic: str) -> int:
        """The number of queues of a topic here; 0 if it is not in force. A lite topic has one queue
        while its parent topic is in force."""
        config = self.topics.get(parent_of(topic))
        if config is None or LITE_SEPARATOR not in topic:
            return 0 if config is None else config.queues
        return int(config.kind is TopicKind.LITE)

    def stored_ms(self, topic: str, queue: int, offset: int) -> int:
        """When an existing message counts as stored."""
        positions, sizes, _ = self.units(topic, queue, offset, 1)
        # Read the whole record: a part of it cannot be verified.
        record = self.record(int(positions[0]), int(sizes[0]))
        return self.time_epochs.counted(
            int.from_bytes(record[_STORE_MS_IN_RECORD], "big", signed=True), int(positions[0])
        )

    def offset_at(self, topic: str, queue: int, store_ms: int) -> int:
        """The first offset stored at or after a time. The times at which messages count as stored
        never decrease along the log."""
        low, high = self.begin(topic, queue), self.end(topic, queue)
        while low < high:
            middle = (low + high) // 2
            if self.stored_ms(topic, queue, middle) < store_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def queue_ends(self) -> dict[str, tuple[int, ...]]:
        """Stored topic → next offset per queue, for the topics in force."""
        for topic, config in self.topics.items():
            if topic not in self._ends:
                self._ends[topic] = self._queues.ends(topic, config.queues)
        return {topic: self._ends[topic] for topic in self.topics}

    def lite_floors(self) -> dict[str, int]:
        """Topic of kind lite → where its lite topics begin that are created (again) after others
        have vanished."""
        return {topic: self._lite_floors[topic] for topic in sorted(self._lite_floors)}

    # Lite topics, when entries are applied

    def _meet_lite_topics(self, topics: Iterable[str]) -> None:
        """New lite topics begin above all offsets of vanished ones, so that no queue offset is ever
        used twice."""
        for topic in topics:
            floor = self._lite_floors.get(parent_of(topic), 0) if LITE_SEPARATOR in topic else 0
            if floor and not self._queues.next_offset(topic, 0):
                self._queues.begin_at(topic, 0, floor)

    def _forget_lite_topics(self) -> dict[str, None]:
        """Lite topics without messages vanish; returns their stored names. Idempotent."""
        gone: dict[str, None] = {}
        for parent, topics in self._lite_topics.items():
            for topic in topics:
                end = self._queues.next_offset(topic, 0)
                if end == self._queues.min_offset(topic, 0):
                    gone[topic] = None
                    floor = -(-end // LITE_FLOOR_STEP) * LITE_FLOOR_STEP
                    self._lite_floors[parent] = max(self._lite_floors.get(parent, 0), floor)
        for topic in gone:
            del self._lite_topics[parent_of(topic)][topic]
            self._lite_begins.pop(topic, None)
            self._queues.forget(topic, 0)
        return gone

    def _restore_lite_topics(self, queues: Iterable[str], floors: Mapping[str, int]) -> None:
        self._lite_begins = {}
        self._lite_floors = dict(floors)
        self._lite_topics = {}
        for topic in queues:
            if LITE_SEPARATOR in topic:
                self._lite_topics.setdefault(parent_of(topic), {})[topic] = None
