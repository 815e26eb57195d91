"""How far a consumer is in each queue, and which message must come next: the rules of reading without loss or duplication.

Pure state, no stream and no clock. Of every queue `processed` ≤ `handed` ≤ `next`: what the application is done with, what it was given,
and what was read ahead. A run of messages is taken only if it begins with the next one; what lies before was read already and is cut off,
and a gap counts only as far as the server says that retention took messages. A seek or a new assignment begins a new *generation* of the
queue, and what was read for an older one is dropped. A queue that was let go has no position, so nothing of it can be committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ledgermq.proto import log_pb2 as pb


class Place(NamedTuple):
    """A queue as the wire names it: `queue` is its id within the broker group."""

    broker_group: str
    queue: int


class Start(NamedTuple):
    """Where to begin: an offset, the first message stored at `store_ms` or later, or (neither) the first or last there is."""

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
    """Messages are missing, and nothing says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one queue as they came. Rows `begin` to `stop` are wanted: what lies before was read already. `missed`:
    messages that retention took in front of them."""

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
        """Of its first message."""
        return self.first_offset + self.begin

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first_offset + self.stop


@dataclass(slots=True)
class Position:
    """One queue. None: not known yet."""

    start: Start
    generation: int
    next: int | None = None
    handed: int | None = None
    processed: int | None = None
    committed: int | None = None
    end: int | None = None
    """Where the queue ended when the server last said."""
    target: int | None = None
    """Where it ended when reading began."""
    missed: int = 0
    """Messages that retention took, as far as the application was told."""
    missed_ahead: int = 0
    """And those before the next run to be read."""
    paused: bool = False
    """About to be let go: nothing more is read or handed out."""


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
        """Begin to read a queue."""
        self._queues[place] = Position(start, self._new_generation(), committed=committed)
        self._begin(self._queues[place], start)

    def seek(self, place: Place, start: Start) -> None:
        """Go on elsewhere; what was read ahead is dropped."""
        position = self._queues[place]
        position.generation = self._new_generation()
        position.missed_ahead = 0
        self._begin(position, start)

    @staticmethod
    def _begin(position: Position, start: Start) -> None:
        position.start = start
        position.next = position.handed = position.processed = start.offset

    def again(self, run: Run) -> None:
        """Read once more from where this run begins, which was not handed out: what came was damaged."""
        position = self._queues[run.place]
        position.generation = self._new_generation()
        position.next = run.offset
        position.missed_ahead = run.missed

    def pause(self, places: Iterable[Place]) -> None:
        """Stop before these are let go: what was read ahead is dropped, what was handed out may still be committed."""
        for place in places:
            position = self._queues[place]
            position.generation = self._new_generation()
            position.paused = True

    def drop(self, places: Iterable[Place]) -> None:
        """Let them go."""
        for place in places:
            del self._queues[place]

    def wanted(self, broker_group: str) -> dict[int, tuple[int, Start]]:
        """What a stream to this broker group begins with: queue → (generation, where)."""
        return {
            place.queue: (position.generation, position.start if position.next is None else Start(offset=position.next))
            for place, position in sorted(self._queues.items())
            if place.broker_group == broker_group and not position.paused
        }

    def current(self, place: Place, generation: int) -> bool:
        """Is what was read for this generation still wanted?"""
        position = self._queues.get(place)
        return position is not None and position.generation == generation

    def opened(self, place: Place, generation: int, begin: int | None, end: int | None) -> None:
        """A stream says where it begins to read the queue, and where the queue ends now."""
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
        """The server says where the queue ends."""
        position = self._queues.get(place)
        if position is not None:
            position.end = end

    @staticmethod
    def _miss(position: Position, count: int) -> None:
        assert position.next is not None, "a gap is behind a place that is known"
        position.next += count
        position.missed_ahead += count

    def accept(self, place: Place, generation: int, entries: Entries) -> Run | None:
        """What came, if it is what must come next; None: nothing of it is wanted. Raises Gap."""
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
        """The application gets this run."""
        position = self._queues[run.place]
        position.handed = run.end
        position.missed += run.missed

    def all_processed(self) -> None:
        """The application is done with everything it was given."""
        for position in self._queues.values():
            position.processed = position.handed

    def in_hand(self, places: Iterable[Place]) -> bool:
        """Is the application still at work on one of these?"""
        return any(self._queues[place].handed != self._queues[place].processed for place in places if place in self._queues)

    def finished(self) -> bool:
        """Everything was handed out that was there when reading began."""
        return all(self._left(position) == 0 for position in self._queues.values())

    @staticmethod
    def _left(position: Position) -> int | None:
        if position.target is None or position.handed is None:
            return None
        return max(0, position.target - position.handed - position.missed_ahead)

    def until_target(self, run: Run) -> Run | None:
        """The part of a run that was there when reading began."""
        target = self._queues[run.place].target
        if target is None or run.end <= target:
            return run
        return replace(run, stop=target - run.first_offset) if run.offset < target else None

    def to_commit(self, handed: bool) -> Mapping[Place, int]:
        """Offsets that are not committed: of what was handed out, or only of what is processed."""
        found = {}
        for place, position in sorted(self._queues.items()):
            offset = position.handed if handed else position.processed
            if offset is not None and offset != position.committed:
                found[place] = offset
        return found

    def committed(self, offsets: Mapping[Place, int]) -> None:
        """The cluster has them."""
        for place, offset in offsets.items():
            if place in self._queues:
                self._queues[place].committed = offset


@dataclass(frozen=True, slots=True)
class Entries:
    """A response with messages, as its bytes say. `sizes`: unsigned 32-bit little-endian, one an entry."""

    queue: int
    first_offset: int
    sizes: memoryview
    entries: memoryview
    end_offset: int
    skipped: int
