"""The state of a broker group at one applied index: topics, consumer groups, delivery, timers, transactions, and the places of messages.

This module defines and reads the state; only `machine.py` changes it, by applying the log (invariant I8).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.read_calls import FindOffset, OffsetRead, Peek, Peeked, ReadOffset
from ledgermq.node.broker.ports import Queues
from ledgermq.node.broker.state import timers
from ledgermq.node.broker.state.committed_offsets import Offsets
from ledgermq.node.broker.state.delivery import Delivery, QueueKey
from ledgermq.node.broker.state.letters import Letters
from ledgermq.node.broker.state.lite import LiteSets
from ledgermq.node.broker.state.message_ids import Ids
from ledgermq.node.broker.state.producers import Producers
from ledgermq.node.broker.state.retained import Retained, Trimmed
from ledgermq.node.broker.state.transactions import HALF_QUEUE, Transactions
from ledgermq.proto import control
from ledgermq.proto.layout import java_hash, split_record
from ledgermq.proto.levels import FIRST_LEVEL
from ledgermq.proto.names import HALF_TOPIC, LITE_SEPARATOR, parent_of, stored_name
from ledgermq.proto.properties import INCARNATION, REAL_QUEUE, REAL_TOPIC, parse
from ledgermq.proto.time_epochs import NO_EPOCHS
from ledgermq.proto.types import I32, I64, GroupConfig, ReplicaStatus, TopicConfig, TopicKind

_STORE_MS_IN_RECORD = slice(56, 64)


@dataclass(slots=True)
class Topic:
    """A topic in force. `begins`: per queue, the first offset of this incarnation. `begin_pos`: the log position from which messages of its
    lite topics belong to this incarnation; 0 if there were none before."""

    config: TopicConfig
    begins: list[int] = field(default_factory=list)
    begin_pos: int = 0


class State:
    """The derived state of one replica of a broker group."""

    def __init__(
        self, queues: Queues, read_record: Callable[[int, int], bytes | memoryview], index_at: Callable[[int], int] | None = None
    ) -> None:
        """`index_at` maps the log position of a record to its entry index; only a leader needs it."""
        self._queues = queues
        self._read_record = read_record
        self._index_at = index_at
        self._topics: dict[str, Topic] = {}
        self._ends: dict[str, tuple[int, ...]] = {}
        self.topics: dict[str, TopicConfig] = {}
        """Topics in force. Replaced, never mutated, because outsiders hold it."""
        self.groups: dict[str, GroupConfig] = {}
        """Consumer groups with a record. Replaced, never mutated."""
        self.delivery = Delivery(self.first_position)
        self.letters = Letters()
        """The dead letters that are settled."""
        self.transactions = Transactions()
        self.timers = timers.Timers()
        self.ids = Ids()
        """Message ids of topics with a deduplication window."""
        self.offsets = Offsets()
        """The offsets that consumer groups committed."""
        self.producers = Producers()
        """The producers of native frames."""
        self.lite = LiteSets()
        """The lite topics that clients subscribe to."""
        self._lite_topics: dict[str, dict[str, None]] = {}
        """Topic of kind lite → stored names of its lite topics that have a queue."""
        self._lite_floors: dict[str, int] = {}
        """Topic of kind lite → where its lite topics begin that are created (again) after others have vanished."""
        self._lite_begins: dict[str, int] = {}
        """Stored lite topic → its first message of the current incarnation, cached if it had to be searched for."""
        self.retained = Retained()
        """Begin, seals and trims of the log."""
        self.members: GroupMembers | None = None
        """From the last membership record applied; None before the first. Replaced, never mutated."""
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
        """Whether no part of the range after `applied_index` is applied. False while a full disk leaves a range half applied."""

    # Reading

    @property
    def begin_index(self) -> int:
        """The first entry of the log, according to the records."""
        return self.retained.begin_index

    @property
    def begin_pos(self) -> int:
        """The position where the file of the first entry begins."""
        return self.retained.begin_pos

    @property
    def seals(self) -> Mapping[int, control.SealRecord]:
        """Base → seal, for the sealed files that are still part of the log."""
        return self.retained.seals

    @property
    def trims(self) -> tuple[Trimmed, ...]:
        """The last trims, oldest first."""
        return self.retained.trims

    @property
    def trim_digest(self) -> str:
        """Rolling digest over all trim records of the log's history."""
        return self.retained.trim_digest

    def begin(self, topic: str, queue: int) -> int:
        """The first queue offset of the topic's current incarnation that was not trimmed."""
        if LITE_SEPARATOR in topic:
            return self._lite_begin(topic)
        return max(self.floor(topic, queue), self._queues.min_offset(topic, queue))

    def first_position(self, topic: str, queue: int) -> int:
        """The lowest position of a consumer group in a queue: below `begin` if the object store has what was trimmed."""
        return self.floor(topic, queue) if self.retained.stored else self.begin(topic, queue)

    def floor(self, topic: str, queue: int) -> int:
        """The first queue offset of the topic's current incarnation, trimmed or not. What was trimmed of a lite topic counts as never
        there."""
        if LITE_SEPARATOR in topic:
            return self._lite_begin(topic)
        known = self._topics.get(topic)
        return known.begins[queue] if known is not None and queue < len(known.begins) else 0

    def _lite_begin(self, topic: str) -> int:
        """`begin` for a lite topic. Lite topics have no incarnation of their own; that of the parent topic begins at a log position."""
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
            begin = low + bisect_left(stored, known.begin_pos, key=lambda offset: int(self.units(topic, 0, offset, 1)[0][0]))
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
        """Whether the incarnation of a topic to which a message was sent still exists, and has this queue."""
        config = self.topics.get(topic)
        return config is not None and config.incarnation == incarnation and queue < config.queues

    def delayed_state(self, offset: int, properties: bytes) -> tuple[str, int]:
        """As `Timers.state_of`, and `dropped` for a message that waits for its time although its topic no longer exists. Safe on a thread:
        what is read here is replaced, not changed in place."""
        state, deliver_ms = self.timers.state_of(offset, properties)
        stored = parse(properties)
        if state == "delayed" and not self.takes(stored[REAL_TOPIC], int(stored[INCARNATION]), int(stored[REAL_QUEUE])):
            state = "dropped"
        return state, deliver_ms

    def units(self, topic: str, queue: int, first: int, count: int) -> tuple[I64, I32, I64]:
        """Consecutive consume-queue units: physical offsets (int64), sizes (int32), tags codes (int64)."""
        units = self._queues.read(topic, queue, first, count)
        assert units.first == first, f"unit {first} of {topic}/{queue} was trimmed: the queue begins at {units.first}"
        return units.physical_offsets, units.sizes, units.tags_codes

    def record(self, physical_offset: int, size: int) -> bytes:
        """One message record (format §4)."""
        return bytes(self._read_record(physical_offset, size))

    def index_at(self, physical_offset: int) -> int:
        """The index of the entry whose message record is at this physical offset."""
        assert self._index_at is not None, "this copy of the state makes no messages from others"
        return self._index_at(physical_offset)

    def half_record(self, offset: int) -> bytes:
        """The record of an undecided half message."""
        positions, sizes, _ = self.units(HALF_TOPIC, HALF_QUEUE, offset, 1)
        return self.record(int(positions[0]), int(sizes[0]))

    def properties(self, physical_offset: int, size: int) -> bytes:
        """The property string of one message record; its body is not copied."""
        record = self._read_record(physical_offset, size)
        return bytes(record[split_record(record)[3] :])

    def tags_code(self, tag: str) -> int:
        """The hash of a tag as stored in consume queues."""
        return java_hash(tag)

    @property
    def voters(self) -> tuple[str, ...]:
        """The voters of the last membership record applied; empty before the first."""
        return () if self.members is None else self.members.voters

    def queues_of(self, topic: str) -> int:
        """The number of queues of a topic here; 0 if it is not in force. A lite topic has one queue while its parent topic is in force."""
        config = self.topics.get(parent_of(topic))
        if config is None or LITE_SEPARATOR not in topic:
            return 0 if config is None else config.queues
        return int(config.kind is TopicKind.LITE)

    def read_offset(self, call: ReadOffset | FindOffset) -> OffsetRead | Refused:
        """The offset that a group committed, clamped to the queue; or the offset where a queue begins, ends, or was at a given time."""
        topic, queue = call.topic, call.queue
        if not 0 <= queue < self.queues_of(topic):
            return Refused("unknown-topic", detail=f"queue {queue} of topic {topic}")
        if isinstance(call, ReadOffset):
            committed = self.offsets.get((call.group, topic, queue))
            low = self.floor(topic, queue) if call.tiered else self.begin(topic, queue)
            return OffsetRead(None if committed is None else max(committed, low))
        if call.store_ms is not None:
            return OffsetRead(self.offset_at(topic, queue, call.store_ms))
        return OffsetRead(self.end(topic, queue) if call.end else self.begin(topic, queue))

    def cursor(self, key: QueueKey) -> int:
        """A consumer group's position in a queue, however it reads: the next offset never leased, or the one it committed. If a group does
        both, the higher one, also in a queue in which it commits but has never leased."""
        return max(self.delivery.cursor(key), self.offsets.get(key) or 0)

    def peek(self, call: Peek) -> Peeked | Refused:
        """Messages of one queue, without a lease."""
        if not 0 <= call.queue < self.queues_of(call.topic):
            return Refused("unknown-topic", detail=f"queue {call.queue} of topic {call.topic}")
        begin, end = self.begin(call.topic, call.queue), self.end(call.topic, call.queue)
        first = min(max(call.offset, begin), end)
        count = max(0, min(call.max_messages, end - first))
        positions, sizes, _ = self.units(call.topic, call.queue, first, count)
        fits = max(1, int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), call.max_bytes, side="right"))) if count else 0
        rows = zip(positions[:fits].tolist(), sizes[:fits].tolist(), strict=True)
        records = tuple([self.record(position, size) for position, size in rows])
        return Peeked(records, first + len(records), end, begin, self.time_epochs)

    def stored_ms(self, topic: str, queue: int, offset: int) -> int:
        """When an existing message counts as stored."""
        positions, sizes, _ = self.units(topic, queue, offset, 1)
        # Read the whole record: a part of it cannot be verified.
        record = self.record(int(positions[0]), int(sizes[0]))
        return self.time_epochs.counted(int.from_bytes(record[_STORE_MS_IN_RECORD], "big", signed=True), int(positions[0]))

    def offset_at(self, topic: str, queue: int, store_ms: int) -> int:
        """The first offset stored at or after a time. The times at which messages count as stored never decrease along the log."""
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

    def fill_status(self, status: ReplicaStatus) -> ReplicaStatus:
        """The replicator's status, with the applied index filled in."""
        return replace(status, applied_index=self.applied_index)

    # Configuration

    def differences(self, call: Configure) -> Iterator[control.TopicRecord | control.GroupRecord]:
        """The records that put `call` into force; none for what is already in force. An older incarnation never replaces a newer one."""
        for stored in call.deleted_topics:
            if stored in self.topics:
                yield control.TopicRecord(self.topics[stored], deleted=True)
        for stored in call.deleted_groups:
            if stored in self.groups:
                yield control.GroupRecord(self.groups[stored], deleted=True)
        for topic in call.topics:
            now = self.topics.get(stored_name(topic.namespace, topic.name))
            if now != topic and (now is None or topic.incarnation >= now.incarnation):
                yield control.TopicRecord(topic)
        for group in call.groups:
            if self.groups.get(stored_name(group.namespace, group.name)) != group:
                yield control.GroupRecord(group)
