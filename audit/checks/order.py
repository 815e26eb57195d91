"""Order inside the log: the sequence numbers of native producers through one log file, and the
queues of message groups.

A producer's sequence numbers are dense in a broker group's log, in log order, and its epochs never
decrease (docs/format.md §4.5, §11). `after_scan` joins the results of the log files. A message
group lies in one queue. When a topic gets more queues, the group moves once, and nodes that learn
of it at different times may cause another move; only a group that moves back and forth is a flaw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ledgermq.audit.reading.columns import Columns, Parts, intern, is_system, native_ids
from ledgermq.audit.reading.decode import HEADER_BYTES, I64, U8, tags_code
from ledgermq.audit.reading.walk import LogFile, Piece
from ledgermq.audit.rules import Flaw

if TYPE_CHECKING:
    from ledgermq_native.audit_scan import Clean, GroupEvent, Producer

_NUMBERS_AT = len(b"UNIQ_KEY\x014C") + 8
_DIGITS = 24
_GROUP = b"__SHARDINGKEY\x01"
CONFIG_TOPIC = b"rmq_sys_ledgermq_config"
TOPIC_CODE = tags_code(b"topic")
MOVES_MAX = 3
GROUPS_MAX = 1 << 17
"""Message groups remembered at a time; beyond that the oldest are forgotten."""


@dataclass(slots=True)
class ProducerRun:
    """One native producer within one log file: its first and its last message there, each with the
    number of intact entries before it in the file."""

    producer: int
    first_sequence: int
    first_epoch: int
    first_index: int
    first_ordinal: int
    first_at: int
    last_sequence: int
    last_epoch: int
    last_index: int
    last_ordinal: int
    last_at: int


class OrderCheck:
    """Follows producers and message groups through one log file."""

    def __init__(self, task: LogFile) -> None:
        self.flaws: list[Flaw] = []
        self._task = task
        self._runs: dict[int, ProducerRun] = {}
        self._places: dict[tuple[bytes, bytes], list[int]] = {}
        """(topic, message group) → queue, moves."""
        self.unnumbered: list[int] = []
        """Indexes of messages whose numbers are unknown."""

    def runs(self) -> list[ProducerRun]:
        return list(self._runs.values())

    def check(self, piece: Piece, columns: Columns, parts: Parts) -> None:
        self._check_producers(piece, columns, parts)
        self._check_groups(piece, columns, parts)

    def continues(self, producers: Sequence[Producer]) -> bool:
        """Whether the messages of a window that was checked elsewhere continue the sequence numbers
        so far."""
        for run_found in producers:
            run = self._runs.get(run_found.producer)
            if run is not None and (
                run.last_sequence + 1 != run_found.first_sequence
                or run.last_epoch > run_found.first_epoch
            ):
                return False
        return True

    def add_window(self, clean: Clean, start: int, ordinal: int) -> None:
        """Add a window that begins at byte `start` of the file, behind `ordinal` intact entries."""
        for part in clean.producers:
            last = clean.index + part.last_row, ordinal + part.last_row, start + part.last_at
            run = self._runs.get(part.producer)
            if run is None:
                first = (
                    clean.index + part.first_row,
                    ordinal + part.first_row,
                    start + part.first_at,
                )
                self._runs[part.producer] = ProducerRun(
                    part.producer,
                    part.first_sequence,
                    part.first_epoch,
                    *first,
                    part.last_sequence,
                    part.last_epoch,
                    *last,
                )
            else:
                run.last_sequence, run.last_epoch = part.last_sequence, part.last_epoch
                run.last_index, run.last_ordinal, run.last_at = last
        for event in clean.groups:
            self._take_group(event, clean.index + event.row, start + event.at)

    def _take_group(self, event: GroupEvent, index: int, place: int) -> None:
        if event.topic is None:
            self._change(1)
        else:
            self._place((index, place, event.size), event.topic, event.group, event.queue)

    # Producers

    def _check_producers(self, piece: Piece, columns: Columns, parts: Parts) -> None:
        rows = np.flatnonzero(columns.sound & (piece.rows["flag"][: len(columns)] != 0))
        if not len(rows):
            return
        starts, ends = parts.property_at[rows], piece.offsets[rows] + piece.sizes[rows]
        native = native_ids(piece.window, starts, ends)
        native &= piece.rows["flag"][rows] > 0
        self.unnumbered += columns.index[rows[~native]].tolist()
        rows = rows[native]
        producer, epoch, sequence = numbers_of(
            np.frombuffer(piece.window, np.uint8), starts[native]
        )
        order = np.argsort(producer, kind="stable")
        edges = (
            [*np.flatnonzero(np.append(True, np.diff(producer[order]) != 0)).tolist(), len(order)]
            if len(order)
            else []
        )
        for begin, end in pairwise(edges):
            mine = order[begin:end]
            self._follow(columns, rows[mine], int(producer[mine[0]]), epoch[mine], sequence[mine])

    def _follow(
        self, columns: Columns, rows: I64, producer: int, epoch: I64, sequence: I64
    ) -> None:
        """Check messages of one producer in log order."""
        run = self._runs.get(producer)
        if run is None:
            first = int(rows[0])
            numbers = (
                int(sequence[0]),
                int(epoch[0]),
                int(columns.index[first]),
                int(columns.ordinal[first]),
            )
            run = self._runs[producer] = ProducerRun(
                producer, *numbers, int(columns.offset[first]), *numbers, 0
            )
            before, epochs = sequence[:1] - 1, epoch[:1]
        else:
            before, epochs = np.array([run.last_sequence]), np.array([run.last_epoch])
        steps = np.diff(np.concatenate([before, sequence]))
        falls = np.diff(np.concatenate([epochs, epoch])) < 0
        for at in np.flatnonzero((steps != 1) | falls).tolist():
            row = int(rows[at])
            last = int(sequence[at - 1]) if at else int(before[0])
            proof = wrong_step(producer, last, int(sequence[at]), bool(falls[at]))
            place, size, index = (
                int(columns.offset[row]),
                int(columns.size[row]),
                int(columns.index[row]),
            )
            previous = (
                columns.place_of(int(rows[at - 1]))
                if at
                else (run.last_index, run.last_ordinal, run.last_at)
            )
            lost = index - previous[0] - int(columns.ordinal[row]) + previous[1]
            lost += sum(previous[0] < number < index for number in self.unnumbered)
            # Unreadable messages in between, or messages with unknown numbers, may have the missing
            # sequence numbers.
            explained = 0 < int(steps[at]) - 1 <= lost and not falls[at]
            measures = ((self._task.shown, previous[2], place + HEADER_BYTES),) if explained else ()
            self.flaws.append(
                Flaw(
                    "order.producer",
                    self._task.shown,
                    index=index,
                    byte_from=place,
                    byte_to=place + size,
                    proof=proof,
                    measures=measures,
                )
            )
        run.last_sequence, run.last_epoch = int(sequence[-1]), int(epoch[-1])
        run.last_index, run.last_ordinal, run.last_at = columns.place_of(int(rows[-1]))

    # Message groups

    def _check_groups(self, piece: Piece, columns: Columns, parts: Parts) -> None:
        config = [number for number, topic in enumerate(columns.topics) if topic == CONFIG_TOPIC]
        changes = np.flatnonzero(
            columns.sound & np.isin(columns.topic_of, config) & (columns.tags_code == TOPIC_CODE)
        )
        places = _found(piece.window, _GROUP)
        if not len(places):
            self._change(len(changes))
            return
        rows = np.searchsorted(piece.offsets[: len(columns)], places, side="right") - 1
        data: U8 = np.frombuffer(piece.window, np.uint8)
        kept = (
            (rows >= 0)
            & columns.sound[rows]
            & (places >= parts.property_at[rows])
            & (places < (piece.offsets + piece.sizes)[rows])
        )
        kept &= (places == parts.property_at[rows]) | (data[places - 1] == 2)
        rows, starts = rows[kept], places[kept] + len(_GROUP)
        closes = np.append(np.flatnonzero(data == 2), len(data))
        which, names = intern(data, starts, closes[np.searchsorted(closes, starts)] - starts)
        queue, topic = columns.queue[rows], columns.topic_of[rows]
        era = np.searchsorted(changes, rows)
        order = np.lexsort((rows, which, topic, era))
        changed = np.diff(era[order]) != 0
        changed |= np.diff(topic[order]) != 0
        changed |= np.diff(which[order]) != 0
        changed |= np.diff(queue[order]) != 0
        now = 0
        for at in np.sort(order[np.flatnonzero(np.append(len(order) > 0, changed))]).tolist():
            self._change(int(era[at]) - now)
            now, row = int(era[at]), int(rows[at])
            entry = int(columns.index[row]), int(columns.offset[row]), int(columns.size[row])
            self._place(
                entry, columns.topics[int(topic[at])], names[int(which[at])], int(queue[at])
            )
        self._change(len(changes) - now)

    def _change(self, records: int) -> None:
        """Note `records` topic records in between: behind them the queues of a topic may differ."""
        if records:
            self._places.clear()

    def _place(self, entry: tuple[int, int, int], topic: bytes, group: bytes, queue: int) -> None:
        """A message of a group, in the entry with this index, offset and size, is in this queue."""
        if is_system(topic):
            return
        known = self._places.get((topic, group))
        if known is None:
            if len(self._places) >= GROUPS_MAX:
                del self._places[next(iter(self._places))]
            self._places[topic, group] = [queue, 0]
            return
        if known[0] == queue:
            return
        known[:] = queue, known[1] + 1
        if known[1] == MOVES_MAX:
            index, place, size = entry
            names = group.decode("utf-8", "replace"), topic.decode("utf-8", "replace")
            proof = f"message group {names[0]} of {names[1]} changes its queue repeatedly"
            self.flaws.append(
                Flaw(
                    "order.group",
                    self._task.shown,
                    index=index,
                    byte_from=place,
                    byte_to=place + size,
                    proof=proof,
                )
            )


def wrong_step(producer: int, before: int, sequence: int, fallen: bool) -> str:
    """Describe an invalid step from one message of a producer to the next."""
    if fallen:
        return f"producer {producer} goes on in an older epoch, at sequence number {sequence}"
    return f"sequence number {sequence} of producer {producer} follows {before}"


def numbers_of(data: U8, starts: I64) -> tuple[I64, I64, I64]:
    """Producer, epoch and sequence number of native ids, whose property strings begin at
    `starts`."""
    digits = data[starts[:, None] + (_NUMBERS_AT + np.arange(_DIGITS))]
    values = np.where(digits > ord("9"), digits - (ord("A") - 10), digits - ord("0")).astype(
        np.uint8
    )
    raw = np.zeros((len(starts), 14), np.uint8)
    both = (values[:, 0::2] << 4) | values[:, 1::2]
    raw[:, :6], raw[:, 8:] = both[:, :6], both[:, 6:]
    producer = np.ascontiguousarray(raw[:, 0:4]).view(">u4")[:, 0].astype(np.int64)
    epoch = np.ascontiguousarray(raw[:, 4:6]).view(">u2")[:, 0].astype(np.int64)
    return producer, epoch, np.ascontiguousarray(raw[:, 6:14]).view(">u8")[:, 0].astype(np.int64)


def _found(window: bytes, name: bytes) -> I64:
    """All positions of these bytes."""
    places = []
    at = window.find(name)
    while at >= 0:
        places.append(at)
        at = window.find(name, at + len(name))
    return np.array(places, np.int64)
