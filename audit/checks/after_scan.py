"""The log files of a replica in a row, once each was scanned: names, continuity, the end, and the derived files beside them.

Everything here is about one replica on its own. Flaws are collected, not judged: what a flaw means depends on the peers (`compare`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise

from ledgermq.audit.checks.derived import QueueRun, TailReport
from ledgermq.audit.checks.order import check_row
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.rules import Flaw
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.begin import LITE, may_begin
from ledgermq.audit.reading.decode import (
    SECTOR,
    SLOT_FILE_BYTES,
    crc,
    find_stain,
)
from ledgermq.audit.reading.files import open_file, size_of


def check_log(replica: Replica, decided: int) -> None:
    """Put the log files of a replica in a row: names, continuity, blanks, the zero space behind the end. `decided`: how far trims were
    decided in its group."""
    check_names(replica)
    begin = replica.begin
    if begin.index > decided:
        proof = f"the log is said to begin with entry {begin.index}, trim records and snapshots of all replicas go up to {decided}"
        replica.flaw("begin.decided", f"{replica.log_folder}/begin", proof)
    filled = replica.filled
    last = filled[-1] if filled else None
    for before, after in pairwise(filled):
        _check_join(replica, before, after)
    _check_empty(replica)
    for report in replica.reports:
        replica.flaws += report.flaws
        if report.last_index is not None and report is not last and report.ending != "blank" and not replica.has_gap_in(report):
            proof = "entries stand in the next file, but no blank ends this one"
            # It is written with the entry behind it.
            replica.flaws.append(Flaw("blank.missing", report.file, report.last_index + 1, report.end, report.length, proof))
        if report.ending == "blank" and (report is last or not report.entries) and not (report is last and replica.cut_short):
            proof = "a blank ends this file, but no entry follows"
            replica.flaws.append(Flaw("blank.alone", report.file, replica.last_index + 1, report.end, report.length, proof, torn=True))
    if filled and filled[0].base == begin.pos and filled[0].first_index not in (begin.index, None):
        proof = f"the log begins with index {filled[0].first_index}"
        replica.flaws.append(Flaw("entry.gap", filled[0].file, begin.index, 0, 48, proof))
    unknown = bool(replica.broken) or any(flaw.rule == "record.native" for flaw in replica.flaws)
    replica.flaws += check_row(((report.file, report.producers) for report in filled), unknown)
    _check_small_files(replica, last)


def check_names(replica: Replica) -> None:
    size = replica.sizes[0]
    expected = replica.begin.pos
    for base, name in replica.log_files:
        path = f"{replica.log_folder}/data/{name}"
        if size and base % size:
            replica.flaw("file.name", path, f"the offset is no multiple of {size}")
            continue
        if base < replica.begin.pos:
            continue
        if base != expected:
            proof = f"the next file is {name}"
            replica.flaw("file.missing", f"{replica.log_folder}/data/{expected:020d}", proof, 0, min(base - expected, size))
        expected = base + size
    if replica.point is not None and expected < replica.point.end_pos and size:
        proof = f"its node has applied entries up to position {replica.point.end_pos}"
        replica.flaw("file.missing", f"{replica.log_folder}/data/{expected:020d}", proof, 0, size)


def _check_join(replica: Replica, before: LogReport, after: LogReport) -> None:
    """The first entry of a file continues the last one of the file before: index, term, store time, chain, and it did not fit there."""
    if after.base != before.base + replica.sizes[0] or before.last_index is None or after.first_index is None:
        return
    place, index = after.file, after.first_index
    if index > before.last_index + 1 and before.ending != "blank":
        # They stood where the file before ends without a blank.
        proof = f"index {index} in the next file follows index {before.last_index}"
        replica.flaws.append(Flaw("entry.gap", before.file, before.last_index + 1, before.end, before.length, proof))
        return
    if index != before.last_index + 1:
        rule, proof = "entry.gap" if index > before.last_index + 1 else "entry.repeat", f"index {index} follows index {before.last_index}"
        hole = next((flaw for flaw in after.flaws if flaw.rule == "entry.unreadable" and flaw.byte_from == 0), None)
        if hole is not None and not replica.clean:
            # They may never have been written.
            replica.flaws.append(Flaw(rule, place, min(index, before.last_index + 1), 0, hole.byte_to, proof, torn=True))
        else:
            replica.flaws.append(Flaw(rule, place, min(index, before.last_index + 1), 8, 16, proof))
        return
    damaged = {*before.damaged, *after.damaged}
    if after.first_term < before.last_term and index not in damaged and before.last_index not in damaged:
        replica.flaws.append(Flaw("entry.term-order", place, index, 16, 24, f"term {after.first_term} follows term {before.last_term}"))
    if after.first_store_ms < before.last_store_ms and index not in damaged and before.last_index not in damaged:
        replica.flaws.append(
            Flaw("record.store-time", place, index, 104, 112, f"store time {after.first_store_ms} follows {before.last_store_ms}")
        )
    expected = crc(bytes.fromhex(after.first_input), before.last_chain)
    if after.prev_chain != before.last_chain and expected != after.first_chain and index not in damaged:
        proof = f"the chain CRC is {after.first_chain:08x}, recomputed across files {expected:08x}"
        replica.flaws.append(Flaw("entry.chain", place, index, 0, after.first_size, proof))
    rest = replica.sizes[0] - before.end
    if before.ending == "blank" and after.first_size + 8 <= rest:
        proof = f"{rest} bytes were left, the entry behind the blank needs {after.first_size} and 8"
        replica.flaws.append(Flaw("blank.needless", before.file, index, before.end, before.length, proof))


def _check_empty(replica: Replica) -> None:
    """Files that hold no entry, although entries stand in a later one."""
    index, filled = replica.begin.index, replica.filled
    for report in replica.reports:
        if report.entries:
            index = (report.last_index or 0) + 1
        elif filled and report.base < filled[-1].base:
            proof = "no entry can be read in this file, and entries stand in a later one"
            replica.flaws.append(Flaw("entry.gap", report.file, index, 0, max(report.length, 1), proof))


def _check_small_files(replica: Replica, last: LogReport | None) -> None:
    folder = replica.log_folder
    if replica.hard_term is not None and last is not None and replica.hard_term < last.last_term and replica.last_index not in last.damaged:
        proof = f"term {replica.hard_term} is below term {last.last_term} of the last entry"
        replica.flaw("hardstate.term", f"{folder}/hardstate", proof, 0, SLOT_FILE_BYTES)
    ahead = [number for number in (replica.end_hint, replica.commit) if number is not None and number > replica.last_index]
    if ahead and replica.ends_whole:
        proof = f"it names entry {ahead[-1]}, log and synced mark end with {replica.last_index}"
        replica.flaw("checkpoint.ahead", f"{folder}/checkpoint", proof, 0, size_of(f"{replica.log}/checkpoint"))
    latest = last.last_store_ms if last else 0
    late = [stamp for stamp in replica.store_stamps if stamp < 0 or stamp > latest]
    # Of a log that lost its end, or cannot be read there, it is not known how late it went.
    cut = replica.cut_short or (last is not None and (replica.last_index in last.damaged or last.ending == "tail"))
    if late and replica.clean and replica.point is None and not cut:
        replica.flaw("checkpoint.store", "checkpoint", f"stamp {late[0]} is later than the log's last {latest}", 0, 24)


def required_dispatch(replica: Replica) -> int:
    """Up to this index every message must be in its consume queue: what the snapshot covers; without one, a clean stop's commit. A running
    node has written the units of everything that is looked at; a backup has none."""
    if replica.point is not None:
        return replica.point.index
    if replica.is_backup:
        return -1
    if replica.snapshot is not None and isinstance(replica.snapshot.get("applied_index"), int):
        return int(replica.snapshot["applied_index"])
    return replica.commit if replica.clean and replica.commit is not None else -1


def check_queues(replica: Replica) -> None:
    """Put the consume queues of all log files in a row: density across files, units that are due, holes, and what lies behind the end."""
    runs: dict[tuple[str, int], list[QueueRun]] = {}
    for report in replica.reports:
        for run in report.queues:
            runs.setdefault((run.topic, run.queue), []).append(run)
    damage = replica.lost_entries
    for (topic, queue), parts in runs.items():
        _check_density(replica, topic, queue, parts, damage)
        _check_dispatch(replica, parts)
    if damage:
        # An entry that cannot be read takes its queue offset with it: the gap it leaves is not a second finding.
        replica.flaws = [flaw for flaw in replica.flaws if flaw.rule != "record.queue-offset"]
    # Of a queue that has no entry in the log any more, the snapshot tells the end.
    ends = {f"consumequeue/{topic}/{queue}": low.offset for (topic, queue), low in replica.lows.items()}
    ends |= {f"consumequeue/{topic}/{queue}": max(part.last for part in parts) + 1 for (topic, queue), parts in runs.items()}
    floors = {f"consumequeue/{topic}/{queue}": low.floor for (topic, queue), low in replica.lows.items()}
    for tail in replica.tails:
        if LITE in tail.folder and tail.folder not in ends:
            # A lite topic that has vanished: its files go with the next trim, and nothing of the log tells where they ended.
            continue
        _check_front(replica, tail, floors.get(tail.folder, 0))
        index = tail.folder == f"{replica.log_folder}/index"
        unit, end = (32, replica.last_index + 1) if index else (20, ends.get(tail.folder, 0))
        _check_tail(replica, tail, "index.tail" if index else "queue.tail", unit, (end if index else end + damage) * unit)


def _check_front(replica: Replica, tail: TailReport, floor: int) -> None:
    """Files of a derived space may be missing in front only below what the log still needs; older ones may be there still, or some."""
    index = tail.folder == f"{replica.log_folder}/index"
    size, needed = (replica.sizes[1], replica.begin.index * 32) if index else (replica.sizes[2], floor * 20)
    needed -= needed % size
    if tail.first_base > needed:
        proof = f"the next file is {tail.first_base:020d}"
        replica.flaw("file.missing", f"{tail.folder}/{needed:020d}", proof, 0, tail.first_base - needed)
    trimmed = {replica.shown(f"{tail.folder}/{base:020d}") for base in range(tail.first_base, needed, size)} if tail.flaws else set()
    replica.flaws += [flaw for flaw in tail.flaws if flaw.rule != "file.missing" or flaw.file not in trimmed]


def _check_density(replica: Replica, topic: str, queue: int, parts: list[QueueRun], damage: int) -> None:
    expected = 0
    if replica.begin.index:
        low = replica.lows.get((topic, queue))
        expected = (low.offset if low is not None else 0) if replica.lows_are_exact else parts[0].first
    for part in parts:
        if may_begin(topic, part.first, expected):
            expected = part.first
        if part.first != expected and not damage and not any(flaw.rule == "file.missing" for flaw in replica.flaws):
            rule = "record.queue-offset" if part.first > expected else "record.queue-repeat"
            found = next(report for report in replica.reports if part in report.queues)
            proof = f"queue offset {part.first} of {topic}/{queue} follows {expected - 1}"
            replica.flaws.append(Flaw(rule, found.file, part.first_index, 0, found.end, proof))
        expected = part.last + 1


def _check_dispatch(replica: Replica, parts: Iterable[QueueRun]) -> None:
    parts = list(parts)
    waiting = next((part for part in parts if part.waiting_offset is not None), None)
    if waiting is None or waiting.waiting_offset is None or waiting.waiting_index is None:
        return
    place = waiting.waiting_offset * 20
    base = place - place % replica.sizes[2]
    path = f"consumequeue/{waiting.topic}/{waiting.queue}/{base:020d}"
    filed = max((part.filed_offset for part in parts if part.filed_offset is not None), default=-1)
    bounds = place - base, place - base + 20
    required = required_dispatch(replica)
    if waiting.waiting_index <= required:
        replica.flaw("queue.missing", path, f"entries up to {required} are applied, this unit is empty", *bounds, waiting.waiting_index)
    elif filed > waiting.waiting_offset:
        proof = f"the unit is empty, but unit {filed} is written"
        replica.flaw("queue.hole", path, proof, *bounds, waiting.waiting_index, torn=True)


def _check_tail(replica: Replica, tail: TailReport, rule: str, unit: int, end: int) -> None:
    if tail.used <= end:
        return
    base = int(tail.last_file)
    start = max(end - base, 0)
    path = f"{replica.root}/{tail.folder}/{tail.last_file}"
    with open_file(path) as file:
        stain = find_stain(file, start, file.size)
    beyond = stain is not None and _is_unit_beyond(replica, rule, base + stain.first - (base + stain.first) % unit, path)
    if beyond and replica.cut_short:
        # The units are right: it is the log that lost what they speak of, and that is told.
        return
    torn = beyond and not replica.clean
    first, last = (stain.first, stain.last + 1) if stain else (start, tail.used - base)
    proof = f"written up to byte {tail.used - base}, the log accounts for {start}"
    replica.flaw(rule, f"{tail.folder}/{tail.last_file}", proof, first, last, torn=torn)


def _is_unit_beyond(replica: Replica, rule: str, place: int, path: str) -> bool:
    """Whether a unit stands at `place` (absolute) that describes an entry behind the log's end: one the log lost with the power. Of a unit
    that lies across the edge of two sectors one part may be all there is."""
    unit = 32 if rule == "index.tail" else 20
    with open_file(path) as file:
        raw = file.pread(unit, place - int(os.path.basename(path)))
    if len(raw) < unit:
        return False
    edge = SECTOR - (place - int(os.path.basename(path))) % SECTOR
    if edge < unit and not (any(raw[:edge]) and any(raw[edge:])):
        return not replica.clean
    if rule == "index.tail":
        return raw[:4] == b"\0\0\0\1" and int.from_bytes(raw[16:24], "big") == place // 32
    return int.from_bytes(raw[:8], "big", signed=True) >= replica.end_pos and int.from_bytes(raw[8:12], "big", signed=True) >= 91
