"""The properties of many messages at once: the positions of each name and its value (docs/format.md
§4.1).

The property strings of a batch are concatenated once. Their separators then give the begin and end
of every property, and a name is found by comparing its bytes at each begin. Only requested
properties are decoded.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.entries.layout import windows
from ledgermq.proto.frames import EntryColumns
from ledgermq.proto.types import I64

_END = 2


class Spans(NamedTuple):
    """The values of one property: for the messages in `rows`, ascending, at `begins` of `data`."""

    data: memoryview
    rows: I64
    begins: I64
    lengths: I64

    def among(self, values: Collection[bytes]) -> NDArray[np.bool_]:
        """A mask of the values that are among these."""
        chosen = np.zeros(len(self.rows), np.bool_)
        for value in values:
            same = np.flatnonzero(self.lengths == len(value))
            if value:
                same = same[
                    windows(self.data, np.dtype(f"V{len(value)}"))[self.begins[same]]
                    == np.void(value)
                ]
            chosen[same] = True
        return chosen

    def joined(self) -> bytes:
        """The concatenated values."""
        lengths = self.lengths
        if len(lengths) and lengths[0] and (lengths == lengths[0]).all():
            return bytes(windows(self.data, np.dtype(f"V{int(lengths[0])}"))[self.begins].tobytes())
        return b"".join(
            map(
                self.data.__getitem__,
                map(slice, self.begins.tolist(), (self.begins + lengths).tolist()),
            )
        )


class PropertyFields:
    """The properties of the messages of a batch."""

    def __init__(self, columns: EntryColumns) -> None:
        self._count = len(columns)
        strings = Spans(
            columns.data, np.arange(self._count), columns.property_offsets, columns.property_lengths
        )
        self._data = memoryview(strings.joined())
        self._ends = np.cumsum(strings.lengths)
        self._starts = self._ends - strings.lengths

    @cached_property
    def _places(self) -> tuple[I64, I64, I64]:
        """Row, begin and end (without the separator) of every property. Bytes behind the last
        separator are not a property (§4.1)."""
        ends = np.flatnonzero(np.frombuffer(self._data, np.uint8) == _END)
        rows = np.searchsorted(self._ends, ends, side="right")
        begins = np.zeros(len(ends), np.int64)
        begins[1:] = ends[:-1] + 1
        np.maximum(begins, self._starts[rows], out=begins)
        return rows, begins, ends

    def spans(self, name: str) -> Spans:
        """The values stored under a name; if one message has several, the last."""
        rows, begins, ends = self._places
        field = f"{name}\x01".encode()
        at = np.flatnonzero(ends - begins >= len(field))
        at = at[windows(self._data, np.dtype(f"V{len(field)}"))[begins[at]] == np.void(field)]
        if len(at) > 1:
            at = at[np.append(rows[at][1:] != rows[at][:-1], True)]
        values = begins[at] + len(field)
        return Spans(self._data, rows[at], values, ends[at] - values)

    def texts(self, name: str) -> list[str | None]:
        """The values of all messages as text; None for messages without one."""
        spans = self.spans(name)
        out: list[str | None] = [None] * self._count
        pieces = zip(
            spans.rows.tolist(),
            spans.begins.tolist(),
            (spans.begins + spans.lengths).tolist(),
            strict=True,
        )
        for row, begin, end in pieces:
            out[row] = str(self._data[begin:end], "utf-8")
        return out

    def others(self, names: Collection[str]) -> I64:
        """The rows of messages that have properties besides these."""
        rows, _, _ = self._places
        counts = np.bincount(rows, minlength=self._count)
        for name in names:
            counts[self.spans(name).rows] -= 1
        return np.flatnonzero(counts > 0)
