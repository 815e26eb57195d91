"""Verification of entries received from a peer or read from a disk: every byte is checked before it is used (docs/format.md §2–§4).

Ranges are checked with vector operations; short ranges, and those with an error, entry by entry, so that the first bad entry is named. The
auditor has its own rules and must never import this module.
"""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c

from ledgermq.proto.entry_sealing import body_crcs_of, chained, crc_column
from ledgermq.proto.layout import (
    CHAINED_BYTES,
    ENTRY_MAGIC,
    ENTRY_MIN_BYTES,
    FEW_ENTRIES,
    HEADER_BYTES,
    RECORD_V1,
    RECORD_V2,
    Buffer,
    prefixes,
    split_record,
    tails,
)
from ledgermq.proto.types import I64, Range

_SIZE_AT = 4
_ENTRY_HEAD = struct.Struct(">iiqqqiIIi")


class BadEntry(Exception):
    """The bytes are not the claimed range. `index` and `offset` are those of the first bad entry; everything before it is valid."""

    def __init__(self, index: int, offset: int, reason: str) -> None:
        super().__init__(f"entry {index} (byte {offset} of the range): {reason}")
        self.index = index
        self.offset = offset
        self.reason = reason


def _alike(data: memoryview) -> tuple[int, int]:
    """The number of entries from the first on with its size, according to their size fields, and that size; (0, 0) without a whole
    entry."""
    if len(data) < ENTRY_MIN_BYTES:
        return 0, 0
    size = int.from_bytes(data[_SIZE_AT : _SIZE_AT + 4], "big", signed=True)
    if not ENTRY_MIN_BYTES <= size <= len(data):
        return 0, 0
    same = np.ndarray((len(data) // size,), ">i4", data, _SIZE_AT, (size,)) == size
    return (len(same) if same.all() else int(same.argmin())), size


def _walk(data: memoryview) -> tuple[I64, bool]:
    """Offsets of the entries according to their size fields, followed by the end; and whether they fill the data exactly."""
    alike, size = _alike(data)
    begin: I64 = np.arange(alike + 1, dtype=np.int64) * size
    rest, whole = _walk_from(data, alike * size)
    return np.concatenate((begin, np.array(rest, np.int64))) if rest else begin, whole


def _walk_from(data: memoryview, at: int) -> tuple[list[int], bool]:
    """The same for the bytes behind `at`, one by one: the end of each entry."""
    unpack = struct.Struct(">i").unpack_from
    end = len(data)
    starts: list[int] = []
    while at + ENTRY_MIN_BYTES <= end:
        size = unpack(data, at + _SIZE_AT)[0]
        if size < ENTRY_MIN_BYTES:
            return starts, False
        at += size
        starts.append(at)
    return starts, at == end


def verify_range(data: Buffer, first_index: int, term: int, pos: int, prev_chain: int) -> Range:
    """Check every byte of received entries, and return them with their columns. Raises BadEntry.

    The entries must be whole, of one term, contiguous from (`first_index`, `pos`) on, and continue the chain `prev_chain`. The data is
    not copied, so it must not change any more.
    """
    view = memoryview(data)
    edges, whole = _walk(view)
    starts, sizes = edges[:-1], np.diff(edges).astype(np.int32)
    n = len(starts)
    if not whole or n <= FEW_ENTRIES:
        last_chain = _check_each(view, first_index, term, pos, prev_chain)
        return Range(first_index, first_index + n - 1, term, pos, view, starts, sizes, prev_chain, last_chain)
    heads = prefixes(view, starts)
    body_crcs = body_crcs_of(view, starts, sizes)
    # Each link is checked from the stored word before it: if all hold, that equals computing the whole chain.
    said = heads["chain_crc"].tolist()
    chain = crc_column(list(map(crc32c, chained(heads, body_crcs), [prev_chain, *said[:-1]])))
    magics = heads["record_magic"]
    channels = heads["channel"]
    body_sizes = sizes - HEADER_BYTES
    good = (
        (heads["magic"] == ENTRY_MAGIC).all()
        and (heads["index"] == np.arange(first_index, first_index + n)).all()
        and (heads["term"] == term).all()
        and (heads["pos"] == pos + starts).all()
        and ((channels == 0) | (channels == 1)).all()
        and (heads["body_size"] == body_sizes).all()
        and (heads["total_size"] == body_sizes).all()
        and ((magics == RECORD_V1) | (magics == RECORD_V2)).all()
        and (heads["physical_offset"] == pos + starts + HEADER_BYTES).all()
        and (heads["body_crc"] == body_crcs).all()
        and (heads["chain_crc"] == chain).all()
        and tails(view, starts, sizes, heads).ok.all()
    )
    if not good:
        _check_each(view, first_index, term, pos, prev_chain)
        raise AssertionError("a range was refused in vectors but every entry of it is good")
    return Range(first_index, first_index + n - 1, term, pos, view, starts, sizes, prev_chain, said[-1])


def _check_each(data: memoryview, first_index: int, term: int, pos: int, prev_chain: int) -> int:
    """The same rules for one entry at a time, in the order in which a reader needs them: for short ranges, and to name the first bad entry.
    Returns the last chain CRC."""
    at, index, chain = 0, first_index, prev_chain
    while at < len(data):
        reason, size, chain = _complaint(data, at, index, term, pos + at, chain)
        if reason is not None:
            raise BadEntry(index, at, reason)
        at += size
        index += 1
    if at == 0:
        raise BadEntry(index, 0, "there is no entry")
    return chain


def _complaint(data: memoryview, at: int, index: int, term: int, pos: int, chain: int) -> tuple[str | None, int, int]:
    """(the error of the entry at `at`, or None; its size; its chain CRC)."""
    if len(data) - at < ENTRY_MIN_BYTES:
        return f"only {len(data) - at} bytes are left for it", 0, 0
    magic, size, index_is, term_is, pos_is, channel, chain_crc, body_crc, body_size = _ENTRY_HEAD.unpack_from(data, at)
    if magic != ENTRY_MAGIC:
        return f"magic is {magic}, not {ENTRY_MAGIC}", 0, 0
    if size < ENTRY_MIN_BYTES or size > len(data) - at:
        return f"size {size} does not fit", 0, 0
    expected = (
        ("body size", body_size, size - HEADER_BYTES),
        ("index", index_is, index),
        ("term", term_is, term),
        ("position", pos_is, pos),
        ("channel", channel, channel if channel in (0, 1) else 0),
    )
    for name, found, wanted in expected:
        if found != wanted:
            return f"{name} is {found}, not {wanted}", 0, 0
    body = data[at + HEADER_BYTES : at + size]
    found_crc = crc32c(body)
    if body_crc != found_crc:
        return f"body CRC is {body_crc:#010x}, computed {found_crc:#010x}", 0, 0
    next_chain = crc32c(bytes(data[at : at + CHAINED_BYTES]) + body_crc.to_bytes(4, "big"), chain)
    if chain_crc != next_chain:
        return f"chain CRC is {chain_crc:#010x}, computed {next_chain:#010x}", 0, 0
    reason = _record_complaint(body)
    if reason is None and int.from_bytes(body[28:36], "big") != pos + HEADER_BYTES:
        reason = "the record's physical offset is not its position"
    return reason, size, next_chain


def _record_complaint(record: memoryview) -> str | None:
    try:
        split_record(record)
    except ValueError as error:
        return str(error)
    return None
