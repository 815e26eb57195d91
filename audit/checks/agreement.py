"""Do the replicas agree? Answered from outlines alone (`outline`), without reading the log: by
stored words and recorded digests.

Equal chain words at one index mean equal history up to it. So two replicas are compared at their
last common entry, and only if they differ there, bisection finds the first difference, with two
headers per step. Entries are read only where words contradict each other, to distinguish a damaged
word from another history. A replica that agrees here may still contain damage: only reading the
bytes (`scan`) tells.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from ledgermq.audit.checks.after_scan import check_checkpoint_end, check_hard_term, check_names
from ledgermq.audit.checks.confirmed import gives_up, note_given_up
from ledgermq.audit.checks.evidence import check_mark_reaches_end
from ledgermq.audit.checks.group import MAJORITY, GroupResult
from ledgermq.audit.checks.group_comparison import check_identities, find_voters, note_lag
from ledgermq.audit.checks.histories import NEIGHBOURS
from ledgermq.audit.checks.outline import record_at
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.seals import check_notes, check_records, seals_of
from ledgermq.audit.checks.unclean import excuse
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.columns import RAFT_TOPIC
from ledgermq.audit.reading.decode import ENTRY_MAGIC, HEADER_BYTES, NOT_JSON, crc
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.lookup import header_at, stored_chain
from ledgermq.audit.rules import RULES, TORN_TAIL, Finding, Flaw

MAGIC_BYTES = 4


def agree(group: str, replicas: Sequence[Replica]) -> GroupResult:
    """Judge one broker group whose replicas have outlines."""
    result = GroupResult(group, list(replicas))
    for one in replicas:
        _check_row(one)
        _check_end(one)
        _note_members(one)
    check_identities(result)
    find_voters(result)
    members = [
        one for one in replicas if one.name in {*result.voters, *result.learners} and one.filled
    ]
    words = _Words(members)
    reference = _compare(result, members, words)
    if reference is not None:
        for one in members:
            if one is not reference:
                _check_against(result, one, reference, words)
    seals = seals_of(result)
    for one in replicas:
        one.flaws += check_records(one, seals) + check_notes(one, seals)
        result.findings += [_found(result, one, flaw) for flaw in one.flaws]
    _note_commits(result)
    note_lag(result)
    unread = "the bytes of the log were not read, so rot was not looked for"
    result.notes.append(
        f"group {group}: only agreement was checked, by the edges of log files and recorded"
        f" digests; {unread}"
    )
    result.findings.sort(
        key=lambda f: (not f.fails, f.replica, f.flaw.file, f.flaw.byte_from, f.flaw.rule)
    )
    return result


def _found(result: GroupResult, one: Replica, flaw: Flaw) -> Finding:
    """Index units that were not on disk when a node was killed are no damage; whether the log ends
    there, only its bytes tell."""
    excused = excuse(one, flaw, result.compared, ())
    if excused is None:
        return Finding(RULES[flaw.rule].klass, one.name, result.group, flaw)
    lacks = "was killed, and lacks index units or bytes of a log file; audit without --agreement"
    result.reasons.append(f"group {result.group}: {one.name} {lacks}")
    return Finding(
        TORN_TAIL,
        one.name,
        result.group,
        replace(flaw, proof=f"{flaw.proof}; {excused}"),
        fails=False,
    )


def _check_row(one: Replica) -> None:
    """Files without gaps, with indexes that continue from file to file, starting with the one that
    the begin file names."""
    check_names(one)
    for report in one.reports:
        one.flaws += report.flaws
    first = one.filled[0] if one.filled else None
    if first is not None and first.base == one.begin.pos and first.first_index != one.begin.index:
        proof = (
            f"the log begins with index {first.first_index}, and the begin file says"
            f" {one.begin.index}"
        )
        one.flaws.append(
            Flaw(
                "entry.gap",
                first.file,
                index=one.begin.index,
                byte_from=0,
                byte_to=HEADER_BYTES,
                proof=proof,
            )
        )
    for before, after in pairwise(one.filled):
        if (
            before.last_index is not None
            and after.first_index is not None
            and after.first_term < before.last_term
        ):
            proof = f"term {after.first_term} follows term {before.last_term}"
            one.flaws.append(
                Flaw(
                    "entry.term-order",
                    after.file,
                    index=after.first_index,
                    byte_from=16,
                    byte_to=24,
                    proof=proof,
                )
            )


def _check_end(one: Replica) -> None:
    """A log that ends before its own synced mark lost entries. If there is an entry behind the last
    one that the index files lead to, only index units are missing, which is excused or reported
    elsewhere. The hard state and the mark must not be behind the end of the log, and the checkpoint
    must not be ahead of it."""
    check_checkpoint_end(one)
    mark, last = one.mark, one.filled[-1] if one.filled else None
    if last is None or last.last_index is None:
        return
    check_hard_term(one, last.last_term)
    check_mark_reaches_end(one)
    if mark is None or mark.index <= last.last_index:
        return
    behind = bytewise.read(f"{one.log}/data/{last.base:020d}", last.end, last.end + MAGIC_BYTES)
    if behind == ENTRY_MAGIC.to_bytes(MAGIC_BYTES, "big"):
        return
    end = min(max(mark.end_pos - last.base, last.end), one.sizes[0])
    proof = f"the synced mark names entry {mark.index}, the log ends with {last.last_index}"
    one.flaws.append(
        Flaw(
            "mark.end",
            last.file,
            index=last.last_index + 1,
            byte_from=last.end,
            byte_to=end,
            proof=proof,
        )
    )


def _note_members(one: Replica) -> None:
    """The log was not read for membership records, so the newest one that was applied comes from
    the snapshot."""
    members = one.snapshot.get("members") if one.snapshot is not None else None
    if isinstance(members, dict) and isinstance(members.get("index"), int) and one.filled:
        one.filled[-1].memberships.append((members["index"], json.dumps(members)))


class _Words:
    """Stored chain words of replicas, found through their index files and cached."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        tasks = {one.name: one.task(f"{0:020d}") for one in replicas}
        self.at = cache(lambda name, index: stored_chain(tasks[name], index))

    def parting(self, one: Replica, other: Replica) -> tuple[int, int | None]:
        """The last index at which both are known to hold the same history, by their words, and the
        first one, if any, at which they are known to have parted. Before the begin of either,
        history counts as the same."""
        low, high = (
            max(one.begin.index, other.begin.index) - 1,
            min(one.last_index, other.last_index) + 1,
        )
        middle = high - 1
        shared, parted = min(low, middle), None
        while low < middle:
            place = self._known(one, other, middle, low)
            if place is None:
                # Nothing tells on which side of this place the histories part, if they do.
                low, high = (low, middle) if parted is None else (middle, high)
            elif self.at(one.name, place) == self.at(other.name, place):
                shared, low = place, middle
            else:
                parted = high = place
            middle = (low + high) // 2
        return shared, parted

    def _known(self, one: Replica, other: Replica, index: int, low: int) -> int | None:
        """The last entry up to `index`, and behind `low`, whose words can be found; only this entry
        and its nearest ones are looked for: a power cut may lose a sector of index units, which are
        16."""
        near = range(index, max(low, index - NEIGHBOURS - 1), -1)
        return next(
            (
                place
                for place in near
                if None not in (self.at(one.name, place), self.at(other.name, place))
            ),
            None,
        )


