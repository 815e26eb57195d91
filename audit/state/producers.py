"""Producers of native frames: epochs, next sequence numbers, and the places of their last frames.

Frames are found in columns; single steps are per frame, not per message. A frame that is split over
two stretches is joined again: its second part continues where the first ended, with the FLAG that
follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from crc32c import crc32c

from ledgermq.audit.reading.columns import native_ids
from ledgermq.audit.reading.decode import I64, U8
from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.reader import Entry, Messages

FRAMES_KEPT = 5
ID_AT = len("UNIQ_KEY\x01")
DIGITS = 34


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive messages of one frame. `position`: the index of the first one in its frame."""

    index: int
    count: int
    producer: int
    epoch: int
    sequence: int
    position: int
    store_ms: int
    row: int
    """The row of the first one."""


@dataclass(slots=True)
class _Producer:
    epoch: int
    sequence: int
    last_ms: int
    name: str
    owner: str
    frames: list[list[int]] = field(default_factory=list)
    """First sequence number, count, index of the first message."""
    touched: int | None = None
    digest: int | None = None


class Producers(Part):
    """The key `producers`."""

    keys = ("producers",)

    def __init__(self) -> None:
        self._next = 1
        self._producers: dict[int, _Producer] = {}
        """The producer with the longest inactivity first."""

    def messages(self, messages: Messages) -> None:
        for run in find_runs(messages):
            known = self._producers.get(run.producer)
            if known is None or (known.epoch, known.sequence) != (run.epoch, run.sequence):
                continue
            last = known.frames[-1] if known.frames else None
            if (
                run.position
                and last is not None
                and (last[1], last[2] + last[1]) == (run.position, run.index)
            ):
                last[1] += run.count
            else:
                known.frames = [*known.frames, [run.sequence, run.count, run.index]][-FRAMES_KEPT:]
            known.sequence += run.count
            if known.digest is not None:
                # Consecutive messages of a frame are consecutive entries.
                known.digest = content_digest(messages, run.row, run.count, known.digest)
            self._heard(run.producer, known, run.store_ms, run.index + run.count - 1)

    def _heard(self, number: int, known: _Producer, store_ms: int, index: int) -> None:
        known.last_ms, known.touched = store_ms, index
        self._producers.pop(number, None)
        self._producers[number] = known

    def apply(self, entry: Entry) -> None:
        if entry.kind == "time-epoch":
            for each in self._producers.values():
                each.last_ms = min(each.last_ms, entry.store_ms)
            return
        if entry.kind != "producer":
            return
        fields = entry.fields
        for number in fields.get("x", ()):
            self._producers.pop(number, None)
        number, epoch, owner = fields["p"], fields["e"], fields.get("u", "")
        known = self._producers.get(number)
        if known is None:
            known = _Producer(epoch, fields.get("s", 0), entry.store_ms, fields.get("n", ""), owner)
            self._heard(number, known, entry.store_ms, entry.index)
        elif epoch >= known.epoch:
            known.epoch, known.owner = epoch, owner
            self._heard(number, known, entry.store_ms, entry.index)
        if (
            fields.get("d")
            and known.epoch == epoch
            and known.sequence == 0
            and known.digest is None
        ):
            known.digest = 0
        self._next = max(self._next, number + 1)

    def values(self) -> dict[str, Any]:
        if self._next == 1:
            return {"producers": {}}
        rows: dict[str, list[Any]] = {"unnamed": [], "named": []}
        for number, known in self._producers.items():
            texts = [text for text in (known.name, known.owner) if text]
            frames = [value for frame in known.frames for value in frame]
            digest = [] if known.digest is None else [known.digest]
            row = [number, known.epoch, known.sequence, known.last_ms, frames, *texts, *digest]
            rows["named" if known.name else "unnamed"].append(row)
        return {"producers": {"next": self._next, **rows}}

    def canonical(self, key: str, stored: Any) -> Any:
        return stored or {}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        stored = snapshot.get("producers") or {"next": 1, "unnamed": [], "named": []}
        self._next = stored["next"]
        for role in ("unnamed", "named"):
            for number, epoch, sequence, last_ms, frames, *rest in stored[role]:
                name = rest.pop(0) if role == "named" else ""
                digest = rest.pop() if rest and isinstance(rest[-1], int) else None
                kept = [frames[at : at + 3] for at in range(0, len(frames), 3)]
                owner = rest[0] if rest else ""
                self._producers[number] = _Producer(
                    epoch=epoch,
                    sequence=sequence,
                    last_ms=last_ms,
                    name=name,
                    owner=owner,
                    frames=kept,
                    digest=digest,
                )

    def touched(self, path: Path) -> int | None:
        if len(path) < 3 or path[1] not in ("unnamed", "named") or not path[2].isdigit():
            return None
        rows = [
            known for known in self._producers.values() if bool(known.name) == (path[1] == "named")
        ]
        return rows[int(path[2])].touched if int(path[2]) < len(rows) else None


