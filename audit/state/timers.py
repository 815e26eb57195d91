"""Timers, derived again: the waiting delayed messages, as one watermark and a wheel of slots
(docs/format.md §4.4 and §11, Timers).

Waiting messages are counted, and their slots maintained, in columns; only marks and records are
processed one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ledgermq.audit.reading.columns import fire_time
from ledgermq.audit.reading.decode import HEADER_BYTES
from ledgermq.audit.state.packed import table
from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.queues import Queues
from ledgermq.audit.state.reader import TIMER_TOPIC, Entry, Messages

SLOTS = 4096
MINUTE_MS = 60_000
COUNTS = ("stored", "fired", "rolled", "recalled", "dropped")
Mark = tuple[int, int]
"""(fire time, offset in the slot), in the order in which timers fire."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """The last minute whose messages were put into a slot, and the place of the first of them: its
    offset, and its physical offset."""

    minute: int
    first: int
    physical_offset: int
    index: int | None


@dataclass(slots=True)
class _Former:
    """What waited above the watermark when a time epoch began. `slots`: minute → its first message
    then, and the end of its slot then."""

    watermark: Mark
    slots: dict[int, tuple[int, int, int]]

    def has(self, place: Mark) -> bool:
        minute = place[0] // MINUTE_MS
        if minute < self.watermark[0] // MINUTE_MS or minute not in self.slots:
            return False
        first, _, end = self.slots[minute]
        return first <= place[1] < end

    @property
    def last(self) -> Mark:
        """No place in it is behind this one."""
        minute = max(self.slots)
        return minute * MINUTE_MS + MINUTE_MS - 1, self.slots[minute][2] - 1


@dataclass(slots=True)
class _Wheel:
    watermark: Mark = (0, -1)
    slots: dict[int, _Slot] = field(default_factory=dict)
    former: _Former | None = None
    ahead: Mark | None = None
    """The lowest watermark that a time epoch lowered, until the watermark reaches it again."""
    recalled: dict[tuple[int, Mark], int] = field(default_factory=dict)
    """(minute it is due in, first place) → delivery time. One place may occur with several times,
    because it is not looked up."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))


