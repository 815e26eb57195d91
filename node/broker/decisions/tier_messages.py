"""Messages that only the object store has: the leader asks for them in batches, and has those of the last batches at hand.

Invariant: what is at hand are committed messages at their offsets, so that a batch stays true under every leader and after every trim. A
message counts as gone only if the store was read and begins behind it; a store that fails tells nothing. Nothing here waits: whoever needs
a message that is not at hand asks for it (`want`), leaves it, and is woken when it may be there.

Memory is bounded (I11): the batches at hand and those under way have at most `BYTES_MAX`, unless a single message is longer. Each consumer
group has at most one wish for a queue, and at most `FETCHES_MAX` are under way; the others follow in their order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched, TierMessage
from ledgermq.node.broker.decisions.polls import NEVER_NS, Pair
from ledgermq.node.broker.state.delivery import QueueKey
from ledgermq.node.broker.state.machine import Machine
from ledgermq.proto.layout import split_record
from ledgermq.proto.properties import MESSAGE_GROUP, parse
from ledgermq.proto.types import I32, I64

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 1024
FETCHES_MAX = 4
BYTES_MAX = 32 << 20
RETRY_NS = 2_000_000_000
"""Pause before a fetch is repeated that failed."""
NOT_YET = "they have not come from the object store yet; ask again"
GONE = "\0"
"""The message group of a message that is gone begins with this, which no other one does: it keeps no other message waiting."""
Place = tuple[str, int]
"""(stored topic, queue)"""


@dataclass(slots=True)
class _Batch:
    place: Place
    first: int
    messages: tuple[TierMessage, ...]
    size: int

    @property
    def end(self) -> int:
        return self.first + len(self.messages)


class TierMessages:
    """The messages of a broker group: those of its log, and those that were fetched."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._batches: OrderedDict[int, _Batch] = OrderedDict()
        """By number of the fetch, the least recently used first."""
        self._numbers: dict[Place, list[int]] = {}
        self._by_position: dict[int, TierMessage] = {}
        self._bytes = 0
        self._gone: dict[Place, int] = {}
        """Below this offset the object store has no message of the queue."""
        self._wanted: dict[QueueKey, int] = {}
        self._under_way: dict[TierFetch, dict[QueueKey, None]] = {}
        self._retries: dict[QueueKey, int] = {}
        """Whose fetch failed, and until when it is not repeated."""
        self._failing: dict[QueueKey, str] = {}
        """Whose last fetch failed, and why."""
        self._number = 0
        self.failures = 0

    def resign(self) -> None:
        """Leadership is lost: forget everything. What is under way arrives in vain."""
        for part in (self._batches, self._numbers, self._by_position, self._gone, self._wanted, self._under_way):
            part.clear()
        self._retries.clear()
        self._failing.clear()
        self._bytes = 0

    # What is at hand

    def at_hand(self, topic: str, queue: int, offset: int) -> int:
        """The first offset from `offset` on that is not at hand; `offset` itself if only the object store may have it."""
        if offset >= self._machine.begin(topic, queue):
            return self._machine.end(topic, queue)
        batch = self._batch(topic, queue, offset)
        return offset if batch is None else batch.end

    def gone_to(self, topic: str, queue: int, offset: int) -> int:
        """The first offset from `offset` on that may exist: above `offset` if total retention has removed the message from the store."""
        return max(offset, self._gone.get((topic, queue), 0))

    def _batch(self, topic: str, queue: int, offset: int) -> _Batch | None:
        for number in self._numbers.get((topic, queue), ()):
            batch = self._batches[number]
            if batch.first <= offset < batch.end:
                self._batches.move_to_end(number)
                return batch
        return None

    def begin(self, topic: str, queue: int) -> int:
        return self._machine.begin(topic, queue)

    def end(self, topic: str, queue: int) -> int:
        return self._machine.end(topic, queue)

    def units(self, topic: str, queue: int, first: int, count: int) -> tuple[I64, I32, I64]:
        """As `Messages.units`, of messages at hand that `at_hand` returned together."""
        if first >= self._machine.begin(topic, queue):
            return self._machine.units(topic, queue, first, count)
        batch = self._batch(topic, queue, first)
        assert batch is not None and first + count <= batch.end, f"message {first} of {topic}/{queue} is not at hand"
        rows = batch.messages[first - batch.first : first - batch.first + count]
        positions = np.array([row.position for row in rows], np.int64)
        return positions, np.array([len(row.record) for row in rows], np.int32), np.array([row.tags_code for row in rows], np.int64)

    def reader(self, topic: str, queue: int, first: int) -> Callable[[int, int], bytes]:
        """What `record` does, for messages that `at_hand` returned together with this one. It costs nothing above the local begin."""
        return self._machine.record if first >= self._machine.begin(topic, queue) else self.record

    def record(self, physical_offset: int, size: int) -> bytes:
        fetched = self._fetched(physical_offset)
        return self._machine.record(physical_offset, size) if fetched is None else fetched.record

    def properties(self, physical_offset: int, size: int) -> bytes:
        fetched = self._fetched(physical_offset)
        if fetched is None:
            return self._machine.properties(physical_offset, size)
        return fetched.record[split_record(fetched.record)[3] :]

    def message_group(self, physical_offset: int, size: int) -> str:
        fetched = self._fetched(physical_offset)
        if fetched is None:
            return self._machine.message_group(physical_offset, size)
        return parse(self.properties(physical_offset, size)).get(MESSAGE_GROUP, "")

    def index_at(self, physical_offset: int) -> int:
        fetched = self._fetched(physical_offset)
        return self._machine.index_at(physical_offset) if fetched is None else fetched.entry_index

    def tags_code(self, tag: str) -> int:
        return self._machine.tags_code(tag)

    def _fetched(self, physical_offset: int) -> TierMessage | None:
        return self._by_position[physical_offset] if self._by_position and physical_offset < self._machine.begin_pos else None

    def message_group_of(self, key: QueueKey, offset: int) -> str | None:
        """The message group of an existing message. None if the message is not at hand; then it is asked for."""
        _, topic, queue = key
        if self.at_hand(topic, queue, offset) == offset:
            if self.gone_to(topic, queue, offset) > offset:
                return f"{GONE}{offset}"
            self.want(key, offset)
            return None
        positions, sizes, _ = self.units(topic, queue, offset, 1)
        return self.message_group(int(positions[0]), int(sizes[0]))

    # What is asked for

    def want(self, key: QueueKey, offset: int) -> None:
        """The decisions about this queue of a consumer group need a message that is not at hand."""
        if key not in self._retries:
            self._wanted.setdefault(key, offset)

    def fetches(self) -> tuple[TierFetch, ...]:
        """The fetches to start now. None while a trim is half applied: where the queues begin and where the log does would not fit each
        other, and what lies between would look gone."""
        if not self._wanted or not self._machine.settled:
            return ()
        started: list[TierFetch] = []
        for key, offset in list(self._wanted.items()):
            place = key[1:]
            known = next((fetch for fetch in self._under_way if (fetch.topic, fetch.queue, fetch.first) == (*place, offset)), None)
            if known is None:
                if len(self._under_way) >= FETCHES_MAX:
                    continue
                self._number += 1
                begin = self._machine.begin(*place), self._machine.begin_pos
                known = TierFetch(self._number, *place, offset, *begin, BATCH_BYTES, BATCH_MESSAGES)
                self._under_way[known] = {}
                started.append(known)
            self._under_way[known][key] = None
            del self._wanted[key]
        return tuple(started)

    def take(self, fetched: TierFetched, now_ns: int) -> dict[Pair, None]:
        """A fetch has ended. Returns the pairs that may go on."""
        fetch = fetched.fetch
        keys = self._under_way.pop(fetch, None)
        if keys is None:
            return {}
        if fetched.failure:
            self.failures += 1
            self._retries.update(dict.fromkeys(keys, now_ns + RETRY_NS))
            self._failing.update(dict.fromkeys(keys, fetched.failure))
            return {}
        place = fetch.topic, fetch.queue
        self._failing = {key: why for key, why in self._failing.items() if key[1:] != place}
        if fetched.first > fetch.first:
            self._gone[place] = max(self._gone.get(place, 0), fetched.first)
        if fetched.messages:
            self._keep(fetch.number, _Batch(place, fetched.first, fetched.messages, sum(len(m.record) for m in fetched.messages)))
        served = [key for key, offset in self._wanted.items() if key[1:] == place and self._is_known(key, offset)]
        for key in served:
            del self._wanted[key]
        return _pairs([*keys, *served])

    def _is_known(self, key: QueueKey, offset: int) -> bool:
        return max(self.at_hand(key[1], key[2], offset), self.gone_to(key[1], key[2], offset)) > offset

    def _keep(self, number: int, batch: _Batch) -> None:
        for other in list(self._numbers.get(batch.place, ())):
            if self._batches[other].first < batch.end and batch.first < self._batches[other].end:
                self._drop(other)
        while self._batches and self._bytes + batch.size > BYTES_MAX - FETCHES_MAX * BATCH_BYTES:
            self._drop(next(iter(self._batches)))
        self._batches[number] = batch
        self._numbers.setdefault(batch.place, []).append(number)
        self._by_position.update((message.position, message) for message in batch.messages)
        self._bytes += batch.size

    def _drop(self, number: int) -> None:
        batch = self._batches.pop(number)
        self._bytes -= batch.size
        for message in batch.messages:
            del self._by_position[message.position]
        numbers = self._numbers[batch.place]
        numbers.remove(number)
        if not numbers:
            del self._numbers[batch.place]

    @property
    def retry_ns(self) -> int:
        """When `expire` has to be called next."""
        return min(self._retries.values(), default=NEVER_NS)

    def expire(self, now_ns: int) -> dict[Pair, None]:
        """Returns the pairs that may ask again."""
        due = [key for key, at_ns in self._retries.items() if at_ns <= now_ns]
        for key in due:
            del self._retries[key]
        return _pairs(due)

    def lacks(self, pair: Pair) -> str:
        """Why there may be messages for this pair that only the store has and that were not looked at; empty if there are none."""
        asked = [*self._wanted, *(key for keys in self._under_way.values() for key in keys)]
        return self.failure_of(pair) or (NOT_YET if any(key[:2] == pair and self._is_below(key) for key in asked) else "")

    def failure_of(self, pair: Pair) -> str:
        """Why messages for this pair could not be fetched; empty if they could, or if it needs none any more."""
        return next((why for key, why in self._failing.items() if key[:2] == pair and self._is_below(key)), "")

    def paused(self, key: QueueKey) -> str:
        """Why messages for this queue of a consumer group are not fetched now; empty if they are."""
        return self._failing[key] if key in self._retries and key in self._failing else ""

    def _is_below(self, key: QueueKey) -> bool:
        """Whether the group has anything to get below the local begin."""
        delivery = self._machine.delivery
        first = None if key not in delivery.queues else delivery.queues[key].rows.first()
        return (delivery.cursor(key) if first is None else first) < self._machine.begin(key[1], key[2])

    @property
    def waiting(self) -> int:
        """How many queues of consumer groups wait for the object store."""
        return len(self._wanted) + sum(map(len, self._under_way.values())) + len(self._retries)

    @property
    def size(self) -> int:
        """Bytes of the records at hand."""
        return self._bytes


def _pairs(keys: Iterable[QueueKey]) -> dict[Pair, None]:
    return {(key[0], key[1]): None for key in keys}
