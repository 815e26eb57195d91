"""Sealing of entries: index, term, position and the server's fields, then both CRCs (docs/format.md
§2, §3).

Few entries are sealed one by one, many with vector operations, whose functions for the bytes
covered by the two CRCs the verification uses as well. The auditor has its own and must never import
this module.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from ledgermq.proto import kernels
from ledgermq.proto.entries.layout import (
    BODY_AT,
    CHAINED_BYTES,
    CRC_WORDS_AT,
    ENTRY_HEAD,
    ENTRY_MAGIC,
    FEW_ENTRIES,
    HEADER_BYTES,
    STORE_MS_AT,
    Buffer,
    for_each,
    prefixes,
    put_prefixes,
    windows,
)
from ledgermq.proto.types import I32, I64, Range, UnsealedBatch

_CRC_WORDS = np.dtype([("chain_crc", ">u4"), ("body_crc", ">u4")])
_CRC_BYTES = np.dtype("V8")
_CHAINED = np.dtype([("head", f"V{CHAINED_BYTES}"), ("body_crc", ">u4")])
_CHAINED_ITEM = np.dtype(f"V{_CHAINED.itemsize}")
_HEAD_ONLY = np.dtype([("head", f"V{CHAINED_BYTES}"), ("rest", f"V{BODY_AT - CHAINED_BYTES}")])


def chain_seed(log_id: str) -> int:
    """The chain CRC before entry 0 of a log."""
    return int(crc32c(log_id.encode("ascii")))


def seal(
    batch: UnsealedBatch,
    *,
    first_index: int,
    term: int,
    pos: int | I64,
    queue_offsets: I64,
    store_ms: int | I64,
    store_host: bytes | NDArray[np.void],
    prev_chain: int,
) -> int:
    """Give every entry its place: fill the header and the server's fields in `batch.data`, then
    both CRCs. Returns the last chain CRC.

    `pos` is either the position of the first entry, which the others follow without gaps, or the
    position of each. Store time and store host are one value for all, or one each. Sealing again
    (after a lost proposal) is allowed: every field is overwritten.
    """
    n = batch.count
    if (
        n <= FEW_ENTRIES
        and isinstance(pos, int)
        and isinstance(store_ms, int)
        and isinstance(store_host, bytes)
    ):
        return _seal_each(
            batch,
            index=first_index,
            term=term,
            pos=pos,
            queue_offsets=queue_offsets.tolist(),
            store_ms=store_ms,
            store_host=store_host,
            prev_chain=prev_chain,
        )
    data, starts = batch.data, batch.starts
    positions = pos + starts if isinstance(pos, int) else pos
    if kernels.NATIVE and isinstance(store_ms, int) and isinstance(store_host, bytes):
        sealed = kernels.entries.seal(
            data,
            starts,
            batch.sizes,
            batch.queues,
            queue_offsets,
            positions,
            store_ms,
            store_host,
            first_index,
            term,
            prev_chain,
        )
        assert sealed is not None, "the entries of the batch do not lie in its data"
        return sealed
    heads = prefixes(data, starts)
    heads["magic"] = ENTRY_MAGIC
    heads["size"] = batch.sizes
    heads["index"] = np.arange(first_index, first_index + n)
    heads["term"] = term
    heads["pos"] = positions
    heads["body_size"] = batch.sizes - HEADER_BYTES
    heads["queue"] = batch.queues
    heads["queue_offset"] = queue_offsets
    heads["physical_offset"] = positions + HEADER_BYTES
    heads["store_ms"] = store_ms
    heads["store_host"] = np.void(store_host) if isinstance(store_host, bytes) else store_host
    put_prefixes(data, starts, heads)
    words = np.empty(n, _CRC_WORDS)
    words["body_crc"] = body_crcs_of(data, starts, batch.sizes)
    value = prev_chain
    chain = [value := crc32c(item, value) for item in chained(heads, words["body_crc"])]
    words["chain_crc"] = crc_column(chain)
    windows(data, _CRC_BYTES)[starts + CRC_WORDS_AT] = words.view(_CRC_BYTES)
    return value


_QUEUE = struct.Struct(">i")
_OFFSETS = struct.Struct(">qq")
_STORED = struct.Struct(">q8s")
_CRC = struct.Struct(">I")
_CRCS_AND_SIZE = struct.Struct(">IIi")
_QUEUE_AT, _OFFSETS_AT = 60, 68


def _seal_each(
    batch: UnsealedBatch,
    index: int,
    term: int,
    pos: int,
    queue_offsets: list[int],
    store_ms: int,
    store_host: bytes,
    prev_chain: int,
) -> int:
    """The same, entry by entry."""
    data, edges, chain = batch.data, batch.edges, prev_chain
    at, view = edges[0], memoryview(data)
    for end, (_, queue), queue_offset in zip(edges[1:], batch.keys, queue_offsets, strict=True):
        size = end - at
        ENTRY_HEAD.pack_into(data, at, ENTRY_MAGIC, size, index, term, pos + at)
        _QUEUE.pack_into(data, at + _QUEUE_AT, queue)
        _OFFSETS.pack_into(data, at + _OFFSETS_AT, queue_offset, pos + at + HEADER_BYTES)
        _STORED.pack_into(data, at + STORE_MS_AT, store_ms, store_host)
        body_crc = crc32c(view[at + HEADER_BYTES : end])
        # The chain covers the head and then the body CRC, which therefore stands where the chain
        # CRC belongs for a moment.
        _CRC.pack_into(data, at + CRC_WORDS_AT, body_crc)
        chain = crc32c(view[at : at + CHAINED_BYTES + 4], chain)
        _CRCS_AND_SIZE.pack_into(data, at + CRC_WORDS_AT, chain, body_crc, size - HEADER_BYTES)
        at = end
        index += 1
    return chain


def crc_column(crcs: list[int]) -> NDArray[np.uint32]:
    """CRCs as a column; faster than an array built from a list, whose type NumPy must determine
    first."""
    return np.fromiter(crcs, np.uint32, len(crcs))


def body_crcs_of(data: Buffer, starts: I64, sizes: I32) -> NDArray[np.uint32]:
    """The CRC of each entry's body."""
    return crc_column(for_each(crc32c, data, starts + HEADER_BYTES, starts + sizes))


