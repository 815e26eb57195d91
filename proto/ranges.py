"""Arithmetic on ranges: pure functions over `Range` values."""

from __future__ import annotations

from dataclasses import replace

from ledgermq.proto.entry_sealing import chain_crc_at
from ledgermq.proto.types import Range

_CHAIN_CRC = slice(36, 40)


def cut(entries: Range, last_index: int) -> Range:
    """The part of `entries` up to `last_index`; at least one entry."""
    if entries.last_index <= last_index:
        return entries
    count = last_index - entries.first_index + 1
    assert count > 0, "the range begins behind the cut"
    begin = int(entries.starts[count - 1])
    end = begin + int(entries.sizes[count - 1])
    chain = int.from_bytes(entries.data[begin:end][_CHAIN_CRC], "big")
    return replace(
        entries,
        last_index=last_index,
        data=entries.data[:end],
        starts=entries.starts[:count],
        sizes=entries.sizes[:count],
        last_chain=chain,
    )


def tail_of(entries: Range, first_index: int) -> Range:
    """The part of a range from `first_index` on, without copying."""
    skip = first_index - entries.first_index
    if skip == 0:
        return entries
    at = int(entries.starts[skip])
    return Range(
        first_index,
        entries.last_index,
        entries.term,
        entries.pos + at,
        entries.data[at:],
        entries.starts[skip:] - at,
        entries.sizes[skip:],
        chain_crc_at(entries.data, int(entries.starts[skip - 1])),
        entries.last_chain,
    )
