"""A consumer's progress in each queue, and which message must come next: the rules of reading
without loss or duplication.

Pure state, no stream and no clock. For every queue `processed` ≤ `handed` ≤ `next`: what the
application has processed, what it was given, and what was read ahead. A run of messages is accepted
only if it continues at `next`: earlier messages are cut off, and a gap is accepted only as far as
the server says that retention removed messages. A seek or a new assignment starts a new
*generation* of the queue, and messages read for an older generation are dropped. A released queue
has no position, so no offset of it can be committed.

An offset names a message of one history only: a log that was restored from an older state gives it
to another message. So a position also has the name of the message in front of it, as it was read. A
stream then begins at that message, and its messages are accepted only if it has that name
(`Changed` otherwise). If retention removed it, reading goes on: whatever was in front of it is gone
too, so that nothing that the log has is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ledgermq.client.errors import Refused
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.status import Code

_NAME = struct.Struct(">8xqq12xI8x")
"""Index, term and chain CRC in the header of an entry (docs/format.md §2)."""
assert _NAME.size == HEADER_BYTES


class Place(NamedTuple):
    """A queue as named on the wire: `queue` is its id within the broker group."""

    broker_group: str
    queue: int


class EntryName(NamedTuple):
    """The name of an entry. Its chain CRC depends on the whole log up to it, so it also names the
    history that the entry ends."""

    log_index: int
    term: int
    chain_crc: int

    @classmethod
    def of(cls, entry: memoryview) -> EntryName:
        """Raises Gap for bytes that are not an entry."""
        if len(entry) < HEADER_BYTES:
            raise Gap(f"an entry of {len(entry)} bytes came")
        return cls(*_NAME.unpack_from(entry))

    def __str__(self) -> str:
        return f"entry {self.log_index} of term {self.term} with chain CRC {self.chain_crc:08x}"


class Start(NamedTuple):
    """Where to start: an offset, the first message stored at or after `store_ms`, or (neither) the
    first or last message. `after`: the message in front of the offset, as it was read."""

    earliest: bool = True
    offset: int | None = None
    store_ms: int | None = None
    after: EntryName | None = None

    def fill(self, where: pb.FetchFrom) -> None:
        if self.offset is not None:
            where.offset = self.offset if self.after is None else self.offset - 1
        elif self.store_ms is not None:
            where.store_ms = self.store_ms
        else:
            where.earliest = self.earliest


class Gap(Exception):
    """Messages are missing without an explanation by the server."""


class Changed(Refused):
    """The log does not have the message that was read last from a queue: it was restored from an
    older state since."""

    def __init__(self, place: Place, last: int, found: str) -> None:
        where = f"at offset {last} of queue {place.queue} of broker group {place.broker_group}"
        what = f"the message that was read {where} is not in the log: {found}"
        remedy = (
            "the cluster was restored from an older state since, and other messages may have the"
            " offsets of those that were read"
        )
        super().__init__(Code.ILLEGAL_OFFSET, what, remedy)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one queue, as received. Rows `begin` to `stop` are wanted; earlier
    rows were read before. `missed`: the number of messages that retention removed in front of them.
    `after`: the message that was read last before them."""

    place: Place
    generation: int
    first_offset: int
    begin: int
    stop: int
    missed: int
    sizes: memoryview
    entries: memoryview
    after: EntryName | None = None

    @property
    def offset(self) -> int:
        """The offset of its first message."""
        return self.first_offset + self.begin

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first_offset + self.stop

    def behind(self, stop: int, after: EntryName) -> Run:
        """The part from row `stop` on, behind the message of this name."""
        return replace(self, begin=stop, missed=0, after=after)


