"""Reads the entries of one log from the object store, below where the log begins on the local disk.

The bytes are verified (`stored_parts.py`), and the manifests are linked to the local log
(`catalogue.py`). Positions come from index parts, which are claims: entries are compared with the
queue and the offset, or the index, that was asked for, and offsets are dense, so that an index part
that leaves something out is noticed.

Methods block and belong on threads that nothing else waits for. A store that is away raises
StoreFailure, wrong content WrongObject.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ledgermq.proto.entries.layout import ENTRY_MAGIC, HEADER_BYTES, split_record
from ledgermq.proto.records.time_epochs import NO_EPOCHS, TimeEpochs
from ledgermq.proto.types import I32, I64
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.file_digest import CHUNK_BYTES
from ledgermq.storage.keys.lookup import Found, Lookup
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.log.entry_reader import EntryReader, Piece
from ledgermq.storage.log.log_reader import Limits
from ledgermq.storage.log.log_reader import Piece as LogPiece
from ledgermq.storage.tiered.begins import stored_begin
from ledgermq.storage.tiered.index_part import BLOCK_ROWS, KEY, UNIT, IndexHead, QueueRows
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import Events, ObjectMissing, StoreFailure
from ledgermq.storage.tiered.stored_parts import Ranges, StoredParts

UNITS_MAX = 8192
GUESSES = 3
_HEAD = struct.Struct(">iiq")
_STORE_MS_AT = HEADER_BYTES + 56

T = TypeVar("T")


class NotHere(StoreFailure):
    """This node does not know yet where the store holds the entries."""


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """Consecutive entries of a queue from `first` on, as pieces of the log; `pos`: behind the last
    one. `first` is higher than what was asked for only if the store begins behind it."""

    first: int
    sizes: I32
    pieces: list[Piece]
    pos: int

    def entries(self) -> Iterator[bytes]:
        """The entries, one by one."""
        data = (
            memoryview(self.pieces[0])
            if len(self.pieces) == 1
            else memoryview(b"".join(self.pieces))
        )
        at = 0
        for size in self.sizes.tolist():
            yield bytes(data[at : at + size])
            at += size

    def records(self) -> Iterator[bytes]:
        """The message records, one by one."""
        return (entry[HEADER_BYTES:] for entry in self.entries())


@dataclass(frozen=True, slots=True)
class LocalBegin:
    """Where the local log begins: the first offset of one queue there, and the position of the
    first file."""

    offset: int
    pos: int
    time_epochs: TimeEpochs = NO_EPOCHS
    """Those of the whole log."""


@dataclass(frozen=True, slots=True)
class _KeysBelow:
    """The keys of messages before a position, as `Lookup` asks for them."""

    reader: TierReader
    below: int

    def find(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        return self.reader.positions_with_hash(hash_, begin_ms, end_ms, self.below)


@dataclass(frozen=True, slots=True)
class _Linked:
    """What is linked at one moment. A read that takes seconds must not meet the files of one moment
    with the `whole` of a later one: what was linked in between would look as if the store did not
    have it."""

    files: tuple[FileManifest, ...] = ()
    whole: bool = False


class TierReader:
    """The stored files of one log."""

    def __init__(self, ranges: Ranges, where: str, file_bytes: int, events: Events) -> None:
        self._linked = _Linked()
        self.problem = "the object store has not been asked yet"
        """If `files` are not whole: why not."""
        self._begin_pos = 0
        self._parts = StoredParts(ranges, where, events)
        self._store = ranges.store
        self._where = where
        self._file_bytes = file_bytes
        self._lock = threading.Lock()
        self._entries = EntryReader(self, file_bytes)

    # -- where it begins and ends

    @property
    def files(self) -> tuple[FileManifest, ...]:
        """The linked files, oldest first, without a gap."""
        return self._linked.files

    @property
    def whole(self) -> bool:
        """Whether `files` begin with the first file in the store."""
        return self._linked.whole

    @property
    def limits(self) -> Limits:
        files = self.files
        if not files:
            return Limits()
        first, last = files[0], files[-1]
        return Limits(first.first, last.last + 1, last.end, first.base)

    def first_index(self) -> int:
        """The first entry that the store holds. Raises StoreFailure if it is not known."""
        linked = self._linked
        self._require_whole(linked)
        if not linked.files:
            raise NotHere(f"{self._store.place} holds no file of this log yet")
        return linked.files[0].first

    def first_offset(self, topic: str, queue: int, floor: int, local: LocalBegin) -> int:
        """The first offset of a queue from `floor` on that the store holds; that of the local log
        if the store holds none. Raises StoreFailure, WrongObject, OSError."""
        if floor >= local.offset:
            return local.offset
        place = self._again_if_trimmed(lambda: self._place(topic, queue, floor, local))
        return local.offset if place is None else max(floor, place[1].first)

    def _require_whole(self, linked: _Linked) -> None:
        if not linked.whole:
            raise NotHere(
                f"this node does not know all files in {self._store.place} yet: {self.problem}"
            )

    def _again_if_trimmed(self, work: Callable[[], T]) -> T:
        """Repeat the work if an object is missing that total retention has removed meanwhile."""
        first = self.files[:1]
        try:
            return work()
        except ObjectMissing as missing:
            self._renew()
            if self.files[:1] == first:
                raise self._parts.wrong(str(missing)) from missing
        return work()

    def link_files(self, files: tuple[FileManifest, ...], *, whole: bool) -> None:
        """These files are linked now. `whole`: they begin with the first file in the store."""
        with self._lock:
            self._linked = _Linked(
                tuple([file for file in files if file.base >= self._begin_pos]), whole
            )

    def _renew(self) -> None:
        """Total retention may have removed files since this node looked last."""
        first = self.files[0]
        described = Begin(first.first, first.base, first.term, first.chain)
        begin_pos = stored_begin(self._store, self._where, described).pos
        with self._lock:
            self._begin_pos = max(self._begin_pos, begin_pos)
            linked = self._linked
            self._linked = _Linked(
                tuple([file for file in linked.files if file.base >= self._begin_pos]), linked.whole
            )

    # -- queues

    def entries(
        self,
        topic: str,
        queue: int,
        first: int,
        local: LocalBegin,
        max_bytes: int,
        count: int = UNITS_MAX,
    ) -> QueueEntries | None:
        """Entries of a queue from `first` on, before those of the local log: at least one, then at
        most `count` within `max_bytes`, of one file. None if the store has none. Raises
        StoreFailure, WrongObject, OSError."""
        return self._again_if_trimmed(
            lambda: self._read_entries(topic, queue, first, local, max_bytes, count=count)
        )

    def _read_entries(
        self, topic: str, queue: int, first: int, local: LocalBegin, max_bytes: int, count: int
    ) -> QueueEntries | None:
        place = self._place(topic, queue, first, local)
        if place is None:
            return None
        file, rows = place
        first = max(first, rows.first)
        units = self._parts.rows(
            file,
            UNIT,
            rows.row + first - rows.first,
            min(count, min(local.offset, rows.last + 1) - first),
        )
        positions: I64 = units["pos"].astype(np.int64)
        sizes: I32 = units["size"].astype(np.int32)
        if (
            int(positions[0]) < file.base
            or int(positions[-1]) + int(sizes[-1]) > file.end
            or int(sizes.min()) <= HEADER_BYTES
        ):
            raise self._parts.wrong_index(
                file, f"queue {queue} of topic {topic} outside of the file"
            )
        fits = self._entries.fits(positions, sizes, max_bytes)
        positions, sizes = positions[:fits], sizes[:fits]
        try:
            data = self._entries.read(positions, sizes, queue, first)
        except LogDamaged as damage:
            raise self._parts.wrong_index(file, str(damage)) from damage
        if data is None:
            raise ObjectMissing(f"the file at {file.base} is no longer in {self._store.place}")
        entries = QueueEntries(first, sizes, data, int(positions[-1]) + int(sizes[-1]))
        self._require_topic(file, entries, topic)
        return entries

    def _require_topic(self, file: FileManifest, entries: QueueEntries, topic: str) -> None:
        """The position, the queue and the offset of every entry were compared; queues of two topics
        may have all of them in common."""
        name = topic.encode()
        for record in entries.records():
            _, begin, end, _ = split_record(record)
            if record[begin:end] != name:
                raise self._parts.wrong_index(file, f"an entry of another topic as one of {topic}")

    def offset_at(self, topic: str, queue: int, low: int, local: LocalBegin, store_ms: int) -> int:
        """The first offset from `low` on that counts as stored at `store_ms` or later; that of the
        local log if the store has none. Raises StoreFailure, WrongObject, OSError."""
        return self._again_if_trimmed(lambda: self._offset_at(topic, queue, low, local, store_ms))

    def _offset_at(self, topic: str, queue: int, low: int, local: LocalBegin, store_ms: int) -> int:
        linked, counted = self._linked, local.time_epochs.counted
        files = linked.files
        number = bisect_left(files, store_ms, key=lambda file: file.counted_ms(local.time_epochs))
        if number == 0:
            self._require_whole(linked)
        for file in files[number:]:
            if file.base >= local.pos:
                break
            head = self._parts.head(file)
            rows = head.queues.get((topic, queue))
            if rows is None or rows.last < low:
                continue
            # The marks of the chunks tell where the time lies in the file; within one chunk the
            # entries themselves are asked.
            mark = bisect_left(head.marks, store_ms, key=lambda mark: counted(mark[2], mark[1]))
            offsets = range(max(low, rows.first), min(local.offset, rows.last + 1))
            begin = bisect_left(
                offsets,
                head.marks[mark - 1][1] if mark else 0,
                key=lambda o: self._pos_of(file, rows, o),
            )
            behind = head.marks[mark][1] if mark < len(head.marks) else file.end
            end = bisect_left(offsets, behind, key=lambda o: self._pos_of(file, rows, o))
            row = bisect_left(
                offsets, store_ms, begin, end, key=lambda o: counted(*self._stored(file, rows, o))
            )
            if row < len(offsets):
                return offsets[row]
        self._require_reach(linked, local)
        return local.offset

    def _pos_of(self, file: FileManifest, rows: QueueRows, offset: int) -> int:
        return int(self._parts.rows(file, UNIT, rows.row + offset - rows.first, 1)["pos"][0])

    def _stored(self, file: FileManifest, rows: QueueRows, offset: int) -> tuple[int, int]:
        """Store time and position of the message at an offset."""
        pos = self._pos_of(file, rows, offset)
        data = self.record_bytes(pos + _STORE_MS_AT, 8)
        if data is None or len(data) != 8:
            raise self._parts.wrong_index(file, f"an entry at {pos}")
        return int.from_bytes(data, "big"), pos

    def _require_reach(self, linked: _Linked, local: LocalBegin) -> None:
        files = linked.files
        if not files or files[-1].next_base < local.pos:
            raise NotHere(
                f"this node has not verified all files before its own log in {self._store.place}"
                f" yet: {self.problem}"
            )

    def _place(
        self, topic: str, queue: int, offset: int, local: LocalBegin
    ) -> tuple[FileManifest, QueueRows] | None:
        """The file with the first message of a queue at or above `offset`, which is below that of
        the local log; None if the store has none. Offsets are dense, and each message is in the
        store or on this disk: an index part that leaves one out is wrong."""
        linked = self._linked
        files = linked.files
        low, high = 0, bisect_left(files, local.pos, key=lambda file: file.base)
        before = behind = None
        while low < high:
            middle = at = (low + high) // 2
            rows = None
            while (
                at >= low
                and (rows := self._parts.head(files[at]).queues.get((topic, queue))) is None
            ):
                at -= 1
            if rows is None:
                low = middle + 1
            elif offset < rows.first:
                high, behind = at, (files[at], rows)
            elif offset > rows.last:
                low, before = middle + 1, files[at]
            else:
                return files[at], rows
        if behind is None:
            self._require_reach(linked, local)
        if before is None:
            self._require_whole(linked)
        if before is not None or files[0].first == 0:
            raise self._parts.wrong_index(
                before or files[0], f"no message {offset} of queue {queue} of topic {topic}"
            )
        return behind

    # -- the log

    def read(self, first_index: int, max_bytes: int) -> LogPiece | None:
        """Entries of the log from an index on: at least one, then up to `max_bytes`, of one file.
        None if the store begins behind it. Raises StoreFailure, WrongObject, OSError."""
        return self._again_if_trimmed(lambda: self._read_log(first_index, max_bytes))

    def _read_log(self, first_index: int, max_bytes: int) -> LogPiece | None:
        linked = self._linked
        files = linked.files
        number = bisect_right(files, first_index, key=lambda file: file.first) - 1
        if number < 0:
            self._require_whole(linked)
            return None
        file = files[number]
        if first_index > file.last:
            raise NotHere(
                f"this node has not verified entry {first_index} in {self._store.place} yet:"
                f" {self.problem}"
            )
        head = self._parts.head(file)
        index, pos, _ = head.marks[max(0, bisect_right(head.mark_indexes, first_index) - 1)]
        data = self._parts.read(files, number, pos, min(CHUNK_BYTES + max_bytes, file.end - pos))
        at = 0
        starts: list[int] = []
        sizes: list[int] = []
        while at + HEADER_BYTES <= len(data):
            magic, size, entry_index = _HEAD.unpack_from(data, at)
            if (magic, entry_index) != (ENTRY_MAGIC, index) or size <= HEADER_BYTES:
                raise self._parts.wrong_index(file, f"entry {index} at {pos + at}")
            if index >= first_index:
                if at + size > len(data) and not starts:
                    data = data[:at] + self._parts.read(files, number, pos + at, size)
                if at + size > len(data) or (starts and at + size - starts[0] > max_bytes):
                    break
                starts.append(at)
                sizes.append(size)
            index, at = index + 1, at + size
        begin = starts[0]
        view = memoryview(data)[begin : starts[-1] + sizes[-1]]
        last = first_index + len(starts) - 1
        return LogPiece(
            first_index=first_index,
            last_index=last,
            pos=pos + begin,
            data=view,
            starts=np.array(starts, np.int64) - begin,
            sizes=np.array(sizes, np.int32),
        )

    def record_bytes(self, pos: int, length: int) -> bytes | None:
        """Bytes of the log at a position, as far as they lie in one file before its end; None if
        the store begins behind it."""
        files = self.files
        if not files or pos < files[0].base:
            return None
        number = (pos - files[0].base) // self._file_bytes
        if number >= len(files):
            return b""
        file = files[number]
        return (
            self._parts.read(files, number, pos, min(length, file.end - pos))
            if pos < file.end
            else b""
        )

    # -- keys

    def each_by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        below: int,
        epochs: TimeEpochs = NO_EPOCHS,
    ) -> Iterator[Found]:
        """Messages of a topic before the position `below` with this key, or this message id, that
        count as stored in begin … end, newest first. Raises StoreFailure, WrongObject, OSError."""
        linked = self._linked
        matches = Lookup(self, _KeysBelow(self, below)).each_by_key(
            topic, key, begin_ms, end_ms, epochs
        )
        yield from (one for one in matches if one.physical_offset < below)
        if not linked.files or linked.files[0].counted_ms(epochs) >= begin_ms:
            self._require_whole(linked)

    def positions_with_hash(
        self, hash_: int, begin_ms: int, end_ms: int, below: int
    ) -> Iterator[int]:
        """Positions before `below` of records that may have a key of this hash and may have been
        stored in this time, descending."""
        files = self.files
        for number in range(len(files) - 1, -1, -1):
            file = files[number]
            if file.last_store_ms < begin_ms:
                return
            if file.base >= below or (number and files[number - 1].last_store_ms > end_ms):
                continue
            for pos in reversed(self._with_hash(file, hash_)):
                yield pos + HEADER_BYTES

    def _with_hash(self, file: FileManifest, hash_: int) -> list[int]:
        head = self._parts.head(file)
        row = self._first_with(file, head, hash_)
        positions: list[int] = []
        while row < head.keys:
            keys = self._parts.rows(file, KEY, head.rows + row, head.keys - row)
            count = int(np.searchsorted(keys["hash"], hash_, side="right"))
            positions += keys["pos"][:count].tolist()
            if count < len(keys):
                break
            row += count
        return positions

    def _first_with(self, file: FileManifest, head: IndexHead, hash_: int) -> int:
        """The first key row whose hash is not lower. Hashes are spread nearly evenly, so the block
        is usually guessed at once."""
        low, high = 0, head.keys
        at, guesses = min(head.keys - 1, hash_ * head.keys >> 31), 0
        while low < high:
            begin = max(0, at - (head.rows + at) % BLOCK_ROWS)
            hashes = self._parts.rows(file, KEY, head.rows + begin, head.keys - begin)["hash"]
            end, guesses = begin + len(hashes), guesses + 1
            if int(hashes[-1]) < hash_:
                low, at = end, end
            elif int(hashes[0]) >= hash_ and begin > low:
                high, at = begin, begin - 1
            else:
                return begin + int(np.searchsorted(hashes, hash_))
            if guesses > GUESSES:
                at = (low + high) // 2
        return low
