"""Index files and consume queues: derived again from the entries of a log file and compared with
the stored units.

The log is the reference here; a derived file proves nothing. Bytes behind the last unit are checked
separately, without the log (`tails`), and judged by `after_scan`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.begin import may_begin
from ledgermq.audit.reading.columns import Columns
from ledgermq.audit.reading.decode import (
    HEADER_BYTES,
    I64,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    QUEUE_UNIT,
    QUEUE_UNIT_BYTES,
    Flags,
    last_nonzero,
    numbered_files,
    read_space,
)
from ledgermq.audit.reading.files import is_directory, names_in, open_file
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Flaw

if TYPE_CHECKING:
    from ledgermq_native.audit_scan import Clean, Queue

REACH_MAX = 1 << 20
"""Numbers farther apart than this are read separately: one of them is damaged, and the range
between them is not read."""
WAITING_MAX = 100
"""At most this many separate runs of missing units are kept per queue and log file, and as many of
blank ones."""
PRE_BLANK_SIZE = 0x7FFFFFFF
"""The size in the unit of a removed message, whose other fields are 0."""


@dataclass(slots=True)
class QueueRun:
    """One (topic, queue) within one log file: its queue offsets first … last, and which of them are
    in the consume queue.

    For its first and its last message also the index, the number of intact entries before it in the
    file, and its offset. `waiting`: runs of messages without units, each as first and last queue
    offset, first and last index; `blanks`: of those whose units are the ones of removed messages.
    `filed_offset` and `filed_index`: the last message with a unit.
    """

    topic: str
    queue: int
    first: int
    last: int
    count: int
    first_index: int
    first_ordinal: int
    first_at: int
    last_index: int = -1
    last_ordinal: int = -1
    last_at: int = 0
    waiting: list[list[int]] = field(default_factory=list)
    blanks: list[list[int]] = field(default_factory=list)
    filed_offset: int | None = None
    filed_index: int | None = None


def differing(has: bytes, wants: bytes) -> tuple[int, int]:
    """The first and the last (exclusive) place where two byte strings of equal length differ."""
    places = np.flatnonzero(np.frombuffer(has, np.uint8) != np.frombuffer(wants, np.uint8))
    return int(places[0]), int(places[-1]) + 1


class IndexCheck:
    """Compares index units with entries."""

    def __init__(self, task: LogFile) -> None:
        self.flaws: list[Flaw] = []
        self._task = task
        self._shown = f"{os.path.basename(task.root)}/{task.log_folder}/index"

    def agrees(self, index: int, units: bytes) -> bool:
        """Whether these are the stored units from entry `index` on."""
        start = index * INDEX_UNIT_BYTES
        if self._task.key:
            return True
        try:
            return (
                read_space(
                    self._task.index_directory,
                    self._task.index_file_bytes,
                    start,
                    start + len(units),
                )
                == units
            )
        except OSError:
            return False

    def check(self, entries: Columns) -> None:
        rows = np.flatnonzero(entries.proven) if not self._task.key else np.empty(0, np.int64)
        for near in near_each_other(entries.index[rows]):
            self._check(entries, rows[near])

    def _check(self, entries: Columns, rows: I64) -> None:
        """Check entries whose units lie near each other."""
        task = self._task
        index = entries.index[rows]
        first, last = int(index.min()), int(index.max())
        try:
            data = read_space(
                task.index_directory,
                task.index_file_bytes,
                first * INDEX_UNIT_BYTES,
                (last + 1) * INDEX_UNIT_BYTES,
            )
        except OSError as error:
            self._add("file.read", first, 0, INDEX_UNIT_BYTES, f"{error.strerror}")
            return
        stored = np.zeros(last - first + 1, INDEX_UNIT)
        whole = len(data) // INDEX_UNIT_BYTES
        stored[:whole] = np.frombuffer(data, INDEX_UNIT, whole)
        stored = stored[index - first]
        wanted = np.zeros(len(rows), INDEX_UNIT)
        wanted["magic"] = 1
        wanted["pos"] = task.base + entries.offset[rows]
        wanted["size"] = entries.size[rows]
        wanted["index"] = index
        wanted["term"] = entries.term[rows]
        different = stored.view("V32") != wanted.view("V32")
        for at in np.flatnonzero(different).tolist():
            has, wants = stored[at].tobytes(), wanted[at].tobytes()
            if not any(has):
                self._add(
                    "index.missing",
                    int(index[at]),
                    0,
                    INDEX_UNIT_BYTES,
                    "the unit was never written",
                    torn=True,
                )
            else:
                start, stop = differing(has, wants)
                proof = f"{has[start:stop].hex()} instead of {wants[start:stop].hex()}"
                self._add(
                    "index.unit",
                    int(index[at]),
                    start,
                    stop,
                    proof,
                    torn=_of_replaced(stored[at], wanted[at]),
                )

    def _add(
        self, rule: str, index: int, start: int, stop: int, proof: str, torn: bool = False
    ) -> None:
        place = index * INDEX_UNIT_BYTES
        base = place - place % self._task.index_file_bytes
        file = f"{self._shown}/{base:020d}"
        self.flaws.append(
            Flaw(
                rule,
                file,
                index=index,
                byte_from=place - base + start,
                byte_to=place - base + stop,
                proof=proof,
                torn=torn,
            )
        )


def near_each_other(numbers: I64) -> Iterator[I64 | slice]:
    """Places of numbers that are not negative, in groups separated by gaps of more than
    `REACH_MAX`; a single group, unless a number is damaged."""
    if not len(numbers):
        return
    low, high = int(numbers.min()), int(numbers.max())
    if low >= 0 and high - low <= len(numbers) + REACH_MAX:
        yield slice(None)
        return
    order = np.argsort(numbers)
    order = order[numbers[order] >= 0]
    groups = np.split(order, np.flatnonzero(np.diff(numbers[order]) > REACH_MAX) + 1)
    yield from (np.sort(group) for group in groups if len(group))


def _of_replaced(has: np.void, wants: np.void) -> bool:
    """Whether a unit describes an entry of an older term, which a leader replaced by the current
    one."""
    same = has["magic"] == wants["magic"] and has["index"] == wants["index"]
    return bool(
        same and 0 <= has["term"] < wants["term"] and has["pos"] > 0 and has["size"] >= HEADER_BYTES
    )


class QueueCheck:
    """Compares consume queue units with messages, and follows the density of queue offsets through
    one log file."""

    def __init__(self, task: LogFile) -> None:
        self.flaws: list[Flaw] = []
        self._task = task
        self._runs: dict[tuple[bytes, int], QueueRun] = {}

    def runs(self) -> list[QueueRun]:
        return sorted(self._runs.values(), key=lambda run: (run.topic, run.queue))

    def agrees(self, queues: Sequence[Queue]) -> bool:
        """Whether the messages of a window that was checked elsewhere continue their queues, and
        have the units that they must have."""
        return all(map(self._agrees, queues))

    def _agrees(self, part: Queue) -> bool:
        run = self._runs.get((part.topic, part.queue))
        if run is not None and run.last + 1 != part.first:
            return False
        task, start = self._task, part.first * QUEUE_UNIT_BYTES
        if task.key:
            return True
        folder = f"{task.root}/consumequeue/{part.topic.decode('utf-8', 'replace')}/{part.queue}"
        try:
            return (
                read_space(folder, task.queue_file_bytes, start, start + len(part.units))
                == part.units
            )
        except OSError:
            return False

    def add_window(self, clean: Clean, start: int, ordinal: int) -> None:
        """Add a window that begins at byte `start` of the file, behind `ordinal` intact entries."""
        for part in clean.queues:
            key = part.topic, part.queue
            run = self._runs.get(key)
            if run is None:
                first = (
                    clean.index + part.first_row,
                    ordinal + part.first_row,
                    start + part.first_at,
                )
                name = part.topic.decode("utf-8", "replace")
                run = self._runs[key] = QueueRun(name, part.queue, part.first, part.last, 0, *first)
            run.last, run.count = part.last, run.count + part.count
            run.last_index, run.last_ordinal, run.last_at = (
                clean.index + part.last_row,
                ordinal + part.last_row,
                start + part.last_at,
            )
            if not self._task.key:
                run.filed_offset, run.filed_index = run.last, run.last_index

    def check(self, entries: Columns) -> None:
        rows = np.flatnonzero(entries.sound)
        if not len(rows):
            return
        topics = entries.topic_of[rows]
        order = np.lexsort((rows, entries.queue[rows], topics))
        sorted_topics, sorted_queues = topics[order], entries.queue[rows][order]
        edges = np.flatnonzero((np.diff(sorted_topics) != 0) | (np.diff(sorted_queues) != 0)) + 1
        for group in np.split(order, edges):
            self._check_queue(
                entries.topics[int(topics[group[0]])],
                int(entries.queue[rows[group[0]]]),
                entries,
                rows[group],
            )

    def _check_queue(self, topic: bytes, queue: int, entries: Columns, rows: I64) -> None:
        offsets = entries.queue_offset[rows]
        name = topic.decode("utf-8", "replace")
        run = self._runs.get((topic, queue))
        if run is None:
            first, row = int(offsets[0]), int(rows[0])
            run = self._runs[topic, queue] = QueueRun(
                name, queue, first, first - 1, 0, *entries.place_of(row)
            )
        for at in np.flatnonzero(np.diff(offsets, prepend=run.last) != 1).tolist():
            expected = (int(offsets[at - 1]) if at else run.last) + 1
            if may_begin(name, int(offsets[at]), expected):
                continue
            before = (
                entries.place_of(int(rows[at - 1]))
                if at
                else (run.last_index, run.last_ordinal, run.last_at)
            )
            self._density(entries, int(rows[at]), expected, f"{name}/{queue}", before)
        run.last = int(offsets[-1])
        run.last_index, run.last_ordinal, run.last_at = entries.place_of(int(rows[-1]))
        run.count += len(rows)
        for near in near_each_other(offsets) if not self._task.key else ():
            self._check_units(run, entries, rows[near], offsets[near])

    def _density(
        self, entries: Columns, row: int, expected: int, queue: str, before: tuple[int, int, int]
    ) -> None:
        """`before`: index, ordinal and place of the queue's message before this row."""
        index, start, offset = (
            int(entries.index[row]),
            int(entries.offset[row]),
            int(entries.queue_offset[row]),
        )
        lost = index - before[0] - int(entries.ordinal[row]) + before[1]
        flaw = density_flaw(self._task.shown, queue, (index, start), offset, expected)
        # Damaged entries in between may have had the missing queue offsets.
        explained = 0 < offset - expected <= lost
        self.flaws.append(
            replace(flaw, measures=((flaw.file, before[2], start + HEADER_BYTES),))
            if explained
            else flaw
        )

    def _check_units(self, run: QueueRun, entries: Columns, rows: I64, offsets: I64) -> None:
        low, high = int(offsets.min()), int(offsets.max())
        task = self._task
        folder = f"consumequeue/{run.topic}/{run.queue}"
        try:
            data = read_space(
                f"{task.root}/{folder}",
                task.queue_file_bytes,
                low * QUEUE_UNIT_BYTES,
                (high + 1) * QUEUE_UNIT_BYTES,
            )
        except OSError as error:
            self._add(
                "file.read",
                folder,
                offset=low,
                index=int(entries.index[rows[0]]),
                start=0,
                stop=QUEUE_UNIT_BYTES,
                proof=f"{error.strerror}",
            )
            return
        stored = np.zeros(high - low + 1, QUEUE_UNIT)
        whole = len(data) // QUEUE_UNIT_BYTES
        stored[:whole] = np.frombuffer(data, QUEUE_UNIT, whole)
        stored = stored[offsets - low]
        wanted = np.zeros(len(rows), QUEUE_UNIT)
        wanted["pos"] = task.base + entries.offset[rows] + HEADER_BYTES
        wanted["size"] = entries.total_size[rows]
        wanted["tags_code"] = entries.tags_code[rows]
        empty = (stored["pos"] == 0) & (stored["size"] == 0) & (stored["tags_code"] == 0)
        blank: Flags = (
            (stored["pos"] == 0) & (stored["size"] == PRE_BLANK_SIZE) & (stored["tags_code"] == 0)
        )
        different: Flags = (stored.view("V20") != wanted.view("V20")) & ~empty & ~blank
        for at in np.flatnonzero(different).tolist():
            has, wants = stored[at].tobytes(), wanted[at].tobytes()
            start, stop = differing(has, wants)
            place = int(offsets[at]) * QUEUE_UNIT_BYTES % task.queue_file_bytes
            proof = f"{has[start:stop].hex()} instead of {wants[start:stop].hex()}"
            flaw = queue_flaw(
                task,
                "queue.unit",
                folder,
                offset=int(offsets[at]),
                index=int(entries.index[rows[at]]),
                start=start,
                stop=stop,
                proof=proof,
            )
            self.flaws.append(replace(flaw, torn=bytewise.cut_by_sector(has, wants, place)))
        index, filed = entries.index[rows], np.flatnonzero(~empty)
        _add_runs(run.waiting, np.flatnonzero(empty), index, offsets)
        _add_runs(run.blanks, np.flatnonzero(blank), index, offsets)
        if len(filed):
            run.filed_offset, run.filed_index = int(offsets[filed[-1]]), int(index[filed[-1]])

    def _add(
        self, rule: str, folder: str, offset: int, index: int, start: int, stop: int, proof: str
    ) -> None:
        self.flaws.append(
            queue_flaw(self._task, rule, folder, offset, index, start=start, stop=stop, proof=proof)
        )


