"""Arithmetic on ranges: pure functions over `Range` values."""

from __future__ import annotations

from dataclasses import replace

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
