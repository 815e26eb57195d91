"""Checks of a replica's log files in sequence after each was scanned: names, continuity, the end,
and the derived files.

Everything here concerns a single replica. Flaws are collected, not judged: their meaning depends on
the peers (`group_comparison`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ledgermq.audit.checks.derived import QueueRun, TailReport, density_flaw
from ledgermq.audit.checks.order import ProducerRun, wrong_step
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.begin import LITE, may_begin
from ledgermq.audit.reading.decode import (
    ENTRY_BYTES_MIN,
    ENTRY_MAGIC,
    HEADER_BYTES,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    QUEUE_UNIT,
    QUEUE_UNIT_BYTES,
    SECTOR,
    SLOT_FILE_BYTES,
    crc,
    find_stain,
    read_space,
)
from ledgermq.audit.reading.files import open_file, size_of
from ledgermq.audit.reading.key_files import read_position
from ledgermq.audit.rules import Flaw, Place


def check_log(replica: Replica, decided: int) -> None:
    """Check the log files of a replica in sequence: names, continuity, blanks, zeros behind the
    end. `decided`: the position up to which trims were decided in its group."""
    check_names(replica)
    begin = replica.begin
    if begin.index > decided:
        proof = (
            f"the log is said to begin with entry {begin.index}, trim records and snapshots of all"
            f" replicas go up to {decided}"
        )
        replica.flaw("begin.decided", f"{replica.log_folder}/begin", proof)
    filled = replica.filled
    last = filled[-1] if filled else None
    for before, after in pairwise(filled):
        _check_join(replica, before, after)
    _check_empty(replica)
    _check_links(replica)
    for report in replica.reports:
        replica.flaws += report.flaws
        rest = report.file, report.end, report.length
        if report.last_index is not None and report is not last and report.ending != "blank":
            proof = "entries stand in the next file, but no blank ends this one"
            # The blank is written together with the entry behind it: if that entry is missing,
            # `entry.gap` covers the same bytes.
            replica.flaws.append(_at("blank.missing", rest, proof, report.last_index + 1, (rest,)))
        if report.ending == "blank" and (report is last or not report.entries):
            proof = "a blank ends this file, but no entry follows"
            lost = replica.lost_end if report is last else None
            flaw = _at(
                "blank.alone", rest, proof, replica.last_index + 1, () if lost is None else (lost,)
            )
            replica.flaws.append(replace(flaw, torn=True))
    if filled and filled[0].base == begin.pos and filled[0].first_index not in (begin.index, None):
        proof = f"the log begins with index {filled[0].first_index}"
        replica.flaws.append(
            Flaw(
                "entry.gap", filled[0].file, index=begin.index, byte_from=0, byte_to=48, proof=proof
            )
        )
    _check_producers(replica)
    _check_small_files(replica, last)


def _at(
    rule: str, place: Place, proof: str, index: int | None, measures: tuple[Place, ...] = ()
) -> Flaw:
    return Flaw(
        rule,
        place[0],
        index=index,
        byte_from=place[1],
        byte_to=place[2],
        proof=proof,
        measures=measures,
    )


def check_names(replica: Replica) -> None:
    """The log files follow each other. A file beyond the end of the log does not belong to it: its
    content is ignored."""
    size = replica.sizes[0]
    expected = replica.begin.pos
    for base, name in replica.log_files:
        path = f"{replica.log_folder}/data/{name}"
        if size and base % size:
            replica.flaw("file.name", path, f"the offset is no multiple of {size}")
            continue
        if base < replica.begin.pos:
            continue
        if base != expected and not _goes_on(replica, expected, base):
            _set_aside(
                replica,
                base,
                path,
                f"the log ends before offset {expected}, where its next file would stand",
            )
            continue
        if base != expected:
            proof = f"the next file is {name}"
            replica.flaw(
                "file.missing", f"{replica.log_folder}/data/{expected:020d}", proof, 0, size
            )
        expected = base + size
    if replica.point is not None and expected < replica.point.end_pos and size:
        proof = f"its node has applied entries up to position {replica.point.end_pos}"
        replica.flaw("file.missing", f"{replica.log_folder}/data/{expected:020d}", proof, 0, size)


def _goes_on(replica: Replica, expected: int, base: int) -> bool:
    """Whether anything besides the name of the file at `base` shows that the log has a file at
    `expected`."""
    if expected == replica.begin.pos:
        return True
    known = [end_pos for _, end_pos in replica.known_ends]
    before = [report for report in replica.filled if report.base < expected]
    last = max(
        (report.last_index for report in before if report.last_index is not None), default=-1
    )
    later = [
        report.first_index
        for report in replica.filled
        if report.base >= base and report.first_index is not None
    ]
    full = bool(before) and before[-1].ending == "blank"
    return full or any(pos > expected for pos in known) or any(first > last for first in later)


def _set_aside(replica: Replica, base: int, path: str, proof: str) -> None:
    length = size_of(f"{replica.root}/{path}")
    replica.flaw("file.name", path, proof, 0, length)
    place = replica.shown(path), 0, length
    strange = [report for report in replica.reports if report.base == base]
    replica.reports = [report for report in replica.reports if report.base != base]
    replica.flaws += [
        replace(flaw, measures=(place,)) for report in strange for flaw in report.flaws
    ]


def _check_join(replica: Replica, before: LogReport, after: LogReport) -> None:
    """The first entry of a file continues the last one of the previous file: index, term, store
    time, chain, and it did not fit there."""
    if before.last_index is None or after.first_index is None:
        return
    index = after.first_index
    head, tail = (after.file, 0, after.first_size), (before.file, before.last_at, before.end)
    unproven = tuple(
        place
        for place, report, at in ((tail, before, before.last_index), (head, after, index))
        if at in {*report.damaged}
    )
    if index > before.last_index and after.first_term < before.last_term:
        place, proof = (
            (after.file, 16, 24),
            f"term {after.first_term} follows term {before.last_term}",
        )
        replica.flaws.append(_at("entry.term-order", place, proof, index, unproven))
    if (
        index > before.last_index
        and after.first_store_ms < before.last_store_ms
        and index not in after.time_epochs
    ):
        place, proof = (
            (after.file, 104, 112),
            f"store time {after.first_store_ms} follows {before.last_store_ms}",
        )
        replica.flaws.append(_at("record.store-time", place, proof, index, unproven))
    if after.base != before.base + replica.sizes[0]:
        return
    if index != before.last_index + 1:
        _check_step(replica, before, after)
        return
    expected = crc(bytes.fromhex(after.first_input), before.last_chain)
    if after.prev_chain != before.last_chain and expected != after.first_chain:
        proof = f"the chain CRC is {after.first_chain:08x}, recomputed across files {expected:08x}"
        replica.flaws.append(_at("entry.chain", head, proof, index))
    rest = replica.sizes[0] - before.end
    # A marker may begin a file that an operator wanted; of a damaged entry nobody knows whether it
    # is one.
    explained = index in after.damaged or any(at == index for at, _ in after.markers)
    if before.ending == "blank" and after.first_size + 8 <= rest and not explained:
        proof = f"{rest} bytes were left, the entry behind the blank needs {after.first_size} and 8"
        replica.flaws.append(
            _at("blank.needless", (before.file, before.end, before.length), proof, index)
        )


def _check_links(replica: Replica) -> None:
    """Where the entry before a file's first one is unknown, only a peer can confirm that first
    entry. Without a peer, the finding is the missing part before it."""
    before: LogReport | None = None
    absent = [
        flaw
        for flaw in replica.flaws
        if flaw.rule in ("file.missing", "identity.missing", "identity.json", "begin.json")
    ]
    measures = tuple((flaw.file, flaw.byte_from, flaw.byte_to) for flaw in absent)
    for report in replica.filled:
        if report.prev_chain is None and (before is None or not _follows(replica, before, report)):
            head, proof = (
                (report.file, 0, report.first_size),
                "the entry before it is not known, so nothing continues to this one",
            )
            behind = () if before is None else ((before.file, before.last_at, before.length),)
            flaw = _at(
                "entry.chain",
                head,
                proof,
                report.first_index,
                (*measures, *behind, (report.file, 0, HEADER_BYTES)),
            )
            replica.flaws.append(replace(flaw, torn=True))
        before = report


def _follows(replica: Replica, before: LogReport, after: LogReport) -> bool:
    """Whether the first entry of a file comes right after the last one of another file."""
    return (
        after.base == before.base + replica.sizes[0]
        and before.last_index is not None
        and after.first_index == before.last_index + 1
    )


def _check_step(replica: Replica, before: LogReport, after: LogReport) -> None:
    """The first index of a file does not follow the last index of the previous file."""
    assert before.last_index is not None and after.first_index is not None
    index, proof = after.first_index, f"index {after.first_index} follows index {before.last_index}"
    is_gap = index > before.last_index
    if is_gap and before.ending != "blank":
        # The missing entries were at the end of the previous file, which has no blank.
        proof = f"index {index} in the next file follows index {before.last_index}"
        replica.flaws.append(
            _at("entry.gap", (before.file, before.end, before.length), proof, before.last_index + 1)
        )
        return
    rule, first = ("entry.gap", before.last_index + 1) if is_gap else ("entry.repeat", index)
    hole = next(
        (flaw for flaw in after.flaws if flaw.rule == "entry.unreadable" and flaw.byte_from == 0),
        None,
    )
    if hole is not None and not replica.clean:
        # The entries may never have been written.
        replica.flaws.append(
            replace(_at(rule, (after.file, 0, hole.byte_to), proof, first), torn=True)
        )
    else:
        replica.flaws.append(_at(rule, (after.file, 8, 16), proof, first))


def _check_empty(replica: Replica) -> None:
    """Files that hold no entry, although a later file holds entries."""
    index, filled = replica.begin.index, replica.filled
    for report in replica.reports:
        if report.entries:
            index = (report.last_index or 0) + 1
        elif filled and report.base < filled[-1].base:
            proof = "no entry can be read in this file, and entries stand in a later one"
            replica.flaws.append(
                Flaw(
                    "entry.gap",
                    report.file,
                    index=index,
                    byte_from=0,
                    byte_to=max(report.length, 1),
                    proof=proof,
                )
            )


def check_hard_term(replica: Replica, term: int | None) -> None:
    """A replica notes a term in its hard state before it writes an entry of it. `term`: of its last
    entry, if that is known."""
    if replica.hard_term is not None and term is not None and replica.hard_term < term:
        proof = f"term {replica.hard_term} is below term {term} of the last entry"
        replica.flaw("hardstate.term", f"{replica.log_folder}/hardstate", proof, 0, SLOT_FILE_BYTES)


def _known_end(replica: Replica) -> int | None:
    """The last entry of the log or of its synced mark, if its node was stopped in good order:
    nothing names a later one."""
    stopped = replica.clean and replica.point is None
    return (
        max(replica.last_index, replica.mark.index)
        if stopped and replica.mark is not None
        else None
    )


def check_checkpoint_end(replica: Replica) -> None:
    """The log checkpoint of a node that was stopped in good order names no entry behind the end of
    its log and its synced mark."""
    end = _known_end(replica)
    ahead = [
        number
        for number in (replica.end_hint, replica.commit)
        if number is not None and end is not None and number > end
    ]
    if ahead:
        proof = f"it names entry {ahead[-1]}, log and synced mark end with {end}"
        path = f"{replica.log_folder}/checkpoint"
        replica.flaw("checkpoint.ahead", path, proof, 0, size_of(f"{replica.log}/checkpoint"))


def _check_key_position(replica: Replica) -> None:
    """The key index of a node that was stopped in good order names no entry behind the end of its
    log and its synced mark: the next start would throw the index away. What else is wrong with the
    position, `key_index.py` says."""
    end = _known_end(replica)
    if end is None:
        return
    try:
        position = read_position(replica.root)
    except (ValueError, OSError):
        return
    if position is not None and position.log_id == replica.log_id and position.next_index > end + 1:
        proof = f"it names entry {position.next_index - 1}, log and synced mark end with {end}"
        replica.flaw(
            "keyindex.position",
            "state/keyindex",
            proof,
            0,
            size_of(f"{replica.root}/state/keyindex"),
        )


def _check_small_files(replica: Replica, last: LogReport | None) -> None:
    sound_terms = (
        report.last_sound_term
        for report in reversed(replica.filled)
        if report.last_sound_term is not None
    )
    check_hard_term(replica, next(sound_terms, None))
    check_checkpoint_end(replica)
    _check_key_position(replica)
    latest = max((report.highest_store_ms for report in replica.filled), default=0)
    late = [stamp for stamp in replica.store_stamps if stamp < 0 or stamp > latest]
    if late and replica.clean and replica.point is None:
        # The last store time of a log that lost its end, or is unreadable there, is unknown.
        measures = [] if replica.lost_end is None else [replica.lost_end]
        if last is not None and (replica.last_index in last.damaged or last.ending == "tail"):
            measures.append((last.file, last.last_at, last.length))
        place, proof = (
            (replica.shown("checkpoint"), 0, 24),
            f"stamp {late[0]} is later than the log's latest {latest}",
        )
        replica.flaws.append(_at("checkpoint.store", place, proof, None, tuple(measures)))


def required_dispatch(replica: Replica) -> int:
    """Every message up to this index must be in its consume queue: up to the snapshot's index;
    without a snapshot, the commit index of a clean stop. A running node has written the units of
    everything that is checked; a backup has none."""
    if replica.point is not None:
        return replica.point.index
    if replica.is_backup:
        return -1
    if replica.snapshot is not None and isinstance(replica.snapshot.get("applied_index"), int):
        return int(replica.snapshot["applied_index"])
    return replica.commit if replica.clean and replica.commit is not None else -1


@dataclass(frozen=True, slots=True)
class _Boundary:
    """An intact entry as a boundary: its file among the files with entries and by its base, its
    index, the number of intact entries before it in the file, and its offset."""

    report: int
    base: int
    index: int
    ordinal: int
    place: int


def _begin(replica: Replica) -> _Boundary:
    """The boundary before the first entry, whose file may be lost."""
    return _Boundary(0, replica.begin.pos, replica.begin.index - 1, -1, 0)


def _end(replica: Replica) -> _Boundary:
    """The boundary behind the last entry."""
    at, last = len(replica.filled) - 1, replica.filled[-1]
    return _Boundary(at, last.base, replica.last_index + 1, last.sound, last.length)


def _after(replica: Replica, at: int, run: QueueRun | ProducerRun) -> _Boundary:
    """The last entry of a run in a file."""
    return _Boundary(at, replica.filled[at].base, run.last_index, run.last_ordinal, run.last_at)


def _lost_between(replica: Replica, before: _Boundary, after: _Boundary) -> int:
    """The number of entries between two intact ones that are unreadable, missing or damaged."""
    inside = replica.filled[before.report : after.report]
    sound = sum(report.sound for report in inside) - before.ordinal - 1 + after.ordinal
    return after.index - before.index - 1 - sound


def _between(replica: Replica, before: _Boundary, after: _Boundary) -> tuple[Place, ...]:
    """The parts of the log from one entry up to the header of another one. The first entry is
    included because its chain word may be damaged."""
    folder = replica.shown(f"{replica.log_folder}/data/")
    places_of_files = [(report.file, 0, report.length) for report in replica.reports]
    absent = [
        flaw
        for flaw in replica.flaws
        if flaw.rule == "file.missing" and flaw.file.startswith(folder)
    ]
    places_of_files += [(flaw.file, flaw.byte_from, flaw.byte_to) for flaw in absent]
    places = [
        (int(file.removeprefix(folder)), file, start, end) for file, start, end in places_of_files
    ]
    return tuple(
        (
            file,
            before.place if base == before.base else start,
            after.place + HEADER_BYTES if base == after.base else end,
        )
        for base, file, start, end in places
        if before.base <= base <= after.base
    )


def _explained(
    replica: Replica, before: _Boundary, after: _Boundary, lacking: int, more: int = 0
) -> tuple[Place, ...]:
    """The parts of the log whose damaged entries explain why `lacking` numbers are missing; empty
    if too few entries are damaged there. `more`: readable entries whose numbers are unknown."""
    return (
        _between(replica, before, after)
        if 0 < lacking <= _lost_between(replica, before, after) + more
        else ()
    )


def _check_producers(replica: Replica) -> None:
    """Check the producers of all log files of a replica in sequence."""
    last: dict[int, tuple[ProducerRun, _Boundary]] = {}
    unnumbered = [index for report in replica.filled for index in report.unnumbered]
    for at, report in enumerate(replica.filled):
        for run in report.producers:
            current = _Boundary(at, report.base, run.first_index, run.first_ordinal, run.first_at)
            if run.producer in last:
                before, previous = last[run.producer]
                step, fallen = (
                    run.first_sequence - before.last_sequence,
                    run.first_epoch < before.last_epoch,
                )
                if step != 1 or fallen:
                    proof = wrong_step(
                        run.producer, before.last_sequence, run.first_sequence, fallen
                    )
                    more = sum(previous.index < index < current.index for index in unnumbered)
                    measures = (
                        () if fallen else _explained(replica, previous, current, step - 1, more)
                    )
                    place = report.file, run.first_at, run.first_at + HEADER_BYTES
                    replica.flaws.append(
                        _at("order.producer", place, proof, run.first_index, measures)
                    )
            last[run.producer] = run, _after(replica, at, run)


def check_queues(replica: Replica) -> None:
    """Check the consume queues of all log files in sequence: density across files, required units,
    holes, and bytes behind the end."""
    runs: dict[tuple[str, int], list[tuple[int, QueueRun]]] = {}
    for at, report in enumerate(replica.filled):
        for run in report.queues:
            runs.setdefault((run.topic, run.queue), []).append((at, run))
    for parts in runs.values():
        _check_density(replica, parts)
        _check_dispatch(replica, [run for _, run in parts])
    # For a queue without entries in the log, the snapshot has the end.
    ends = {
        f"consumequeue/{topic}/{queue}": low.offset for (topic, queue), low in replica.lows.items()
    }
    ends |= {
        f"consumequeue/{topic}/{queue}": max(part.last for _, part in parts) + 1
        for (topic, queue), parts in runs.items()
    }
    last = {
        f"consumequeue/{topic}/{queue}": _after(replica, *parts[-1])
        for (topic, queue), parts in runs.items()
    }
    floors = {
        f"consumequeue/{topic}/{queue}": low.floor for (topic, queue), low in replica.lows.items()
    }
    for tail in replica.tails:
        if LITE in tail.folder and tail.folder not in ends:
            # A lite topic that vanished: the next trim removes its files, and the log does not tell
            # where they ended.
            continue
        index = tail.folder == f"{replica.log_folder}/index"
        unit, size = (
            (INDEX_UNIT_BYTES, replica.sizes[1]) if index else (QUEUE_UNIT_BYTES, replica.sizes[2])
        )
        first, end = (
            (replica.begin.index, replica.last_index + 1)
            if index
            else (floors.get(tail.folder, 0), ends.get(tail.folder, 0))
        )
        _check_files(replica, tail, size, first * unit, end * unit)
        if not index:
            previous = last.get(tail.folder, _begin(replica))
            count, places = _units_of_lost_entries(replica, tail, previous, end)
            for place in _units(replica, tail.folder, end, end + count - 1):
                proof = (
                    "the unit is written, the log has no entry for it behind entry"
                    f" {previous.index}"
                )
                replica.flaws.append(_at("queue.tail", place, proof, None, places))
            end += count
        flaw = _check_tail(replica, tail, unit, end * unit)
        replica.flaws += [] if flaw is None else [flaw]


def _units_of_lost_entries(
    replica: Replica, tail: TailReport, previous: _Boundary, end: int
) -> tuple[int, tuple[Place, ...]]:
    """The number of units behind a queue's last readable message that belong to unreadable entries
    between it and the end of the log, at most as many as are unreadable there, and the parts of the
    log where these are. `previous`: that last message; `end`: the number of units up to it."""
    if not replica.filled:
        return 0, ()
    last = min(
        -(-tail.used // QUEUE_UNIT_BYTES), end + _lost_between(replica, previous, _end(replica))
    )
    data = read_space(
        f"{replica.root}/{tail.folder}",
        replica.sizes[2],
        end * QUEUE_UNIT_BYTES,
        last * QUEUE_UNIT_BYTES,
    )
    units = np.frombuffer(data, QUEUE_UNIT, len(data) // QUEUE_UNIT_BYTES)
    # Before the begin there is no message that has a unit of its own.
    low = previous.base + previous.place + HEADER_BYTES + (previous.ordinal >= 0)
    inside = (units["pos"] >= low) & (units["pos"] < replica.end_pos)
    # Units between them may not have been written.
    follows = np.logical_and.accumulate(inside | (units == np.zeros(1, QUEUE_UNIT)))
    rows = np.flatnonzero(inside & follows)
    count = int(rows[-1]) + 1 if len(rows) else 0
    return count, _between(replica, previous, _end(replica))


def _check_files(replica: Replica, tail: TailReport, size: int, needed: int, end: int) -> None:
    """Check that every file of derived data exists from the first one that the log needs; earlier
    ones are optional. A file behind a gap that begins where the log's units end does not belong to
    the data. A running node makes files behind the checked part meanwhile."""
    running = replica.point is not None
    replica.flaws += [
        flaw for flaw in tail.flaws if not running or int(os.path.basename(flaw.file)) < end
    ]
    needed -= needed % size
    for start, base in ((needed, tail.first_base), *tail.gaps):
        first = max(start, needed)
        if first >= base:
            continue
        if first >= end and running:
            continue
        if first >= end:
            path = f"{tail.folder}/{base:020d}"
            proof = (
                f"the units of the log end before offset {first}, where the next file would stand"
            )
            replica.flaw("file.name", path, proof, 0, size_of(f"{replica.root}/{path}"))
        else:
            proof = f"the next file is {base:020d}"
            replica.flaw("file.missing", f"{tail.folder}/{first:020d}", proof, 0, base - first)


def _check_density(replica: Replica, parts: list[tuple[int, QueueRun]]) -> None:
    """The queue offsets of a queue continue from file to file, and begin at 0 or behind what was
    trimmed."""
    topic, queue = parts[0][1].topic, parts[0][1].queue
    expected, previous = 0, _begin(replica)
    if replica.begin.index:
        low = replica.lows.get((topic, queue))
        expected = (
            (low.offset if low is not None else 0) if replica.lows_are_exact else parts[0][1].first
        )
    for at, part in parts:
        report = replica.filled[at]
        current = _Boundary(at, report.base, part.first_index, part.first_ordinal, part.first_at)
        if may_begin(topic, part.first, expected):
            expected = part.first
        if part.first != expected:
            flaw = density_flaw(
                report.file,
                f"{topic}/{queue}",
                (part.first_index, part.first_at),
                part.first,
                expected,
            )
            replica.flaws.append(
                replace(
                    flaw, measures=_explained(replica, previous, current, part.first - expected)
                )
            )
        expected, previous = part.last + 1, _after(replica, at, part)


def _check_dispatch(replica: Replica, parts: Sequence[QueueRun]) -> None:
    """Every applied message, and every message before one that has a unit, has a unit, unless a
    trim of its entry was decided. Units may then be gone before entries are: the queues of a
    replica that is installed in the meantime begin where the snapshot says."""
    low = replica.lows.get((parts[0].topic, parts[0].queue))
    floor = low.floor if low is not None else 0
    filed = max((part.filed_offset for part in parts if part.filed_offset is not None), default=0)
    required = required_dispatch(replica)
    for part in parts:
        folder = f"consumequeue/{part.topic}/{part.queue}"
        for first, last, index, _ in _above(floor, part.blanks):
            for place in _units(replica, folder, first, last):
                proof = (
                    f"the unit of a removed message; by the snapshot the first kept one is {floor}"
                )
                replica.flaws.append(_at("queue.unit", place, proof, index))
        for first, last, index, _ in _above(floor, part.waiting):
            if index <= required:
                proof = f"entries up to {required} are applied, this unit is empty"
                # If the run continues behind the last applied entry, at most this many of its
                # messages can be applied.
                for place in _units(replica, folder, first, min(last, first + required - index)):
                    replica.flaws.append(_at("queue.missing", place, proof, index))
            elif first < filed:
                for place in _units(replica, folder, first, last):
                    flaw = _at(
                        "queue.hole",
                        place,
                        f"the unit is empty, but unit {filed} is written",
                        index,
                    )
                    replica.flaws.append(replace(flaw, torn=True))


def _above(floor: int, runs: Sequence[list[int]]) -> Iterator[list[int]]:
    """The parts of runs from queue offset `floor` on; their first index is then the lowest possible
    one."""
    for first, last, index, last_index in runs:
        if last >= floor:
            low = max(first, floor)
            yield [low, last, index + low - first, last_index]


def _units(replica: Replica, folder: str, first: int, last: int) -> Iterator[Place]:
    """The places of units of a consume queue, file by file."""
    size, start, end = replica.sizes[2], first * QUEUE_UNIT_BYTES, (last + 1) * QUEUE_UNIT_BYTES
    while start < end:
        base = start - start % size
        stop = min(base + size, end)
        yield replica.shown(f"{folder}/{base:020d}"), start - base, stop - base
        start = stop


def _check_tail(replica: Replica, tail: TailReport, unit: int, end: int) -> Flaw | None:
    """All bytes behind the last unit of the log are zero."""
    if tail.used <= end:
        return None
    base = int(tail.last_file)
    start = max(end - base, 0)
    path = f"{replica.root}/{tail.folder}/{tail.last_file}"
    with open_file(path) as file:
        stain = find_stain(file, start, file.size)
    beyond = stain is not None and _is_unit_beyond(
        replica, unit, base + stain.first - (base + stain.first) % unit, path
    )
    torn = beyond and not replica.clean
    first, last = (stain.first, stain.last + 1) if stain else (start, tail.used - base)
    # If all these units continue those of the log, the log lost the entries that they describe.
    units = range(base + first - (base + first) % unit, base + last, unit)
    lost = (
        replica.lost_end
        if beyond and all(_is_unit_beyond(replica, unit, each, path) for each in units)
        else None
    )
    proof = f"written up to byte {tail.used - base}, the log accounts for {start}"
    place = replica.shown(f"{tail.folder}/{tail.last_file}"), first, last
    rule = "index.tail" if unit == INDEX_UNIT_BYTES else "queue.tail"
    return replace(_at(rule, place, proof, None, () if lost is None else (lost,)), torn=torn)


def _is_unit_beyond(replica: Replica, unit: int, place: int, path: str) -> bool:
    """Whether the unit at `place` (absolute) describes an entry behind the log's end, which the log
    lost in a power cut. If a unit crosses a sector boundary, only a part of it may exist."""
    start = place - int(os.path.basename(path))
    with open_file(path) as file:
        raw = file.pread(unit, start)
    if len(raw) < unit:
        return False
    edge = SECTOR - start % SECTOR
    if edge < unit and not (any(raw[:edge]) and any(raw[edge:])):
        return not replica.clean
    if unit == INDEX_UNIT_BYTES:
        (entry,) = np.frombuffer(raw, INDEX_UNIT)
        return bool(entry["magic"] == ENTRY_MAGIC and entry["index"] == place // INDEX_UNIT_BYTES)
    (record,) = np.frombuffer(raw, QUEUE_UNIT)
    return bool(
        record["pos"] >= replica.end_pos + HEADER_BYTES
        and record["size"] >= ENTRY_BYTES_MIN - HEADER_BYTES
    )
