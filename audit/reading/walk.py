"""Finding the entries of one log file: by index units where headers agree with them, otherwise
record by record, past damage if necessary.

Yields pieces: a window of the file with the offsets of whole entries in it. This module checks no
CRCs and judges no entry; it must reach the end of the file whatever the bytes are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.reading.decode import (
    BLANK_MAGIC,
    ENTRY_BYTES_MIN,
    ENTRY_MAGIC,
    HEADER,
    HEADER_BYTES,
    I64,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    crc,
    find_stain,
    gather,
    numbered_files,
    read_space,
)
from ledgermq.audit.reading.files import AnyFile
from ledgermq.audit.reading.native import KERNEL, Kernel, may_ask
from ledgermq.audit.reading.node_paths import STORE
from ledgermq.audit.rules import Flaw

if TYPE_CHECKING:
    from ledgermq_native.audit_scan import Clean

WINDOW_BYTES = 4 << 20
UNITS_AT_ONCE = 1 << 15
POSITIONS = 1 << 63
"""The position field of an entry holds smaller numbers."""
_MAGIC = ENTRY_MAGIC.to_bytes(4, "big")

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""

Take = Callable[[bytes, int, bool], "Clean | None"]
"""Called with a window, its place in the file and whether its first entry directly follows the last
one of the previous piece. It may do all the work for the entries that a piece of this window would
have."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log file to check, with everything needed to do so in another process. Paths in findings
    start with the group's folder."""

    root: str
    group: str
    replica: str
    log_id: str
    log_folder: str
    name: str
    data_file_bytes: int
    index_file_bytes: int
    queue_file_bytes: int
    deep: bool = False
    seed: int | None = None
    """The chain value before the log's first entry; None if neither an identity nor a begin file
    gives it."""
    begin_pos: int = 0
    """Where the log's first file begins: above 0 if it was trimmed."""
    end_pos: int | None = None
    """For a running replica, the end of the checked part of the log. None: the log is checked to
    its end."""
    key: str = ""
    """For a file in an object store, its key; nothing derived lies beside it."""

    def limit(self, length: int) -> int:
        """How many bytes of this file, which has `length` bytes, are checked."""
        return length if self.end_pos is None else min(length, max(self.end_pos - self.base, 0))

    def log_so_far(self, begin_pos: int) -> list[LogFile]:
        """All files of this log, from a position on, as far as they have been written, also behind
        the part that is checked: whatever was read of a running replica before this call speaks of
        entries that are in them."""
        files = numbered_files(f"{self.root}/{self.log_folder}/data")
        return [replace(self, name=name, end_pos=None) for base, name in files if base >= begin_pos]

    @property
    def base(self) -> int:
        return int(self.name)

    @property
    def path(self) -> str:
        return (
            f"{STORE}{self.key}" if self.key else f"{self.root}/{self.log_folder}/data/{self.name}"
        )

    @property
    def index_directory(self) -> str:
        return f"{self.root}/{self.log_folder}/index"

    @property
    def shown(self) -> str:
        """The file as findings name it: its path under the node directory, or its key."""
        return self.key or f"{os.path.basename(self.root)}/{self.log_folder}/data/{self.name}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive entries: `offsets` are positions in `window`, which begins at byte `start` of the
    file.

    The first `count` entries belong to this piece; one more may follow, which belongs to the next
    piece and may be inspected. `joined`: the first entry directly follows the last one of the
    previous piece.
    """

    window: bytes
    start: int
    offsets: I64
    sizes: I64
    rows: NDArray[np.void]
    count: int
    joined: bool


@dataclass(slots=True)
class Walk:
    """The walk over one log file. After `pieces()` is exhausted, `end`, `ending` and `flaws` tell
    how it ended.

    `ending`: "zero" (nothing behind the last entry), "blank", or "tail" (anything else). `end`:
    offset behind the last entry.
    """

    task: LogFile
    file: AnyFile
    length: int
    kernel: Kernel | None = KERNEL
    end: int = 0
    ending: str = "zero"
    flaws: list[Flaw] = field(default_factory=list)
    next_index: int | None = None
    """The index of the next entry, as far as the headers tell."""

    def pieces(
        self, window_bytes: int = WINDOW_BYTES, start: int = 0, take: Take | None = None
    ) -> Iterator[Piece]:
        """Walk from byte `start` on, where an entry must start; behind the checked part there is
        none. No piece is yielded for a window that `take` takes."""
        joined, size, start = False, window_bytes, min(start, self.length)
        while True:
            window = self.file.pread(min(size, self.length - start), start)
            taken = None if take is None else take(window, start, joined)
            if taken is not None:
                self.next_index, more = taken.index + taken.count, taken.more
                start, joined = start + taken.stop, True
            else:
                run = self._find(window, start)
                total, more = len(run.offsets), run.more
                if more and total <= 1:
                    size = max(2 * size, run.stop + run.needed + HEADER_BYTES)
                    continue
                if total:
                    yield self._piece(window, start, run, total - more, joined)
                    start, joined = start + (int(run.offsets[-1]) if more else run.stop), True
            size = window_bytes
            if more:
                continue
            after = self._stuck(start)
            if after is None:
                return
            start, joined = after, False

    def _find(self, window: bytes, start: int) -> Found:
        pos, room = self.task.base + start, self.length - start
        columns = (
            None
            if self.kernel is None or not may_ask(pos, 0)
            else self.kernel.find(window, pos=pos, room=room)
        )
        if columns is None:
            return find_entries(window, pos, room, self._units(window))
        offsets, sizes = (np.frombuffer(column, np.int64) for column in columns[:2])
        return Found(offsets, sizes, *columns[2:])

    def _piece(self, window: bytes, start: int, run: Found, count: int, joined: bool) -> Piece:
        rows = gather(window, run.offsets)
        self.next_index = int(rows["index"][count - 1]) + 1
        return Piece(
            window=window,
            start=start,
            offsets=run.offsets,
            sizes=run.sizes,
            rows=rows,
            count=count,
            joined=joined,
        )

    def _units(self, window: bytes) -> NDArray[np.void]:
        """The index units that should describe the window, read from the unit of the first header's
        index on."""
        if len(window) < HEADER_BYTES or self.task.key:
            return np.empty(0, INDEX_UNIT)
        index = HEADER.unpack_from(window)[2]
        if not 0 <= index < 1 << 48:
            return np.empty(0, INDEX_UNIT)
        try:
            count = min(UNITS_AT_ONCE, len(window) // ENTRY_BYTES_MIN)
            start = index * INDEX_UNIT_BYTES
            data = read_space(
                self.task.index_directory,
                self.task.index_file_bytes,
                start,
                start + count * INDEX_UNIT_BYTES,
            )
        except OSError:
            # The index is only an aid here; that it is unreadable is reported where it is checked.
            data = b""
        return np.frombuffer(data, INDEX_UNIT, len(data) // INDEX_UNIT_BYTES)

    def _stuck(self, offset: int) -> int | None:
        """There is no entry at `offset`: record what is there, and return where entries continue,
        or None at the end of the file."""
        self.end = offset
        rest = self.length - offset
        head = self.file.pread(8, offset)
        magic, size = (
            (int.from_bytes(head[:4], "big", signed=True), int.from_bytes(head[4:8], "big"))
            if len(head) == 8
            else (0, 0)
        )
        if rest == 0 or (
            magic == 0 and size == 0 and find_stain(self.file, offset, self.length) is None
        ):
            self.ending = "zero"
            return None
        if magic == BLANK_MAGIC or (size == rest and magic != ENTRY_MAGIC):
            self._check_blank(offset, magic, size, rest)
            return None
        after = find_header(self.file, self.task.base, offset + 1, self.length)
        stop = self.length if after is None else after
        stain = find_stain(self.file, offset, stop)
        if after is not None:
            proof = f"no entry can be read here; the next one is at byte {after}"
            self.flaws.append(
                Flaw(
                    "entry.unreadable",
                    self.task.shown,
                    index=self.next_index,
                    byte_from=offset,
                    byte_to=after,
                    proof=proof,
                    torn=True,
                )
            )
            return after
        assert stain is not None
        self.ending = "tail"
        proof = (
            f"the log ends at byte {offset}, but bytes up to {stain.last} behind it are not zero"
        )
        self.flaws.append(
            Flaw(
                "tail.zero",
                self.task.shown,
                index=self.next_index,
                byte_from=stain.first,
                byte_to=stain.last + 1,
                proof=proof,
                torn=not stain.stray and self._whole(),
            )
        )
        return None

    def _whole(self) -> bool:
        return self.length == self.task.data_file_bytes

    def _check_blank(self, offset: int, magic: int, size: int, rest: int) -> None:
        self.ending = "blank"
        shown = self.task.shown
        if magic != BLANK_MAGIC:
            self.flaws.append(
                Flaw(
                    "blank.magic",
                    shown,
                    index=self.next_index,
                    byte_from=offset,
                    byte_to=offset + 4,
                    proof=f"magic {magic} instead of -1",
                )
            )
        if size != rest:
            self.flaws.append(
                Flaw(
                    "blank.size",
                    shown,
                    index=self.next_index,
                    byte_from=offset + 4,
                    byte_to=offset + 8,
                    proof=f"length {size} instead of {rest}",
                )
            )
        stain = find_stain(self.file, min(offset + 8, self.length), self.length)
        if stain is not None:
            proof = "the blank is not zero behind its first 8 bytes"
            self.flaws.append(
                Flaw(
                    "blank.fill",
                    shown,
                    index=self.next_index,
                    byte_from=stain.first,
                    byte_to=stain.last + 1,
                    proof=proof,
                )
            )


@dataclass(frozen=True, slots=True)
class Found:
    """Entries found in a window. `stop` is the offset behind the last; `more`: the window, not the
    log, ends there; `needed`: bytes needed."""

    offsets: I64
    sizes: I64
    stop: int
    more: bool
    needed: int


def find_entries(window: bytes, pos: int, room: int, units: NDArray[np.void]) -> Found:
    """The entries from the start of `window`, which is at absolute position `pos`, `room` bytes
    before the end of its file. A file whose name puts it behind every position has none."""
    if pos + room > POSITIONS:
        return Found(np.empty(0, np.int64), np.empty(0, np.int64), 0, False, 0)
    offsets, sizes = by_units(window, pos, units)
    at = int(offsets[-1] + sizes[-1]) if len(offsets) else 0
    more_offsets: list[int] = []
    more_sizes: list[int] = []
    reach = len(window)
    needed = 0
    more = reach < room
    while True:
        if at + ENTRY_BYTES_MIN > reach:
            needed = ENTRY_BYTES_MIN
            break
        size = entry_size(window, at, pos, room)
        if size == 0:
            # Near the end of a window, the bytes that would confirm a damaged header may be
            # missing: try again with a later window.
            more = more and 2 * at > reach
            break
        if at + size > reach:
            needed = size
            break
        more_offsets.append(at)
        more_sizes.append(size)
        at += size
    joined = np.concatenate([offsets, np.array(more_offsets, np.int64)])
    return Found(joined, np.concatenate([sizes, np.array(more_sizes, np.int64)]), at, more, needed)


def by_units(window: bytes, pos: int, units: NDArray[np.void]) -> tuple[I64, I64]:
    """The entries that index units and headers describe alike, from the start of the window; none
    if the first disagrees."""
    offsets: I64 = units["pos"].astype(np.int64) - pos
    sizes: I64 = units["size"].astype(np.int64)
    ends = offsets + sizes
    good = (
        (units["magic"] == ENTRY_MAGIC)
        & (sizes >= ENTRY_BYTES_MIN)
        & (ends <= len(window))
        & (offsets >= 0)
    )
    good &= offsets == np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
    count = len(good) if good.all() else int(np.argmin(good))
    rows = gather(window, offsets[:count]) if count else np.empty(0, np.void)
    if count:
        same = (
            (rows["magic"] == ENTRY_MAGIC)
            & (rows["size"] == sizes[:count])
            & (rows["body_size"] == sizes[:count] - HEADER_BYTES)
        )
        count = count if same.all() else int(np.argmin(same))
    return offsets[:count], sizes[:count]


def entry_size(window: bytes, at: int, pos: int, room: int) -> int:
    """The size of the entry at `at`; 0 if there is none.

    A header with one wrong field still counts: either of its two size fields is accepted if the
    bytes it leads to confirm it.
    """
    magic, size, _, _, own_pos, _, _, body_crc, body_size = HEADER.unpack_from(window, at)
    limit = room - at
    if size == body_size + HEADER_BYTES and (magic == ENTRY_MAGIC or own_pos == pos + at):
        return size if ENTRY_BYTES_MIN <= size <= limit else 0
    for candidate in (size, body_size + HEADER_BYTES):
        if ENTRY_BYTES_MIN <= candidate <= limit and own_pos == pos + at:
            after = at + candidate
            if (
                starts_record(window, after, pos, room)
                or crc(memoryview(window)[at + HEADER_BYTES : after]) == body_crc
            ):
                return int(candidate)
    return 0


def starts_record(window: bytes, at: int, pos: int, room: int) -> bool:
    """Whether `at` holds an entry with its correct position, or a blank with its correct length."""
    if at + HEADER_BYTES <= len(window):
        magic, size, _, _, own_pos, _, _, _, body_size = HEADER.unpack_from(window, at)
        if magic == ENTRY_MAGIC and own_pos == pos + at and size == body_size + HEADER_BYTES:
            return True
    head = window[at : at + 8]
    return head == BLANK_MAGIC.to_bytes(4, "big", signed=True) + max(
        0, min(room - at, (1 << 31) - 1)
    ).to_bytes(4, "big")


def find_header(file: AnyFile, base: int, start: int, end: int, step: int = 4 << 20) -> int | None:
    """The next offset from `start` on of an entry with its correct position and size."""
    for offset in range(start, end, step):
        data = file.pread(min(step + HEADER_BYTES, end - offset), offset)
        at = data.find(_MAGIC)
        while 0 <= at < step and at + HEADER_BYTES <= len(data):
            if starts_record(data, at, base + offset, 0):
                return offset + at
            at = data.find(_MAGIC, at + 1)
    return None