def _add_runs(runs: list[list[int]], rows: I64, index: I64, offsets: I64) -> None:
    """Add the messages of some rows to runs of messages with consecutive queue offsets."""
    for part in (
        np.split(rows, np.flatnonzero(np.diff(offsets[rows]) != 1) + 1) if len(rows) else []
    ):
        first, last = int(part[0]), int(part[-1])
        added = [int(offsets[first]), int(offsets[last]), int(index[first]), int(index[last])]
        before = runs[-1] if runs else None
        if before is not None and (before[1] + 1 == added[0] or len(runs) >= WAITING_MAX):
            before[1], before[3] = added[1], added[3]
        else:
            runs.append(added)


def density_flaw(file: str, queue: str, entry: tuple[int, int], offset: int, expected: int) -> Flaw:
    """The flaw of an entry (index, place in its file) whose queue offset does not follow the
    previous one."""
    rule = "record.queue-offset" if offset > expected else "record.queue-repeat"
    place = entry[1] + HEADER_BYTES
    return Flaw(
        rule,
        file,
        index=entry[0],
        byte_from=place + 20,
        byte_to=place + 28,
        proof=f"queue offset {offset} of {queue} follows {expected - 1}",
    )


def queue_flaw(
    task: LogFile,
    rule: str,
    folder: str,
    offset: int,
    index: int | None,
    start: int,
    stop: int,
    proof: str,
) -> Flaw:
    """A flaw at unit `offset` of the consume queue in `folder`."""
    place = offset * QUEUE_UNIT_BYTES
    base = place - place % task.queue_file_bytes
    file = f"{os.path.basename(task.root)}/{folder}/{base:020d}"
    return Flaw(
        rule,
        file,
        index=index,
        byte_from=place - base + start,
        byte_to=place - base + stop,
        proof=proof,
    )


