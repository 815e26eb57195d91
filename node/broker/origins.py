"""Marks: messages made from another entry of the same log, which thereby mark that entry as done
(docs/format.md §4.3).

Pure functions of bytes that find the marks in a range. Timers, transactions and dead letters define
what their marks change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ledgermq.proto.entries.layout import Columns, split_record
from ledgermq.proto.entries.properties import ORIGIN, value_of
from ledgermq.proto.entries.ranges import record_of
from ledgermq.proto.records.control import UnknownControlRecord
from ledgermq.proto.types import Range


@dataclass(frozen=True, slots=True)
class Mark:
    """What a message says about the entry `origin`: `kind` is the word before the first colon of
    its property, `fields` are the rest."""

    origin: int
    kind: str
    fields: tuple[str, ...]


def origin_text(kind: str, *fields: str | int) -> str:
    """The value of a mark's property. Fields never contain a colon, because names cannot."""
    return ":".join([kind, *map(str, fields)])


def marks(entries: Range, columns: Columns, kinds: Collection[str]) -> Iterator[tuple[int, Mark]]:
    """(place in the range, mark) of every message that has one, in order. Raises
    UnknownControlRecord for a kind not in `kinds`."""
    rows = columns.rows
    for at in (
        np.flatnonzero(columns.origins).tolist()
        if rows is None
        else [at for at, row in enumerate(rows) if row[6]]
    ):
        record = record_of(entries, at)
        kind, *fields = (value_of(bytes(record[split_record(record)[3] :]), ORIGIN) or "").split(
            ":"
        )
        if kind not in kinds:
            raise UnknownControlRecord(
                f"a message marks another one as {kind!r}; this log was written by a newer version,"
                " start that one"
            )
        yield at, Mark(int(columns.origins[at]), kind, tuple(fields))
