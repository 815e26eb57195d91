"""Pending delayed messages, represented by one watermark (docs/format.md §11, Timers).

A waiting message is on the timer topic, in the queue that is the *slot* of its fire time. The slots form a wheel of consume queues that are
read as columns, so pending messages take no heap memory (I11). Timers fire in the order of (fire time, queue offset); for messages of one
slot this is the order of `key_of` within an epoch (one minute of fire times, held by one slot). A fired message is a copy that names its
origin, and the watermark is the place of the last one: every timer at or below it is done. Two rules of the leader keep this sound, and
`node/broker/decisions/timer_firing.py` obeys them: it stores nothing at or below the watermark as of the log's end, and nothing `SLOTS`
epochs or more above it. So a slot holds pending messages of one epoch only, behind all messages of earlier ones.

A pure function of the applied records (I8), without a clock. Recalled messages are remembered until the watermark has passed them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ledgermq.proto.control import RecallRecord, TimersRecord
from ledgermq.proto.layout import Columns
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.properties import DELIVER_MS, FIRE_MS, TIMER_FIRST, parse

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
    """The firing order within an epoch as one number. Offset −1 precedes all messages of its millisecond."""
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


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a delayed message was first stored. A recall names this place, even if the message was stored again since."""

    fire_ms: int
    offset: int

    def due_ms(self, deliver_ms: int) -> int:
        """When a message with this delivery time fires for the last time: at that time, or at its first place if that is later."""
        return max(self.fire_ms, deliver_ms)

    def passed(self, deliver_ms: int, watermark: Watermark) -> bool:
        """Whether the message is done. The last place of a message that was stored again is unknown here, but its time is not."""
        due_ms = self.due_ms(deliver_ms)
        return Watermark(due_ms, self.offset if due_ms == self.fire_ms else -1) <= watermark


def first_place(first: str, fire_ms: int, offset: int) -> Place:
    """The first place of the message that is now at this one; `first` is its property `TIMER_FIRST`, empty if it was stored only once."""
    if not first:
        return Place(fire_ms, offset)
    at_ms, _, at = first.partition(":")
    return Place(int(at_ms), int(at))


