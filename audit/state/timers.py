"""Timers, derived again: the waiting delayed messages, as one watermark and a wheel of slots (docs/format.md §4.4 and §11, Timers).

Waiting messages are counted, and their slots maintained, in columns; only marks and records are processed one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ledgermq.audit.reading.columns import fire_time
from ledgermq.audit.reading.decode import HEADER_BYTES
from ledgermq.audit.state.packed import table
from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.reader import TIMER_TOPIC, Entry, Messages

SLOTS = 4096
MINUTE_MS = 60_000
COUNTS = ("stored", "fired", "rolled", "recalled", "dropped")
Mark = tuple[int, int]
"""(fire time, offset in the slot), in the order in which timers fire."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """The last minute whose messages were put into a slot, and the place of the first of them: its offset, and its physical offset."""

    minute: int
    first: int
    physical_offset: int
    index: int | None


@dataclass(slots=True)
class _Wheel:
    watermark: Mark = (0, -1)
    slots: dict[int, _Slot] = field(default_factory=dict)
    recalled: dict[tuple[int, Mark], int] = field(default_factory=dict)
    """(minute it is due in, first place) → delivery time. One place may occur with several times, because it is not looked up."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))


class Timers(Part):
    """The watermark, the slots, the recalled messages, and the counts."""

    keys: ClassVar[tuple[str, ...]] = ("timers",)

    def __init__(self) -> None:
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
        elif entry.origin and entry.origin_text[0] == "timer":
            _, fire_ms, _, offset, *again = entry.origin_text
            self._count("rolled" if again else "fired", 1, entry.index)
            self._pass((int(fire_ms), int(offset)), entry.index)

    def _recall(self, deliver_ms: int, place: Mark, index: int) -> None:
        """Recall a message, unless it fired or was recalled before."""
        due_ms = max(place[0], deliver_ms)
        # For a message that was stored again, only its last delivery time is known, not its place.
        last = (due_ms, place[1] if due_ms == place[0] else -1)
        key = due_ms // MINUTE_MS, place
        if last <= self._wheel.watermark or key in self._wheel.recalled:
            return
        self._wheel.recalled[key] = deliver_ms
        self._touched["recalled"] = index
        self._count("recalled", 1, index)

    def _pass(self, to: Mark, index: int) -> None:
        """Everything up to this mark is done. Recalled messages due in an earlier minute are forgotten."""
        wheel = self._wheel
        if to <= wheel.watermark:
            return
        self._touched["watermark"] = index
        minute = to[0] // MINUTE_MS
        if minute > wheel.watermark[0] // MINUTE_MS:
            kept = {key: deliver_ms for key, deliver_ms in wheel.recalled.items() if key[0] >= minute}
            if len(kept) < len(wheel.recalled):
                wheel.recalled = kept
                self._touched["recalled"] = index
        wheel.watermark = to

    def _count(self, what: str, number: int, index: int) -> None:
        self._wheel.counts[what] += number
        self._touched[f"counts/{what}"] = index

    # The snapshot

    def values(self) -> dict[str, Any]:
        return {"timers": _as_tree(self._wheel)}

    def canonical(self, key: str, stored: Any) -> Any:
        return _as_tree(_read(stored))

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._wheel = _read(snapshot.get("timers"))

    def touched(self, path: Path) -> int | None:
        if len(path) > 2 and path[1] == "slots":
            found = [slot.index for slot in self._wheel.slots.values() if str(slot.minute) == path[2]]
            return found[0] if found else self._touched.get("watermark")
        name = "/".join(path[1:3]) if path[1:2] == ("counts",) else "/".join(path[1:2])
        return self._touched.get(name)


def _as_tree(wheel: _Wheel) -> dict[str, Any]:
    """Watermark, slots by minute from the watermark's on, recalled messages by the minute they are due in and their place, and counts."""
    first = wheel.watermark[0] // MINUTE_MS
    slots = sorted((slot.minute, slot.first, slot.physical_offset) for slot in wheel.slots.values() if slot.minute >= first)
    return {
        "watermark": list(wheel.watermark),
        "slots": {str(minute): list(place) for minute, *place in slots},
        "recalled": [[deliver_ms, *place] for (_, place), deliver_ms in sorted(wheel.recalled.items())],
        "counts": dict(wheel.counts),
    }


def _read(stored: Any) -> _Wheel:
    """The wheel in a snapshot; None: the log has no timers. Raises KeyError, TypeError or ValueError for invalid data."""
    if stored is None:
        return _Wheel()
    table(stored, "watermark", "slots", "recalled", "counts")
    fire_ms, offset = stored["watermark"]
    wheel = _Wheel((int(fire_ms), int(offset)))
    for minute, first, physical_offset in stored["slots"]:
        wheel.slots[minute % SLOTS] = _Slot(minute, first, physical_offset, None)
    for deliver_ms, fire, at in stored["recalled"]:
        wheel.recalled[max(fire, deliver_ms) // MINUTE_MS, (fire, at)] = deliver_ms
    told = _as_tree(wheel)
    if [[int(minute), *place] for minute, place in told["slots"].items()] != stored["slots"]:
        raise ValueError("the slots of the timers do not ascend, lie before the watermark, or occur twice")
    if told["recalled"] != stored["recalled"]:
        raise ValueError("the recalled messages are not in the order of minute and place, or one occurs twice")
    wheel.counts.update(table(stored["counts"], *COUNTS))
    return wheel