@dataclass(slots=True)
class Position:
    """The position in one queue. None means not known yet."""

    start: Start
    generation: int
    next: int | None = None
    after: EntryName | None = None
    """The message in front of `next`, as it was read; None: unknown."""
    awaited: bool = False
    """The stream begins at that message and has not sent it yet, so its name was not compared."""
    unproven: bool = False
    """Retention removed that message before it could be compared."""
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
    """The queue is about to be released, or not announced yet: nothing is read or handed out."""


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
        position.after, position.awaited = start.after, False

    def again(self, run: Run) -> None:
        """Read a damaged run again, from its start. The run was not handed out."""
        position = self._queues[run.place]
        position.generation = self._new_generation()
        position.next = run.offset
        position.after, position.awaited = run.after, False
        position.missed_ahead = run.missed

    def pause(self, places: Iterable[Place]) -> None:
        """Do not read queues that are about to be released, or not announced yet: messages read
        ahead are dropped, handed-out messages may still be committed."""
        for place in places:
            position = self._queues[place]
            position.generation = self._new_generation()
            position.paused = True

    def resume(self, places: Iterable[Place]) -> None:
        """Read queues that were paused."""
        for place in places:
            self._queues[place].paused = False

    def drop(self, places: Iterable[Place]) -> None:
        """Release queues."""
        for place in places:
            del self._queues[place]

    def wanted(self, broker_group: str) -> dict[int, tuple[int, Start]]:
        """The queues that a stream to this broker group reads: queue → (generation, start)."""
        return {
            place.queue: (
                position.generation,
                (
                    position.start
                    if position.next is None
                    else Start(offset=position.next, after=position.after)
                ),
            )
            for place, position in sorted(self._queues.items())
            if place.broker_group == broker_group and not position.paused
        }

    def current(self, place: Place, generation: int) -> bool:
        """Whether messages read for this generation are still wanted."""
        position = self._queues.get(place)
        return position is not None and position.generation == generation

    def opened(
        self, place: Place, generation: int, begin: int | None, end: int | None, *, leads: bool
    ) -> None:
        """A stream reports where it starts to read the queue, and where the queue ends now at that
        replica, which may be behind unless it leads. Raises Changed."""
        if not self.current(place, generation):
            return
        position = self._queues[place]
        position.awaited = False
        if position.after is not None and position.next is not None:
            if leads and end is not None and end < position.next:
                raise Changed(place, position.next - 1, f"the queue ends with offset {end - 1}")
            position.awaited = begin is not None and begin < position.next
            position.unproven = position.unproven or not position.awaited
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
            if position.awaited and position.next is not None and end >= position.next:
                # The stream is behind the awaited message without having sent it: retention took
                # it.
                position.awaited, position.unproven = False, True

    @staticmethod
    def _miss(position: Position, count: int) -> None:
        assert position.next is not None, "a gap is only known behind a known position"
        position.next += count
        position.missed_ahead += count

    def accept(self, place: Place, generation: int, entries: Entries) -> Run | None:
        """Accept received entries if they come next; None if none of them is wanted. Raises Gap,
        Changed."""
        if not self.current(place, generation):
            return None
        position = self._queues[place]
        count, first = len(entries.sizes) // 4, entries.first_offset
        if position.next is None:
            position.next = position.handed = position.processed = first
        if position.awaited:
            self._compare(place, position, entries)
        if first > position.next:
            if first - position.next > entries.skipped:
                raise Gap(
                    f"offset {position.next} is due, and {first} came with {entries.skipped}"
                    " skipped"
                )
            self._miss(position, first - position.next)
        position.end = max(entries.end_offset, first + count)
        skip = position.next - first
        if skip >= count:
            return None
        after, position.after = position.after, EntryName.of(entries.last_entry)
        position.next = first + count
        missed, position.missed_ahead = position.missed_ahead, 0
        return Run(
            place=place,
            generation=generation,
            first_offset=first,
            begin=skip,
            stop=count,
            missed=missed,
            sizes=entries.sizes,
            entries=entries.entries,
            after=after,
        )

    @staticmethod
    def _compare(place: Place, position: Position, entries: Entries) -> None:
        """Compare the message in front of `next` with the one that the stream sends there. Raises
        Gap, Changed."""
        assert position.next is not None, "only a message in front of a known position is awaited"
        row = position.next - 1 - entries.first_offset
        if row < 0:
            if not entries.skipped:
                raise Gap(f"offset {position.next - 1} is due, and {entries.first_offset} came")
            position.awaited, position.unproven = False, True
        elif row < len(entries.sizes) // 4:
            name = EntryName.of(entries.entry(row))
            if name != position.after:
                raise Changed(
                    place, position.next - 1, f"there is {name} instead of {position.after}"
                )
            position.awaited = False

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
        return any(
            self._queues[place].handed != self._queues[place].processed
            for place in places
            if place in self._queues
        )

    def finished(self) -> bool:
        """Whether everything was handed out that existed when reading started."""
        return not self.awaits() and all(
            self._left(position) == 0 for position in self._queues.values()
        )

    def awaits(self) -> bool:
        """Whether a position was not compared yet with the log that is read."""
        return any(position.awaited for position in self._queues.values())

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
        """Offsets that are not committed yet: behind everything handed out, or only behind what is
        processed."""
        offsets = {}
        for place, position in sorted(self._queues.items()):
            offset = position.handed if handed else position.processed
            if offset is not None and offset != position.committed:
                offsets[place] = offset
        return offsets

    def committed(self, offsets: Mapping[Place, int]) -> None:
        """The cluster has committed these offsets."""
        for place, offset in offsets.items():
            if place in self._queues:
                self._queues[place].committed = offset


@dataclass(frozen=True, slots=True)
class Entries:
    """A response with messages, undecoded. `sizes`: unsigned 32-bit little-endian integers, one per
    entry."""

    queue: int
    first_offset: int
    sizes: memoryview
    entries: memoryview
    end_offset: int
    skipped: int

    @property
    def last_entry(self) -> memoryview:
        """As `entry` of the last row."""
        return self.entries[max(0, len(self.entries) - int.from_bytes(self.sizes[-4:], "little")) :]

    def entry(self, row: int) -> memoryview:
        """The bytes of one entry; fewer, if the sizes do not belong to the entries."""
        ends = np.cumsum(np.frombuffer(self.sizes, "<u4", row + 1), dtype=np.int64)
        return self.entries[int(ends[-2]) if row else 0 : int(ends[-1])]
