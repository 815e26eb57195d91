"""Stored entries as columns for their readers: bodies, places, times, ids, tags and properties
(docs/format.md §2, §4).

The entries come from a node, as ranges of a log or gathered from one, and may be of any kind of
message. Lengths are checked before anything else reads the bytes, and a column is built on access.
Nothing here writes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from ledgermq.proto import kernels
from ledgermq.proto.carried import Carried
from ledgermq.proto.entries.compression import (
    COMPRESSED,
    EXPANSION,
    BadBody,
    Expansion,
    compression_of,
    decompress,
    length_max,
)
from ledgermq.proto.entries.layout import (
    BODY_AT,
    ENTRY_MAGIC,
    ENTRY_MIN_BYTES,
    HEADER_BYTES,
    RECORD_V1,
    RECORD_V2,
    Buffer,
    Tails,
    distinct_topics,
    for_each,
    prefixes,
    tails,
    windows,
)
from ledgermq.proto.entries.properties import (
    KEYS,
    MESSAGE_ID,
    TAG,
    UNDECODED,
    Fields,
    decode,
    parse,
    value_of,
)
from ledgermq.proto.types import I32, I64

_SIZE = np.dtype("<u4")
_ID_FIELD = f"{MESSAGE_ID}\x01".encode()
_USUAL_ID = np.dtype("V34")


class BadEntries(Carried):
    """The bytes are not whole entries, or not the stored ones. `position` is that of the first bad
    entry, −1 for all."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason if position < 0 else f"entry {position}: {reason}")
        self.position = position
        self.reason = reason


