"""Comparing what a replica's small files and consume queues claim about its log with the log:
synced mark, snapshot, dispatch.

Flaws are added to the replica; `group_comparison` decides what they mean.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import Scan
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.begin import LITE
from ledgermq.audit.reading.decode import QUEUE_UNIT_BYTES, SLOT_FILE_BYTES
from ledgermq.audit.reading.lookup import header_at
from ledgermq.audit.rules import Flaw
from ledgermq.audit.state.derive import EMPTY, NEWEST, StateReport
from ledgermq.audit.state.differences import place


def is_int(value: dict[str, object], key: str) -> bool:
    return isinstance(value.get(key), int)


def entry(one: Replica, index: int) -> tuple[int, int, int] | None:
    """(term, end position, chain CRC) of an entry; None if it is damaged or missing."""
    located = None if index in one.broken else locate(one, index)
    return None if located is None else (located.term, located.pos + located.size, located.chain)


@dataclass(frozen=True, slots=True)
class Located:
    """An entry of a log: its position, and the content of its header."""

    base: int
    """The file."""
    pos: int
    """The position in the whole log."""
    size: int
    term: int
    chain: int


def locate(one: Replica, index: int) -> Located | None:
    """An entry, damaged or not, found by its index unit or else by reading its file; None if it is
    missing."""
    if not one.sizes[0]:
        return None
    spans = ((r.first_index, r.last_index, r) for r in one.filled)
    report = next(
        (
            r
            for first, last, r in spans
            if first is not None and last is not None and first <= index <= last
        ),
        None,
    )
    if report is None:
        return None
    header = header_at(one.task(f"{report.base:020d}"), index)
    if header is not None and report.base <= header[0] < report.base + one.sizes[0]:
        pos, fields = header
        return Located(report.base, pos, fields[1], fields[3], fields[6])
    for piece in Scan(one.task(f"{report.base:020d}")).columns():
        rows = np.flatnonzero(piece.index == index)
        if len(rows):
            at = int(rows[0])
            return Located(
                report.base,
                report.base + int(piece.offset[at]),
                int(piece.size[at]),
                int(piece.term[at]),
                int(piece.chain[at]),
            )
    return None


def check_mark(one: Replica, others: Sequence[Replica]) -> None:
    """The synced mark names an entry of the log. If the log ends before it, another replica must
    hold that entry; otherwise the mark is a finding, too. A clean stop leaves the mark at the last
    entry."""
    mark, path = one.mark, f"{one.log_folder}/syncedmark"
    if mark is None:
        return
    older = one.older_mark
    for each in (mark, older):
        if each is not None and one.log_id is not None and each.log_id != one.log_id:
            one.flaw(
                "mark.log",
                path,
                f"the mark belongs to log {each.log_id}, the replica to {one.log_id}",
            )
    if older is not None and 0 <= older.index <= min(mark.index, one.last_index):
        logged = entry(one, older.index)
        if logged is not None and logged != (older.term, older.end_pos, older.chain):
            proof = (
                f"the log says {_point(logged)}, the older slot of the mark"
                f" {_point((older.term, older.end_pos, older.chain))}"
            )
            one.flaw("mark.log", path, proof, index=older.index)
    if mark.index > one.last_index:
        assert one.lost_end is not None
        file, start, end = one.lost_end
        proof = (
            f"{one.shown(path)} says that entries up to {mark.index} were on stable storage, the"
            f" log ends with {one.last_index}"
        )
        one.flaws.append(
            Flaw(
                "mark.end",
                file,
                index=one.last_index + 1,
                byte_from=start,
                byte_to=end,
                proof=proof,
            )
        )
        held = {entry(other, mark.index) for other in others}
        if others and (mark.term, mark.end_pos, mark.chain) not in held:
            # Either the log lost entries that no other replica has, or the mark is wrong: report
            # both.
            proof = (
                f"it names entry {mark.index}, {_point((mark.term, mark.end_pos, mark.chain))}: no"
                " replica has such an entry"
            )
            one.flaw("mark.log", path, proof, start=0, end=SLOT_FILE_BYTES, index=mark.index)
    elif mark.index >= 0:
        logged = entry(one, mark.index)
        if logged is not None and logged != (mark.term, mark.end_pos, mark.chain):
            proof = (
                f"the log says {_point(logged)}, the mark"
                f" {_point((mark.term, mark.end_pos, mark.chain))}"
            )
            one.flaw("mark.log", path, proof, index=mark.index)
        else:
            check_mark_reaches_end(one)
    elif (mark.term, mark.index, mark.end_pos) != (-1, -1, 0):
        one.flaw(
            "mark.log", path, f"it names no entry, but term {mark.term} and end {mark.end_pos}"
        )


def check_mark_reaches_end(one: Replica) -> None:
    """A node that is stopped in good order leaves its synced mark at the last entry."""
    mark = one.mark
    if (
        mark is not None
        and 0 <= mark.index < one.last_index
        and one.clean
        and one.point is None
        and not one.is_backup
    ):
        proof = (
            f"it names entry {mark.index}, the log of a node that was stopped in good order ends"
            f" with {one.last_index}"
        )
        one.flaw(
            "mark.log",
            path=f"{one.log_folder}/syncedmark",
            proof=proof,
            start=0,
            end=SLOT_FILE_BYTES,
            index=mark.index,
        )


def check_point(one: Replica) -> None:
    """The log has the entry that a running node describes as the limit of the check."""
    point = one.point
    if point is None or point.index < 0:
        return
    claimed = point.term, point.end_pos, point.chain
    if point.index > one.last_index:
        assert one.lost_end is not None
        file, start, end = one.lost_end
        proof = f"its node has applied entry {point.index}, the log ends with {one.last_index}"
        one.flaws.append(
            Flaw(
                "marker.held",
                file,
                index=one.last_index + 1,
                byte_from=start,
                byte_to=end,
                proof=proof,
            )
        )
    elif (logged := entry(one, point.index)) is not None and logged != claimed:
        report = next(
            r for r in one.filled if r.last_index is not None and point.index <= r.last_index
        )
        proof = f"the log says {_point(logged)}, its node {_point(claimed)}"
        one.flaws.append(
            Flaw(
                "marker.same",
                report.file,
                index=point.index,
                byte_from=0,
                byte_to=logged[1] - report.base,
                proof=proof,
            )
        )


def _point(value: tuple[int, int, int]) -> str:
    return f"term {value[0]}, end {value[1]}, chain {value[2]:08x}"


def check_snapshot(one: Replica) -> None:
    value, path = one.snapshot, "state/snapshot"
    if value is None:
        return
    keys = ("applied_index", "applied_term", "applied_end_pos", "chain_crc")
    if not all(is_int(value, key) for key in keys):
        one.flaw("snapshot.log", path, f"one of {', '.join(keys)} is not there")
        return
    index, term, end_pos, chain = (int(value[key]) for key in keys)
    if not one.is_backup:
        _check_kept_units(one)
    if one.log_id is not None and value.get("log_id") != one.log_id:
        one.flaw(
            "snapshot.log",
            path,
            f"the snapshot belongs to log {value.get('log_id')}, the replica to {one.log_id}",
        )
    if index > one.last_index:
        # If the log lost its end, the snapshot may be right up to the last known end of the log.
        lost = one.lost_end if any(index <= known for known, _ in one.known_ends) else None
        proof = f"index {index} is applied, the log ends with {one.last_index}"
        place = one.shown(path), None, 0, 0
        one.flaws.append(
            Flaw("snapshot.log", *place, proof, torn=True, measures=() if lost is None else (lost,))
        )
    elif index >= 0:
        logged = entry(one, index)
        if logged is not None and logged != (term, end_pos, chain):
            one.flaw(
                "snapshot.log",
                path,
                f"the log says {_point(logged)}, the snapshot {_point((term, end_pos, chain))}",
                index=index,
            )
        elif not one.lost_entries and not (one.state is not None and one.state.derived):
            _check_next_offsets(one, index, value.get("queues"))
    elif (index, term, end_pos, chain) != EMPTY and not _is_refuted(one, path):
        one.flaw(
            "snapshot.log",
            path,
            f"it has no entry, but index {index}, {_point((term, end_pos, chain))}",
        )


def check_state(one: Replica) -> None:
    """State derived from a log counts as far as the log is intact."""
    derived = one.state
    if derived is None:
        return
    reach = max(
        [
            -1 if derived.last_index is None else derived.last_index,
            *(flaw.index or 0 for flaw in derived.flaws),
        ]
    )
    broken = [index for index in one.broken if index <= reach]
    if not broken:
        one.flaws += derived.flaws
        return
    one.state = StateReport("the log is damaged")
    measures = tuple(
        (report.file, 0, report.length)
        for report in one.reports
        if (report.first_index or 0) <= max(broken)
    )
    one.flaws += [
        replace(flaw, index=reach if flaw.index is None else flaw.index, measures=measures)
        for flaw in derived.flaws
    ]


def _check_kept_units(one: Replica) -> None:
    """If all messages of a queue were trimmed, its last unit is kept, and the snapshot repeats it,
    because no message could."""
    for (topic, queue), low in one.lows.items():
        if low.last is None:
            continue
        base, start = divmod(low.floor * QUEUE_UNIT_BYTES, one.sizes[2])
        file = f"consumequeue/{topic}/{queue}/{base * one.sizes[2]:020d}"
        has, wants = (
            bytewise.read(f"{one.root}/{file}", start, start + QUEUE_UNIT_BYTES) or b"",
            low.last,
        )
        if has != wants:
            rule = "queue.unit" if any(has) else "queue.missing"
            proof = (
                f"the snapshot has {wants.hex()} as the unit before the minimum {low.offset}, here"
                f" is {has.hex() or 'nothing'}"
            )
            one.flaw(rule, file, proof, start, start + QUEUE_UNIT_BYTES)


def _check_next_offsets(one: Replica, applied: int, queues: object) -> None:
    """The snapshot's next offset of every queue counts its messages up to the applied index."""
    claimed = {
        (topic, queue): offset
        for topic, by_queue in (queues.items() if isinstance(queues, dict) else ())
        for queue, offset in (by_queue.items() if isinstance(by_queue, dict) else ())
    }
    # Trimmed messages are counted by the minimum; the log continues the count.
    wanted = {(topic, str(queue)): low.offset for (topic, queue), low in one.lows.items()}
    for report in one.filled:
        if report.last_index is not None and report.last_index <= applied:
            wanted.update({(run.topic, str(run.queue)): run.last + 1 for run in report.queues})
        elif report.first_index is not None and report.first_index <= applied:
            for piece in Scan(one.task(f"{report.base:020d}")).columns():
                for at in np.flatnonzero(piece.sound & (piece.index <= applied)).tolist():
                    topic = piece.topics[int(piece.topic_of[at])].decode("utf-8", "replace")
                    wanted[topic, str(piece.queue[at])] = int(piece.queue_offset[at]) + 1
    for key in sorted({*claimed, *wanted}):
        if LITE in key[0] and key not in claimed:
            # A lite topic vanishes when none of its messages is kept, even while the log still has
            # them.
            continue
        if claimed.get(key, 0) != wanted.get(key, 0):
            proof = (
                f"the next offset of {key[0]}/{key[1]} is {claimed.get(key)}, the log says"
                f" {wanted.get(key, 0)}"
            )
            one.flaw("snapshot.queues", "state/snapshot", proof, index=applied)


