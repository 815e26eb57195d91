"""The keys of messages as in the key index (docs/format.md §14): which keys, in which order, with
which hashes. Vectorised.

The audit's own derivation from entries; this module does not read a key index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.reading.columns import native_ids
from ledgermq.audit.reading.decode import I64, U8, Flags, tags_code
from ledgermq.audit.reading.entries import Entries
from ledgermq.audit.reading.properties import Properties, cut, find_properties, split_at_spaces
from ledgermq.proto.names import CONTROL_TOPICS

U32 = NDArray[np.uint32]
STRETCH_BITS = 0x3FF
"""The lowest bits of a sequence number: messages of one stretch differ only in these."""
_INVERSE = pow(31, -1, 1 << 32)
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


@dataclass(frozen=True, slots=True)
class Keys:
    """One row per key, in the order of the index. `row` is the row of its entry."""

    row: I64
    hashes: I64

    def __len__(self) -> int:
        return len(self.row)


def keys_of(entries: Entries) -> Keys:
    """The keys of the sound entries among these."""
    control = np.array(
        [topic.decode("utf-8", "replace") in CONTROL_TOPICS for topic in entries.parts.topics],
        np.bool_,
    )
    rows = np.flatnonzero(entries.sound & ~control[entries.parts.topic_of])
    if not len(rows):
        return Keys(rows, rows)
    properties = find_properties(
        entries.window, entries.parts.property_at[rows], (entries.at + entries.sizes)[rows]
    )
    data, id_owner, id_at, id_bytes = _ids(entries, rows, properties)
    lists = properties.take(properties.named(b"KEYS"))
    number, piece_at, piece_bytes = split_at_spaces(data, lists.value_at, lists.value_bytes)
    owner = np.concatenate((id_owner, lists.owner[number]))
    at, lengths = np.concatenate((id_at, piece_at)), np.concatenate((id_bytes, piece_bytes))
    # Stable: a message's id comes first, then its words in order.
    order = np.argsort(owner, kind="stable")
    owner, at, lengths = owner[order], at[order], lengths[order]
    return Keys(
        rows[owner],
        _hashes(data, at, lengths, entries.parts.topic_of[rows[owner]], entries.parts.topics),
    )


def _ids(entries: Entries, rows: I64, properties: Properties) -> tuple[U8, I64, I64, I64]:
    """The bytes that contain the ids that are keys; then owner, offset and length of each. A native
    message has the id of its stretch."""
    ids = properties.take(properties.named(b"UNIQ_KEY"))
    flags = entries.field("flag")[rows][ids.owner]
    begins, ends = (
        entries.parts.property_at[rows][ids.owner],
        (entries.at + entries.sizes)[rows][ids.owner],
    )
    native: Flags = flags != 0
    native[native] = native_ids(entries.window, begins[native], ends[native])
    kept = ids.value_bytes > 0
    if not native.any():
        return ids.data, ids.owner[kept], ids.value_at[kept], ids.value_bytes[kept]
    data = ids.data.copy()
    last = ids.value_at + ids.value_bytes - 1
    low = (
        (_digit(data[last[native] - 2]) << 8)
        | (_digit(data[last[native] - 1]) << 4)
        | _digit(data[last[native]])
    )
    kept[native] = (flags[native] == 1) | (low & STRETCH_BITS == 0)
    data[last[native]] = data[last[native] - 1] = _HEX[0]
    data[last[native] - 2] = _HEX[(low & ~STRETCH_BITS) >> 8]
    return data, ids.owner[kept], ids.value_at[kept], ids.value_bytes[kept]


def _digit(letters: U8) -> I64:
    values: I64 = letters.astype(np.int64)
    return np.where(values < ord("A"), values - ord("0"), values - ord("A") + 10)


def _hashes(data: U8, at: I64, lengths: I64, topic_of: I64, topics: list[bytes]) -> I64:
    """Java's hash of `topic#key` as stored in the index: without its sign, and 0 for the one number
    whose absolute value overflows.

    Java's hash of a text is the sum of its letters times powers of 31, where the last letter has
    power 0. So it is the difference of two prefix sums times a power, and the hash of the topic is
    multiplied by as many powers as the key has letters.
    """
    text, offsets = cut(data, at, lengths)
    up, down = _powers(31, len(text) + 1), _powers(_INVERSE, len(text) + 1)
    sums = np.zeros(len(text) + 1, np.uint32)
    np.cumsum(text * down[:-1], dtype=np.uint32, out=sums[1:])
    first, last = offsets[:-1], offsets[1:]
    prefix = np.array([tags_code(topic + b"#") & 0xFFFFFFFF for topic in topics], np.uint32)[
        topic_of
    ]
    hashes = (sums[last] - sums[first]) * up[np.maximum(last - 1, 0)] + prefix * up[lengths]
    wide = np.zeros(len(text) + 1, np.int64)
    np.cumsum(text >= 0x80, out=wide[1:])
    for row in np.flatnonzero(wide[last] > wide[first]).tolist():
        key = text[int(first[row]) : int(last[row])].tobytes()
        hashes[row] = tags_code.__wrapped__(topics[int(topic_of[row])] + b"#" + key) & 0xFFFFFFFF
    signed = hashes.view(np.int32).astype(np.int64)
    return np.where(signed == -(1 << 31), 0, np.abs(signed))


def _powers(base: int, count: int) -> U32:
    """base⁰ … base^(count − 1) in 32 bits."""
    powers = np.full(count, base, np.uint32)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint32)
