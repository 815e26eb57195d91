"""Verification of entries received from a peer or read from a disk: every byte is checked before it
is used (docs/format.md §2–§4).

Ranges are checked with vector operations; short ranges, and those with an error, entry by entry, so
that the first bad entry is named. The auditor has its own rules and must never import this module.
"""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c

from ledgermq.proto import kernels
from ledgermq.proto.carried import Carried
from ledgermq.proto.entries.entry_sealing import body_crcs_of, chained, crc_column
from ledgermq.proto.entries.layout import (
    BODY_CRC_AT,
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
_ENTRY_HEAD = struct.Struct(">iiqqqiIIi28xq")
"""The header, and the record's physical offset."""
_SIZE = struct.Struct(">i")


class BadEntry(Carried):
    """The bytes are not the claimed range. `index` and `offset` are those of the first bad entry;
    everything before it is valid."""

    def __init__(self, index: int, offset: int, reason: str) -> None:
        super().__init__(f"entry {index} (byte {offset} of the range): {reason}")
        self.index = index
        self.offset = offset
        self.reason = reason


def _has_few(data: memoryview) -> bool:
    """Whether there are at most `FEW_ENTRIES` entries according to their size fields, or a size
    that cannot be."""
    at, end, unpack = 0, len(data), _SIZE.unpack_from
    for _ in range(FEW_ENTRIES):
        if at + ENTRY_MIN_BYTES > end:
            return True
        size = unpack(data, at + _SIZE_AT)[0]
        if size < ENTRY_MIN_BYTES:
            return True
        at += size
    return at >= end


def _alike(data: memoryview) -> tuple[int, int]:
    """The number of entries from the first on with its size, according to their size fields, and
    that size; (0, 0) without a whole entry."""
    if len(data) < ENTRY_MIN_BYTES:
        return 0, 0
    size = int.from_bytes(data[_SIZE_AT : _SIZE_AT + 4], "big", signed=True)
    if not ENTRY_MIN_BYTES <= size <= len(data):
        return 0, 0
    same = np.ndarray((len(data) // size,), ">i4", data, _SIZE_AT, (size,)) == size
    return (len(same) if same.all() else int(same.argmin())), size


def _walk(data: memoryview) -> tuple[I64, bool]:
    """Offsets of the entries according to their size fields, followed by the end; and whether they
    fill the data exactly."""
    alike, size = _alike(data)
    begin: I64 = np.arange(alike + 1, dtype=np.int64) * size
    rest, whole = _walk_from(data, alike * size)
    return np.concatenate((begin, np.array(rest, np.int64))) if rest else begin, whole


def _walk_from(data: memoryview, at: int) -> tuple[list[int], bool]:
    """The same for the bytes behind `at`, one by one: the end of each entry."""
    unpack = _SIZE.unpack_from
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

    The entries must be whole, of one term, contiguous from (`first_index`, `pos`) on, and continue
    the chain `prev_chain`. The data is not copied, so it must not change any more.
    """
    view = memoryview(data)
    verified = (
        kernels.entries.verify(view, first_index, term, pos, prev_chain, FEW_ENTRIES)
        if kernels.NATIVE
        else None
    )
    if verified is not None:
        if len(verified) == 3:
            chain, few, splits = verified
            return Range(
                first_index,
                last_index=first_index + len(splits) - 1,
                term=term,
                pos=pos,
                data=view,
                starts=None,
                sizes=None,
                prev_chain=prev_chain,
                last_chain=chain,
                edges=few,
                splits=splits,
            )
        chain, stored = verified
        edges = np.frombuffer(stored, np.int64)
        last_index = first_index + len(edges) - 2
        return Range(
            first_index,
            last_index,
            term,
            pos,
            data=view,
            starts=edges[:-1],
            sizes=np.diff(edges).astype(np.int32),
            prev_chain=prev_chain,
            last_chain=chain,
        )
    if _has_few(view):
        return _verify_each(view, first_index, term, pos, prev_chain)
    edges, whole = _walk(view)
    starts, sizes = edges[:-1], np.diff(edges).astype(np.int32)
    n = len(starts)
    if not whole:
        return _verify_each(view, first_index, term, pos, prev_chain)
    heads = prefixes(view, starts)
    body_crcs = body_crcs_of(view, starts, sizes)
    # Each link is checked from the stored word before it: if all hold, that equals computing the
    # whole chain.
    said = heads["chain_crc"].tolist()
    chains = crc_column(list(map(crc32c, chained(heads, body_crcs), [prev_chain, *said[:-1]])))
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
        and (heads["chain_crc"] == chains).all()
        and tails(view, starts, sizes, heads).ok.all()
    )
    if not good:
        _verify_each(view, first_index, term, pos, prev_chain)
        raise AssertionError("a range was refused in vectors but every entry of it is good")
    return Range(
        first_index,
        last_index=first_index + n - 1,
        term=term,
        pos=pos,
        data=view,
        starts=starts,
        sizes=sizes,
        prev_chain=prev_chain,
        last_chain=said[-1],
    )


def _verify_each(data: memoryview, first_index: int, term: int, pos: int, prev_chain: int) -> Range:
    """The same rules for one entry at a time, in the order in which a reader needs them: for short
    ranges, and to name the first bad entry."""
    at, index, chain, length = 0, first_index, prev_chain, len(data)
    edges = [0]
    splits: list[tuple[int, int, int, int]] = []
    while at < length:
        if length - at < ENTRY_MIN_BYTES:
            raise BadEntry(index, at, f"only {length - at} bytes are left for it")
        (
            magic,
            size,
            index_is,
            term_is,
            pos_is,
            channel,
            chain_crc,
            body_crc,
            body_size,
            record_pos,
        ) = _ENTRY_HEAD.unpack_from(data, at)
        if magic != ENTRY_MAGIC:
            raise BadEntry(index, at, f"magic is {magic}, not {ENTRY_MAGIC}")
        end = at + size
        if size < ENTRY_MIN_BYTES or end > length:
            raise BadEntry(index, at, f"size {size} does not fit")
        if body_size != size - HEADER_BYTES:
            raise BadEntry(index, at, f"body size is {body_size}, not {size - HEADER_BYTES}")
        if index_is != index:
            raise BadEntry(index, at, f"index is {index_is}, not {index}")
        if term_is != term:
            raise BadEntry(index, at, f"term is {term_is}, not {term}")
        if pos_is != pos + at:
            raise BadEntry(index, at, f"position is {pos_is}, not {pos + at}")
        if channel not in (0, 1):
            raise BadEntry(index, at, f"channel is {channel}, not 0")
        body = data[at + HEADER_BYTES : end]
        computed = crc32c(body)
        if body_crc != computed:
            raise BadEntry(index, at, f"body CRC is {body_crc:#010x}, computed {computed:#010x}")
        chain = crc32c(
            data[at + BODY_CRC_AT : at + BODY_CRC_AT + 4],
            crc32c(data[at : at + CHAINED_BYTES], chain),
        )
        if chain_crc != chain:
            raise BadEntry(index, at, f"chain CRC is {chain_crc:#010x}, computed {chain:#010x}")
        try:
            splits.append(split_record(body))
        except ValueError as error:
            raise BadEntry(index, at, str(error)) from None
        if record_pos != pos_is + HEADER_BYTES:
            raise BadEntry(index, at, "the record's physical offset is not its position")
        at = end
        index += 1
        edges.append(at)
    if at == 0:
        raise BadEntry(index, 0, "there is no entry")
    return Range(
        first_index,
        last_index=index - 1,
        term=term,
        pos=pos,
        data=data,
        starts=None,
        sizes=None,
        prev_chain=prev_chain,
        last_chain=chain,
        edges=edges,
        splits=splits,
    )