def same_snapshots(replicas: Sequence[Replica]) -> None:
    """Snapshots of one version at one index are equal, including older ones. A snapshot that was
    verified against its own log is not compared. One that its log contradicts is not a reference
    for others. The first snapshot of a new version may know less than that of another node."""
    by_index: dict[tuple[int, str], list[tuple[Replica, str]]] = {}
    for one in replicas:
        for file, value in one.snapshots.items():
            derived = one.state is not None and file in one.state.compared
            alone = derived or _is_refuted(one, file) or (one.upgraded and file == NEWEST)
            if is_int(value, "applied_index") and not alone:
                by_index.setdefault((int(value["applied_index"]), str(value.get("v"))), []).append(
                    (one, file)
                )
    for (index, _), ones in by_index.items():
        texts = _comparable(
            [one.snapshots[file] for one, file in ones],
            older=any(file != NEWEST for _, file in ones),
        )
        usual = Counter(texts).most_common(1)[0][0]
        for (one, file), text in zip(ones, texts, strict=True):
            if text != usual:
                proof = "another replica's snapshot at this index tells another state"
                one.flaw("snapshot.same", file, proof, *place(one.snapshots[file], ()), index)


def _is_refuted(one: Replica, file: str) -> bool:
    """Whether a snapshot contradicts the log of its replica."""
    return any(
        flaw.rule.startswith("snapshot.") and flaw.file == one.shown(file) for flaw in one.flaws
    )


