"""The views `index` and `consumequeue`: one row per written unit, as stored; nothing is compared
with the log.

Units that were never written, and units that a trim blanked, have no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import (
    I64,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    QUEUE_UNIT,
    QUEUE_UNIT_BYTES,
    Flags,
    numbered_files,
)
from ledgermq.audit.reading.files import is_directory, names_in, open_file
from ledgermq.audit.reading.ranges import Span
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.spark.views.view import Batch, Share
from ledgermq.audit.spark.views.wanted import GROUP, INDEX, OFFSET, REPLICA, TOPIC, Wanted

UNITS_AT_ONCE = 1 << 16
FILES_A_SHARE = 64
BLANK_SIZE = 0x7FFFFFFF


def read_units(
    path: str, base: int, kind: np.dtype[np.void], span: Span
) -> Iterator[tuple[I64, NDArray[np.void]]]:
    """The nonzero units of one file of a sparse space whose numbers are in the span: (numbers,
    units). Raises OSError."""
    width = kind.itemsize
    with open_file(path) as file:
        length = file.size - file.size % width
        low = 0 if span.low is None else max(span.low * width - base, 0)
        high = length if span.high is None else min((span.high + 1) * width - base, length)
        for begin, stop in file.stretches(low, high):
            begin, stop = begin - begin % width, min(stop + -stop % width, length)
            for at in range(begin, stop, UNITS_AT_ONCE * width):
                data = file.pread(min(UNITS_AT_ONCE * width, stop - at), at)
                units = np.frombuffer(data, kind, len(data) // width)
                written = np.flatnonzero(
                    units.view(np.uint8).reshape(len(units), width).any(axis=1)
                )
                numbers = (base + at) // width + written
                held = span.holds(numbers)
                if held.any():
                    yield numbers[held], units[written[held]]


class IndexView:
    """Index files (docs/format.md §5). `unit` is the number of the unit: the index of the entry it
    should describe."""

    columns: Mapping[str, str] = {
        "replica": "string",
        "group": "string",
        "file": "string",
        "unit": "bigint",
        "magic": "int",
        "pos": "bigint",
        "size": "int",
        "index": "bigint",
        "term": "bigint",
    }
    bounds: Mapping[str, str] = {"replica": REPLICA, "group": GROUP, "unit": INDEX}
    kinds = frozenset({INDEX})

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        task = replica.task(f"{0:020d}")
        span = _bytes(wanted.span(INDEX), INDEX_UNIT_BYTES)
        names = [
            name
            for base, name in numbered_files(task.index_directory)
            if span.meets(base, base + task.index_file_bytes - 1)
        ]
        return [Share(replica.directory, task, replica.begin.index, (name,)) for name in names]

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        task, name = share.task, share.names[0]
        # Units of trimmed entries have no meaning; `start` is the first entry of the log.
        span = wanted.span(INDEX).within(Span(share.start, None))
        for numbers, units in read_units(
            f"{task.index_directory}/{name}", int(name), INDEX_UNIT, span
        ):
            kept = _looked_at(task, units)
            if kept.any():
                yield self._batch(share, name, numbers[kept], units[kept])

    @staticmethod
    def _batch(share: Share, name: str, numbers: I64, units: NDArray[np.void]) -> Batch:
        task = share.task
        shown = f"{task.group}/{task.log_folder}/index/{name}"
        return Batch(
            len(numbers),
            {
                "replica": lambda: task.replica,
                "group": lambda: task.group,
                "file": lambda: shown,
                "unit": lambda: numbers,
                **_fields(units),
            },
        )


class QueueView:
    """Consume queues (docs/format.md §6). `pos` is the physical offset: the position of the entry
    plus 48."""

    columns: Mapping[str, str] = {
        "replica": "string",
        "group": "string",
        "file": "string",
        "topic": "string",
        "queue": "int",
        "queue_offset": "bigint",
        "pos": "bigint",
        "size": "int",
        "tags_code": "bigint",
    }
    bounds: Mapping[str, str] = {
        "replica": REPLICA,
        "group": GROUP,
        "topic": TOPIC,
        "queue_offset": OFFSET,
    }
    kinds = frozenset({TOPIC})

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        task = replica.task(f"{0:020d}")
        paths = list(self._paths(replica, wanted))
        return [
            Share(replica.directory, task, 0, tuple(paths[at : at + FILES_A_SHARE]))
            for at in range(0, len(paths), FILES_A_SHARE)
        ]

    @staticmethod
    def _paths(replica: Replica, wanted: Wanted) -> Iterator[str]:
        """Topic, queue and name of every file that may have wanted units."""
        root = f"{replica.root}/consumequeue"
        span = _bytes(wanted.span(OFFSET), QUEUE_UNIT_BYTES)
        topics: Sequence[str] = names_in(root) if wanted.topics is None else sorted(wanted.topics)
        for topic in topics:
            for queue in names_in(f"{root}/{topic}"):
                if not (queue.isascii() and queue.isdigit()) or not is_directory(
                    f"{root}/{topic}/{queue}"
                ):
                    continue
                for base, name in numbered_files(f"{root}/{topic}/{queue}"):
                    if span.meets(base, base + replica.sizes[2] - 1):
                        yield f"{topic}/{queue}/{name}"

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        task = share.task
        for path in share.names:
            topic, queue, name = path.rsplit("/", 2)
            for numbers, units in read_units(
                f"{task.root}/consumequeue/{path}", int(name), QUEUE_UNIT, wanted.span(OFFSET)
            ):
                kept = (units["size"] != BLANK_SIZE) & _looked_at(task, units)
                if kept.any():
                    yield self._batch(share, path, (topic, int(queue)), numbers[kept], units[kept])

    @staticmethod
    def _batch(
        share: Share, path: str, place: tuple[str, int], numbers: I64, units: NDArray[np.void]
    ) -> Batch:
        task = share.task
        topic, queue = place
        return Batch(
            len(numbers),
            {
                "replica": lambda: task.replica,
                "group": lambda: task.group,
                "file": lambda: f"{task.group}/consumequeue/{path}",
                "topic": lambda: topic,
                "queue": lambda: queue,
                "queue_offset": lambda: pa.array(numbers),
                **_fields(units),
            },
        )


def _looked_at(task: LogFile, units: NDArray[np.void]) -> Flags:
    """Which units are before the end of the checked part of a running replica."""
    flags: Flags = (
        np.ones(len(units), np.bool_) if task.end_pos is None else units["pos"] < task.end_pos
    )
    return flags


def _fields(units: NDArray[np.void]) -> dict[str, Callable[[], I64]]:
    """The fields of units as columns."""
    return {name: partial(_field, units, name) for name in units.dtype.names or ()}


def _field(units: NDArray[np.void], name: str) -> I64:
    column: I64 = units[name].astype(np.int64)
    return column


def _bytes(span: Span, width: int) -> Span:
    """A span of units as a span of bytes."""
    return Span(
        None if span.low is None else span.low * width,
        None if span.high is None else (span.high + 1) * width - 1,
    )
