"""Native producers: their names, epochs and next sequence numbers, as replicated state, a pure
function of the log (invariant I8).

`producer_sequencing.py` decides what a leader does with a frame.

Invariant: along the log, the native messages of a producer have the sequence numbers 0, 1, 2 …
without a gap or a repetition, over all its epochs and all leaders. Epochs only rise, by `producer`
records. A message of another epoch than the current one, of an unknown producer, or out of order
changes nothing here; no leader appends such messages (`astray` counts them).

The places of a producer's last `FRAMES_KEPT` frames are kept; everything else about them is read
from the log. If a leader change cut a frame, the part that remained in the log counts as a frame.
The entries of a frame may be applied in any number of ranges.

A producer that was opened with one has a digest of its messages (`native_ids.content_digest`), by
which a restarted writer recognises that it is about to write other messages under the same sequence
numbers. The others cost nothing.

Memory is bounded (I11): when a leader opens a producer beyond the limit, the record drops another
one (`producer_sequencing.py`). Store times determine which one, but only the record removes it. No
producer expires by itself, so none disappears between the acceptance of a frame and its
application.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import takewhile
from operator import itemgetter
from typing import Any, ClassVar

from ledgermq.node.broker.part import Effects, StatePart, Takers
from ledgermq.proto.entries.native_ids import Run, content_digest
from ledgermq.proto.entries.ports import Sealed
from ledgermq.proto.records.control import ProducerRecord

FRAMES_KEPT = 5
UNNAMED_MS = 24 * 3_600_000
NAMED_MS = 7 * UNNAMED_MS
"""A producer that has been silent for this long, in store time, may be dropped."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A frame in the log, or the part of one that remained."""

    first_sequence: int
    count: int
    first_index: int


@dataclass(slots=True)
class Producer:
    """One producer. `last_ms`: store time of its last entry in the log. `owner`: the user who
    opened it, if calls are signed."""

    name: str
    epoch: int
    next_sequence: int
    last_ms: int
    frames: list[Stored] = field(default_factory=list)
    owner: str = ""
    digest: int | None = None
    """Of all its messages; None if it has none."""