def _comparable(snapshots: Sequence[Mapping[str, Any]], *, older: bool) -> list[str]:
    """The keys that must be equal, in the order of sealed texts. How far back a snapshot remembers
    lapsed leases depends on when its node was upgraded: with an older snapshot among them, lapsed
    leases are compared only if that is equal."""
    since = {
        json.dumps(value["lapsed"].get("since")) if isinstance(value.get("lapsed"), dict) else ""
        for value in snapshots
    }
    left_out = {"lapsed"} if older and len(since) > 1 else set()
    return [
        json.dumps({key: each for key, each in value.items() if key not in left_out})
        for value in snapshots
    ]


def dispatched_too_far(replicas: Sequence[Replica], compared: int) -> None:
    """No replica dispatches uncommitted entries. Only for callers that have every voter: otherwise
    an entry may be committed elsewhere."""
    for one in replicas:
        for report in one.reports:
            for run in report.queues:
                if (
                    run.filed_index is not None
                    and run.filed_offset is not None
                    and run.filed_index > compared
                ):
                    place = run.filed_offset * 20
                    base = place - place % one.sizes[2]
                    proof = (
                        f"entry {run.filed_index} is dispatched, a majority agrees up to {compared}"
                    )
                    path = f"consumequeue/{run.topic}/{run.queue}/{base:020d}"
                    one.flaw(
                        "queue.uncommitted",
                        path,
                        proof,
                        start=place - base,
                        end=place - base + 20,
                        index=run.filed_index,
                    )