class EntryColumns:
    """Stored entries, one row each. Created by `read_entries`, which has checked them. Bodies are
    decompressed within `expansion`."""

    def __init__(
        self, data: memoryview, starts: I64, sizes: I32, expansion: Expansion = EXPANSION
    ) -> None:
        self.data = data
        self.starts = starts
        self.sizes = sizes
        self.expansion = expansion

    @cached_property
    def _heads(self) -> NDArray[Any]:
        return prefixes(self.data, self.starts)

    @cached_property
    def _tails(self) -> Tails:
        return tails(self.data, self.starts, self.sizes, self._heads)

    def __len__(self) -> int:
        return len(self.sizes)

    def _i64(self, name: str) -> I64:
        column: I64 = self._heads[name].astype(np.int64)
        return column

    @cached_property
    def indexes(self) -> I64:
        """Log indexes."""
        return self._i64("index")

    @cached_property
    def terms(self) -> I64:
        return self._i64("term")

    @cached_property
    def queues(self) -> I32:
        column: I32 = self._heads["queue"].astype(np.int32)
        return column

    @cached_property
    def queue_offsets(self) -> I64:
        return self._i64("queue_offset")

    @cached_property
    def store_ms(self) -> I64:
        return self._i64("store_ms")

    @cached_property
    def born_ms(self) -> I64:
        return self._i64("born_ms")

    @cached_property
    def flags(self) -> I32:
        """For a native message 1 + its position in its frame, otherwise 0."""
        column: I32 = self._heads["flag"].astype(np.int32)
        return column

    @cached_property
    def sysflags(self) -> I32:
        column: I32 = self._heads["sysflag"].astype(np.int32)
        return column

    @cached_property
    def body_lengths(self) -> I64:
        """Stored lengths: for a compressed body, its compressed length."""
        return self._i64("body_length")

    @cached_property
    def body_offsets(self) -> I64:
        """The start of each stored body in `data`."""
        return self.starts + BODY_AT

    @cached_property
    def property_offsets(self) -> I64:
        """The start of each property string in `data`."""
        return self._tails.properties_at

    @cached_property
    def property_lengths(self) -> I64:
        return self._tails.properties_length

    @cached_property
    def topics(self) -> tuple[tuple[str, ...], I32]:
        """The distinct stored topics, and the topic of each row as an index into them."""
        return distinct_topics(self.data, self._tails.topic_at, self._tails.topic_length)

    def _pieces(self, begins: I64, lengths: I64) -> list[memoryview]:
        return list(
            map(self.data.__getitem__, map(slice, begins.tolist(), (begins + lengths).tolist()))
        )

    @cached_property
    def _compressed(self) -> list[int]:
        return np.flatnonzero(self.sysflags & COMPRESSED).tolist()

    def _stored_body(self, row: int) -> memoryview:
        begin = int(self.body_offsets[row])
        return self.data[begin : begin + int(self.body_lengths[row])]

    @cached_property
    def _decompressed(self) -> dict[int, bytes]:
        """Row → the original body of a compressed message, where it can be decompressed. Kept,
        because bodies and marks need it."""
        found: dict[int, bytes] = {}
        for row in self._compressed:
            try:
                found[row] = decompress(
                    self._stored_body(row), int(self.sysflags[row]), self.expansion
                )
            except BadBody:
                continue
        return found

    @cached_property
    def undecoded(self) -> dict[int, str]:
        """Row → the compression of a body that is handed out as it is stored: it is not what its
        header says, or becomes too large."""
        left = [row for row in self._compressed if row not in self._decompressed]
        return {row: compression_of(int(self.sysflags[row])) or "" for row in left}

    def fitting(self, body_bytes: int) -> int:
        """How many messages, counted from the first, have bodies that take at most `body_bytes`
        together; at least one."""
        lengths = self.body_lengths
        if self._compressed:
            lengths = lengths.copy()
            for row in self._compressed:
                lengths[row] = length_max(
                    self._stored_body(row), int(self.sysflags[row]), self.expansion
                )
        return max(1, int(np.searchsorted(np.cumsum(lengths), body_bytes, side="right")))

    def bodies(self) -> list[bytes]:
        """The original bodies; stored ones in the rows of `undecoded`."""
        lengths = self.body_lengths
        same = int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else 0
        if same:
            out: list[bytes] = windows(self.data, np.dtype(f"V{same}"))[self.body_offsets].tolist()
        else:
            out = list(map(bytes, self._pieces(self.body_offsets, lengths)))
        for row, body in self._decompressed.items():
            out[row] = body
        return out

    def joined_bodies(self) -> tuple[bytes, I64]:
        """The concatenated bodies, and the start of each plus the end of the last: a binary column
        of Arrow."""
        if self._compressed:
            bodies = self.bodies()
            return b"".join(bodies), _edges(np.fromiter(map(len, bodies), np.int64, len(bodies)))
        lengths = self.body_lengths
        if len(lengths) and lengths[0] and (lengths == lengths[0]).all():
            joined = windows(self.data, np.dtype(f"V{int(lengths[0])}"))[
                self.body_offsets
            ].tobytes()
        else:
            joined = b"".join(self._pieces(self.body_offsets, lengths))
        return joined, _edges(lengths)

    @cached_property
    def property_strings(self) -> list[bytes]:
        """The property strings as stored."""
        return list(map(bytes, self._pieces(self.property_offsets, self.property_lengths)))

    def message_ids(self) -> list[str | None]:
        usual = self.property_lengths > len(_ID_FIELD) + _USUAL_ID.itemsize
        at = self.property_offsets[usual]
        usual[usual] = windows(self.data, np.dtype(f"V{len(_ID_FIELD)}"))[at] == np.void(_ID_FIELD)
        at = self.property_offsets[usual] + len(_ID_FIELD)
        ended = windows(self.data, np.dtype("u1"))[at + _USUAL_ID.itemsize] == 2
        if usual.all() and ended.all():
            ids: bytes = windows(self.data, _USUAL_ID)[at].tobytes()
            if 2 not in ids:
                text = ids.decode("latin-1")
                return [
                    text[i : i + _USUAL_ID.itemsize]
                    for i in range(0, len(text), _USUAL_ID.itemsize)
                ]
        return self.values(MESSAGE_ID)

    def tags(self) -> list[str | None]:
        return self.values(TAG)

    def keys(self) -> list[tuple[str, ...]]:
        """The keys of each message."""
        joined = self.values(KEYS)
        return [
            () if text is None else tuple(self.fields(row).keys) for row, text in enumerate(joined)
        ]

    def values(self, name: str) -> list[str | None]:
        """The value of each message under a stored property name."""
        return [value_of(properties, name) for properties in self.property_strings]

    def properties(self, row: int) -> dict[str, str]:
        """Stored name → value of one message."""
        return parse(self.property_strings[row])

    def fields(self, row: int) -> Fields:
        """One message's properties in the client's form, with the mark of a body that is handed out
        as it is stored."""
        fields = decode(self.property_strings[row])
        left = self.undecoded.get(row) if self._compressed else None
        return fields if left is None else replace(fields, user={**fields.user, UNDECODED: left})


