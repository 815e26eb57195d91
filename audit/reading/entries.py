"""The entries of a log file, or of its part from some entry on, in columns, with or without
recomputing their CRCs.

For code that reads entries without judging them: a damaged entry is marked without a reason
(`checks/scan` gives reasons).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.reading.columns import Parts, take_apart
from ledgermq.audit.reading.decode import I64, Flags, body_crcs, chain_crcs, chain_inputs, crc
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.lookup import stored_chain
from ledgermq.audit.reading.walk import WINDOW_BYTES, LogFile, Piece, Walk


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries, one row each. `window` holds their bytes, from byte `start` of the file
    on; `at` are their offsets in it.

    `index`: the entry's own, or if it is not intact, derived from its neighbours. `intact`: the
    recomputed body and chain CRCs equal the stored ones; None if nothing was recomputed. `sound`:
    the record could be parsed, and is intact as far as that was checked; only there `parts` is
    valid.
    """

    task: LogFile
    window: bytes
    start: int
    at: I64
    sizes: I64
    fields: NDArray[np.void]
    index: I64
    intact: Flags | None
    sound: Flags
    parts: Parts

    def __len__(self) -> int:
        return len(self.at)

    def field(self, name: str) -> I64:
        """One fixed field of header or record (reading/decode.py), for all rows."""
        column: I64 = self.fields[name].astype(np.int64)
        return column

    @property
    def pos(self) -> I64:
        """Absolute positions."""
        return self.task.base + self.start + self.at


def read_entries(
    task: LogFile, start: int = 0, verify: bool = True, window_bytes: int = WINDOW_BYTES
) -> Iterator[Entries]:
    """The entries of a log file from byte `start` on, where an entry must start. Stop iterating at
    any time. Raises OSError."""
    with open_file(task.path) as file:
        chain: int | None = None
        for piece in Walk(task, file, task.limit(file.size)).pieces(window_bytes, start):
            previous = chain if piece.joined else _chain_before(task, piece)
            intact = _intact(piece, previous) if verify else None
            chain = int(piece.rows["chain_crc"][piece.count - 1])
            count = piece.count
            at, sizes, fields = piece.offsets[:count], piece.sizes[:count], piece.rows[:count]
            parts = take_apart(piece.window, at, sizes, fields)
            sound = parts.fits if intact is None else parts.fits & intact
            yield Entries(
                task=task,
                window=piece.window,
                start=piece.start,
                at=at,
                sizes=sizes,
                fields=fields,
                index=_indexes(fields, intact),
                intact=intact,
                sound=sound,
                parts=parts,
            )


def _chain_before(task: LogFile, piece: Piece) -> int | None:
    """The chain value before a piece that follows no other."""
    index = int(piece.rows["index"][0])
    if piece.start == 0 and task.base == task.begin_pos:
        return task.seed
    return stored_chain(task, index - 1) if index > 0 else None


def _intact(piece: Piece, previous: int | None) -> Flags:
    """Which entries are unchanged, by the chain: the stored value before each entry, its header and
    its actual body must give its stored value. A damaged chain word invalidates two of these
    checks, but not the one over both entries."""
    bodies = body_crcs(piece.window, piece.offsets, piece.sizes)
    inputs = chain_inputs(piece.rows, bodies)
    stored = piece.rows["chain_crc"].astype(np.int64)
    sums = chain_crcs(inputs, [previous or 0, *stored[:-1].tolist()])
    good: Flags = sums == stored
    if previous is None:
        # The value before this entry is unknown: only its body can be checked.
        good[0] = piece.rows["body_crc"][0] == bodies[0]
    for at in np.flatnonzero(~good[:-1] & ~good[1:]).tolist():
        if (
            not good[at]
            and crc(inputs[40 * at + 40 : 40 * at + 80], int(sums[at])) == stored[at + 1]
        ):
            good[at] = good[at + 1] = True
    return good[: piece.count]


def _indexes(fields: NDArray[np.void], intact: Flags | None) -> I64:
    index: I64 = fields["index"].astype(np.int64)
    if intact is None or intact.all() or not intact.any():
        return index
    rows = np.arange(len(index))
    known = np.flatnonzero(intact)
    nearest = known[np.maximum(np.searchsorted(known, rows, side="right") - 1, 0)]
    return np.where(intact, index, index[nearest] + rows - nearest)