def content_digest(messages: Messages, first_row: int, count: int, before: int) -> int:
    """docs/format.md §11, producers: the digest of a producer's messages, continued by consecutive
    ones."""
    for row in range(first_row, first_row + count):
        body, properties = messages.body(row), messages.raw_properties(row)
        encoded = (
            len(body).to_bytes(4, "big")
            + body
            + len(properties).to_bytes(2, "big")
            + properties[ID_AT + DIGITS + 1 :]
        )
        before = crc32c(encoded, before >> 32) << 32 | crc32(encoded, before & 0xFFFFFFFF)
    return before


def find_runs(messages: Messages) -> Iterator[Run]:
    """The native messages of a stretch, joined if they are consecutive in one frame."""
    rows = np.flatnonzero(messages.flag > 0)
    if not len(rows):
        return
    index, flag = messages.index[rows], messages.flag[rows]
    edges = np.flatnonzero((np.diff(index) != 1) | (np.diff(flag) != 1)) + 1
    starts, stops = np.concatenate([[0], edges]), np.concatenate([edges, [len(rows)]])
    ids = _read_ids(messages, rows[np.concatenate([starts, stops - 1])])
    first, last = ids[: len(starts)], ids[len(starts) :]
    # FLAG and place identify frames. The ids at both ends must confirm it; otherwise every message
    # is checked.
    first[:, 2] += stops - starts - 1
    if (first != last).any():
        starts, stops = np.arange(len(rows)), np.arange(1, len(rows) + 1)
        last = _read_ids(messages, rows)
    for start, stop, (producer, epoch, sequence) in zip(
        starts.tolist(), stops.tolist(), last.tolist(), strict=True
    ):
        if producer >= 0:
            place = (
                sequence - (stop - start - 1),
                int(flag[start]) - 1,
                int(messages.store_ms[rows[stop - 1]]),
            )
            yield Run(
                int(index[start]), stop - start, producer, epoch, *place, row=int(rows[start])
            )


def _read_ids(messages: Messages, rows: I64) -> I64:
    """Producer, epoch and sequence number (docs/format.md §4.5), one row per message; −1 if it has
    no native id."""
    data: U8 = np.frombuffer(messages.window, np.uint8)
    places = np.minimum(
        messages.property_at[rows][:, None] + np.arange(ID_AT, ID_AT + DIGITS), len(data) - 1
    )
    digits = data[places].astype(np.int64)
    values = np.where(digits >= ord("A"), digits - ord("A") + 10, digits - ord("0"))
    ids = np.zeros((len(rows), 3), np.int64)
    for part, (start, stop) in enumerate(((10, 18), (18, 22), (22, 34))):
        for column in range(start, stop):
            ids[:, part] = ids[:, part] << 4 | values[:, column]
    ids[~native_ids(messages.window, messages.property_at[rows], messages.property_end[rows])] = -1
    return ids