def _edges(lengths: I64) -> I64:
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=edges[1:])
    return edges


def read_entries(sizes: Buffer, entries: Buffer, *, verify: bool = True) -> EntryColumns:
    """Read entries as a node sends them: the length of each (u32 little-endian), and all entries
    concatenated. Not copied.

    Raises BadEntries for bytes that are not whole entries and, with `verify`, for a record with a
    wrong body CRC (docs/format.md §3).
    """
    read = kernels.entries.read_entries(entries, sizes, verify) if kernels.NATIVE else None
    if read is not None:
        return _columns_of(memoryview(entries).cast("B"), read)
    if len(sizes) % _SIZE.itemsize:
        raise BadEntries(
            -1,
            f"sizes have {len(sizes)} bytes; they hold one unsigned 32-bit number for each entry",
        )
    lengths: I64 = np.frombuffer(sizes, _SIZE).astype(np.int64)
    if int(lengths.sum()) != len(entries):
        raise BadEntries(
            -1, f"the sizes add up to {int(lengths.sum())} bytes; the entries have {len(entries)}"
        )
    _refuse(lengths < ENTRY_MIN_BYTES, "it is shorter than an entry can be")
    data = memoryview(entries).cast("B")
    starts = np.cumsum(lengths) - lengths
    columns = EntryColumns(data, starts, lengths.astype(np.int32))
    heads, records = columns._heads, lengths - HEADER_BYTES
    magics = heads["record_magic"]
    right = (heads["magic"] == ENTRY_MAGIC) & (heads["size"] == lengths)
    right &= (heads["body_size"] == records) & (heads["total_size"] == records)
    right &= (magics == RECORD_V1) | (magics == RECORD_V2)
    _refuse(~right, "its magic or its size is not what it should be")
    _refuse(~columns._tails.ok, "its lengths do not add up")
    if verify:
        crcs = for_each(crc32c, data, starts + HEADER_BYTES, starts + lengths)
        _refuse(
            heads["body_crc"].astype(np.int64) != np.array(crcs, np.int64),
            "its body CRC is not that of its bytes",
        )
    return columns


def _columns_of(data: memoryview, read: tuple[bytes, ...]) -> EntryColumns:
    """Entries that a kernel has checked, with the columns that it read."""
    types = (np.int64, np.int32, np.int32, np.int64, np.int32, *[np.int64] * 5)
    starts, sizes, queues, queue_offsets, sysflags, *lengths = map(np.frombuffer, read, types)
    columns = EntryColumns(data, starts, sizes)
    columns.queues, columns.queue_offsets, columns.sysflags = queues, queue_offsets, sysflags
    columns.body_lengths, topic_at, topic_length, properties_at, properties_length = lengths
    columns._tails = Tails(
        topic_at, topic_length, properties_at, properties_length, np.ones(len(sizes), np.bool_)
    )
    return columns


def _refuse(bad: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], reason: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        raise BadEntries(int(rows[0]), reason)
