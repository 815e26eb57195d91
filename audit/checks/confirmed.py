"""Groups whose masters a controller appoints (rules `in-sync` and `all`, docs/format.md §11): what
directories alone prove about them.

Such groups have no committing majority: with an in-sync set of one, only the master holds the
newest confirmed entries. Proven is what a replica recorded as confirmed (checkpoint, snapshot,
consume queues; for a running one, what its node has applied) and holds, with the chain that leads
to it. The record of the highest epoch implies all earlier ones, because only replicas that hold
every confirmed entry can be elected. Entries without any record were acknowledged only to clients
of their master (class MASTER), and are no finding wherever they end.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ledgermq.audit.checks.evidence import entry
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.histories import Table, diverge, entry_place, first_apart, read_table
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.decode import NOT_JSON
from ledgermq.audit.rules import Flaw


@dataclass(frozen=True, slots=True)
class _Parting:
    """Where a replica's history leaves another's."""

    index: int
    report: LogReport
    table: Table
    theirs: Table


def agree_by_record(result: GroupResult) -> None:
    """Find the compared index, which is the highest that any replica recorded as confirmed, and the
    replicas that leave the history leading to it."""
    named = [one for one in result.replicas if one.name in {*result.voters, *result.learners}]
    members = [one for one in named if not any(flaw.rule == "identity.twice" for flaw in one.flaws)]
    reference, partings = _reference(members)
    if reference is None:
        return
    limit = _confirmed(reference)
    for one in members:
        parting = partings.get(one.name)
        if parting is not None:
            _judge(result, one, reference, parting)
    result.compared, result.proven_by = limit, reference.name
    sound = [one for one in members if one.name not in result.divergent and one.stale_from is None]
    claims = [
        (one.known_commit, one)
        for one in sound
        if not (one.ends_whole and one.known_commit > one.last_index)
    ]
    result.recorded = max((index for index, _ in claims), default=None)
    if result.recorded is None or result.recorded <= limit:
        return
    # The replica that recorded it may no longer hold it intact; another one may.
    whole = [one for one in sound if one.held >= result.recorded]
    slow = any(one.awaited is not None for one in result.replicas)
    if whole:
        result.compared, result.proven_by = result.recorded, whole[0].name
    elif not result.missing and not slow and not result.lost:
        for _, one in (claim for claim in claims if claim[0] > limit):
            file, start, end = entry_place(one, one.held + 1)
            proof = (
                f"index {result.recorded} was recorded as confirmed, no replica holds it whole,"
                f" this one holds {one.held}"
            )
            one.flaws.append(
                Flaw(
                    "commit.lost",
                    file,
                    index=one.held + 1,
                    byte_from=start,
                    byte_to=end,
                    proof=proof,
                )
            )


def _confirmed(one: Replica) -> int:
    return min(one.known_commit, one.held)


def _reference(members: Sequence[Replica]) -> tuple[Replica | None, dict[str, _Parting]]:
    """The replica whose confirmed history counts: of the highest epoch, then of the highest index,
    unless more replicas recorded another."""
    points = [(entry(one, _confirmed(one)), one) for one in members if _confirmed(one) >= 0]
    order = [
        one
        for reach, one in sorted(
            points, key=lambda row: ((row[0] or (-1,))[0], _confirmed(row[1])), reverse=True
        )
    ]
    first: tuple[Replica | None, dict[str, _Parting]] = (None, {})
    for reference in order:
        partings = {one.name: _parting(one, reference) for one in members if one is not reference}
        known = {name: parting for name, parting in partings.items() if parting is not None}
        against = [
            one
            for one in members
            if one.name in known and _contradicts(one, reference, known[one.name])
        ]
        if first[0] is None:
            first = (reference, known)
        if 2 * len(against) < len(members) or len(against) < 2:
            return reference, known
    return first


def _contradicts(one: Replica, reference: Replica, parting: _Parting) -> bool:
    """Whether a replica recorded another history as confirmed, and no operator gave that history
    up."""
    return parting.index <= one.known_commit and _given_up_by(reference, one, parting.index) is None


def _parting(one: Replica, reference: Replica) -> _Parting | None:
    """The first entry up to the reference's confirmed one at which two replicas hold different
    intact entries."""
    limit = min(_confirmed(reference), one.held)
    theirs = {report.base: report for report in reference.filled}
    for report in one.filled:
        other = theirs.get(report.base)
        if other is None:
            continue
        keys = [
            (each.first_index, each.last_index, each.last_chain, each.end)
            for each in (report, other)
        ]
        if keys[0] == keys[1] and not report.damaged and not other.damaged:
            continue
        own, their = read_table(one, report), read_table(reference, other)
        low, high = (
            max(own.first, their.first),
            min(own.first + len(own.chain), their.first + len(their.chain), limit + 1),
        )
        if high <= low:
            continue
        mine, yours = (
            own.chain[low - own.first : high - own.first],
            their.chain[low - their.first : high - their.first],
        )
        at = first_apart(mine, yours)
        if at is not None:
            return _Parting(low + at, report, own, their)
    return None


def _judge(result: GroupResult, one: Replica, reference: Replica, parting: _Parting) -> None:
    """Classify how a replica left the confirmed history: with an unconfirmed tail, by an operator's
    decision, or in violation of the rules."""
    index = parting.index
    forced = _given_up_by(reference, one, index)
    if forced is not None and index <= one.known_commit:
        note_given_up(result, one, index, forced)
        return
    diverge(
        result,
        one,
        parting.report,
        parting.table,
        other=reference,
        theirs=parting.theirs,
        index=index,
    )


def _given_up_by(reference: Replica, one: Replica, index: int) -> dict[str, object] | None:
    """The record by which an operator forced a master that did not keep what a replica has from
    `index` on."""
    own = entry(one, index)
    return next(
        (
            value
            for _, value, _ in _elections(reference)
            if own is not None and gives_up(value, index, own[0])
        ),
        None,
    )


def gives_up(value: Mapping[str, object], index: int, epoch: int) -> bool:
    """Whether this is the record of a forced master that kept nothing from `index` on, where others
    had an entry of this epoch."""
    kept, forced = value.get("kept"), value.get("epoch")
    return (
        isinstance(kept, int)
        and isinstance(forced, int)
        and kept + 1 == index
        and 0 <= epoch < forced
    )


def note_given_up(
    result: GroupResult, one: Replica, index: int, forced: Mapping[str, object]
) -> None:
    """Note that an operator's decision gave up what a replica holds from `index` on."""
    one.stale_from = index
    result.given_up[one.name] = (
        f"given up when an operator forced {forced.get('node')} to be master of epoch"
        f" {forced.get('epoch')}"
    )