def _compare(result: GroupResult, members: Sequence[Replica], words: _Words) -> Replica | None:
    """The highest index up to which a majority of the voters agrees, and one of these voters."""
    if result.rule != MAJORITY:
        return _compare_confirmed(result, members, words)
    voters = [one for one in members if one.name in result.voters]
    reference = None
    for one in voters:
        reach = sorted(
            (one.last_index if other is one else words.parting(one, other)[0] for other in voters),
            reverse=True,
        )
        if len(reach) >= result.majority and (
            result.compared is None or reach[result.majority - 1] > result.compared
        ):
            result.compared, reference = reach[result.majority - 1], one
    return reference


def _compare_confirmed(
    result: GroupResult, members: Sequence[Replica], words: _Words
) -> Replica | None:
    """For groups with appointed masters: the confirmed entry of the highest epoch and a replica
    that holds it, unless more replicas recorded another history."""
    points = [(min(one.known_commit, one.last_index), one) for one in members]
    confirmed = [
        (header_at(one.task(f"{0:020d}"), index), index, one) for index, one in points if index >= 0
    ]
    ranked = sorted(
        (
            (header[1][3], index, -at)
            for at, (header, index, _) in enumerate(confirmed)
            if header is not None
        ),
        reverse=True,
    )
    chosen = [(index, confirmed[-at][2]) for _, index, at in ranked]
    for index, reference in chosen:
        parted = [
            (one, words.parting(one, reference)[1]) for one in members if one is not reference
        ]
        known = [
            (one, first)
            for one, first in parted
            if first is not None and first <= min(index, one.known_commit)
        ]
        against = [one for one, first in known if _forced(one, reference, first) is None]
        if 2 * len(against) < len(members) or len(against) < 2:
            break
    else:
        if not chosen:
            return None
        index, reference = chosen[0]
    result.compared, result.proven_by = index, reference.name
    return reference


