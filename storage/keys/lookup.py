"""Finding messages by key and by physical offset, from threads other than the group's owner: any
thread may call.

The index only proposes positions. This module reads and checks the record itself and compares its
actual key and store time, so that neither a hash collision nor the index's resolution of one second
reaches the caller. A key with spaces is found through one of its words, which are what the index
holds. The id of a native message is found through the id of its frame's first message, from which
it is counted. A message that retention removed in the meantime is not an error: it is not found.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import chain

from crc32c import crc32c

from ledgermq.proto.entries.key_columns import key_hash, pieces
from ledgermq.proto.entries.layout import ENTRY_MAGIC, ENTRY_MIN_BYTES, FLAG_AT, HEADER_BYTES
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.native_ids import NativeId, read_native_id, stretch_id
from ledgermq.proto.entries.properties import decode as decode_properties
from ledgermq.proto.records.time_epochs import NO_EPOCHS, TimeEpochs
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.keys.ports import Index
from ledgermq.storage.log.ports import Entries

FIRST_READ_BYTES = 4096
"""Most records are read with one read of this size."""
TIME_MAX = 1 << 62
_HEADER = struct.Struct(">iiqqqiIIi")
assert _HEADER.size == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Found:
    """One message: index of its entry, position and size of its record (TOTALSIZE), and the
    record."""

    index: int
    physical_offset: int
    size: int
    record: bytes


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which messages are looked for."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    epochs: TimeEpochs

    def matches(self, message: Found) -> bool:
        record = decode_record(message.record)
        if (
            record.topic != self.topic
            or not self.begin_ms
            <= self.epochs.counted(record.store_ms, message.physical_offset)
            <= self.end_ms
        ):
            return False
        fields = decode_properties(record.properties)
        return self.key == fields.message_id or self.key in fields.keys


class Lookup:
    """Lookups of one broker group's committed messages, up to the reader's limits."""

    def __init__(self, reader: Entries, index: Index) -> None:
        self._reader = reader
        self._index = index

    @property
    def begin_pos(self) -> int:
        """Where the log begins. What is found lies behind it."""
        return self._reader.limits.begin_pos

    def each_by_key(
        self,
        stored_topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        epochs: TimeEpochs = NO_EPOCHS,
    ) -> Iterator[Found]:
        """Messages of a topic with this key, or this message id, newest first; only the current one
        is in memory. A message is in begin … end if it counts as stored then. The index knows store
        times only, so with time epochs it is asked for all times. Only indexed messages are found.
        Raises OSError, Damaged."""
        wanted = _Wanted(stored_topic, key, begin_ms, end_ms, epochs)
        if epochs:
            begin_ms, end_ms = 0, TIME_MAX
        names = pieces(key)
        if not names:
            return
        # Search for the longest word, which is usually the rarest.
        hash_ = key_hash(stored_topic, max(names, key=len))
        by_hash = (one for one in self._proposed(hash_, begin_ms, end_ms) if wanted.matches(one))
        native = read_native_id(key)
        if native is None:
            yield from by_hash
            return
        before = -1
        counted = self._counted_off(native, wanted, end_ms)
        for one in merge(by_hash, counted, key=lambda one: one.physical_offset, reverse=True):
            # The first message of a stretch is found both ways.
            if one.physical_offset != before:
                yield one
            before = one.physical_offset

    def _proposed(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[Found]:
        """The messages that the index has under this hash and that still exist."""
        seen = -1
        for physical_offset in self._index.find(hash_, begin_ms, end_ms):
            # Two equal keys of one message are neighbours, because positions never increase along
            # the search.
            if physical_offset == seen:
                continue
            if physical_offset < self._reader.limits.begin_pos:
                # The index keeps units of trimmed messages until a whole file is removed;
                # everything behind this one is older.
                return
            seen = physical_offset
            one = self.at(physical_offset)
            if one is not None:
                yield one

    def _counted_off(self, native: NativeId, wanted: _Wanted, end_ms: int) -> Iterator[Found]:
        """The native message with this id, counted from indexed messages of its stretch: the
        messages of one frame are consecutive."""
        for one in chain(
            self._proposed(key_hash(wanted.topic, stretch_id(wanted.key)), 0, end_ms), self._first()
        ):
            record = decode_record(one.record)
            first = (
                read_native_id(decode_properties(record.properties).message_id or "")
                if _flag(one)
                else None
            )
            if (
                first is None
                or first.sequence > native.sequence
                or first._replace(sequence=native.sequence) != native
            ):
                continue
            ahead = native.sequence - first.sequence
            other = self._entry(one.index + ahead) if ahead else one
            if other is not None and _flag(other) == _flag(one) + ahead and wanted.matches(other):
                yield other

    def _first(self) -> Iterator[Found]:
        """The first message of the log: the indexed messages of its frame may have been trimmed."""
        if self._reader.limits.begin_index:
            first = self._entry(self._reader.limits.begin_index)
            if first is not None:
                yield first

    def _entry(self, index: int) -> Found | None:
        """The message of the entry with this index."""
        if index >= self._reader.limits.end_index:
            return None
        piece = self._reader.read(index, 1)
        return None if piece is None else self.at(piece.pos + HEADER_BYTES)

    def at(self, physical_offset: int, size: int = 0) -> Found | None:
        """The message whose record lies at `physical_offset`; None if it is gone, does not exist
        yet, or no record starts there, or if `size` is not the record's. Raises OSError, and
        Damaged if the record does not match its checksum."""
        pos = physical_offset - HEADER_BYTES
        if pos < 0:
            return None
        data = self._reader.record_bytes(pos, max(FIRST_READ_BYTES, size + HEADER_BYTES))
        if data is None or len(data) < ENTRY_MIN_BYTES:
            return None
        magic, entry_size, index, _, stored_pos, _, _, body_crc, body_size = _HEADER.unpack_from(
            data
        )
        if (
            magic != ENTRY_MAGIC
            or stored_pos != pos
            or entry_size != body_size + HEADER_BYTES
            or entry_size < ENTRY_MIN_BYTES
        ):
            return None
        if size not in (0, body_size):
            return None
        if len(data) < entry_size:
            data = self._reader.record_bytes(pos, entry_size)
            if data is None or len(data) < entry_size:
                return None
        record = data[HEADER_BYTES:entry_size]
        if crc32c(record) != body_crc:
            raise Damaged(
                f"entry {index} at {pos} does not have its checksum: it was damaged on the disk;"
                " run the audit on this replica"
            )
        return Found(index, physical_offset, body_size, record)


def _flag(message: Found) -> int:
    return int.from_bytes(message.record[FLAG_AT : FLAG_AT + 4], "big")
