"""The view `keyindex`: one row per valid unit of the key index, by its position (docs/format.md
§14.3), as stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import I64
from ledgermq.audit.reading.key_files import KeyNote, open_key_file, read_key_units, read_position
from ledgermq.audit.reading.ranges import Span
from ledgermq.audit.spark.views.view import Batch, Share
from ledgermq.audit.spark.views.wanted import GROUP, MS, POS, REPLICA, Wanted

SECOND_MS = 1000


class KeyView:
    """`pos` is the physical offset of the message; `store_ms` its store time in the unit, in whole
    seconds."""

    columns: Mapping[str, str] = {
        "replica": "string",
        "group": "string",
        "file": "string",
        "unit": "int",
        "hash": "int",
        "slot": "int",
        "pos": "bigint",
        "store_ms": "bigint",
        "previous": "int",
    }
    bounds: Mapping[str, str] = {"replica": REPLICA, "group": GROUP, "pos": POS, "store_ms": MS}
    kinds = frozenset({MS})

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        return [
            Share(replica.directory, replica.task(f"{0:020d}"), 0, (note.name,))
            for note in _notes(replica.root, wanted)
        ]

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        task = share.task
        for note in _notes(task.root, wanted):
            if note.name in share.names:
                with open_key_file(task.root, note.name) as file:
                    for numbers, units in read_key_units(file, note):
                        pos = units["pos"].astype(np.int64)
                        ms = note.begin_ms + units["seconds"].astype(np.int64) * SECOND_MS
                        flags = wanted.span(POS).holds(pos) & wanted.span(MS).holds(ms)
                        # The table of a running replica ends at its marker.
                        rows = np.flatnonzero(
                            flags if task.end_pos is None else flags & (pos < task.end_pos)
                        )
                        if len(rows):
                            yield self._batch(share, note, numbers[rows], units[rows], ms[rows])

    @staticmethod
    def _batch(
        share: Share, note: KeyNote, numbers: I64, units: NDArray[np.void], ms: I64
    ) -> Batch:
        task = share.task
        return Batch(
            len(numbers),
            {
                "replica": lambda: task.replica,
                "group": lambda: task.group,
                "file": lambda: f"{task.group}/index/{note.name}",
                "unit": lambda: numbers,
                "hash": lambda: units["hash"].astype(np.int64),
                "slot": lambda: units["hash"].astype(np.int64) % note.slots,
                "pos": lambda: units["pos"].astype(np.int64),
                "store_ms": lambda: ms,
                "previous": lambda: units["previous"].astype(np.int64),
            },
        )


def _notes(root: str, wanted: Wanted) -> list[KeyNote]:
    """The files that may have wanted units. Without a valid position, no part of a key index
    counts."""
    try:
        position = read_position(root)
    except ValueError:
        return []
    ms: Span = wanted.span(MS)
    notes = position.notes if position is not None else ()
    return [
        note
        for note in notes
        if wanted.span(POS).meets(note.begin_pos, note.end_pos)
        and ms.meets(note.begin_ms - note.begin_ms % SECOND_MS, note.end_ms)
    ]