def chained(heads: NDArray[Any], body_crcs: NDArray[Any]) -> list[bytes]:
    """The bytes of each entry that the chain covers."""
    rows = np.empty(len(heads), _CHAINED)
    rows["head"] = heads.view(_HEAD_ONLY)["head"]
    rows["body_crc"] = body_crcs
    items: list[bytes] = rows.view(_CHAINED_ITEM).tolist()
    return items


def chain_crc_at(data: Buffer, start: int) -> int:
    """The chain CRC word of the sealed entry at `start`."""
    chain: int = _CRC.unpack_from(data, start + CRC_WORDS_AT)[0]
    return chain


def make_range(
    batch: UnsealedBatch,
    low: int,
    high: int,
    *,
    first_index: int,
    term: int,
    pos: int,
    prev_chain: int,
) -> Range:
    """Entries low … high−1 of a sealed batch as a range; `first_index` and `pos` belong to entry
    `low`."""
    if batch.count <= FEW_ENTRIES:
        begin = batch.edges[low]
        edges = [edge - begin for edge in batch.edges[low : high + 1]]
        data = memoryview(batch.data)[begin : begin + edges[-1]].toreadonly()
        last_chain = chain_crc_at(data, edges[-2])
        return Range(
            first_index,
            last_index=first_index + high - low - 1,
            term=term,
            pos=pos,
            data=data,
            starts=None,
            sizes=None,
            prev_chain=prev_chain,
            last_chain=last_chain,
            edges=edges,
        )
    begin = int(batch.starts[low])
    end = int(batch.starts[high - 1]) + int(batch.sizes[high - 1])
    return Range(
        first_index=first_index,
        last_index=first_index + high - low - 1,
        term=term,
        pos=pos,
        data=memoryview(batch.data)[begin:end].toreadonly(),
        starts=batch.starts[low:high] - begin,
        sizes=batch.sizes[low:high],
        prev_chain=prev_chain,
        last_chain=chain_crc_at(batch.data, int(batch.starts[high - 1])),
    )
