"""Buffered writes for consume queues: units that arrive one by one wait in memory until a write is
worth a system call.

A batch of several units for one queue, or with many units per queue, is written at once, except for
a few units of a queue of which others wait. A single unit, or a batch scattered over many queues,
would cost one write for almost every message, and each write releases the interpreter lock. So
these units are kept, in log order and in columns, until there are many per queue. The number of
waiting units is bounded.

Law: waiting units of a queue are always its last ones, behind everything in its files, and every
read sees them. They are written before a sync begins and before a trim record is applied, so a
completed sync covers them. A crash loses units that no snapshot covers, and those are dispatched
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.ma  # `np.unique` imports it at its first call: 60 ms in the middle of an append
from numpy.typing import NDArray

from ledgermq.proto.entries.layout import QUEUE_UNIT, Columns, Row
from ledgermq.proto.types import I32, I64
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.queues.consume_queue import (
    OPEN_FILES_MAX,
    UNIT,
    UNIT_BYTES,
    ConsumeQueues,
    Minimum,
    QueueKey,
    QueueSync,
    QueueUnits,
    by_queue,
    require_dense,
)

WAITING_MAX = 1 << 17
QUEUES_A_SLICE = 256
"""When the buffer is full, this many queues are written at once: a pause of milliseconds."""
FEW_UNITS = 16
"""A batch with more units per queue than this, on average, is written at once."""
WORTH_A_WRITE = 64
"""When this many units wait per queue of a batch, on average, they are written: a read at the end
of a queue scans all waiting units."""
_NO_NUMBER = -1


class BufferedQueues(ConsumeQueues):
    """All consume queues of one broker group. `ConsumeQueues` holds the written state; waiting
    units are here."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file_bytes: int,
        *,
        open_files_max: int = OPEN_FILES_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        super().__init__(disk, directory, file_bytes, open_files_max=open_files_max)
        self._keys: list[QueueKey] = []
        self._numbers: dict[QueueKey, int] = {}
        """Queues by number: their index in `_keys` and `_ends`."""
        self._numbers_free: list[int] = []
        self._numbers_of: dict[str, I64] = {}
        """Stored topic → number by queue id."""
        self._ends: I64 = np.zeros(64, np.int64)
        """Next offset by number, including waiting units."""
        self._count = 0
        self._turn = 0
        """The queue whose waiting units are written next."""
        self._row_numbers: I32 = np.empty(waiting_max, np.int32)
        self._row_offsets: I64 = np.empty(waiting_max, np.int64)
        self._unit_bytes = bytearray(waiting_max * UNIT_BYTES)
        self._row_units: NDArray[np.void] = np.frombuffer(self._unit_bytes, QUEUE_UNIT)
        """A view of `_unit_bytes`."""

    # Questions

    def next_offset(self, topic: str, queue: int) -> int:
        """The offset of the queue's next message: the number of messages it ever had."""
        key = topic, queue
        number = self._numbers.get(key)
        return self._next.get(key, 0) if number is None else int(self._ends[number])

    def ends(self, topic: str, queues: int) -> tuple[int, ...]:
        """`next_offset` of the first `queues` queues of a topic."""
        ends, numbers, known = self._ends, self._numbers, self._next
        keys = [(topic, queue) for queue in range(queues)]
        return tuple(
            [int(ends[numbers[key]]) if key in numbers else known.get(key, 0) for key in keys]
        )

    def next_offsets(self) -> dict[str, dict[int, int]]:
        table = super().next_offsets()
        for number in np.unique(self._row_numbers[: self._count]).tolist():
            topic, queue = self._keys[number]
            table.setdefault(topic, {})[queue] = int(self._ends[number])
        return {topic: dict(sorted(queues.items())) for topic, queues in sorted(table.items())}

    def read(self, topic: str, queue: int, first: int, count: int) -> QueueUnits:
        key = topic, queue
        number, written = self._numbers.get(key), self._next.get(key, 0)
        first = max(first, self._min.get(key, 0))
        if number is None or min(first + count, int(self._ends[number])) <= written:
            return super().read(topic, queue, first, count)
        rows = self._rows(number)[max(first - written, 0) : first + count - written]
        units = self._row_units[rows]
        waiting = (
            units["physical_offset"].astype(np.int64),
            units["size"].astype(np.int32),
            units["tags_code"].astype(np.int64),
        )
        if first >= written:
            return QueueUnits(first, *waiting)
        written_rows = super().read(topic, queue, first, written - first)
        return QueueUnits(
            first,
            np.concatenate((written_rows.physical_offsets, waiting[0])),
            np.concatenate((written_rows.sizes, waiting[1])),
            np.concatenate((written_rows.tags_codes, waiting[2])),
        )

    # Appending

    def append(self, columns: Columns) -> None:
        """Dispatch committed messages in log order. Units that exist already are skipped (a
        repeated dispatch); a gap violates an invariant. Raises NoSpace: the same columns may be
        dispatched again later."""
        if columns.rows is not None:
            if columns.rows:
                self._append_few(columns.rows)
            return
        count = len(columns)
        if count == 0:
            return
        units = np.empty(count, QUEUE_UNIT)
        units["physical_offset"] = columns.physical_offsets
        units["size"] = columns.sizes
        units["tags_code"] = columns.tags_codes
        if count == 1 or (
            len(columns.topics) == 1 and bool((columns.queues == columns.queues[0]).all())
        ):
            number = self._number(
                (columns.topics[int(columns.topic_of[0])], int(columns.queues[0]))
            )
            self._write(number, columns.queue_offsets, units)
            return
        numbers = self._number_rows(columns)
        order = np.argsort(numbers, kind="stable")
        numbers, offsets, units = numbers[order], columns.queue_offsets[order], units[order]
        begins = np.flatnonzero(np.diff(numbers, prepend=_NO_NUMBER))
        if len(begins) > 1 and count < FEW_UNITS * len(begins) and count <= len(self._row_numbers):
            self._wait(numbers, offsets, units, begins)
            if self._count >= WORTH_A_WRITE * len(begins):
                self._write_slice()
            return
        for low, high in pairwise([*begins.tolist(), count]):
            self._write(int(numbers[low]), offsets[low:high], units[low:high])

    def _append_few(self, rows: list[Row]) -> None:
        """The same, message by message."""
        queues = by_queue(rows)
        if len(queues) > 1:
            at_once = len(rows) >= FEW_UNITS * len(queues)
        elif len(rows) > 1:
            (key,) = queues
            # Behind waiting units of the queue a few more wait: taking those along costs several
            # times as much as a write.
            at_once = (
                self._ends[self._number(key)] == self._next.get(key, 0)
                or self._count >= WORTH_A_WRITE
            )
        else:
            # A system call for each single message costs more than one for many later.
            at_once = False
        if at_once or len(rows) > len(self._row_numbers):
            for key, own in queues.items():
                number = self._number(key)
                if self._ends[number] != self._next.get(key, 0):
                    self._write_queue(number)
                self._append_rows(key, own)
                self._ends[number] = self._next.get(key, 0)
            return
        self._wait_few(queues)
        if self._count >= WORTH_A_WRITE * len(queues):
            self._write_slice()

    def _wait_few(self, queues: dict[QueueKey, list[Row]]) -> None:
        """Keep units that are not kept yet, queue by queue."""
        new: list[tuple[int, Row]] = []
        for key, rows in queues.items():
            require_dense(key, rows)
            number = self._number(key)
            end, first = int(self._ends[number]), rows[0][2]
            assert first <= end, (
                f"queue {key} continues at {first}, but has only {end} (invariant I6)"
            )
            new += [(number, row) for row in rows[end - first :]]
        while self._count + len(new) > len(self._row_numbers):
            self._write_slice()
        at = self._count
        for number, (_, _, offset, code, physical, size, _, _) in new:
            self._row_numbers[at], self._row_offsets[at] = number, offset
            UNIT.pack_into(self._unit_bytes, at * UNIT_BYTES, physical, size, code)
            self._ends[number] = offset + 1
            at += 1
        self._count = at

    def _wait(self, numbers: I64, offsets: I64, units: NDArray[np.void], begins: I64) -> None:
        """Keep units, sorted by queue; each queue starts at one of the rows `begins`."""
        lengths = np.diff(begins, append=len(numbers))
        firsts = offsets[begins]
        dense = offsets - np.repeat(firsts - begins, lengths) == np.arange(len(offsets))
        assert bool(dense.all()), (
            f"queue offsets of {self._keys[int(numbers[dense.argmin()])]} are not dense"
            " (invariant I6)"
        )
        queues = numbers[begins]
        ends = self._ends[queues]
        gaps = firsts > ends
        if gaps.any():
            at = int(gaps.argmax())
            raise AssertionError(
                f"queue {self._keys[int(queues[at])]} continues at {firsts[at]}, but has only"
                f" {ends[at]} (invariant I6)"
            )
        new = offsets >= np.repeat(ends, lengths)
        if not new.all():
            numbers, offsets, units = numbers[new], offsets[new], units[new]
        while self._count + len(numbers) > len(self._row_numbers):
            self._write_slice()
        rows = slice(self._count, self._count + len(numbers))
        self._row_numbers[rows], self._row_offsets[rows], self._row_units[rows] = (
            numbers,
            offsets,
            units,
        )
        self._count += len(numbers)
        self._ends[queues] = np.maximum(ends, firsts + lengths)

    def _write(self, number: int, offsets: I64, units: NDArray[np.void]) -> None:
        """Write units of one queue, its waiting units first. Raises NoSpace, OSError."""
        self._write_queue(number)
        key = self._keys[number]
        self._append_queue(key, offsets, units)
        self._ends[number] = self._next.get(key, 0)

    def _write_queue(self, number: int) -> None:
        """Write the waiting units of one queue. Raises NoSpace, OSError."""
        key = self._keys[number]
        if self._ends[number] != self._next.get(key, 0):
            rows = self._rows(number)
            self._append_queue(key, self._row_offsets[rows], self._row_units[rows])
            kept = np.ones(self._count, np.bool_)
            kept[rows] = False
            self._keep(np.flatnonzero(kept))

    def write_waiting(self) -> None:
        """Write all waiting units. Raises NoSpace, and OSError: units that were not written still
        wait."""
        while self._count:
            self._write_slice()

    def write_below(self, pos: int) -> bool:
        """Write waiting units of some queues that have a waiting unit of a message before `pos` of
        the log; True when none is left. Raises as `write_waiting`."""
        numbers = self._row_numbers[: self._count]
        queues = np.unique(numbers[self._row_units["physical_offset"][: self._count] < pos])
        if len(queues):
            self._write_rows(np.flatnonzero(np.isin(numbers, queues[:QUEUES_A_SLICE])))
        return len(queues) <= QUEUES_A_SLICE

    def _write_slice(self) -> None:
        """Write waiting units of the next queues in turn."""
        numbers = self._row_numbers[: self._count]
        queues = np.flatnonzero(np.bincount(numbers))
        at = int(np.searchsorted(queues, self._turn)) % len(queues)
        chosen = queues[at : at + QUEUES_A_SLICE]
        self._write_rows(np.flatnonzero((numbers >= chosen[0]) & (numbers <= chosen[-1])))
        self._turn = int(chosen[-1]) + 1

    def _write_rows(self, rows: I64) -> None:
        """Write all waiting units of some queues."""
        numbers = self._row_numbers[: self._count]
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        bounds = [*np.flatnonzero(np.diff(numbers[rows], prepend=_NO_NUMBER)).tolist(), len(rows)]
        firsts, units = self._row_offsets[rows[bounds[:-1]]].tolist(), self._row_units[rows]
        written = 0
        try:
            for number, first, (low, high) in zip(
                numbers[rows[bounds[:-1]]].tolist(), firsts, pairwise(bounds), strict=True
            ):
                self._append_units(self._keys[number], first, units[low:high].tobytes())
                written = high
        finally:
            kept = np.ones(self._count, np.bool_)
            kept[rows[:written]] = False
            self._keep(np.flatnonzero(kept))

    def _keep(self, rows: I64) -> None:
        for column in (self._row_numbers, self._row_offsets, self._row_units):
            column[: len(rows)] = column[rows]
        self._count = len(rows)

    def _rows(self, number: int) -> I64:
        return np.flatnonzero(self._row_numbers[: self._count] == number)

    # Numbers

    def _number(self, key: QueueKey) -> int:
        number = self._numbers.get(key)
        if number is None:
            if self._numbers_free:
                number = self._numbers[key] = self._numbers_free.pop()
                self._keys[number] = key
            else:
                number = self._numbers[key] = len(self._keys)
                self._keys.append(key)
            if number == len(self._ends):
                self._ends = np.concatenate((self._ends, np.zeros_like(self._ends)))
            self._ends[number] = self._next.get(key, 0)
        return number

    def _number_rows(self, columns: Columns) -> I64:
        """The queue of each row, as a number."""
        numbers = np.empty(len(columns.sizes), np.int64)
        for place, topic in enumerate(columns.topics):
            rows = (
                np.flatnonzero(columns.topic_of == place)
                if len(columns.topics) > 1
                else slice(None)
            )
            queues = columns.queues[rows]
            known = self._numbers_of.get(topic)
            most = int(queues.max())
            if known is None or most >= len(known):
                grown = np.full(most + 1, _NO_NUMBER, np.int64)
                if known is not None:
                    grown[: len(known)] = known
                known = self._numbers_of[topic] = grown
            known_numbers = known[queues]
            if (known_numbers < 0).any():
                for queue in np.unique(queues[known_numbers < 0]).tolist():
                    known[queue] = self._number((topic, queue))
                known_numbers = known[queues]
            numbers[rows] = known_numbers
        return numbers

    def _forget(self) -> None:
        self._count = 0
        self._keys.clear()
        self._numbers_free.clear()
        self._numbers.clear()
        self._numbers_of.clear()

    # What must not pass by what waits

    def begin_sync(self) -> QueueSync | None:
        """As in `ConsumeQueues`. Raises NoSpace if there is no room for the waiting units."""
        self.write_waiting()
        return super().begin_sync()

    def start(
        self,
        next_offsets: Mapping[str, Mapping[int, int]],
        units_above_max: int,
        minimums: Mapping[str, Mapping[int, Minimum]] | None = None,
    ) -> None:
        self._forget()
        super().start(next_offsets, units_above_max, minimums)

    def raise_minimums(self, begin_pos: int) -> list[QueueKey]:
        """As in `ConsumeQueues`, when a trim record is applied. Raises NoSpace; the record may be
        applied again. Units that wait later lie behind the record, so carrying out the trim, which
        frees space on a full disk, writes no units."""
        self.write_waiting()
        return super().raise_minimums(begin_pos)

    def forget(self, topic: str, queue: int) -> None:
        number = self._numbers.pop((topic, queue), None)
        if number is not None:
            assert not len(self._rows(number)), (
                f"units of {topic}/{queue} wait, so something is kept"
            )
            self._numbers_of.pop(topic, None)
            self._numbers_free.append(number)
        super().forget(topic, queue)

    def begin_at(self, topic: str, queue: int, offset: int) -> None:
        super().begin_at(topic, queue, offset)
        self._ends[self._number((topic, queue))] = offset

    def discard(self) -> None:
        self._forget()
        super().discard()
