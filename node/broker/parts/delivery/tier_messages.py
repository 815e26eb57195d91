"""Messages that only the object store has: the leader asks for them in batches, and has those of
the last batches at hand.

Invariant: a batch at hand consists of committed messages at their offsets, so it stays valid under
every leader and after every trim. A message counts as removed only after a node has read where the
store begins, and that is behind the message. A fetch that fails decides nothing. No call blocks: a
decision that needs a message which is not at hand asks for it (`want`) and leaves it out. The pair
is woken when the fetch has ended.

Memory is bounded (I11): the batches at hand and those under way have at most `BYTES_MAX`, unless a
single message is longer. Each consumer group has at most one wish for a queue, and at most
`FETCHES_MAX` are under way; the others follow in their order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched, TierMessage
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.plan import NEVER_NS
from ledgermq.node.broker.queues import Pair, QueueKey
from ledgermq.proto.entries.layout import split_record
from ledgermq.proto.entries.properties import MESSAGE_GROUP, parse
from ledgermq.proto.types import I32, I64

T = TypeVar("T")
BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 1024
FETCHES_MAX = 4
BYTES_MAX = 32 << 20
RETRY_NS = 2_000_000_000
"""Pause before a fetch is repeated that failed."""
NOT_YET = "they have not come from the object store yet; ask again"
GONE = "\0"
"""The message group of a message that is gone begins with this, which no other one does: it keeps
no other message waiting."""
Place = tuple[str, int]
"""(stored topic, queue)"""
Target = tuple[str, int, int]
"""(stored topic, queue, offset)"""


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
        self._wanted: dict[Pair, dict[int, int]] = {}
        """Pair → queue → the offset that it waits for."""
        self.queued: dict[Target, None] = {}
        """What waits for another fetch to end."""
        self._under_way: dict[Target, TierFetch] = {}
        self._retries: dict[QueueKey, int] = {}
        """Whose fetch failed, and until when it is not repeated."""
        self.retry_ns = NEVER_NS
        """When `expire` has to be called next. An attribute, because every turn asks."""
        self._failing: dict[Pair, dict[int, str]] = {}
        """Pair → queue whose last fetch failed → why."""
        self._number = 0
        self.failures = 0

    def resign(self) -> None:
        """Leadership is lost: forget everything. What is under way arrives in vain."""
        for part in (
            self._batches,
            self._numbers,
            self._by_position,
            self._gone,
            self._wanted,
            self.queued,
            self._under_way,
        ):
            part.clear()
        self._retries.clear()
        self.retry_ns = NEVER_NS
        self._failing.clear()
        self._bytes = 0

    # What is at hand

    def at_hand(self, topic: str, queue: int, offset: int) -> int:
        """The first offset from `offset` on that is not at hand; `offset` itself if only the object
        store may have it."""
        if offset >= self._machine.begin(topic, queue):
            return self._machine.end(topic, queue)
        batch = self._batch(topic, queue, offset)
        return offset if batch is None else batch.end

    def gone_to(self, topic: str, queue: int, offset: int) -> int:
        """The first offset from `offset` on that may exist: above `offset` if total retention has
        removed the message from the store."""
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
        assert batch is not None and first + count <= batch.end, (
            f"message {first} of {topic}/{queue} is not at hand"
        )
        rows = batch.messages[first - batch.first : first - batch.first + count]
        positions = np.array([row.position for row in rows], np.int64)
        return (
            positions,
            np.array([len(row.record) for row in rows], np.int32),
            np.array([row.tags_code for row in rows], np.int64),
        )

    def reader(self, topic: str, queue: int, first: int) -> Callable[[int, int], bytes]:
        """What `record` does, for messages that `at_hand` returned together with this one. It costs
        nothing above the local begin."""
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
        """The message group of one message record; empty if it has none."""
        return parse(self.properties(physical_offset, size)).get(MESSAGE_GROUP, "")

    def index_at(self, physical_offset: int) -> int:
        fetched = self._fetched(physical_offset)
        return self._machine.index_at(physical_offset) if fetched is None else fetched.entry_index

    def tags_code(self, tag: str) -> int:
        return self._machine.tags_code(tag)

    def _fetched(self, physical_offset: int) -> TierMessage | None:
        return (
            self._by_position[physical_offset]
            if self._by_position and physical_offset < self._machine.begin_pos
            else None
        )

    def message_group_of(self, key: QueueKey, offset: int) -> str | None:
        """The message group of an existing message. None if the message is not at hand; then it is
        asked for."""
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
        """The decisions about this queue of a consumer group need a message that is not at hand.
        One at a time: the next one is asked for when this one is there."""
        group, topic, queue = key
        if (
            key not in self._retries
            and self._wanted.setdefault((group, topic), {}).setdefault(queue, offset) == offset
        ):
            target = topic, queue, offset
            if target not in self._under_way:
                self.queued[target] = None

    def fetches(self) -> tuple[TierFetch, ...]:
        """The fetches to start now. None while a trim is half applied: where the queues begin and
        where the log does would not fit each other, and what lies between would look gone."""
        started: list[TierFetch] = []
        while self.queued and len(self._under_way) < FETCHES_MAX and self._machine.settled:
            target = topic, queue, first = next(iter(self.queued))
            del self.queued[target]
            self._number += 1
            fetch = self._under_way[target] = TierFetch(
                number=self._number,
                topic=topic,
                queue=queue,
                first=first,
                begin=self._machine.begin(topic, queue),
                begin_pos=self._machine.begin_pos,
                max_bytes=BATCH_BYTES,
                count=BATCH_MESSAGES,
            )
            started.append(fetch)
        return tuple(started)

    def take(self, fetched: TierFetched, now_ns: int) -> dict[Pair, None]:
        """A fetch has ended. Returns the pairs that may go on."""
        fetch = fetched.fetch
        target, place = (fetch.topic, fetch.queue, fetch.first), (fetch.topic, fetch.queue)
        if self._under_way.get(target) != fetch:
            return {}
        del self._under_way[target]
        if fetched.failure:
            self.failures += 1
            for pair in self._end_wishes(place, lambda offset: offset == fetch.first):
                self._retries[*pair, fetch.queue] = now_ns + RETRY_NS
                self.retry_ns = min(self.retry_ns, now_ns + RETRY_NS)
                self._failing.setdefault(pair, {})[fetch.queue] = fetched.failure
            return {}
        for pair in [
            pair
            for pair, whys in self._failing.items()
            if pair[1] == fetch.topic and fetch.queue in whys
        ]:
            _drop(self._failing, pair, fetch.queue)
        if fetched.first > fetch.first:
            self._gone[place] = max(self._gone.get(place, 0), fetched.first)
        if fetched.messages:
            self._keep(
                fetch.number,
                _Batch(
                    place,
                    fetched.first,
                    fetched.messages,
                    sum(len(m.record) for m in fetched.messages),
                ),
            )
        self.queued = {
            other: None
            for other in self.queued
            if other[:2] != place or not self._is_known(place, other[2])
        }
        return self._end_wishes(
            place, lambda offset: offset == fetch.first or self._is_known(place, offset)
        )

    def _end_wishes(self, place: Place, ends: Callable[[int], bool]) -> dict[Pair, None]:
        """Forget the wishes of this queue that have come true or failed. Returns whose they
        were."""
        topic, queue = place
        ended = {
            p: None
            for p, offsets in self._wanted.items()
            if p[1] == topic and queue in offsets and ends(offsets[queue])
        }
        for pair in ended:
            _drop(self._wanted, pair, queue)
        return ended

    def _is_known(self, place: Place, offset: int) -> bool:
        topic, queue = place
        return max(self.at_hand(topic, queue, offset), self.gone_to(topic, queue, offset)) > offset

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

    def expire(self, now_ns: int) -> dict[Pair, None]:
        """Returns the pairs that may ask again."""
        due = [key for key, at_ns in self._retries.items() if at_ns <= now_ns]
        for key in due:
            del self._retries[key]
        self.retry_ns = min(self._retries.values(), default=NEVER_NS)
        return {(group, topic): None for group, topic, _ in due}

    def lacks(self, pair: Pair) -> str:
        """Why there may be messages for this pair that only the store has and that were not looked
        at; empty if there are none."""
        waits = any(self._is_below((*pair, queue)) for queue in self._wanted.get(pair, ()))
        return self.failure_of(pair) or (NOT_YET if waits else "")

    def failure_of(self, pair: Pair) -> str:
        """Why messages for this pair could not be fetched; empty if they could, or if it needs none
        any more."""
        return next(
            (
                why
                for queue, why in self._failing.get(pair, {}).items()
                if self._is_below((*pair, queue))
            ),
            "",
        )

    def paused(self, key: QueueKey) -> str:
        """Why messages for this queue of a consumer group are not fetched now; empty if they
        are."""
        return self._failing.get(key[:2], {}).get(key[2], "") if key in self._retries else ""

    def _is_below(self, key: QueueKey) -> bool:
        """Whether the group has anything to get below the local begin."""
        delivery = self._machine.delivery
        first = None if key not in delivery.queues else delivery.queues[key].rows.first()
        return (delivery.cursor(key) if first is None else first) < self._machine.begin(
            key[1], key[2]
        )

    @property
    def waiting(self) -> int:
        """How many queues of consumer groups wait for the object store."""
        return sum(map(len, self._wanted.values())) + len(self._retries)

    @property
    def size(self) -> int:
        """Bytes of the records at hand."""
        return self._bytes


def _drop(table: dict[Pair, dict[int, T]], pair: Pair, queue: int) -> None:
    of_pair = table[pair]
    del of_pair[queue]
    if not of_pair:
        del table[pair]
