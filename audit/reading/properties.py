"""The property strings of many records at once (docs/format.md §4.1): the position of every name
and value, and their texts.

Decoding only, with vector operations and without an object per message. The caller knows what a
property means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ledgermq.audit.reading.decode import I64, U8, Flags

NAME_END, VALUE_END, SPACE = 1, 2, 0x20


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties in stored order. Number p belongs to record `owner[p]` of the requested ones; name
    and value are in `data` at `name_at[p]` and `value_at[p]`. A piece without a name is left
    out."""

    data: U8
    owner: I64
    name_at: I64
    name_bytes: I64
    value_at: I64
    value_bytes: I64

    def named(self, name: bytes) -> I64:
        """The numbers of the properties with this name."""
        at = np.flatnonzero(self.name_bytes == len(name))
        for place, letter in enumerate(name):
            at = at[self.data[self.name_at[at] + place] == letter]
        return at

    def take(self, numbers: I64) -> Properties:
        """Only these properties."""
        return Properties(
            data=self.data,
            owner=self.owner[numbers],
            name_at=self.name_at[numbers],
            name_bytes=self.name_bytes[numbers],
            value_at=self.value_at[numbers],
            value_bytes=self.value_bytes[numbers],
        )


def find_properties(window: bytes, starts: I64, ends: I64) -> Properties:
    """The properties of records whose property strings are at `starts` … `ends`, ascending and not
    overlapping."""
    data: U8 = np.frombuffer(window, np.uint8)
    owner, mark = _inside(data, VALUE_END, starts, ends)
    first = np.ones(len(mark), np.bool_)
    first[1:] = owner[1:] != owner[:-1]
    begin = np.empty(len(mark), np.int64)
    begin[1:] = mark[:-1] + 1
    begin[first] = starts[owner[first]]
    _, separators = _inside(data, NAME_END, starts, ends)
    separators = np.append(separators, len(data))
    separator = separators[np.searchsorted(separators, begin)] if len(begin) else begin
    good: Flags = separator < mark
    begin, mark, separator, owner = begin[good], mark[good], separator[good], owner[good]
    return Properties(
        data=data,
        owner=owner,
        name_at=begin,
        name_bytes=separator - begin,
        value_at=separator + 1,
        value_bytes=mark - separator - 1,
    )


def _inside(data: U8, letter: int, starts: I64, ends: I64) -> tuple[I64, I64]:
    """The places of a byte inside the ranges, and the range of each."""
    marks: I64 = np.flatnonzero(data == letter)
    owner = np.searchsorted(starts, marks, side="right") - 1
    inside = owner >= 0
    inside[inside] = marks[inside] < ends[owner[inside]]
    return owner[inside], marks[inside]


def split_at_spaces(data: U8, at: I64, lengths: I64) -> tuple[I64, I64, I64]:
    """The words of values between spaces, without empty ones: (number of the value, place, length).
    Values ascend and do not overlap."""
    if not len(at):
        empty = np.zeros(0, np.int64)
        return empty, empty, empty
    ends = at + lengths
    value, spaces = _inside(data, SPACE, at, ends)
    numbers = np.concatenate((np.arange(len(at)), value))
    begins = np.concatenate((at, spaces + 1))
    stops = np.concatenate((ends, spaces))
    # Values do not overlap, so begins and ends stay pairs when each is sorted by itself.
    order = np.argsort(begins, kind="stable")
    begins, stops, numbers = begins[order], np.sort(stops, kind="stable"), numbers[order]
    kept = stops > begins
    return numbers[kept], begins[kept], (stops - begins)[kept]


def cut(data: U8, at: I64, lengths: I64) -> tuple[U8, I64]:
    """Concatenate short texts: the bytes, and n + 1 offsets."""
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.arange(int(offsets[-1])) + np.repeat(at - offsets[:-1], lengths)
    return data[places], offsets