def _elections(one: Replica) -> Iterator[tuple[int, dict[str, object], LogReport]]:
    for report in one.reports:
        for index, body in report.elections:
            with contextlib.suppress(*NOT_JSON):
                value = json.loads(body)
                if isinstance(value, dict):
                    yield index, value, report


def _leaders(one: Replica) -> Iterator[tuple[int, int, str, LogReport]]:
    """Index, term and leader of every record that began a term. One that names none is left out."""
    for index, value, report in _elections(one):
        term, leader = value.get("term"), value.get("leader")
        if "kept" not in value and isinstance(term, int) and isinstance(leader, str):
            yield index, term, leader, report


def check_leaders(result: GroupResult) -> None:
    """A term, or epoch, begins with one record of one leader, wherever that record still exists."""
    leaders: dict[int, Counter[tuple[int, str]]] = {}
    for one in result.replicas:
        for index, term, leader, _ in _leaders(one):
            leaders.setdefault(term, Counter())[index, leader] += 1
    for term, records in leaders.items():
        if len(records) < 2:
            continue
        ranked = records.most_common(2)
        usual = ranked[0][0] if ranked[0][1] > ranked[1][1] else None
        for one in result.replicas:
            for index, own_term, leader, report in _leaders(one):
                if own_term != term or (index, leader) == usual:
                    continue
                _, start, end = entry_place(one, index)
                rest = [
                    (at, other) for at, other in sorted(records) if (at, other) != (index, leader)
                ]
                others = " and ".join(f"{other} with entry {at}" for at, other in rest)
                proof = f"term {term} begins with {leader} as leader here, elsewhere with {others}"
                one.flaws.append(
                    Flaw(
                        "term.leader",
                        report.file,
                        index=index,
                        byte_from=start,
                        byte_to=end,
                        proof=proof,
                    )
                )
