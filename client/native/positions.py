"""A consumer's progress in each queue, and which message must come next: the rules of reading without loss or duplication.

Pure state, no stream and no clock. For every queue `processed` ≤ `handed` ≤ `next`: what the application has processed, what it was given,
and what was read ahead. A run of messages is accepted only if it continues at `next`: earlier messages are cut off, and a gap is accepted
only as far as the server says that retention removed messages. A seek or a new assignment starts a new *generation* of the queue, and
messages read for an older generation are dropped. A released queue has no position, so no offset of it can be committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ledgermq.proto import log_pb2 as pb


class Place(NamedTuple):
    """A queue as named on the wire: `queue` is its id within the broker group."""

    broker_group: str
    queue: int


class Start(NamedTuple):
    """Where to start: an offset, the first message stored at or after `store_ms`, or (neither) the first or last message."""

    earliest: bool = True
    offset: int | None = None
    store_ms: int | None = None

    def fill(self, where: pb.FetchFrom) -> None:
        if self.offset is not None:
            where.offset = self.offset
        elif self.store_ms is not None:
            where.store_ms = self.store_ms
        else:
            where.earliest = self.earliest


class Gap(Exception):
    """Messages are missing without an explanation by the server."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one queue, as received. Rows `begin` to `stop` are wanted; earlier rows were read before. `missed`: the number
    of messages that retention removed in front of them."""

    place: Place
    generation: int
    first_offset: int
    begin: int
    stop: int
    missed: int
    sizes: memoryview
    entries: memoryview

    @property
    def offset(self) -> int:
        """The offset of its first message."""
        return self.first_offset + self.begin

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first_offset + self.stop


@dataclass(slots=True)
class Position:
    """The position in one queue. None means not known yet."""

    start: Start
    generation: int
    next: int | None = None
    handed: int | None = None
    processed: int | None = None
    committed: int | None = None
    end: int | None = None
    """The end of the queue, as last reported by the server."""
    target: int | None = None
    """The end of the queue when reading started."""
    missed: int = 0
    """Messages removed by retention, as far as reported to the application."""
    missed_ahead: int = 0
    """Messages removed by retention in front of the next run."""
    paused: bool = False
    """The queue is about to be released: nothing more is read or handed out."""


class Positions:
    """The queues that a consumer reads."""

    def __init__(self) -> None:
        self._queues: dict[Place, Position] = {}
        self._generation = 0

    def __contains__(self, place: object) -> bool:
        return place in self._queues

    def __iter__(self) -> Iterator[Place]:
        return iter(sorted(self._queues))

    def __getitem__(self, place: Place) -> Position:
        return self._queues[place]

    def _new_generation(self) -> int:
        self._generation += 1
        return self._generation

    def add(self, place: Place, start: Start, committed: int | None = None) -> None:
        """Start reading a queue."""
        self._queues[place] = Position(start, self._new_generation(), committed=committed)
        self._begin(self._queues[place], start)

    def seek(self, place: Place, start: Start) -> None:
        """Continue at another place; messages read ahead are dropped."""
        position = self._queues[place]
        position.generation = self._new_generation()
        position.missed_ahead = 0
        self._begin(position, start)

    @staticmethod
    def _begin(position: Position, start: Start) -> None:
        position.start = start
        position.next = position.handed = position.processed = start.offset

    def again(self, run: Run) -> None:
        """Read a damaged run again, from its start. The run was not handed out."""
        position = self._queues[run.place]
        position.generation = self._new_generation()
        position.next = run.offset
        position.missed_ahead = run.missed

    def pause(self, places: Iterable[Place]) -> None:
        """Stop reading queues that are about to be released: messages read ahead are dropped, handed-out messages may still be
        committed."""
        for place in places:
            position = self._queues[place]
            position.generation = self._new_generation()
            position.paused = True

    def drop(self, places: Iterable[Place]) -> None:
        """Release queues."""
        for place in places:
            del self._queues[place]

    def wanted(self, broker_group: str) -> dict[int, tuple[int, Start]]:
        """The queues that a stream to this broker group reads: queue → (generation, start)."""
        return {
            place.queue: (position.generation, position.start if position.next is None else Start(offset=position.next))
            for place, position in sorted(self._queues.items())
            if place.broker_group == broker_group and not position.paused
        }

    def current(self, place: Place, generation: int) -> bool:
        """Whether messages read for this generation are still wanted."""
        position = self._queues.get(place)
        return position is not None and position.generation == generation

    def opened(self, place: Place, generation: int, begin: int | None, end: int | None) -> None:
        """A stream reports where it starts to read the queue, and where the queue ends now."""
        if not self.current(place, generation):
            return
        position = self._queues[place]
        if begin is not None:
            if position.next is None:
                position.next = position.handed = position.processed = begin
            elif begin > position.next:
                self._miss(position, begin - position.next)
        if end is not None:
            position.end = end
            if position.target is None:
                position.target = end

    def reached(self, place: Place, end: int) -> None:
        """The server reports the end of the queue."""
        position = self._queues.get(place)
        if position is not None:
            position.end = end

    @staticmethod
    def _miss(position: Position, count: int) -> None:
        assert position.next is not None, "a gap is only known behind a known position"
        position.next += count
        position.missed_ahead += count

    def accept(self, place: Place, generation: int, entries: Entries) -> Run | None:
        """Accept received entries if they come next; None if none of them is wanted. Raises Gap."""
        if not self.current(place, generation):
            return None
        position = self._queues[place]
        count, first = len(entries.sizes) // 4, entries.first_offset
        if position.next is None:
            position.next = position.handed = position.processed = first
        if first > position.next:
            if first - position.next > entries.skipped:
                raise Gap(f"offset {position.next} is due, and {first} came with {entries.skipped} skipped")
            self._miss(position, first - position.next)
        position.end = max(entries.end_offset, first + count)
        skip = position.next - first
        if skip >= count:
            return None
        position.next = first + count
        missed, position.missed_ahead = position.missed_ahead, 0
        return Run(place, generation, first, skip, count, missed, entries.sizes, entries.entries)

    def hand(self, run: Run) -> None:
        """The application receives this run."""
        position = self._queues[run.place]
        position.handed = run.end
        position.missed += run.missed

    def all_processed(self) -> None:
        """The application has processed everything it was given."""
        for position in self._queues.values():
            position.processed = position.handed

    def in_hand(self, places: Iterable[Place]) -> bool:
        """Whether the application still processes messages of one of these queues."""
        return any(self._queues[place].handed != self._queues[place].processed for place in places if place in self._queues)

    def finished(self) -> bool:
        """Whether everything was handed out that existed when reading started."""
        return all(self._left(position) == 0 for position in self._queues.values())

    @staticmethod
    def _left(position: Position) -> int | None:
        if position.target is None or position.handed is None:
            return None
        return max(0, position.target - position.handed - position.missed_ahead)

    def until_target(self, run: Run) -> Run | None:
        """The part of a run that existed when reading started."""
        target = self._queues[run.place].target
        if target is None or run.end <= target:
            return run
        return replace(run, stop=target - run.first_offset) if run.offset < target else None

    def to_commit(self, handed: bool) -> Mapping[Place, int]:
        """Offsets that are not committed yet: behind everything handed out, or only behind what is processed."""
        found = {}
        for place, position in sorted(self._queues.items()):
            offset = position.handed if handed else position.processed
            if offset is not None and offset != position.committed:
                found[place] = offset
        return found

    def committed(self, offsets: Mapping[Place, int]) -> None:
        """The cluster has committed these offsets."""
        for place, offset in offsets.items():
            if place in self._queues:
                self._queues[place].committed = offset


@dataclass(frozen=True, slots=True)
class Entries:
    """A response with messages, undecoded. `sizes`: unsigned 32-bit little-endian integers, one per entry."""

    queue: int
    first_offset: int
    sizes: memoryview
    entries: memoryview
    end_offset: int
    skipped: int