class Timers:
    """The timers of one broker group at the applied index."""

    def __init__(self) -> None:
        self.watermark = Watermark()
        self._epochs = np.full(SLOTS, -1, np.int64)
        """Slot → the last epoch of which it got messages; −1 before the first."""
        self._firsts = np.zeros(SLOTS, np.int64)
        """Slot → queue offset of the first message of that epoch; `_positions` has its log position."""
        self._positions = np.zeros(SLOTS, np.int64)
        self._recalled: dict[int, dict[Place, int]] = {}
        """Epoch of the due time → recalled messages by first place, with their delivery time."""
        self.recalled_count = 0
        self.counts = dict.fromkeys(("stored", "fired", "rolled", "recalled", "dropped"), 0)
        self.lowest_arrival = NEVER
        """Not part of the state: the lowest epoch that got messages since the leader last looked and reset it."""

    # Reading

    @property
    def pending(self) -> int:
        """The number of waiting messages, without recalled ones."""
        counts = self.counts
        return counts["stored"] - counts["fired"] - counts["rolled"] - counts["recalled"] - counts["dropped"]

    def is_recalled(self, place: Place, deliver_ms: int) -> bool:
        """Whether the message with this first place was recalled."""
        return place in self._recalled.get(epoch_of(place.due_ms(deliver_ms)), ())

    def next_epoch(self, after: int) -> int | None:
        """The first epoch from `after` on that has messages; None if there is none."""
        epochs = self._epochs[self._epochs >= max(after, self.watermark.epoch)]
        return int(epochs.min()) if len(epochs) else None

    def first_of(self, epoch: int) -> int | None:
        """The queue offset of the first message of an epoch; None if no message of it can be pending."""
        slot = epoch % SLOTS
        return int(self._firsts[slot]) if int(self._epochs[slot]) == epoch else None

    def oldest_position(self) -> int | None:
        """The lowest log position that waiting messages need, including recalled ones, which are read once more; None if no message
        waits."""
        recalled = ((place, deliver_ms) for known in self._recalled.values() for place, deliver_ms in known.items())
        if not self.pending and all(place.passed(deliver_ms, self.watermark) for place, deliver_ms in recalled):
            return None
        waiting = self._positions[self._epochs >= self.watermark.epoch]
        return int(waiting.min()) if len(waiting) else None

    def state_of(self, offset: int, properties: bytes) -> tuple[str, int]:
        """The state of the message at `offset` of its slot, with these properties: `delayed`, `recalled` or `done` (delivered, stored again
        for a later time, or dropped with its topic); and its delivery time."""
        stored = parse(properties)
        fire_ms, deliver_ms = int(stored[FIRE_MS]), int(stored[DELIVER_MS])
        place = first_place(stored.get(TIMER_FIRST, ""), fire_ms, offset)
        # A recall is forgotten some time after the message's due time.
        if self.is_recalled(place, deliver_ms):
            return "recalled", deliver_ms
        return ("done" if Watermark(fire_ms, offset) <= self.watermark else "delayed"), deliver_ms

    # Applying

    def apply_stored(self, columns: Columns) -> None:
        """Apply the timer-topic messages of a range that has some, after their units are in the consume queues. Call it once per range: a
        repetition would change the counts, but nothing else."""
        rows = np.flatnonzero(columns.topic_of == columns.topics.index(TIMER_TOPIC))
        slots, epochs = columns.queues[rows], columns.tags_codes[rows] // SLOT_MS
        self.counts["stored"] += len(rows)
        self.lowest_arrival = min(self.lowest_arrival, int(epochs.min()))
        fresh = np.flatnonzero(epochs > self._epochs[slots])
        # The first row of each epoch counts. If a slot has two epochs, the later one comes last and is assigned last.
        _, firsts = np.unique(epochs[fresh], return_index=True)
        chosen = fresh[firsts]
        self._epochs[slots[chosen]] = epochs[chosen]
        self._firsts[slots[chosen]] = columns.queue_offsets[rows[chosen]]
        self._positions[slots[chosen]] = columns.physical_offsets[rows[chosen]]

    def apply_fired(self, fire_ms: int, offset: int, *, rolled: bool) -> None:
        """A copy of the message at this place is in the log: in its topic, or on the timer topic again for a later time."""
        assert Watermark(fire_ms, offset) > self.watermark, f"timer {fire_ms}/{offset} fired twice: the watermark is {self.watermark} (I8)"
        self.counts["rolled" if rolled else "fired"] += 1
        self._pass(Watermark(fire_ms, offset))

    def apply_record(self, record: TimersRecord) -> None:
        """Everything up to this place is done without a copy, because it was recalled or dropped with its topic."""
        self.counts["dropped"] += record.dropped
        self._pass(Watermark(record.fire_ms, record.offset))

    def apply_recall(self, record: RecallRecord) -> None:
        """Apply a recall. If the message is done or already recalled, nothing changes."""
        place = Place(record.fire_ms, record.offset)
        if place.passed(record.deliver_ms, self.watermark) or self.is_recalled(place, record.deliver_ms):
            return
        self._recalled.setdefault(epoch_of(place.due_ms(record.deliver_ms)), {})[place] = record.deliver_ms
        self.recalled_count += 1
        self.counts["recalled"] += 1

    def _pass(self, to: Watermark) -> None:
        before = self.watermark
        if to <= before:
            return
        self.watermark = to
        if to.epoch > before.epoch and self._recalled:
            for epoch in [epoch for epoch in self._recalled if epoch < to.epoch]:
                self.recalled_count -= len(self._recalled.pop(epoch))

    # Snapshot

    def _rows(self) -> Iterator[list[int]]:
        """Rows of the slots that can hold pending messages."""
        for slot in np.flatnonzero(self._epochs >= self.watermark.epoch).tolist():
            yield [int(self._epochs[slot]), int(self._firsts[slot]), int(self._positions[slot])]

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11)."""
        recalled = [
            [deliver_ms, place.fire_ms, place.offset]
            for _, known in sorted(self._recalled.items())
            for place, deliver_ms in sorted(known.items())
        ]
        return {
            "watermark": [self.watermark.fire_ms, self.watermark.offset],
            "slots": sorted(self._rows()),
            "recalled": recalled,
            "counts": dict(self.counts),
        }

    def restore(self, exported: dict[str, Any] | None) -> None:
        """Replace the state by what `export` returned; None: the log has no timers."""
        fresh = Timers()
        if exported is not None:
            fresh.watermark = Watermark(*exported["watermark"])
            for epoch, first, position in exported["slots"]:
                slot = epoch % SLOTS
                fresh._epochs[slot], fresh._firsts[slot], fresh._positions[slot] = epoch, first, position
            for deliver_ms, fire_ms, offset in exported["recalled"]:
                place = Place(fire_ms, offset)
                fresh._recalled.setdefault(epoch_of(place.due_ms(deliver_ms)), {})[place] = deliver_ms
                fresh.recalled_count += 1
            fresh.counts.update(exported["counts"])
        self.__dict__.update(fresh.__dict__)
