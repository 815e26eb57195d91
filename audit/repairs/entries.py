"""The entries of one log file on all replicas side by side: which a majority agrees on, and who holds each of them intact.

From the same scan that finds damage. Nothing is decided here but by counting: an entry is agreed when a majority of the voters holds it
intact with the same recomputed chain CRC, and chain CRCs are functions of everything before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import Scan
from ledgermq.audit.reading.decode import I64, PREFIX, gather
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.lookup import stored_chain

NONE = -1
WINDOW_BYTES = 4 << 20
DERIVED_PREFIXES = ("index.", "queue.")
Matrix = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Side:
    """One replica's copy of the file; what it lacks has no entries."""

    replica: Replica
    index: I64
    chain: I64
    """−1 where an entry is not intact."""
    offset: I64
    size: I64
    term: I64
    prev_chain: int | None
    """The chain value that its first entry was checked against."""
    flawed: bool
    """The scan found something wrong with the file itself."""


@dataclass(frozen=True, slots=True)
class Entries:
    """All copies of one log file. Rows are sides, columns are entries `low` … `low + width − 1`."""

    base: int
    sides: tuple[Side, ...]
    low: int
    chain: Matrix
    offset: Matrix
    size: Matrix
    term: Matrix
    agreed: I64
    """The chain CRC of each entry on which a majority agrees, −1 where none does."""

    @property
    def width(self) -> int:
        return len(self.agreed)

    @property
    def high(self) -> int:
        """The last entry that any copy has."""
        return self.low + self.width - 1

    def row_of(self, replica: Replica) -> int:
        return next(row for row, side in enumerate(self.sides) if side.replica is replica)


def read_entries(replicas: Sequence[Replica], voters: Sequence[str], base: int) -> Entries:
    """Scan one log file on every replica."""
    sides = tuple(_side(one, base) for one in replicas)
    # Entries that are not intact may say any index: only the others tell which ones belong here.
    right = [side.index[side.chain != NONE] for side in sides]
    low = min((int(index.min()) for index in right if len(index)), default=0)
    width = max((int(index.max()) for index in right if len(index)), default=-1) - low + 1
    chain, offset, size, term = (np.full((len(sides), width), NONE, np.int64) for _ in range(4))
    for row, side in enumerate(sides):
        here = (side.chain != NONE) & (side.index >= low) & (side.index < low + width)
        places = side.index[here] - low
        for matrix, column in ((chain, side.chain), (offset, side.offset), (size, side.size), (term, side.term)):
            matrix[row, places] = column[here]
    return Entries(base, sides, low, chain, offset, size, term, _agreed(sides, voters, chain))


def _side(one: Replica, base: int) -> Side:
    task = one.task(f"{base:020d}")
    scan = Scan(task)
    pieces = list(scan.columns())
    columns = {
        name: np.concatenate([np.empty(0, np.int64), *(getattr(piece, name) for piece in pieces)]).astype(np.int64)
        for name in ("index", "chain", "offset", "size", "term")
    }
    intact = np.concatenate([np.empty(0, np.bool_), *(piece.intact for piece in pieces)])
    if len(intact):
        intact &= _positions(task.path, columns["offset"]) == base + columns["offset"]
    columns["chain"] = np.where(intact, columns["chain"], NONE)
    flawed = any(not flaw.rule.startswith(DERIVED_PREFIXES) for flaw in scan.report.flaws)
    return Side(one, **columns, prev_chain=scan.report.prev_chain, flawed=flawed)


def _positions(path: str, offsets: I64) -> I64:
    """What entries say of their place: a file may hold what belongs into another one."""
    found = np.empty(len(offsets), np.int64)
    with open_file(path) as file:
        at = 0
        while at < len(offsets):
            start = int(offsets[at])
            stop = int(np.searchsorted(offsets, start + WINDOW_BYTES))
            window = file.pread(int(offsets[stop - 1]) + PREFIX.itemsize - start, start)
            found[at:stop] = gather(window, offsets[at:stop] - start)["pos"]
            at = stop
    return found


def _agreed(sides: Sequence[Side], voters: Sequence[str], chain: Matrix) -> I64:
    rows = [row for row, side in enumerate(sides) if side.replica.name in voters]
    agreed = np.full(chain.shape[1], NONE, np.int64)
    for row in rows:
        votes = (chain[rows] == chain[row]).sum(axis=0)
        agreed = np.where((votes > len(voters) // 2) & (chain[row] != NONE), chain[row], agreed)
    return agreed


def chain_before(entries: Entries, index: int) -> int | None:
    """The chain CRC before the first entry of a file: what it was checked against where it is intact, and as a majority has it if one
    agrees; else the word of the entry before, of whoever has it."""
    column = index - entries.low
    wanted = int(entries.agreed[column])
    for row, side in enumerate(entries.sides):
        found = int(entries.chain[row, column])
        begins = len(side.index) and int(side.index[0]) == index and found != NONE and wanted in (NONE, found)
        if begins and side.prev_chain is not None:
            return side.prev_chain
    if wanted != NONE or not index:
        # Where a majority agrees on the first entry, that it continues the file before is agreed with it.
        return None
    for side in entries.sides:
        before = stored_chain(side.replica.task(f"{entries.base:020d}"), index - 1)
        if before is not None:
            return before
    return None