def _check_against(result: GroupResult, one: Replica, reference: Replica, words: _Words) -> None:
    assert result.compared is not None
    shared, first = words.parting(one, reference)
    limit = min(one.last_index, result.compared)
    for report in one.filled:
        last = report.last_index
        if last is None or last > min(shared, limit):
            continue
        both = words.at(one.name, last), words.at(reference.name, last)
        if None in both or both[0] == both[1]:
            continue
        # Both have the same later chain word, so they have the same history, and this entry was
        # altered on one of them. If its own chain word was adjusted to the alteration, the next
        # entry does not continue it.
        pairs = ((one, reference), (reference, one))
        if not any([_name_damage(*pair, last) for pair in pairs]) and not any(
            [_name_broken(*pair, last) for pair in pairs]
        ):
            result.reasons.append(
                f"group {result.group}: {one.name} has another entry {last}; audit without"
                " --agreement"
            )
    if first is None and shared < limit:
        lacks = "index units lead to none of the entries behind it"
        result.reasons.append(
            f"group {result.group}: {one.name} was compared up to index {shared} only, {lacks};"
            " audit without --agreement"
        )
    if first is None or first > limit:
        return
    damaged = [_name_damage(one, reference, first), _name_damage(reference, one, first)]
    if any(damaged):
        result.reasons.append(
            f"group {result.group}: {one.name} was compared up to index {shared} only, where an"
            " entry is damaged"
        )
        return
    forced = (
        None
        if result.rule == MAJORITY or first > one.known_commit
        else _forced(one, reference, first)
    )
    if forced is not None:
        note_given_up(result, one, first, forced)
        return
    own, theirs = (
        header_at(one.task(f"{0:020d}"), first),
        header_at(reference.task(f"{0:020d}"), first),
    )
    assert own is not None and theirs is not None
    if own[1][3] != theirs[1][3] and first > one.known_commit:
        one.stale_from = first
        return
    result.divergent[one.name] = first
    _name_divergence(one, reference, first, own, theirs)


def _forced(one: Replica, reference: Replica, first: int) -> Mapping[str, object] | None:
    """The record by which an operator forced a master that did not keep what a replica holds from
    `first` on. It is the second entry of its epoch."""
    own, record = header_at(one.task(f"{0:020d}"), first), _read(reference, first + 1)
    if (
        own is None
        or record is None
        or record.body_crc != record.fields[7]
        or record.chain not in (None, record.fields[6])
    ):
        return None
    topic, body = record_at(reference.task(f"{0:020d}"), record.pos, record.fields[1])
    with contextlib.suppress(*NOT_JSON):
        value = json.loads(body) if topic == RAFT_TOPIC else None
        if isinstance(value, dict) and gives_up(value, first, own[1][3]):
            return value
    return None


@dataclass(frozen=True, slots=True)
class _Read:
    """An entry that was read, and its recomputed words. `chain` is None if the word before it
    cannot be found. `unread`: why its bytes could not be read, which are then empty."""

    pos: int
    data: bytes
    fields: tuple[int, ...]
    body_crc: int
    chain: int | None
    unread: str


def _read(one: Replica, index: int) -> _Read | None:
    task = one.task(f"{0:020d}")
    header = header_at(task, index)
    if header is None:
        return None
    pos, fields = header
    data, unread = b"", ""
    try:
        with open_file(f"{one.log}/data/{pos - pos % one.sizes[0]:020d}") as file:
            # The size is not verified: it may exceed the file.
            data = file.pread(max(min(fields[1], file.size), 0), pos % one.sizes[0])
    except OSError as error:
        unread = str(error.strerror)
    # Before the very first entry, the task's seed comes from a begin file, or else from the log id.
    before = stored_chain(task, index - 1) if index > one.begin.index else task.seed
    body = crc(data[HEADER_BYTES:])
    return _Read(
        pos=pos,
        data=data,
        fields=fields,
        body_crc=body,
        chain=None if before is None else crc(data[:36] + body.to_bytes(4, "big"), before),
        unread=unread,
    )


