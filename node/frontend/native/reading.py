"""Reads committed entries of a broker group for readers, without delaying the engine's turns.

There are three sources, from new to old. The window of recently applied ranges
(`node/broker/recent.py`) has views of the mapped file that this process wrote. The consume queues
that still wait in memory are read in small steps, only between two turns. The files are read with
`pread` on a separate thread, however long the disk takes. Every source returns the same entries,
because committed entries never change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ledgermq.node.broker.recent import Recent
from ledgermq.node.frontend.native.answers import Batch
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto.entries.layout import ENTRY_MIN_BYTES, HEADER_BYTES
from ledgermq.proto.records.time_epochs import TimeEpochs
from ledgermq.proto.types import I32, I64
from ledgermq.storage.log.entry_reader import EntryReader, Piece
from ledgermq.storage.queues.queue_reader import QueueReader

UNITS_MAX = 8192
"""The most units of a consume queue that are read at once."""
WAITING_UNITS_MAX = 512
"""The most units that are read between two turns of the engine."""


_STORE_MS_AT = 56
"""Offset of the store time in an entry with a message record."""
_LATEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Ends:
    """The bounds of a topic's queues, as of an applied index. `begins`, `ends` and `floors` are
    indexed by queue id; `floors`: where the queues would begin if nothing had been trimmed."""

    applied_index: int
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    incarnation: int
    floors: tuple[int, ...]


def read_ends(hosted: RunningReplica, topic: str) -> Ends | None:
    """The bounds of a topic's queues; None if the topic is not in force. Runs between two turns."""
    machine = hosted.machine
    config = machine.topics.get(topic)
    if config is None:
        return None
    queues = range(config.queues)
    begins = tuple([machine.begin(topic, queue) for queue in queues])
    floors = tuple([machine.floor(topic, queue) for queue in queues])
    return Ends(
        machine.applied_index, begins, machine.queue_ends()[topic], config.incarnation, floors
    )


def waiting(
    topic: str, queue: int, first: int, stop: int, max_bytes: int, *, anyway: bool = False
) -> Callable[[Any], int | Batch | None]:
    """Reads entries of a queue whose units wait in memory; runs between two turns. Returns the
    number of units in the files if `first` is among them, unless `anyway` is set; None if retention
    removed `first`. `first` is below `stop`, which is applied."""

    def read(hosted: RunningReplica) -> int | Batch | None:
        machine, store = hosted.machine, hosted.store
        written: int = store.queues.written_offset(topic, queue)
        if first < written and not anyway:
            return written
        if first < machine.begin(topic, queue):
            return None
        count = min(stop - first, WAITING_UNITS_MAX)
        positions, sizes = _entries_of(*machine.units(topic, queue, first, count)[:2])
        fits = max(
            1, int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), max_bytes, side="right"))
        )
        positions, sizes = positions[:fits], sizes[:fits]
        breaks = (np.flatnonzero(positions[1:] != positions[:-1] + sizes[:-1]) + 1).tolist()
        pieces: list[Piece] = []
        for low, high in zip([0, *breaks], [*breaks, len(positions)], strict=True):
            pos = int(positions[low])
            pieces.append(
                store.log.record_at(pos, int(positions[high - 1]) + int(sizes[high - 1]) - pos)
            )
        return Batch(
            queue=queue,
            first_offset=first,
            sizes=sizes,
            pieces=pieces,
            source="waiting",
            pos=_behind(positions, sizes),
        )

    return read


def _entries_of(physical_offsets: I64, record_sizes: I32) -> tuple[I64, I32]:
    """Positions and sizes of the entries that hold these records."""
    return physical_offsets - HEADER_BYTES, record_sizes + np.int32(HEADER_BYTES)


def _behind(positions: I64, sizes: I32) -> int:
    return int(positions[-1]) + int(sizes[-1])


class Files:
    """The files of one broker group; usable from any thread."""

    def __init__(self, queues: QueueReader, entries: EntryReader) -> None:
        self._queues = queues
        self._entries = entries

    def belong_to(self, hosted: RunningReplica) -> bool:
        """Whether these files belong to the current life of the group's replica."""
        return self._entries.reader is hosted.reader

    def read(self, topic: str, queue: int, first: int, stop: int, max_bytes: int) -> Batch | None:
        """Entries of a queue from `first` on, below `stop`: at least one, then within `max_bytes`.
        None if retention removed the first. An empty batch if the log's file is not known to hold
        it yet. Raises OSError, LogDamaged."""
        units = self._queues.read(
            topic, queue, first, min(stop - first, UNITS_MAX, max_bytes // ENTRY_MIN_BYTES + 1)
        )
        if units is None:
            return None
        positions, sizes = _entries_of(units.physical_offsets, units.sizes)
        known = int(
            np.searchsorted(positions + sizes, self._entries.reader.limits.end_pos, side="right")
        )
        if known == 0:
            return Batch(queue, first, sizes[:0], [], "cold")
        count = self._entries.fits(positions[:known], sizes[:known], max_bytes)
        positions, sizes = positions[:count], sizes[:count]
        pieces = self._entries.read(positions, sizes, queue, first)
        return (
            None
            if pieces is None
            else Batch(
                queue=queue,
                first_offset=first,
                sizes=sizes,
                pieces=pieces,
                source="cold",
                pos=_behind(positions, sizes),
            )
        )

    def offset_at(
        self, topic: str, queue: int, low: int, high: int, store_ms: int, epochs: TimeEpochs
    ) -> int:
        """The first offset in low … high−1 that counts as stored at `store_ms` or later; `high` if
        there is none. Raises OSError, LogDamaged."""

        def stored(offset: int) -> int:
            units = self._queues.read(topic, queue, offset, 1)
            if units is None:
                # Retention removed it: it is older than every retained message.
                return -1
            position = int(units.physical_offsets[0])
            data = self._entries.reader.record_bytes(position + _STORE_MS_AT, 8)
            # Committed, but not in this file yet: newer than every message in it.
            return (
                -1
                if data is None
                else epochs.counted(int.from_bytes(data, "big"), position)
                if len(data) == 8
                else _LATEST
            )

        return low + bisect_left(range(low, high), store_ms, key=stored)

    def read_log(self, first_index: int, max_bytes: int) -> Batch | None:
        """Entries of the log from an index on; empty if they cannot be read yet, None if retention
        removed the first. Raises OSError, LogDamaged."""
        reader = self._entries.reader
        if first_index >= reader.limits.end_index:
            return Batch(-1, first_index, np.zeros(0, np.int32), [], "cold")
        piece = reader.read(first_index, max_bytes)
        return None if piece is None else Batch(-1, first_index, piece.sizes, [piece.data], "cold")


def files_of(hosted: RunningReplica) -> Files:
    """The files of a running group. Runs between two turns."""
    store = hosted.store
    queues = QueueReader(
        store.disk, store.queues.directory, store.identity.consume_queue_file_bytes
    )
    return Files(queues, EntryReader(hosted.reader, store.identity.data_file_bytes))


def recent_of(hosted: RunningReplica) -> Recent:
    """The window of a running group, which is kept from now on. Runs between two turns."""
    recent: Recent = hosted.group.keep_recent()
    return recent
