"""The keys of many entries at once, as in RocketMQ's key index (docs/format.md §14): which names,
in which order, with which hash.

A message has one key for its `UNIQ_KEY`, then one for every nonempty space-separated word of
`KEYS`. Control topics have none. Of native messages, whose ids are consecutive, only the first one
of a frame and of every 1,024 sequence numbers has a key for its id, namely that of its stretch; the
others are counted from there (storage/keys/lookup.py). Everything is a pure function of the bytes,
independent of how they are split into ranges: the files of two replicas are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto import kernels
from ledgermq.proto.entries.layout import (
    FLAG_AT,
    HEADER_BYTES,
    U32,
    distinct_topics,
    hash_once,
    prefixes,
    split_record,
    tails,
    windows,
)
from ledgermq.proto.entries.native_ids import ID_PROPERTY_BYTES, read_native_id, stretch_id
from ledgermq.proto.entries.ports import Entries
from ledgermq.proto.names import CONTROL_TOPICS
from ledgermq.proto.types import I32, I64

_END, _NAME_END, _SPACE = 0x02, 0x01, 0x20
_FEW = 16
"""Up to this many messages are handled one by one, because vector operations have a fixed cost."""
_ID_FIELD = b"UNIQ_KEY\x01"
_KEYS_FIELD = b"KEYS\x01"
_ID_WORD = np.frombuffer(_ID_FIELD[:8], np.uint64)[0]
_KEYS_WORD = np.frombuffer(_KEYS_FIELD[:4], np.uint32)[0]
_U8, _U4 = np.dtype("u8"), np.dtype("u4")
_TWO = np.dtype("u2")
_TWO_ZEROS = np.frombuffer(b"00", _TWO)[0]
_FIRST_OF_STRETCH = np.frombuffer(b"048C", np.uint8)
"""The bytes before two zeros at the end of an id whose lowest ten bits are zero."""
_MIN_VALUE = -(1 << 31)
_KEYLESS = sorted(CONTROL_TOPICS)

_WIDTHS = (8, 16, 34, 64, 128)
"""Keys are hashed with vector operations in these classes of length (34 is that of the usual
message id); longer ones one by one. All are shorter than the bytes that always precede a key in its
entry, so a window that ends with the key begins inside the data."""
_POWERS = np.array([pow(31, n, 1 << 32) for n in range(_WIDTHS[-1] + 1)], np.uint32)


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """One row per key, in log order. `entry_of` is the row of its message in the range; `hashes`
    are as the index stores them."""

    entry_of: I64
    hashes: I32
    physical_offsets: I64
    store_ms: I64

    def __len__(self) -> int:
        return len(self.hashes)


def key_hash(stored_topic: str, key: str) -> int:
    """The hash under which a key is stored: the absolute value of Java's hash, and 0 for the one
    whose absolute value overflows."""
    signed = hash_once(f"{stored_topic}#{key}")
    return 0 if signed == _MIN_VALUE else abs(signed)


def pieces(key: str) -> list[str]:
    """The parts of a key that are in the index: the key itself, or for a key with spaces its
    words."""
    return [piece for piece in key.split(" ") if piece]


def key_columns(entries: Entries) -> KeyColumns:
    """The keys of entries whose bytes this process wrote or verified."""
    found = (
        kernels.entries.key_columns(entries.data, entries.starts, entries.sizes, _KEYLESS)
        if kernels.NATIVE
        else None
    )
    if found is not None:
        i64, array = np.int64, np.frombuffer
        return KeyColumns(
            array(found[0], i64),
            array(found[1], np.int32),
            array(found[2], i64),
            array(found[3], i64),
        )
    heads = prefixes(entries.data, entries.starts)
    rows = _keyed(entries, heads)
    if len(rows) <= _FEW:
        entry_of, hashes = _few(entries, rows)
    else:
        entry_of, hashes = _many(entries.data, entries.starts[rows], entries.sizes[rows])
        entry_of = rows[entry_of]
    stored = hashes.view(np.int32)
    stored = np.where(stored == np.int32(_MIN_VALUE), np.int32(0), np.abs(stored))
    return KeyColumns(
        entry_of=entry_of,
        hashes=stored,
        physical_offsets=heads["physical_offset"].astype(np.int64)[entry_of],
        store_ms=heads["store_ms"].astype(np.int64)[entry_of],
    )


def _keyed(entries: Entries, heads: NDArray[Any]) -> I64:
    """The entries that may have keys: all except native messages in the middle of a stretch that
    have only their id."""
    flags = heads["flag"].astype(np.int32)
    if not flags.any():
        return np.arange(len(flags))
    found = tails(entries.data, entries.starts, entries.sizes, heads)
    inner = np.flatnonzero((flags > 1) & (found.properties_length == ID_PROPERTY_BYTES))
    ends = found.properties_at[inner] + ID_PROPERTY_BYTES - 1
    ends_in_zeros = windows(entries.data, _TWO)[ends - 2] == _TWO_ZEROS
    keyed = np.ones(len(flags), np.bool_)
    keyed[inner[~ends_in_zeros]] = False
    zeros = np.flatnonzero(ends_in_zeros)
    keyed[inner[zeros]] = np.isin(
        np.frombuffer(entries.data, np.uint8)[ends[zeros] - 3], _FIRST_OF_STRETCH
    )
    return np.flatnonzero(keyed)


def _id_key(name: bytes, flag: int) -> str | None:
    """The text under which an id is in the index; None if it is not, because another id of its
    frame is."""
    text = name.decode()
    if not flag or read_native_id(text) is None:
        return text
    stretch = stretch_id(text)
    return stretch if flag == 1 or stretch == text else None


def _few(entries: Entries, rows: I64) -> tuple[I64, U32]:
    """Message by message, because vector operations are slower for few messages."""
    places: list[int] = []
    hashes: list[int] = []
    for place, start, size in zip(
        rows.tolist(), entries.starts[rows].tolist(), entries.sizes[rows].tolist(), strict=True
    ):
        record = entries.data[start + HEADER_BYTES : start + size]
        _, topic_at, topic_end, properties_at = split_record(record)
        topic = str(record[topic_at:topic_end], "utf-8")
        if topic in CONTROL_TOPICS:
            continue
        flag = int.from_bytes(record[FLAG_AT : FLAG_AT + 4], "big")
        fields = bytes(record[properties_at:]).split(b"\x02")
        ids = [
            _id_key(field[len(_ID_FIELD) :], flag)
            for field in fields
            if field.startswith(_ID_FIELD)
        ]
        keys = [
            piece
            for field in fields
            if field.startswith(_KEYS_FIELD)
            for piece in field[len(_KEYS_FIELD) :].split(b" ")
        ]
        for name in [*ids, *[key.decode() for key in keys]]:
            if name:
                places.append(place)
                hashes.append(hash_once(f"{topic}#{name}") & 0xFFFFFFFF)
    return np.array(places, np.int64), np.array(hashes, np.uint32)


def _many(data: memoryview, entry_starts: I64, sizes: I32) -> tuple[I64, U32]:
    heads = prefixes(data, entry_starts)
    found = tails(data, entry_starts, sizes, heads)
    topics, topic_of = distinct_topics(data, found.topic_at, found.topic_length)
    raw = np.frombuffer(data, np.uint8)
    entry_of, begins, ends = _fields(
        raw, found.properties_at, found.properties_at + found.properties_length
    )
    if any(topic in CONTROL_TOPICS for topic in topics):
        keyless = np.array([topic in CONTROL_TOPICS for topic in topics])
        wanted = ~keyless[topic_of[entry_of]]
        entry_of, begins, ends = entry_of[wanted], begins[wanted], ends[wanted]
    ids = _named(data, raw, begins, ends, word=_U8, name=_ID_WORD)
    keys = _named(data, raw, begins, ends, word=_U4, name=_KEYS_WORD)
    key_of, key_begins, key_ends = _split(
        raw, entry_of[keys], begins[keys] + len(_KEYS_FIELD), ends[keys]
    )
    flags = heads["flag"].astype(np.int32)[entry_of[ids]]
    native, ids = ids[flags != 0], ids[flags == 0]
    stretches = []
    for owner, begin, end, flag in zip(
        entry_of[native].tolist(),
        begins[native].tolist(),
        ends[native].tolist(),
        flags[flags != 0].tolist(),
        strict=True,
    ):
        name = _id_key(bytes(data[begin + len(_ID_FIELD) : end]), flag)
        if name:
            stretches.append(
                (owner, hash_once(f"{topics[int(topic_of[owner])]}#{name}") & 0xFFFFFFFF)
            )
    entry_of = np.concatenate((entry_of[ids], key_of))
    begins = np.concatenate((begins[ids] + len(_ID_FIELD), key_begins))
    ends = np.concatenate((ends[ids], key_ends))
    present = ends > begins
    if not present.all():
        entry_of, begins, ends = entry_of[present], begins[present], ends[present]
    hashes = _hashes(data, topics, topic_of[entry_of], begins, ends)
    if stretches:
        table = np.array(stretches, np.int64)
        entry_of, hashes = (
            np.concatenate((table[:, 0], entry_of)),
            np.concatenate((table[:, 1].astype(np.uint32), hashes)),
        )
    order = np.argsort(entry_of, kind="stable")
    return entry_of[order], hashes[order]


def _fields(raw: NDArray[np.uint8], begins: I64, ends: I64) -> tuple[I64, I64, I64]:
    """Entry, begin and end (without the final 0x02) of every property. A last property without an
    end counts."""
    marks = np.flatnonzero(raw == _END)
    owners = np.searchsorted(begins, marks, side="right") - 1
    inside = (owners >= 0) & (marks < ends[owners])
    marks, owners = marks[inside], owners[inside]
    unended = np.flatnonzero((ends > begins) & (raw[ends - 1] != _END))
    if len(unended):
        marks, owners = np.concatenate((marks, ends[unended])), np.concatenate((owners, unended))
        order = np.argsort(owners, kind="stable")
        marks, owners = marks[order], owners[order]
    first = np.ones(len(marks), np.bool_)
    first[1:] = owners[1:] != owners[:-1]
    starts = np.empty(len(marks), np.int64)
    starts[1:] = marks[:-1] + 1
    starts[first] = begins[owners[first]]
    return owners, starts, marks


def _named(
    data: memoryview, raw: NDArray[np.uint8], begins: I64, ends: I64, word: np.dtype[Any], name: Any
) -> I64:
    """Which properties have this name: it fills one word, and the separator follows."""
    long: I64 = np.flatnonzero(ends - begins > word.itemsize)
    at = begins[long]
    named: NDArray[np.bool_] = np.logical_and(
        windows(data, word)[at] == name, raw[at + word.itemsize] == _NAME_END
    )
    return long[named]


def _split(raw: NDArray[np.uint8], owners: I64, begins: I64, ends: I64) -> tuple[I64, I64, I64]:
    """Split values at their spaces, in order."""
    spaces = np.flatnonzero(raw == _SPACE) if len(begins) else np.zeros(0, np.int64)
    value_of = np.searchsorted(begins, spaces, side="right") - 1
    inside = (value_of >= 0) & (spaces < ends[value_of]) if len(begins) else np.zeros(0, np.bool_)
    spaces, value_of = spaces[inside], value_of[inside]
    if not len(spaces):
        return owners, begins, ends
    # Values do not overlap, so begins and ends stay pairs when each is sorted by itself.
    all_begins = np.concatenate((begins, spaces + 1))
    order = np.argsort(all_begins, kind="stable")
    return (
        np.concatenate((owners, owners[value_of]))[order],
        all_begins[order],
        np.sort(np.concatenate((ends, spaces))),
    )


def _hashes(
    data: memoryview, topics: tuple[str, ...], topic_of: I32, begins: I64, ends: I64
) -> U32:
    """Java's hash of `topic#key`. The hash of a concatenation is the hash of the first part, times
    31 for each character of the second, plus the hash of the second: so the topic is hashed
    once."""
    lengths = ends - begins
    out = np.zeros(len(begins), np.uint32)
    plain = np.zeros(len(begins), np.bool_)
    shorter = -1
    for width in _WIDTHS:
        rows = np.flatnonzero((lengths > shorter) & (lengths <= width))
        shorter = width
        if not len(rows):
            continue
        letters = (
            windows(data, np.dtype(f"V{width}"))[ends[rows] - width]
            .view(np.uint8)
            .reshape(-1, width)
        )
        missing = width - lengths[rows]
        if missing.any():
            letters *= np.arange(width) >= missing[:, None]
        out[rows] = np.einsum("ij,j->i", letters, _POWERS[width - 1 :: -1], dtype=np.uint32)
        plain[rows] = True if letters.max() < 0x80 else letters.max(axis=1) < 0x80
    prefix = np.array([hash_once(f"{topic}#") & 0xFFFFFFFF for topic in topics], np.uint32)
    out += prefix[topic_of] * _POWERS[np.minimum(lengths, _WIDTHS[-1])]
    for row in np.flatnonzero(~plain).tolist():
        key = str(data[int(begins[row]) : int(ends[row])], "utf-8")
        out[row] = hash_once(f"{topics[int(topic_of[row])]}#{key}") & 0xFFFFFFFF
    return out
