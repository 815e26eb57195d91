"""Transactions as a state machine fed by the log: which half messages are undecided, and how the
most recent others ended.

This is the replicated half: pure functions of (state, entry), with the same result on leader and
followers and after a restart (invariant I8). The leader alone has clocks, asks producers and
decides (`transaction_checks.py`, `transaction_resolution.py`). A half message is in queue 0 of the
half topic (format §4.4); its offset there identifies the transaction for ever.

Transition table of one half offset:

    entry names the offset                 unknown        undecided (n checks)     ended
    -------------------------------------  -------------  -----------------------  -----
    half message                           undecided (0)  -                        -
    message with origin `tx:` (a commit)   -              ended: commit            -
    record `transaction`, check m          -              undecided (m)            -
    record `transaction`, end              -              ended: as it says        -
    its topic deleted or recreated         -              ended: topic             -
    trim to above it                       -              unknown                  -

Memory is bounded (I11): an undecided half takes one row, and their number is limited when they are
accepted. Of the ended ones the last `ENDED_MAX` are kept, in log order, so that a repeated decision
gets the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ledgermq.node.broker.origins import Mark, origin_text
from ledgermq.node.broker.packed import pack, unpack
from ledgermq.node.broker.part import Effects, StatePart, Takers
from ledgermq.node.broker.queues import Places
from ledgermq.proto.entries.layout import java_hash
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import (
    ORIGIN,
    REAL_QUEUE,
    REAL_TOPIC,
    RECOVERY,
    edited,
    parse,
)
from ledgermq.proto.entries.ranges import record_of
from ledgermq.proto.names import HALF_TOPIC
from ledgermq.proto.records.control import TransactionRecord
from ledgermq.proto.types import Draft, Range

HALF_QUEUE = 0
ORIGIN_KIND = "tx"
ENDED_MAX = 32_768
"""Part of the format, so that every replica forgets the same ones."""
COMMIT, ROLLBACK, CHECKS, AGE, TOPIC = "commit", "rollback", "checks", "age", "topic"
"""How a transaction ends. The last three are drops without a decision of the producer."""
_ENDS = (COMMIT, ROLLBACK, CHECKS, AGE, TOPIC)
"""In the order of the format: a snapshot stores an end as an index of this tuple."""
_NEVER = -1


@dataclass(frozen=True, slots=True)
class Half:
    """An undecided half message: the index of its entry, its real (stored) topic, and when it was
    stored."""

    index: int
    topic: str
    stored_ms: int
    recovery_ms: int | None = None
    """After how long its producer wants to be asked; None: as configured."""
    checks: int = 0


@dataclass(frozen=True, slots=True)
class NewHalf:
    """A half message that was just applied."""

    offset: int
    half: Half


class Transactions(StatePart):
    """The transactions of one broker group. `begin(topic, queue)`: the beginning of a queue."""

    KEY = "transactions"

    def __init__(self, begin: Callable[[str, int], int]) -> None:
        self._begin = begin
        self.halves: dict[int, Half] = {}
        """Half offset → undecided half message, in log order."""
        self.ended: OrderedDict[int, str] = OrderedDict()
        """Half offset → how it ended, in the order of ending."""
        self._topics: dict[str, str] = {}

    def apply_half(self, offset: int, half: Half) -> None:
        """Apply a half message."""
        if offset not in self.halves and offset not in self.ended:
            # All halves of a topic share one string.
            topic = self._topics.setdefault(half.topic, half.topic)
            self.halves[offset] = replace(half, topic=topic)

    def apply_commit(self, offset: int) -> bool:
        """Apply the visible message made from this half. Returns False if the half was not
        undecided."""
        return self._end(offset, COMMIT)

    def apply_record(self, record: TransactionRecord) -> list[int]:
        """Apply a `transaction` record. Returns the offsets that it changed."""
        touched = [offset for offset, how in record.ended if self._end(offset, how)]
        for offset, checks in record.checked:
            half = self.halves.get(offset)
            if half is not None:
                self.halves[offset] = replace(half, checks=checks)
                touched.append(offset)
        return touched

    def take_half(self, index: int, new: NewHalf, effects: Effects) -> None:
        self.apply_half(new.offset, new.half)
        effects.halves.append(new.offset)

    def take_commit(self, index: int, mark: Mark, effects: Effects) -> None:
        """A copy was stored in its topic: the half message from which it was made is done."""
        (offset,) = map(int, mark.fields)
        if self.apply_commit(offset):
            effects.halves.append(offset)

    def take_record(self, index: int, record: TransactionRecord, effects: Effects) -> None:
        effects.halves += self.apply_record(record)

    RECORDS: ClassVar[Takers] = {NewHalf: take_half, TransactionRecord: take_record}
    MARKS: ClassVar[Takers] = {ORIGIN_KIND: take_commit}

    def topic_ended(self, topic: str, effects: Effects) -> None:
        """Its undecided halves will never become visible."""
        gone = [offset for offset, half in self.halves.items() if half.topic == topic]
        for offset in gone:
            self._end(offset, TOPIC)
        self._topics.pop(topic, None)
        effects.halves += gone

    def trimmed(self, effects: Effects) -> None:
        """Undecided halves keep their files, so there are none below the begin, except in a cluster
        that was rebuilt from existing files."""
        minimum = self._begin(HALF_TOPIC, HALF_QUEUE)
        gone = [offset for offset in self.halves if offset < minimum]
        for offset in gone:
            del self.halves[offset]
        effects.halves += gone

    def time_epoch_began(self, ms: int) -> None:
        for offset, half in self.halves.items():
            if half.stored_ms > ms:
                self.halves[offset] = replace(half, stored_ms=ms)

    def _end(self, offset: int, how: str) -> bool:
        if self.halves.pop(offset, None) is None:
            return False
        self.ended[offset] = how
        if len(self.ended) > ENDED_MAX:
            self.ended.popitem(last=False)
        return True

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11): columns."""
        topics = {
            topic: place
            for place, topic in enumerate(
                dict.fromkeys(half.topic for half in self.halves.values())
            )
        }
        halves = self.halves.values()
        columns = {
            "o": _pack(self.halves),
            "i": _pack([half.index for half in halves]),
            "s": _pack([half.stored_ms for half in halves]),
            "r": _pack(
                [_NEVER if half.recovery_ms is None else half.recovery_ms for half in halves]
            ),
            "c": _pack([half.checks for half in halves]),
            "t": _pack([topics[half.topic] for half in halves]),
            "topics": list(topics),
        }
        ended = {
            "o": _pack(self.ended),
            "h": _pack([_ENDS.index(how) for how in self.ended.values()]),
        }
        return {"halves": columns if self.halves else {}, "ended": ended if self.ended else {}}

    def restore(self, exported: dict[str, Any]) -> None:
        self.halves, self.ended, self._topics = {}, OrderedDict(), {}
        columns, ended = exported.get("halves") or {}, exported.get("ended") or {}
        if columns:
            rows = zip(*(unpack(columns[name], "q").tolist() for name in "oistrc"), strict=True)
            for offset, index, stored_ms, topic, recovery_ms, checks in rows:
                name = columns["topics"][topic]
                self.apply_half(
                    offset,
                    Half(
                        index,
                        name,
                        stored_ms,
                        None if recovery_ms == _NEVER else recovery_ms,
                        checks,
                    ),
                )
        if ended:
            pairs = zip(
                unpack(ended["o"], "q").tolist(), unpack(ended["h"], "q").tolist(), strict=True
            )
            self.ended.update((offset, _ENDS[how]) for offset, how in pairs)


