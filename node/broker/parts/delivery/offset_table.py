"""A compact table of integer columns keyed by queue offset, for facts about messages in flight
(invariant I11).

Offsets are grouped in chunks of a few thousand. Within a chunk every column is one array, in
ascending order of offsets. A row takes the bytes of its columns plus two for its place, whether or
not its neighbours have rows. Appending after the last offset and removing anywhere move at most one
chunk. The owners of a table define what its columns mean.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import lt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.types import I64

_CHUNK_BITS = 12
CHUNK = 1 << _CHUNK_BITS
_MASK = CHUNK - 1
Chunk = list["array[int]"]
"""The places of the rows within the chunk, followed by the columns."""


class OffsetTable:
    """Rows of integers by offset. `types`: one type code of the module `array` per column."""

    __slots__ = ("_chunks", "_length", "_types")

    def __init__(self, types: str) -> None:
        self._types = types
        self._chunks: dict[int, Chunk] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.find(offset) is not None

    def __iter__(self) -> Iterator[int]:
        """Offsets, ascending. The table must not change during the iteration."""
        for number in sorted(self._chunks):
            first = number << _CHUNK_BITS
            for place in self._chunks[number][0]:
                yield first + place

    def find(self, offset: int) -> tuple[Chunk, int] | None:
        """The position of a row: column k (from 1) is `chunk[k][at]`, for reading or writing. Valid
        until a row is added or removed."""
        chunk = self._chunks.get(offset >> _CHUNK_BITS)
        if chunk is None:
            return None
        places, place = chunk[0], offset & _MASK
        at = bisect_left(places, place)
        return (chunk, at) if at < len(places) and places[at] == place else None

    def find_run(self, offsets: Sequence[int]) -> tuple[Chunk, int] | None:
        """The position of the first of these offsets, if the next rows of its chunk are those of
        the others, in order."""
        found = self.find(offsets[0])
        if found is None or offsets[0] >> _CHUNK_BITS != offsets[-1] >> _CHUNK_BITS:
            return None
        places, at = found[0][0], found[1]
        same = places[at : at + len(offsets)] == array("H", [offset & _MASK for offset in offsets])
        return found if same else None

    def put(self, offset: int, *values: int) -> None:
        """Add a row for an offset that has none."""
        chunk = self._chunks.get(offset >> _CHUNK_BITS)
        if chunk is None:
            chunk = self._chunks[offset >> _CHUNK_BITS] = [
                array("H"),
                *[array(letter) for letter in self._types],
            ]
        places, place = chunk[0], offset & _MASK
        at = len(places)
        if at and places[-1] >= place:
            at = bisect_left(places, place)
            assert places[at] != place, f"offset {offset} has a row"
        places.insert(at, place)
        for k, value in enumerate(values, 1):
            chunk[k].insert(at, value)
        self._length += 1

    def extend(self, offsets: Sequence[int], *columns: Sequence[int]) -> None:
        """Add rows behind all others; the offsets ascend, and each column has a value for each of
        them."""
        number = offsets[0] >> _CHUNK_BITS
        border = bisect_left(offsets, (number + 1) << _CHUNK_BITS)
        if border < len(offsets):
            self.extend(offsets[:border], *[column[:border] for column in columns])
            self.extend(offsets[border:], *[column[border:] for column in columns])
            return
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = [array("H"), *[array(letter) for letter in self._types]]
        assert not chunk[0] or chunk[0][-1] < offsets[0] & _MASK, (
            f"offset {offsets[0]} is not behind all rows"
        )
        chunk[0].extend([offset & _MASK for offset in offsets])
        for k, column in enumerate(columns, 1):
            chunk[k].extend(column)
        self._length += len(offsets)

    def takes_behind(self, offsets: Sequence[int]) -> bool:
        """Whether rows with these offsets, at least one, may be added by `extend`."""
        last = self.last()
        return (last is None or last < offsets[0]) and all(map(lt, offsets, offsets[1:]))

    def remove(self, offset: int, chunk: Chunk, at: int) -> None:
        """Remove the row that `find` found."""
        if len(chunk[0]) == 1:
            del self._chunks[offset >> _CHUNK_BITS]
        else:
            for column in chunk:
                del column[at]
        self._length -= 1

    def first(self) -> int | None:
        """The lowest offset with a row; None if the table is empty."""
        if not self._chunks:
            return None
        number = min(self._chunks)
        return (number << _CHUNK_BITS) + self._chunks[number][0][0]

    def last(self) -> int | None:
        """The highest offset with a row; None if the table is empty."""
        if not self._chunks:
            return None
        number = max(self._chunks)
        return (number << _CHUNK_BITS) + self._chunks[number][0][-1]

    def below(self, offset: int) -> list[int]:
        """Offsets below `offset` that have a row, ascending."""
        found = []
        for number in sorted(self._chunks):
            first = number << _CHUNK_BITS
            if first >= offset:
                break
            found += [first + place for place in self._chunks[number][0] if first + place < offset]
        return found

    def clear(self) -> None:
        self._chunks.clear()
        self._length = 0

    def columns(self) -> list[NDArray[Any]]:
        """The offsets (int64), ascending, followed by the columns, as copies of equal length."""
        chunks = [(number << _CHUNK_BITS, self._chunks[number]) for number in sorted(self._chunks)]
        offsets = [
            first + np.frombuffer(chunk[0], np.uint16).astype(np.int64) for first, chunk in chunks
        ]
        rest = [
            [np.frombuffer(chunk[k], letter) for _, chunk in chunks]
            for k, letter in enumerate(self._types, 1)
        ]
        empty = [np.empty(0, letter) for letter in ("q", *self._types)]
        return [
            np.concatenate(column) if column else none
            for column, none in zip([offsets, *rest], empty, strict=True)
        ]

    def load(self, offsets: I64, *columns: NDArray[Any]) -> None:
        """Fill an empty table with ascending offsets (int64) and columns of the same length."""
        assert not self._chunks, "only an empty table is filled"
        numbers = offsets >> _CHUNK_BITS
        borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(offsets)]
        wanted = [
            (offsets & _MASK).astype("H"),
            *[column.astype(letter) for letter, column in zip(self._types, columns, strict=True)],
        ]
        for begin, end in pairwise(borders):
            if begin < end:
                self._chunks[int(numbers[begin])] = [
                    array(column.dtype.char, column[begin:end].tobytes()) for column in wanted
                ]
        self._length = len(offsets)