class Timers(Part):
    """The watermark, the slots, the recalled messages, and the counts."""

    keys: ClassVar[tuple[str, ...]] = ("timers",)

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._wheel = _Wheel()
        self._touched: dict[str, int] = {}
        """Key of the value, or count → index of the last entry about it."""

    # What entries do

    def messages(self, messages: Messages) -> None:
        slots, counts = self._wheel.slots, self._wheel.counts
        rows = messages.rows_of(TIMER_TOPIC)
        for row in rows.tolist():
            minute = fire_time(messages.raw_properties(row)) // MINUTE_MS
            slot = int(messages.queue[row])
            if slot not in slots or slots[slot].minute < minute:
                place = int(messages.queue_offset[row]), int(messages.pos[row]) + HEADER_BYTES
                slots[slot] = _Slot(minute, *place, int(messages.index[row]))
        if len(rows):
            counts["stored"] += len(rows)
            self._touched["counts/stored"] = int(messages.index[rows[-1]])

    def apply(self, entry: Entry) -> None:
        fields = entry.fields
        if entry.kind == "timers":
            self._count("dropped", int(fields["n"]), entry.index)
            self._pass((int(fields["f"]), int(fields["o"])), entry.index)
        elif entry.kind == "recall":
            self._recall(int(fields["d"]), (int(fields["f"]), int(fields["o"])), entry.index)
        elif entry.kind == "time-epoch":
            self._turn_back(entry)
        elif entry.origin and entry.origin_text[0] == "timer":
            _, fire_ms, _, offset, *again = entry.origin_text
            self._count("rolled" if again else "fired", 1, entry.index)
            self._pass((int(fire_ms), int(offset)), entry.index)

    def _turn_back(self, entry: Entry) -> None:
        """A time epoch begins. A watermark ahead of its time is lowered, and what waits above is
        kept apart."""
        wheel, now_ms = self._wheel, entry.store_ms
        if wheel.watermark[0] <= now_ms:
            return
        first = wheel.watermark[0] // MINUTE_MS
        rows = {
            slot.minute: (slot.first, slot.physical_offset, number)
            for number, slot in wheel.slots.items()
            if slot.minute >= first
        }
        kept = {
            minute: (at, place, self._queues.end(TIMER_TOPIC, number))
            for minute, (at, place, number) in rows.items()
        }
        ahead = wheel.watermark if wheel.ahead is None else min(wheel.ahead, wheel.watermark)
        self._wheel = _Wheel(
            watermark=(now_ms, -1),
            slots={},
            former=_Former(wheel.watermark, kept) if kept else None,
            ahead=ahead,
            recalled={},
            counts=wheel.counts,
        )
        self._put_recalled(wheel.recalled)
        self._touched |= dict.fromkeys(
            ("watermark", "recalled", "slots", "former", "ahead"), entry.index
        )

    def _put_recalled(self, recalled: Mapping[tuple[int, Mark], int]) -> None:
        """Recalled messages by the minute in which they are due, which depends on `ahead`. The last
        one of a place in a minute counts."""
        self._wheel.recalled = {
            (_due_ms(self._wheel, place, deliver_ms) // MINUTE_MS, place): deliver_ms
            for (_, place), deliver_ms in sorted(recalled.items())
        }

    def _recall(self, deliver_ms: int, place: Mark, index: int) -> None:
        """Recall a message, unless it fired or was recalled before."""
        due_ms = _due_ms(self._wheel, place, deliver_ms)
        # For a message that was stored again, only its last delivery time is known, not its place.
        last = (due_ms, place[1] if due_ms == place[0] else -1)
        key = due_ms // MINUTE_MS, place
        if last <= self._wheel.watermark or key in self._wheel.recalled:
            return
        self._wheel.recalled[key] = deliver_ms
        self._touched["recalled"] = index
        self._count("recalled", 1, index)

    def _pass(self, to: Mark, index: int) -> None:
        """Everything up to this mark is done. Recalled messages due in an earlier minute are
        forgotten."""
        wheel = self._wheel
        if wheel.former is not None and wheel.former.has(to):
            if to > wheel.former.watermark:
                wheel.former.watermark = to
                wheel.former = None if to >= wheel.former.last else wheel.former
                self._touched["former"] = index
            return
        if to <= wheel.watermark:
            return
        self._touched["watermark"] = index
        if wheel.ahead is not None and to[0] >= wheel.ahead[0]:
            wheel.ahead = None
            self._put_recalled(wheel.recalled)
            self._touched["ahead"] = index
        minute = to[0] // MINUTE_MS
        if minute > wheel.watermark[0] // MINUTE_MS:
            kept = {
                key: deliver_ms for key, deliver_ms in wheel.recalled.items() if key[0] >= minute
            }
            if len(kept) < len(wheel.recalled):
                wheel.recalled = kept
                self._touched["recalled"] = index
        wheel.watermark = to

    def _count(self, counter: str, number: int, index: int) -> None:
        self._wheel.counts[counter] += number
        self._touched[f"counts/{counter}"] = index

    # The snapshot

    def values(self) -> dict[str, Any]:
        return {"timers": _as_tree(self._wheel)}

    def canonical(self, key: str, stored: Any) -> Any:
        return _as_tree(_read(stored))

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._wheel = _read(snapshot.get("timers"))

    def touched(self, path: Path) -> int | None:
        if len(path) > 2 and path[1] == "slots":
            indexes = [
                slot.index for slot in self._wheel.slots.values() if str(slot.minute) == path[2]
            ]
            return indexes[0] if indexes else self._touched.get("watermark")
        if path[1:2] == ("former",):
            return self._touched.get("former")
        name = "/".join(path[1:3]) if path[1:2] == ("counts",) else "/".join(path[1:2])
        return self._touched.get(name)


def _as_tree(wheel: _Wheel) -> dict[str, Any]:
    """Watermark, slots by minute from the watermark's on, recalled messages by the minute they are
    due in and their place, and counts."""
    first = wheel.watermark[0] // MINUTE_MS
    slots = sorted(
        (slot.minute, slot.first, slot.physical_offset)
        for slot in wheel.slots.values()
        if slot.minute >= first
    )
    return {
        "watermark": list(wheel.watermark),
        "slots": {str(minute): list(place) for minute, *place in slots},
        "recalled": [
            [deliver_ms, *place] for (_, place), deliver_ms in sorted(wheel.recalled.items())
        ],
        "counts": dict(wheel.counts),
        **({} if wheel.ahead is None else {"ahead": list(wheel.ahead)}),
        **({} if wheel.former is None else {"former": _former_tree(wheel.former)}),
    }


def _former_tree(former: _Former) -> dict[str, Any]:
    first = former.watermark[0] // MINUTE_MS
    slots = {
        str(minute): list(former.slots[minute])
        for minute in sorted(former.slots)
        if minute >= first
    }
    return {"watermark": list(former.watermark), "slots": slots}


def _due_ms(wheel: _Wheel, place: Mark, deliver_ms: int) -> int:
    """When a message fires for the last time: not before its first place, unless that lay at a
    watermark which a time epoch lowered."""
    if wheel.ahead is not None and deliver_ms < wheel.ahead[0] <= place[0]:
        return deliver_ms
    return max(place[0], deliver_ms)


def _read(stored: Any) -> _Wheel:
    """The wheel in a snapshot; None: the log has no timers. Raises KeyError, TypeError or
    ValueError for invalid data."""
    if stored is None:
        return _Wheel()
    optional = [name for name in ("ahead", "former") if name in stored]
    table(stored, "watermark", "slots", "recalled", "counts", *optional)
    fire_ms, offset = stored["watermark"]
    wheel = _Wheel((int(fire_ms), int(offset)))
    if "ahead" in stored:
        fire_ms, offset = stored["ahead"]
        wheel.ahead = int(fire_ms), int(offset)
    if "former" in stored:
        table(stored["former"], "watermark", "slots")
        fire_ms, offset = stored["former"]["watermark"]
        rows = {
            int(minute): (int(first), int(place), int(end))
            for minute, first, place, end in stored["former"]["slots"]
        }
        wheel.former = _Former((int(fire_ms), int(offset)), rows)
        if [
            [int(minute), *row] for minute, row in _former_tree(wheel.former)["slots"].items()
        ] != stored["former"]["slots"]:
            raise ValueError(
                "the former slots of the timers do not ascend, lie before their watermark, or occur"
                " twice"
            )
    for minute, first, physical_offset in stored["slots"]:
        wheel.slots[minute % SLOTS] = _Slot(minute, first, physical_offset, None)
    for deliver_ms, fire, at in stored["recalled"]:
        wheel.recalled[_due_ms(wheel, (fire, at), deliver_ms) // MINUTE_MS, (fire, at)] = deliver_ms
    canonical = _as_tree(wheel)
    if [[int(minute), *place] for minute, place in canonical["slots"].items()] != stored["slots"]:
        raise ValueError(
            "the slots of the timers do not ascend, lie before the watermark, or occur twice"
        )
    if canonical["recalled"] != stored["recalled"]:
        raise ValueError(
            "the recalled messages are not in the order of minute and place, or one occurs twice"
        )
    wheel.counts.update(table(stored["counts"], *COUNTS))
    return wheel
