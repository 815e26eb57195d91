"""Reading whole entries at given positions of the log, for readers beside its owner, with as few
reads and copies as possible.

Positions come from a consume queue, ascending. Adjacent entries are one read and stay one piece. If
entries of other queues lie between them, the log is read in blocks that the next queue can reuse:
queues that were written together are then read together. All reads go through `LogReader`: `pread`
only, within its limits (a file that lost its blocks gives an error, not a signal). The headers of
entries are compared with the request; the consumer of the bytes verifies their checksums.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ledgermq.proto.entries.layout import ENTRY_MAGIC, HEADER_BYTES, PREFIX, windows
from ledgermq.proto.types import I32, I64
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.log.ports import Entries

BLOCK_BYTES = 1 << 20
BLOCKS_MAX = 16
OVER_BYTES = 64 << 10
"""A block read is extended by this much, for entries that begin in the block and end behind it;
longer ones are read by themselves."""
LONG_RUN_BYTES = 64 << 10
"""Runs at least this long on average are read one by one."""
SPAN_BYTES = 8 << 20
"""One call reads at most this much of the log, however little of it was requested."""
_ALIKE_MAX = 4096
_FEW = 16
_HEAD = np.dtype(PREFIX.descr[: [name for name, *_ in PREFIX.descr].index("physical_offset") + 1])
"""The part of an entry's header that identifies the entry."""
_HEAD_BYTES = np.dtype(f"V{_HEAD.itemsize}")

Piece = bytes | memoryview


def gather(data: Piece, starts: I64, sizes: I32) -> list[Piece]:
    """The entries at `starts` of `data`, in order, as pieces to join: a single piece if they are
    adjacent or have equal length."""
    view = memoryview(data)
    first, size = int(starts[0]), int(sizes[0])
    if bool((starts[1:] == starts[:-1] + sizes[:-1]).all()):
        return [view[first : int(starts[-1]) + int(sizes[-1])]]
    if len(starts) > _FEW and size <= _ALIKE_MAX and bool((sizes == size).all()):
        window = np.ndarray((len(view) - size + 1,), f"V{size}", view, 0, (1,))
        return [window[starts].tobytes()]
    bounds = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
    begins, ends = (
        starts[np.concatenate(([0], bounds))],
        (starts + sizes)[np.concatenate((bounds - 1, [-1]))],
    )
    return [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested entries."""

    positions: I64
    sizes: I32
    queue: int
    first_offset: int

    def compare(self, data: Piece, pos: int, low: int, high: int) -> None:
        """Check that `data`, read at `pos`, has the headers of the entries low … high−1 at their
        positions. Raises LogDamaged."""
        positions = self.positions[low:high]
        heads = windows(data, _HEAD_BYTES)[positions - pos].view(_HEAD)
        good = (
            (heads["magic"] == ENTRY_MAGIC)
            & (heads["size"] == self.sizes[low:high])
            & (heads["pos"] == positions)
        )
        good &= (heads["physical_offset"] == positions + HEADER_BYTES) & (
            heads["queue"] == self.queue
        )
        good &= heads["queue_offset"] == np.arange(
            self.first_offset + low, self.first_offset + high
        )
        if not bool(good.all()):
            at = int(positions[int(good.argmin())])
            raise LogDamaged(
                f"the entry at {at} is not what was stored there: run the audit on this replica"
            )


class EntryReader:
    """Reads entries of one broker group's log. Any thread; memory is bounded by `BLOCKS_MAX`
    blocks."""

    def __init__(self, reader: Entries, file_bytes: int) -> None:
        self.reader = reader
        self._file_bytes = file_bytes
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def fits(self, positions: I64, sizes: I32, max_bytes: int) -> int:
        """How many of these entries fit one answer: at least one, within `max_bytes` and the limit
        of one call."""
        count = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), max_bytes, side="right"))
        reach = int(
            np.searchsorted(
                positions + sizes, int(positions[0]) + max(SPAN_BYTES, max_bytes), side="right"
            )
        )
        return max(1, min(count, reach))

    def read(self, positions: I64, sizes: I32, queue: int, first_offset: int) -> list[Piece] | None:
        """The entries at these ascending positions, which belong to one queue from `first_offset`
        on, as pieces to join. None if retention removed some of them. Raises OSError,
        LogDamaged."""
        wanted = Wanted(positions, sizes, queue, first_offset)
        breaks = np.flatnonzero(positions[1:] != positions[:-1] + sizes[:-1]) + 1
        runs = len(breaks) + 1
        total = int(sizes.sum(dtype=np.int64))
        if runs > 1 and total < runs * LONG_RUN_BYTES:
            return self._from_blocks(wanted)
        pieces: list[Piece] = []
        bounds = [0, *breaks.tolist(), len(positions)]
        for low, high in pairwise(bounds):
            pos = int(positions[low])
            piece = self._exactly(pos, int(positions[high - 1]) + int(sizes[high - 1]) - pos)
            if piece is None:
                return None
            wanted.compare(piece, pos, low, high)
            pieces.append(piece)
        return pieces

    def _from_blocks(self, wanted: Wanted) -> list[Piece] | None:
        positions, sizes = wanted.positions, wanted.sizes
        pieces: list[Piece] = []
        inside = positions % self._file_bytes
        blocks = positions - inside % BLOCK_BYTES
        bounds = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(positions)]
        for low, high in pairwise(bounds):
            base = int(blocks[low])
            starts, lengths = positions[low:high] - base, sizes[low:high]
            ends = starts + lengths
            # Positions ascend, so only the last entry that begins in a block can end far behind it.
            long = int(ends[-1]) > BLOCK_BYTES + OVER_BYTES
            last = len(starts) - 1 if long else len(starts)
            if last:
                block = self._block(base, int(ends[last - 1]))
                if block is None:
                    return None
                wanted.compare(block, base, low, low + last)
                pieces += gather(block, starts[:last], lengths[:last])
            if long:
                piece = self._exactly(int(positions[high - 1]), int(lengths[-1]))
                if piece is None:
                    return None
                wanted.compare(piece, int(positions[high - 1]), high - 1, high)
                pieces.append(piece)
        return pieces

    def _block(self, base: int, needed: int) -> bytes | None:
        """The block at a position, at least `needed` bytes of it."""
        with self._lock:
            block = self._blocks.get(base)
            if block is not None and len(block) >= needed:
                self._blocks.move_to_end(base)
                return block
        block = self.reader.record_bytes(base, BLOCK_BYTES + OVER_BYTES)
        if block is None:
            return None
        if len(block) < needed:
            raise LogDamaged(
                f"the log file at {base} ends after {len(block)} bytes inside an entry: restart the"
                " node, which verifies it"
            )
        with self._lock:
            self._blocks[base] = block
            if len(self._blocks) > BLOCKS_MAX:
                self._blocks.popitem(last=False)
        return block

    def _exactly(self, pos: int, length: int) -> bytes | None:
        data = self.reader.record_bytes(pos, length)
        if data is not None and len(data) != length:
            raise LogDamaged(
                f"the log ends inside the entries at {pos}: restart the node, which verifies it"
            )
        return data
