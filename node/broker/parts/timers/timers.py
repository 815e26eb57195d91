"""Pending delayed messages, represented by one watermark (docs/format.md §11, Timers).

A waiting message is on the timer topic, in the queue that is the *slot* of its fire time. The slots
form a wheel of consume queues that are read as columns, so pending messages take no heap memory
(I11). Timers fire in the order of (fire time, queue offset); for messages of one slot this is the
order of `key_of` within an epoch (one minute of fire times, held by one slot). A fired message is a
copy that names its origin, and the watermark is the place of the last one: every timer at or below
it is done. Two rules of the leader keep this sound, and `node/broker/parts/timers/timer_firing.py`
obeys them: it stores nothing at or below the watermark as of the log's end, and nothing `SLOTS`
epochs or more above it. So a slot holds pending messages of one epoch only, behind all messages of
earlier ones.

A *time epoch* (`ledgermq.proto.records.time_epochs`; the epochs above are minutes) may begin at a
time that the watermark is ahead of. Then the wheel becomes the *former* one with its watermark, and
a new one begins at that time. A place belongs to the former wheel if that had its minute, and its
offset is below the slot's end of then: so a minute of both wheels is no ambiguity, and what was
done stays done.

A pure function of the applied records (I8), without a clock. Recalled messages are remembered until
the watermark has passed them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ledgermq.node.broker.origins import Mark
from ledgermq.node.broker.part import Effects, StatePart, Takers
from ledgermq.proto.entries.layout import Columns
from ledgermq.proto.entries.properties import DELIVER_MS, FIRE_MS, TIMER_FIRST, parse
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.records.control import RecallRecord, TimersRecord
from ledgermq.proto.types import I32, I64

SLOT_MS = 60_000
SLOTS = 4096
NEVER = 1 << 62
RECALLED_MAX = 100_000
"""How many recalled messages may be remembered at once: each takes memory on every replica."""
_OFFSET_BITS = 40
KIND = "timer"
"""The kind of mark in a fired copy (format §4.3)."""


def epoch_of(fire_ms: int) -> int:
    """The epoch of a fire time: its minute since the Unix epoch."""
    return fire_ms // SLOT_MS


def slot_of(fire_ms: int) -> int:
    """The queue of the timer topic that holds messages with this fire time."""
    return epoch_of(fire_ms) % SLOTS


def key_of(fire_ms: int, offset: int) -> int:
    """The firing order within an epoch as one number. Offset −1 precedes all messages of its
    millisecond."""
    return (fire_ms % SLOT_MS) << _OFFSET_BITS | (offset + 1)


@dataclass(frozen=True, slots=True, order=True)
class Watermark:
    """Every timer at or below this place, in firing order, is done."""

    fire_ms: int = 0
    offset: int = -1

    @property
    def epoch(self) -> int:
        return epoch_of(self.fire_ms)

    @property
    def reach(self) -> int:
        """The last epoch for which a message may be stored."""
        return self.epoch + SLOTS - 1


class Place(NamedTuple):
    """Where a delayed message was first stored. A recall names this place, even if the message was
    stored again since."""

    fire_ms: int
    offset: int


def first_place(first: str, fire_ms: int, offset: int) -> Place:
    """The first place of the message that is now at this one; `first` is its property
    `TIMER_FIRST`, empty if it was stored only once."""
    if not first:
        return Place(fire_ms, offset)
    at_ms, _, at = first.partition(":")
    return Place(int(at_ms), int(at))


class Wheel:
    """A watermark, and the slots above it."""

    def __init__(self, watermark: Watermark) -> None:
        self.watermark = watermark
        self._epochs = np.full(SLOTS, -1, np.int64)
        """Slot → the last epoch of which it got messages; −1 before the first."""
        self._firsts = np.zeros(SLOTS, np.int64)
        """Slot → queue offset of the first message of that epoch; `_positions` has its log
        position."""
        self._positions = np.zeros(SLOTS, np.int64)

    def next_epoch(self, after: int) -> int | None:
        """The first epoch from `after` on that has messages; None if there is none."""
        epochs = self._epochs[self._epochs >= max(after, self.watermark.epoch)]
        return int(epochs.min()) if len(epochs) else None

    def first_of(self, epoch: int) -> int | None:
        """The queue offset of the first message of an epoch; None if no message of it can be
        pending."""
        slot = epoch % SLOTS
        return int(self._firsts[slot]) if int(self._epochs[slot]) == epoch else None

    def holds(self, place: Watermark) -> bool:
        """Whether a message at this place belongs to this wheel, pending or done in the epoch that
        its slot has now."""
        first = self.first_of(place.epoch)
        return first is not None and place.offset >= first

    def oldest_position(self) -> int:
        """The lowest log position that pending messages can have; `NEVER` without any."""
        waiting = self._positions[self._epochs >= self.watermark.epoch]
        return int(waiting.min()) if len(waiting) else NEVER

    def take(self, slots: I32, epochs: I64, offsets: I64, positions: I64) -> None:
        """Messages that arrived in slots, in the order of the log."""
        fresh = np.flatnonzero(epochs > self._epochs[slots])
        # The first row of each epoch counts. If a slot has two epochs, the later one comes last and
        # is assigned last.
        _, firsts = np.unique(epochs[fresh], return_index=True)
        chosen = fresh[firsts]
        self._epochs[slots[chosen]] = epochs[chosen]
        self._firsts[slots[chosen]] = offsets[chosen]
        self._positions[slots[chosen]] = positions[chosen]

    def rows(self) -> list[list[int]]:
        """[epoch, first offset, its position] of the slots that can hold pending messages, by
        epoch."""
        slots = np.flatnonzero(self._epochs >= self.watermark.epoch)
        columns = self._epochs[slots], self._firsts[slots], self._positions[slots]
        return sorted(
            [list(row) for row in zip(*[column.tolist() for column in columns], strict=True)]
        )

    def restore(self, rows: Iterable[list[int]]) -> None:
        for epoch, first, position in rows:
            slot = epoch % SLOTS
            self._epochs[slot], self._firsts[slot], self._positions[slot] = epoch, first, position


class FormerWheel(Wheel):
    """What waited when a time epoch began whose time was below the watermark. It gets no more
    messages. The leader moves them: those that are due to their topic, the others into the present
    wheel."""

    def __init__(self, watermark: Watermark, rows: Iterable[list[int]]) -> None:
        """`rows`: as of `Wheel`, each with the end of the slot's queue when the epoch began; at
        least one."""
        super().__init__(watermark)
        kept = [list(row) for row in rows]
        self.restore(row[:3] for row in kept)
        self._ends = {row[0]: row[3] for row in kept}
        epoch = max(self._ends)
        self.last = Watermark((epoch + 1) * SLOT_MS - 1, self._ends[epoch] - 1)
        """No message has a place behind this one."""

    def end_of(self, epoch: int) -> int:
        """The end of the slot's queue when the time epoch began."""
        return self._ends[epoch]

    def holds(self, place: Watermark) -> bool:
        """Only from the watermark's epoch on, because no snapshot has the others."""
        return (
            place.epoch >= self.watermark.epoch
            and super().holds(place)
            and place.offset < self._ends[place.epoch]
        )

    def rows(self) -> list[list[int]]:
        return [[*row, self._ends[row[0]]] for row in super().rows()]


