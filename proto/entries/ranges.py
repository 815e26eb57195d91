"""Arithmetic on ranges: pure functions over `Range` values."""

from __future__ import annotations

from ledgermq.proto.entries.entry_sealing import chain_crc_at
from ledgermq.proto.entries.layout import FEW_ENTRIES, HEADER_BYTES
from ledgermq.proto.types import Range


def cut(entries: Range, last_index: int) -> Range:
    """The part of `entries` up to `last_index`; at least one entry."""
    if entries.last_index <= last_index:
        return entries
    first, term, pos, data = entries.first_index, entries.term, entries.pos, entries.data
    count = last_index - first + 1
    assert count > 0, "the range begins behind the cut"
    if len(entries) <= FEW_ENTRIES:
        edges = entries.edges[: count + 1]
        chain = chain_crc_at(data, edges[-2])
        return Range(
            first_index=first,
            last_index=last_index,
            term=term,
            pos=pos,
            data=data[: edges[-1]],
            starts=None,
            sizes=None,
            prev_chain=entries.prev_chain,
            last_chain=chain,
            edges=edges,
        )
    begin = int(entries.starts[count - 1])
    end = begin + int(entries.sizes[count - 1])
    starts, sizes = entries.starts[:count], entries.sizes[:count]
    return Range(
        first_index=first,
        last_index=last_index,
        term=term,
        pos=pos,
        data=data[:end],
        starts=starts,
        sizes=sizes,
        prev_chain=entries.prev_chain,
        last_chain=chain_crc_at(data, begin),
    )


def record_of(entries: Range, at: int) -> memoryview:
    """The message record of the entry with this place in the range."""
    if entries.last_index - entries.first_index < FEW_ENTRIES:
        edges = entries.edges
        return entries.data[edges[at] + HEADER_BYTES : edges[at + 1]]
    start = int(entries.starts[at])
    return entries.data[start + HEADER_BYTES : start + int(entries.sizes[at])]


def tail_of(entries: Range, first_index: int) -> Range:
    """The part of a range from `first_index` on, without copying."""
    skip = first_index - entries.first_index
    if skip == 0:
        return entries
    last, term, data = entries.last_index, entries.term, entries.data
    if len(entries) <= FEW_ENTRIES:
        edges = entries.edges
        at, chain = edges[skip], chain_crc_at(data, edges[skip - 1])
        rest = [edge - at for edge in edges[skip:]]
        return Range(
            first_index,
            last_index=last,
            term=term,
            pos=entries.pos + at,
            data=data[at:],
            starts=None,
            sizes=None,
            prev_chain=chain,
            last_chain=entries.last_chain,
            edges=rest,
        )
    at, chain = int(entries.starts[skip]), chain_crc_at(data, int(entries.starts[skip - 1]))
    starts, sizes = entries.starts[skip:] - at, entries.sizes[skip:]
    return Range(
        first_index,
        last_index=last,
        term=term,
        pos=entries.pos + at,
        data=data[at:],
        starts=starts,
        sizes=sizes,
        prev_chain=chain,
        last_chain=entries.last_chain,
    )