def _pack(values: Iterable[int]) -> str:
    return pack(np.fromiter(values, np.int64), "q")


def half_draft(draft: Draft, recovery_ms: int | None) -> Draft:
    """The half message that stores this draft, which is for its real topic and queue."""
    put = {REAL_TOPIC: draft.stored_topic, REAL_QUEUE: str(draft.queue)}
    if recovery_ms is not None:
        put[RECOVERY] = str(recovery_ms)
    properties = edited(draft.properties, put)
    return Draft(
        stored_topic=HALF_TOPIC,
        queue=HALF_QUEUE,
        body=draft.body,
        properties=properties,
        born_ms=draft.born_ms,
        tags_code=draft.tags_code,
        priority=draft.priority,
    )


def half_of(index: int, stored_ms: int, properties: dict[str, str]) -> Half:
    """The state of a half message, from its stored properties."""
    recovery = properties.get(RECOVERY)
    return Half(
        index, properties[REAL_TOPIC], stored_ms, None if recovery is None else int(recovery)
    )


def half_messages(entries: Range, places: Iterable[int]) -> Iterator[tuple[int, NewHalf]]:
    """(place in the range, half message) of the half messages at these places."""
    for at in places:
        record = decode_record(record_of(entries, at))
        yield (
            at,
            NewHalf(
                record.queue_offset,
                half_of(entries.first_index + at, record.store_ms, parse(record.properties)),
            ),
        )


def committed(
    offset: int,
    half: Half,
    queues: int,
    body: bytes,
    stored: bytes,
    properties: dict[str, str],
    born_ms: int,
) -> Draft:
    """The visible message that a half becomes, which is also the mark that ends the half. `stored`:
    the half's property string; `properties`: the same, parsed."""
    text = edited(
        stored, {ORIGIN: origin_text(ORIGIN_KIND, offset)}, (REAL_TOPIC, REAL_QUEUE, RECOVERY)
    )
    queue = int(properties.get(REAL_QUEUE, "0"))
    return Draft(
        stored_topic=half.topic,
        queue=min(queue, queues - 1),
        body=body,
        properties=text,
        born_ms=born_ms,
        tags_code=_tags_code(properties),
        origin=half.index,
    )


def _tags_code(properties: dict[str, str]) -> int:
    tag = properties.get("TAGS")
    return java_hash(tag) if tag else 0


def half_record(places: Places, offset: int) -> bytes:
    """The record of an undecided half message."""
    positions, sizes, _ = places.units(HALF_TOPIC, HALF_QUEUE, offset, 1)
    return places.record(int(positions[0]), int(sizes[0]))