@dataclass(slots=True)
class TailReport:
    """One set of derived files, checked without the log: the end (absolute, exclusive) of its
    nonzero bytes, its flaws, and where files are missing between others: start of the gap, and
    start of the next file."""

    folder: str
    used: int
    last_file: str
    flaws: list[Flaw]
    first_base: int = 0
    """The start of the first file; earlier files are missing, or were trimmed."""
    gaps: list[tuple[int, int]] = field(default_factory=list)


def tails(task: LogFile) -> Iterator[TailReport]:
    """Index files, then every consume queue of a replica: names, sizes, and the end of the written
    part."""
    yield space_tail(task, f"{task.log_folder}/index", task.index_file_bytes)
    queues = f"{task.root}/consumequeue"
    for topic in names_in(queues):
        for queue in names_in(f"{queues}/{topic}"):
            if is_directory(f"{queues}/{topic}/{queue}"):
                yield space_tail(task, f"consumequeue/{topic}/{queue}", task.queue_file_bytes)


def space_tail(task: LogFile, folder: str, file_bytes: int) -> TailReport:
    """Check one set of derived files, and find the end of its written part."""
    report = TailReport(folder, 0, f"{0:020d}", [])
    shown = f"{os.path.basename(task.root)}/{folder}"
    running, expected = task.end_pos is not None, None
    for base, name in numbered_files(f"{task.root}/{folder}"):
        if base % file_bytes:
            report.flaws.append(
                Flaw(
                    "file.name",
                    f"{shown}/{name}",
                    index=None,
                    byte_from=0,
                    byte_to=0,
                    proof=f"the offset is no multiple of {file_bytes}",
                )
            )
            continue
        try:
            size, last = _length_and_end(f"{task.root}/{folder}/{name}", running=running)
            if size != file_bytes:
                bounds = min(size, file_bytes), max(size, file_bytes)
                report.flaws.append(
                    Flaw(
                        "file.length",
                        f"{shown}/{name}",
                        None,
                        *bounds,
                        f"{size} bytes instead of {file_bytes}",
                    )
                )
            if last >= 0:
                report.used, report.last_file = base + last + 1, name
        except OSError as error:
            if running and isinstance(error, FileNotFoundError):
                # It was removed since the directory was listed.
                continue
            report.flaws.append(
                Flaw(
                    "file.read",
                    f"{shown}/{name}",
                    index=None,
                    byte_from=0,
                    byte_to=file_bytes,
                    proof=f"{error.strerror}",
                )
            )
        if expected is None:
            report.first_base = base
        elif base != expected:
            report.gaps.append((expected, base))
        expected = base + file_bytes
    return report


def _length_and_end(path: str, *, running: bool) -> tuple[int, int]:
    """The size of a file and its last nonzero byte, or −1. For a running replica the latter is −1,
    because its files continue behind the checked part. Raises OSError."""
    with open_file(path) as file:
        return file.size, -1 if running else last_nonzero(file, file.size)
