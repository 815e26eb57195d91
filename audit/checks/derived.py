"""Index files and consume queues: re-derived from the entries of a log file and compared with what is stored, unit by unit.

The log is the truth here; nothing is concluded from a derived file. What lies behind the last unit is looked at separately, without the log
(`tails`), and judged by `replica`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ledgermq.audit.checks.rules import Flaw
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
from ledgermq.audit.reading.files import is_directory, names_in, open_file, size_of
from ledgermq.audit.reading.walk import LogFile

REACH_MAX = 1 << 20
"""A queue offset this far from its neighbours is damage, not a place to read."""


@dataclass(slots=True)
class QueueRun:
    """One (topic, queue) within one log file: its queue offsets first … last, and how far they are in the consume queue.

    `waiting_offset` and `waiting_index` are the first message without its unit, `filed_offset` and `filed_index` the last one with it.
    """

    topic: str
    queue: int
    first: int
    last: int
    count: int
    first_index: int
    waiting_offset: int | None = None
    waiting_index: int | None = None
    filed_offset: int | None = None
    filed_index: int | None = None


def differing(has: bytes, wants: bytes) -> tuple[int, int]:
    """The first and the last (exclusive) place where two equally long byte strings differ."""
    places = np.flatnonzero(np.frombuffer(has, np.uint8) != np.frombuffer(wants, np.uint8))
    return int(places[0]), int(places[-1]) + 1


class IndexCheck:
    """Compares index units with entries."""

    def __init__(self, task: LogFile) -> None:
        self.flaws: list[Flaw] = []
        self._task = task
        self._shown = f"{os.path.basename(task.root)}/{task.log_folder}/index"

    def check(self, entries: Columns) -> None:
        rows = np.flatnonzero(entries.intact)
        if not len(rows):
            return
        task = self._task
        index = entries.index[rows]
        first, last = int(index.min()), int(index.max())
        if first < 0 or last - first > len(rows) + REACH_MAX:
            return
        try:
            data = read_space(task.index_directory, task.index_file_bytes, first * INDEX_UNIT_BYTES, (last + 1) * INDEX_UNIT_BYTES)
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
        different = (stored.view("V32") != wanted.view("V32")) if len(rows) else np.zeros(0, np.bool_)
        for at in np.flatnonzero(different).tolist():
            has, wants = stored[at].tobytes(), wanted[at].tobytes()
            if not any(has):
                self._add("index.missing", int(index[at]), 0, INDEX_UNIT_BYTES, "the unit was never written", torn=True)
            else:
                start, stop = differing(has, wants)
                place = int(index[at]) * INDEX_UNIT_BYTES % task.index_file_bytes
                proof = f"{has[start:stop].hex()} instead of {wants[start:stop].hex()}"
                torn = bytewise.cut_by_sector(has, wants, place) or _of_replaced(stored[at], wanted[at])
                self._add("index.unit", int(index[at]), start, stop, proof, torn=torn)

    def _add(self, rule: str, index: int, start: int, stop: int, proof: str, torn: bool = False) -> None:
        place = index * INDEX_UNIT_BYTES
        base = place - place % self._task.index_file_bytes
        file = f"{self._shown}/{base:020d}"
        self.flaws.append(Flaw(rule, file, index, place - base + start, place - base + stop, proof, torn))


def _of_replaced(has: np.void, wants: np.void) -> bool:
    """Whether a unit describes an entry of an older term that a leader had replaced by the one that is there."""
    same = has["magic"] == wants["magic"] and has["index"] == wants["index"]
    return bool(same and 0 <= has["term"] < wants["term"] and has["pos"] > 0 and has["size"] >= HEADER_BYTES)


class QueueCheck:
    """Compares consume queue units with messages, and follows the density of queue offsets through one log file."""

    def __init__(self, task: LogFile) -> None:
        self.flaws: list[Flaw] = []
        self._task = task
        self._runs: dict[tuple[bytes, int], QueueRun] = {}

    def runs(self) -> list[QueueRun]:
        return list(self._runs.values())

    def check(self, entries: Columns) -> None:
        rows = np.flatnonzero(entries.sound)
        if not len(rows):
            return
        topics = entries.topic_of[rows]
        order = np.lexsort((rows, entries.queue[rows], topics))
        sorted_topics, sorted_queues = topics[order], entries.queue[rows][order]
        edges = np.flatnonzero((np.diff(sorted_topics) != 0) | (np.diff(sorted_queues) != 0)) + 1
        for group in np.split(order, edges):
            self._check_queue(entries.topics[int(topics[group[0]])], int(entries.queue[rows[group[0]]]), entries, rows[group])

    def _check_queue(self, topic: bytes, queue: int, entries: Columns, rows: I64) -> None:
        offsets = entries.queue_offset[rows]
        name = topic.decode("utf-8", "replace")
        run = self._runs.get((topic, queue))
        before = run.last if run else int(offsets[0]) - 1
        for at in np.flatnonzero(np.diff(offsets, prepend=before) != 1).tolist():
            expected = (int(offsets[at - 1]) if at else before) + 1
            if may_begin(name, int(offsets[at]), expected):
                continue
            self._density(entries, int(rows[at]), int(offsets[at]), expected, f"{name}/{queue}")
        if run is None:
            first = int(offsets[0])
            run = self._runs[topic, queue] = QueueRun(name, queue, first, first - 1, 0, int(entries.index[rows[0]]))
        run.last = int(offsets[-1])
        run.count += len(rows)
        self._check_units(run, entries, rows, offsets)

    def _density(self, entries: Columns, row: int, offset: int, expected: int, queue: str) -> None:
        rule = "record.queue-offset" if offset > expected else "record.queue-repeat"
        place = int(entries.offset[row]) + HEADER_BYTES
        proof = f"queue offset {offset} of {queue} follows {expected - 1}"
        self.flaws.append(Flaw(rule, self._task.shown, int(entries.index[row]), place + 20, place + 28, proof))

    def _check_units(self, run: QueueRun, entries: Columns, rows: I64, offsets: I64) -> None:
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high - low > len(rows) + REACH_MAX:
            return
        task = self._task
        folder = f"consumequeue/{run.topic}/{run.queue}"
        try:
            data = read_space(f"{task.root}/{folder}", task.queue_file_bytes, low * QUEUE_UNIT_BYTES, (high + 1) * QUEUE_UNIT_BYTES)
        except OSError as error:
            self._add("file.read", folder, low, int(entries.index[rows[0]]), 0, QUEUE_UNIT_BYTES, f"{error.strerror}")
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
        different: Flags = (stored.view("V20") != wanted.view("V20")) & ~empty
        for at in np.flatnonzero(different).tolist():
            has, wants = stored[at].tobytes(), wanted[at].tobytes()
            start, stop = differing(has, wants)
            place = int(offsets[at]) * QUEUE_UNIT_BYTES % task.queue_file_bytes
            proof = f"{has[start:stop].hex()} instead of {wants[start:stop].hex()}"
            flaw = queue_flaw(task, "queue.unit", folder, int(offsets[at]), int(entries.index[rows[at]]), start, stop, proof)
            self.flaws.append(replace(flaw, torn=bytewise.cut_by_sector(has, wants, place)))
        self._follow(run, entries.index[rows], offsets, empty)

    @staticmethod
    def _follow(run: QueueRun, index: I64, offsets: I64, empty: Flags) -> None:
        waiting, filed = np.flatnonzero(empty), np.flatnonzero(~empty)
        if len(waiting) and run.waiting_offset is None:
            run.waiting_offset, run.waiting_index = int(offsets[waiting[0]]), int(index[waiting[0]])
        if len(filed):
            run.filed_offset, run.filed_index = int(offsets[filed[-1]]), int(index[filed[-1]])

    def _add(self, rule: str, folder: str, offset: int, index: int, start: int, stop: int, proof: str) -> None:
        self.flaws.append(queue_flaw(self._task, rule, folder, offset, index, start, stop, proof))


def queue_flaw(task: LogFile, rule: str, folder: str, offset: int, index: int | None, start: int, stop: int, proof: str) -> Flaw:
    """A flaw at unit `offset` of the consume queue in `folder`."""
    place = offset * QUEUE_UNIT_BYTES
    base = place - place % task.queue_file_bytes
    file = f"{os.path.basename(task.root)}/{folder}/{base:020d}"
    return Flaw(rule, file, index, place - base + start, place - base + stop, proof)


@dataclass(slots=True)
class TailReport:
    """What was seen of one derived space without the log: the end (absolute, exclusive) of its bytes that are not zero, and its flaws."""

    folder: str
    used: int
    last_file: str
    flaws: list[Flaw]
    first_base: int = 0
    """Where the first file begins; files before it are missing, or were trimmed."""


def tails(task: LogFile) -> Iterator[TailReport]:
    """Index files, then every consume queue of a replica: names, lengths, and how far they are written."""
    yield space_tail(task, f"{task.log_folder}/index", task.index_file_bytes)
    queues = f"{task.root}/consumequeue"
    for topic in names_in(queues):
        for queue in names_in(f"{queues}/{topic}"):
            if is_directory(f"{queues}/{topic}/{queue}"):
                yield space_tail(task, f"consumequeue/{topic}/{queue}", task.queue_file_bytes)


def space_tail(task: LogFile, folder: str, file_bytes: int) -> TailReport:
    """Check the files of one derived space and find where its written part ends."""
    report = TailReport(folder, 0, f"{0:020d}", [])
    shown = f"{os.path.basename(task.root)}/{folder}"
    files = numbered_files(f"{task.root}/{folder}")
    expected = report.first_base = next((base for base, _ in files if base % file_bytes == 0), 0)
    for base, name in files:
        if base % file_bytes:
            report.flaws.append(Flaw("file.name", f"{shown}/{name}", None, 0, 0, f"the offset is no multiple of {file_bytes}"))
            continue
        if base != expected:
            proof = f"the next file is {name}"
            report.flaws.append(Flaw("file.missing", f"{shown}/{expected:020d}", None, 0, base - expected, proof))
        expected = base + file_bytes
        try:
            size, last = _length_and_end(f"{task.root}/{folder}/{name}", running=task.end_pos is not None, file_bytes=file_bytes)
            if size != file_bytes:
                bounds = min(size, file_bytes), max(size, file_bytes)
                report.flaws.append(Flaw("file.length", f"{shown}/{name}", None, *bounds, f"{size} bytes instead of {file_bytes}"))
            if last >= 0:
                report.used, report.last_file = base + last + 1, name
        except OSError as error:
            report.flaws.append(Flaw("file.read", f"{shown}/{name}", None, 0, file_bytes, f"{error.strerror}"))
    return report


def _length_and_end(path: str, *, running: bool, file_bytes: int) -> tuple[int, int]:
    """The length of a file, and its last byte that is not zero, or −1. Of a running replica the latter is −1: its files go on behind what
    is looked at. One that is just being made there has its length a moment later. Raises OSError."""
    with open_file(path) as file:
        if not running:
            return file.size, last_nonzero(file, file.size)
        size = file.size
    return (size if size == file_bytes else size_of(path)), -1