def _name_damage(one: Replica, other: Replica, index: int) -> bool:
    """Read one entry and recompute both CRCs; report a finding if they do not match the stored
    words, or it cannot be read."""
    entry_read = _read(one, index)
    if entry_read is None:
        return False
    if entry_read.unread:
        _name(one, other, index, entry_read, "file.read", proof=entry_read.unread)
        return True
    stored, body = entry_read.fields[6], entry_read.fields[7]
    if entry_read.body_crc == body and entry_read.chain in (None, stored):
        return False
    rule = (
        "entry.chain"
        if entry_read.body_crc == body
        else "entry.body-crc"
        if entry_read.chain == stored
        else "entry.body"
    )
    _name(
        one,
        other,
        index,
        entry_read,
        rule,
        proof=f"the chain CRC is {stored:08x}, recomputed {entry_read.chain or 0:08x}",
    )
    return True


def _name_broken(one: Replica, other: Replica, index: int) -> bool:
    """Report a finding if the next entry is intact but continues another chain word: this entry was
    then altered together with its word."""
    entry_read, following = _read(one, index), _read(one, index + 1)
    if (
        entry_read is None
        or following is None
        or following.body_crc != following.fields[7]
        or following.chain in (None, following.fields[6])
    ):
        return False
    proof = (
        f"entry {index + 1} continues another chain CRC: it is {following.fields[6]:08x},"
        f" recomputed {following.chain or 0:08x}"
    )
    _name(one, other, index, entry_read, "entry.chain", proof=proof)
    return True


def _name(
    one: Replica, other: Replica, index: int, entry_read: _Read, rule: str, proof: str
) -> None:
    """Report a flaw at the bytes of an entry that differ from another replica's, or at the whole
    entry."""
    base = entry_read.pos - entry_read.pos % one.sizes[0]
    start, end = entry_read.pos - base, entry_read.pos - base + len(entry_read.data)
    theirs = bytewise.read(f"{other.log}/data/{base:020d}", start, end)
    difference = (
        bytewise.difference(entry_read.data, theirs)
        if theirs is not None and len(theirs) == len(entry_read.data)
        else None
    )
    if difference is not None:
        start, end = start + difference[0], start + difference[1]
    flaw = Flaw(
        rule,
        one.shown(f"{one.log_folder}/data/{base:020d}"),
        index=index,
        byte_from=start,
        byte_to=end,
        proof=proof,
    )
    if flaw not in one.flaws:
        # Every other replica is compared with a damaged reference.
        one.flaws.append(flaw)


def _name_divergence(
    one: Replica,
    reference: Replica,
    index: int,
    own: tuple[int, tuple[int, ...]],
    theirs: tuple[int, tuple[int, ...]],
) -> None:
    """Report the first entry that differs. `own` and `theirs`: its position and header on both
    replicas."""
    pos, fields = own
    base = pos - pos % one.sizes[0]
    rule = bytewise.relation(_contents(one, index), _contents(reference, index))
    proof = f"the chain CRC is {fields[6]:08x}, that of the majority {theirs[1][6]:08x}"
    file = one.shown(f"{one.log_folder}/data/{base:020d}")
    one.flaws.append(
        Flaw(
            rule,
            file,
            index=index,
            byte_from=pos - base,
            byte_to=pos - base + fields[1],
            proof=proof,
        )
    )


def _contents(one: Replica, index: int) -> list[int]:
    """The content of the next entries, independent of their positions; −1 for those in other log
    files."""
    task = one.task(f"{0:020d}")
    headers = [header_at(task, each) for each in range(index, index + bytewise.LOOK_AHEAD)]
    places = np.array(
        [(pos, fields[1]) for pos, fields in (each for each in headers if each is not None)],
        np.int64,
    )
    base = places[0, 0] - places[0, 0] % one.sizes[0]
    return bytewise.contents(f"{one.log}/data/{base:020d}", places[:, 0] - base, places[:, 1], 0)


def _note_commits(result: GroupResult) -> None:
    """What was recorded as committed must be compared. After a kill, index files may lack their
    last units: a shorter index proves no loss."""
    counting = [one for one in result.replicas if one.name not in result.given_up]
    recorded = [one.commit for one in counting if one.commit is not None]
    recorded += [
        one.snapshot["applied_index"]
        for one in counting
        if one.snapshot and _is_index(one.snapshot)
    ]
    result.recorded = max((commit for commit in recorded if commit >= 0), default=None)
    if (
        result.recorded is not None
        and result.compared is not None
        and result.compared < result.recorded
        and not result.missing
    ):
        reason = (
            f"index {result.recorded} was recorded as committed, the index files of a majority lead"
            f" up to {result.compared}"
        )
        result.reasons.append(f"group {result.group}: {reason}; audit without --agreement")


def _is_index(snapshot: Mapping[str, object]) -> bool:
    return isinstance(snapshot.get("applied_index"), int)
