"""Comparing the same log file on several replicas entry by entry: where and how their histories
diverge.

Files whose edges are equal are not read again. The callers decide what counts as committed: here a
majority (rule `majority`), in `confirmed.py` what a replica recorded as confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ledgermq.audit.checks.evidence import entry
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport, Scan
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.decode import HEADER_BYTES, I64
from ledgermq.audit.rules import Flaw

NEIGHBOURS = 16
"""At most this many entries next to a damaged one are tried in its place."""


@dataclass(frozen=True, slots=True)
class Table:
    """The entries of one replica in one log file: index, chain CRC (−1 if not intact) and place."""

    first: int
    chain: I64
    offset: I64
    size: I64


def read_table(one: Replica, report: LogReport) -> Table:
    """Read one log file again, entry by entry; only entries that the replica holds count."""
    first = report.first_index or 0
    # A damaged first index may claim more entries than the file has room for.
    length = max(
        min(
            one.held - first + 1,
            (report.last_index or 0) - first + 1,
            report.length // HEADER_BYTES,
        ),
        0,
    )
    chain, offset, size = (np.full(length, -1, np.int64) for _ in range(3))
    for piece in Scan(one.task(f"{report.base:020d}")).columns():
        places = piece.index - first
        keep = (places >= 0) & (places < length)
        places = places[keep]
        chain[places] = np.where(piece.intact, piece.chain, -1)[keep]
        offset[places] = piece.offset[keep]
        size[places] = piece.size[keep]
    return Table(first, chain, offset, size)


def agree_by_majority(result: GroupResult) -> None:
    """Find the compared index and every replica's first different entry, file by file; equal files
    are not read again."""
    named = [one for one in result.replicas if one.name in {*result.voters, *result.learners}]
    members = [one for one in named if not any(flaw.rule == "identity.twice" for flaw in one.flaws)]
    for base in sorted({report.base for one in members for report in one.filled}):
        present = [
            (one, report)
            for one in members
            for report in one.filled
            if report.base == base and one.name not in result.divergent and one.stale_from is None
        ]
        keys = {
            (r.first_index, r.last_index, r.last_chain, r.end, one.held >= (r.last_index or 0))
            for one, r in present
        }
        if sum(one.name in result.voters for one, _ in present) < result.majority:
            continue
        only = next(iter(keys))
        if len(keys) == 1 and only[4]:
            result.compared = only[1]
        else:
            _agree_within(result, present)


def _agree_within(result: GroupResult, present: list[tuple[Replica, LogReport]]) -> None:
    tables = [read_table(one, report) for one, report in present]
    # Only indexes that some replica has: a damaged index may be far from all others.
    numbers = np.unique(
        np.concatenate([table.first + np.arange(len(table.chain)) for table in tables])
    )
    chains = np.full((len(tables), len(numbers)), -1, np.int64)
    for row, table in enumerate(tables):
        begin = int(np.searchsorted(numbers, table.first))
        chains[row, begin : begin + len(table.chain)] = table.chain
    voters = [row for row, (one, _) in enumerate(present) if one.name in result.voters]
    equal = np.array(
        [((chains[voters] == chains[row]) & (chains[row] >= 0)).sum(axis=0) for row in voters]
    )
    agreed = np.flatnonzero((equal >= result.majority).any(axis=0))
    if not len(agreed):
        return
    top = int(agreed[-1])
    result.compared = int(numbers[top])
    reference = voters[int(np.argmax(equal[:, top]))]
    for row, (one, report) in enumerate(present):
        at = first_apart(chains[row][: top + 1], chains[reference][: top + 1])
        if at is not None:
            diverge(
                result,
                one,
                report,
                table=tables[row],
                other=present[reference][0],
                theirs=tables[reference],
                index=int(numbers[at]),
            )


def first_apart(own: I64, theirs: I64) -> int | None:
    """The first place from which on two columns of chain CRCs (−1: not intact) differ
    permanently."""
    both = (own >= 0) & (theirs >= 0)
    equal = np.flatnonzero(both & (own == theirs))
    different = np.flatnonzero(both & (own != theirs))
    different = different[different > (int(equal[-1]) if len(equal) else -1)]
    return int(different[0]) if len(different) else None


def diverge(
    result: GroupResult,
    one: Replica,
    report: LogReport,
    table: Table,
    other: Replica,
    theirs: Table,
    index: int,
) -> None:
    """Classify a replica whose own chain is intact, but whose entries from `index` on differ from
    the majority's.

    Entries of another term that it never knew to be committed are stale, not divergent: a deposed
    leader keeps them until its restart.
    """
    if _meet_again(one, other, index):
        return
    own, others = entry(one, index), entry(other, index)
    if own is not None and others is not None and own[0] != others[0] and index > one.known_commit:
        one.stale_from = index
        return
    result.divergent[one.name] = index
    rule = bytewise.relation(
        bytewise.contents(
            one.task(f"{report.base:020d}").path, table.offset, table.size, index - table.first
        ),
        bytewise.contents(
            other.task(f"{report.base:020d}").path, theirs.offset, theirs.size, index - theirs.first
        ),
    )
    at = index - table.first
    start, size = int(table.offset[at]), int(table.size[at])
    proof = (
        f"the chain CRC is {int(table.chain[at]):08x}, that of the majority"
        f" {int(theirs.chain[index - theirs.first]):08x}"
    )
    one.flaws.append(
        Flaw(rule, report.file, index=index, byte_from=start, byte_to=start + size, proof=proof)
    )


def _meet_again(one: Replica, other: Replica, index: int) -> bool:
    """Whether two replicas have the same chain word at a later entry. Then they have the same
    history up to it: the entry at `index` was altered together with its chain word, and the next
    one does not continue it."""
    high = min(one.held, other.held)
    for place in range(high, max(index, high - NEIGHBOURS), -1):
        own, theirs = entry(one, place), entry(other, place)
        if own is not None and theirs is not None:
            return own[2] == theirs[2]
    return False


def entry_place(one: Replica, index: int) -> tuple[str, int, int]:
    """File and byte range of an entry; the end of the log if it is missing or unreadable."""
    report = next(
        (r for r in one.filled if r.last_index is not None and index <= r.last_index), None
    )
    if report is not None and report.first_index is not None and index >= report.first_index:
        logged = entry(one, index)
        before = entry(one, index - 1) if index > report.first_index else None
        if logged is not None:
            return (
                report.file,
                0 if before is None else before[1] - report.base,
                logged[1] - report.base,
            )
    if not one.filled:
        return one.shown(f"{one.log_folder}/data/{0:020d}"), 0, 0
    return one.filled[-1].file, one.filled[-1].end, one.filled[-1].end