class Timers(StatePart):
    """The timers of one broker group at the applied index. `end(topic, queue)`: the end of a
    queue."""

    KEY = "timers"

    def __init__(self, end: Callable[[str, int], int]) -> None:
        self._end = end
        self._wheel = Wheel(Watermark())
        self.former: FormerWheel | None = None
        """Until everything in it is moved."""
        self.ahead: Watermark | None = None
        """The lowest watermark that a time epoch replaced by a lower one, until the present one
        reaches it. Until then every place from its time on that is behind its message's delivery
        time is one of before: the present watermark did not cause it."""
        self._recalled: dict[int, dict[Place, int]] = {}
        """Epoch of the due time → recalled messages by first place, with their delivery time."""
        self.recalled_count = 0
        self.counts = dict.fromkeys(("stored", "fired", "rolled", "recalled", "dropped"), 0)
        self.lowest_arrival = NEVER
        """Not part of the state: the lowest epoch that got messages since the leader last looked
        and reset it."""
        self.arrived = False
        """Whether any epoch did."""

    # Reading

    @property
    def watermark(self) -> Watermark:
        """That of the wheel which gets new messages."""
        return self._wheel.watermark

    @property
    def firing(self) -> Wheel:
        """The wheel whose messages fire next."""
        return self._wheel if self.former is None else self.former

    @property
    def pending(self) -> int:
        """The number of waiting messages, without recalled ones."""
        counts = self.counts
        return (
            counts["stored"]
            - counts["fired"]
            - counts["rolled"]
            - counts["recalled"]
            - counts["dropped"]
        )

    def due_ms(self, place: Place, deliver_ms: int) -> int:
        """When a message with this delivery time fires for the last time: at that time, or at its
        first place if that is later and not of before a time epoch."""
        if self.ahead is not None and deliver_ms < self.ahead.fire_ms <= place.fire_ms:
            return deliver_ms
        return max(place.fire_ms, deliver_ms)

    def passed(self, place: Place, deliver_ms: int, watermark: Watermark) -> bool:
        """Whether the message is done. The last place of a message that was stored again is unknown
        here, but its time is not."""
        due_ms = self.due_ms(place, deliver_ms)
        return Watermark(due_ms, place.offset if due_ms == place.fire_ms else -1) <= watermark

    def fired_before(self, place: Place, deliver_ms: int) -> bool:
        """Whether a message of before the time epoch was delivered before it, although its time had
        not come."""
        due_ms = max(place.fire_ms, deliver_ms)
        return (
            self.ahead is not None
            and Watermark(due_ms, place.offset if due_ms == place.fire_ms else -1) <= self.ahead
        )

    def is_recalled(self, place: Place, deliver_ms: int) -> bool:
        """Whether the message with this first place was recalled."""
        return place in self._recalled.get(epoch_of(self.due_ms(place, deliver_ms)), ())

    def next_epoch(self, after: int) -> int | None:
        """The first epoch from `after` on that has messages in the present wheel; None if there is
        none."""
        return self._wheel.next_epoch(after)

    def first_of(self, epoch: int) -> int | None:
        """The queue offset of the first message of an epoch in the present wheel; None if no
        message of it can be pending."""
        return self._wheel.first_of(epoch)

    def oldest_position(self) -> int | None:
        """The lowest log position that waiting messages need, including recalled ones, which are
        read once more; None if no message waits."""
        recalled = (
            (place, deliver_ms)
            for known in self._recalled.values()
            for place, deliver_ms in known.items()
        )
        if (
            self.former is None
            and not self.pending
            and all(
                self.passed(place, deliver_ms, self.watermark) for place, deliver_ms in recalled
            )
        ):
            return None
        oldest = min(self._wheel.oldest_position(), self.firing.oldest_position())
        return None if oldest == NEVER else oldest

    def state_of(self, offset: int, properties: bytes) -> tuple[str, int]:
        """The state of the message at `offset` of its slot, with these properties: `delayed`,
        `recalled` or `done` (delivered, stored again for a later time, or dropped with its topic);
        and its delivery time."""
        stored = parse(properties)
        fire_ms, deliver_ms = int(stored[FIRE_MS]), int(stored[DELIVER_MS])
        place = first_place(stored.get(TIMER_FIRST, ""), fire_ms, offset)
        # A recall is forgotten some time after the message's due time.
        if self.is_recalled(place, deliver_ms):
            return "recalled", deliver_ms
        at = Watermark(fire_ms, offset)
        wheel = self._of(at)
        return ("delayed" if at > wheel.watermark and wheel.holds(at) else "done"), deliver_ms

    def _of(self, place: Watermark) -> Wheel:
        """The wheel to which a place belongs."""
        return self.former if self.former is not None and self.former.holds(place) else self._wheel

    # Applying

    def apply_stored(self, columns: Columns) -> None:
        """Apply the timer-topic messages of a range that has some, after their units are in the
        consume queues. Call it once per range: a repetition would change the counts, but nothing
        else."""
        rows = np.flatnonzero(columns.topic_of == columns.topics.index(TIMER_TOPIC))
        slots, epochs = columns.queues[rows], columns.tags_codes[rows] // SLOT_MS
        self.counts["stored"] += len(rows)
        self.lowest_arrival, self.arrived = min(self.lowest_arrival, int(epochs.min())), True
        self._wheel.take(slots, epochs, columns.queue_offsets[rows], columns.physical_offsets[rows])

    def take_copy(self, index: int, mark: Mark, effects: Effects) -> None:
        """A copy of the message at the marked place is in the log: in its topic, or on the timer
        topic again for a later time."""
        fire_ms, _, offset, *again = mark.fields
        at = Watermark(int(fire_ms), int(offset))
        passed = self._of(at).watermark
        assert at > passed, f"timer {fire_ms}/{offset} fired twice: the watermark is {passed} (I8)"
        self.counts["rolled" if again else "fired"] += 1
        self._pass(at)

    def take_passed(self, index: int, record: TimersRecord, effects: Effects) -> None:
        """Everything up to this place is done without a copy, because it was recalled or dropped
        with its topic."""
        self.counts["dropped"] += record.dropped
        self._pass(Watermark(record.fire_ms, record.offset))

    def time_epoch_began(self, ms: int) -> None:
        """If the watermark is ahead of the time, what waits above it becomes the former wheel. A
        leader begins no time epoch while there is a former wheel."""
        watermark = self.watermark
        if watermark.fire_ms <= ms:
            return
        assert self.former is None, "what waited before the last time epoch is not moved yet"
        rows = [[*row, self._end(TIMER_TOPIC, row[0] % SLOTS)] for row in self._wheel.rows()]
        self.former = FormerWheel(watermark, rows) if rows else None
        self._wheel = Wheel(Watermark(ms, -1))
        self.ahead = watermark if self.ahead is None else min(watermark, self.ahead)
        self._sort_recalled()

    def take_recall(self, index: int, record: RecallRecord, effects: Effects) -> None:
        """Apply a recall. If the message is done or already recalled, nothing changes."""
        place = Place(record.fire_ms, record.offset)
        if self.passed(place, record.deliver_ms, self.watermark) or self.is_recalled(
            place, record.deliver_ms
        ):
            return
        self._recalled.setdefault(epoch_of(self.due_ms(place, record.deliver_ms)), {})[place] = (
            record.deliver_ms
        )
        self.recalled_count += 1
        self.counts["recalled"] += 1

    def _pass(self, to: Watermark) -> None:
        wheel = self._of(to)
        before = wheel.watermark
        if to <= before:
            return
        wheel.watermark = to
        if self.former is wheel:
            if to >= self.former.last:
                self.former = None
            return
        if self.ahead is not None and to.fire_ms >= self.ahead.fire_ms:
            self.ahead = None
            self._sort_recalled()
        if to.epoch > before.epoch and self._recalled:
            for epoch in [epoch for epoch in self._recalled if epoch < to.epoch]:
                self.recalled_count -= len(self._recalled.pop(epoch))

    def _sort_recalled(self) -> None:
        """Put recalled messages where their due times belong, which depend on `ahead`. Of one place
        with two times in one minute the one remains that was due later."""
        recalled, self._recalled = self._recalled, {}
        for _, known in sorted(recalled.items()):
            for place, deliver_ms in known.items():
                self._recalled.setdefault(epoch_of(self.due_ms(place, deliver_ms)), {})[place] = (
                    deliver_ms
                )
        self.recalled_count = sum(map(len, self._recalled.values()))

    RECORDS: ClassVar[Takers] = {RecallRecord: take_recall, TimersRecord: take_passed}
    MARKS: ClassVar[Takers] = {KIND: take_copy}

    # Snapshot

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11)."""
        recalled = [
            [deliver_ms, place.fire_ms, place.offset]
            for _, known in sorted(self._recalled.items())
            for place, deliver_ms in sorted(known.items())
        ]
        former = (
            {}
            if self.former is None
            else {
                "former": {"watermark": _pair(self.former.watermark), "slots": self.former.rows()}
            }
        )
        return {
            "watermark": _pair(self.watermark),
            "slots": self._wheel.rows(),
            "recalled": recalled,
            "counts": dict(self.counts),
            **({} if self.ahead is None else {"ahead": _pair(self.ahead)}),
            **former,
        }

    def restore(self, exported: dict[str, Any]) -> None:
        fresh = Timers(self._end)
        if exported:
            fresh._wheel = Wheel(_watermark(exported["watermark"]))
            fresh._wheel.restore(exported["slots"])
            fresh.ahead = _watermark(exported["ahead"]) if "ahead" in exported else None
            former = exported.get("former")
            fresh.former = (
                None
                if former is None
                else FormerWheel(_watermark(former["watermark"]), former["slots"])
            )
            for deliver_ms, fire_ms, offset in exported["recalled"]:
                place = Place(fire_ms, offset)
                fresh._recalled.setdefault(epoch_of(fresh.due_ms(place, deliver_ms)), {})[place] = (
                    deliver_ms
                )
                fresh.recalled_count += 1
            fresh.counts.update(exported["counts"])
        self.__dict__.update(fresh.__dict__)


def _pair(watermark: Watermark) -> list[int]:
    return [watermark.fire_ms, watermark.offset]


def _watermark(pair: list[int]) -> Watermark:
    fire_ms, offset = pair
    return Watermark(fire_ms, offset)