class Producers(StatePart):
    """The producers of one broker group."""

    KEY = "producers"

    def __init__(self) -> None:
        self.next_id = 1
        self._unnamed: OrderedDict[int, Producer] = OrderedDict()
        """In order of silence, longest first; likewise `_named`."""
        self._named: OrderedDict[int, Producer] = OrderedDict()
        self._ids: dict[str, int] = {}
        self.astray = 0
        """Runs of messages that fitted no producer. Not part of the state: it starts at 0 in every
        process."""

    def __len__(self) -> int:
        return len(self._unnamed) + len(self._named)

    def get(self, producer_id: int) -> Producer | None:
        """The producer with this id; None if there is none."""
        return self._unnamed.get(producer_id) or self._named.get(producer_id)

    def named(self, name: str) -> int | None:
        """The id of the producer with this name; None if there is none."""
        return self._ids.get(name)

    def expired(self, now_ms: int) -> Iterator[int]:
        """The ids of producers that have been silent for longer than their limit."""
        for table, limit_ms in ((self._unnamed, UNNAMED_MS), (self._named, NAMED_MS)):
            yield from takewhile(
                lambda number, table=table, until=now_ms - limit_ms: table[number].last_ms <= until,  # type: ignore[misc]
                table,
            )

    def by_silence(self) -> Iterator[int]:
        """All ids, longest silent first."""
        tables = [
            ((producer.last_ms, number) for number, producer in table.items())
            for table in (self._unnamed, self._named)
        ]
        return (number for _, number in merge(*tables, key=itemgetter(0)))

    # Applying

    def apply_record(self, record: ProducerRecord, store_ms: int) -> None:
        """Apply a `producer` record: a producer was opened or resumed."""
        for number in record.dropped:
            self._forget(number)
        number = record.producer_id
        producer = self.get(number)
        if producer is None:
            table = self._named if record.name else self._unnamed
            producer = table[number] = Producer(
                record.name, record.epoch, record.sequence, store_ms, owner=record.owner
            )
            if record.name:
                self._ids[record.name] = number
        elif record.epoch >= producer.epoch:
            producer.epoch, producer.owner = record.epoch, record.owner
            self._heard(number, producer, store_ms)
        if (
            record.digest
            and producer.epoch == record.epoch
            and producer.next_sequence == 0
            and producer.digest is None
        ):
            producer.digest = 0
        self.next_id = max(self.next_id, number + 1)

    def apply_run(self, index: int, run: Run, store_ms: int, entries: Sealed) -> None:
        """Apply messages of one frame, which are in the log from `index` on; `entries` is the range
        of the run."""
        producer = self.get(run.producer_id)
        if (
            producer is None
            or producer.epoch != run.epoch
            or producer.next_sequence != run.first_sequence
        ):
            self.astray += 1
            return
        frames, last = producer.frames, producer.frames[-1] if producer.frames else None
        if (
            run.position
            and last is not None
            and (last.count, last.first_index + last.count) == (run.position, index)
        ):
            frames[-1] = Stored(last.first_sequence, last.count + run.count, last.first_index)
        else:
            frames.append(Stored(run.first_sequence, run.count, index))
            del frames[:-FRAMES_KEPT]
        producer.next_sequence += run.count
        if producer.digest is not None:
            producer.digest = content_digest(entries, run.at, run.count, producer.digest)
        self._heard(run.producer_id, producer, store_ms)

    def take_record(self, index: int, record: ProducerRecord, effects: Effects) -> None:
        self.apply_record(record, effects.store_ms(index))

    def take_run(self, index: int, run: Run, effects: Effects) -> None:
        self.apply_run(index, run, effects.store_ms(index), effects.entries)

    RECORDS: ClassVar[Takers] = {ProducerRecord: take_record, Run: take_run}

    def time_epoch_began(self, ms: int) -> None:
        """Producers that were last heard later than this count as heard now."""
        for producer in (*self._unnamed.values(), *self._named.values()):
            producer.last_ms = min(producer.last_ms, ms)

    def _heard(self, number: int, producer: Producer, store_ms: int) -> None:
        producer.last_ms = store_ms
        (self._named if producer.name else self._unnamed).move_to_end(number)

    def _forget(self, number: int) -> None:
        producer = self._unnamed.pop(number, None) or self._named.pop(number, None)
        if producer is not None and self._ids.get(producer.name) == number:
            del self._ids[producer.name]

    # Snapshot

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11)."""
        if self.next_id == 1:
            return {}
        rows = {
            key: [
                [number, p.epoch, p.next_sequence, p.last_ms, _columns(p.frames), *_told(p)]
                for number, p in table.items()
            ]
            for key, table in (("unnamed", self._unnamed), ("named", self._named))
        }
        return {"next": self.next_id, **rows}

    def restore(self, exported: Mapping[str, Any]) -> None:
        """Replace the state by what `export` returned."""
        self.next_id = exported.get("next", 1)
        self._ids = {}
        for key, table in (("unnamed", self._unnamed), ("named", self._named)):
            table.clear()
            for number, epoch, sequence, last_ms, places, *told in exported.get(key, ()):
                numbers = iter(places)
                frames = [
                    Stored(first_sequence=first, count=count, first_index=index)
                    for first, count, index in zip(numbers, numbers, numbers, strict=True)
                ]
                name = told.pop(0) if key == "named" else ""
                digest = told.pop() if told and isinstance(told[-1], int) else None
                table[number] = Producer(
                    name=name,
                    epoch=epoch,
                    next_sequence=sequence,
                    last_ms=last_ms,
                    frames=frames,
                    owner=told[0] if told else "",
                    digest=digest,
                )
                if name:
                    self._ids[name] = number


def _told(producer: Producer) -> list[str | int]:
    """The end of a row of the snapshot: name, owner and digest, each if there is one."""
    texts = [text for text in (producer.name, producer.owner) if text]
    return [*texts, *([] if producer.digest is None else [producer.digest])]


def _columns(frames: list[Stored]) -> list[int]:
    """The snapshot form: three numbers per frame."""
    return [
        number
        for frame in frames
        for number in (frame.first_sequence, frame.count, frame.first_index)
    ]
