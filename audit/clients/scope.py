"""The part of each broker group's log that is compared with clients: its range, the replica to read
it from, and what is unknown.

The entries are those up to the compared index, on which a majority agrees. Each log file is read
from one place: the replica with the least damage in it, or the object store if no replica has it as
good. Entries that are intact nowhere are listed, so that their absence never counts as a loss. Only
reports are read here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.clients.logged_messages import Slice
from ledgermq.audit.reading.begin import former_logs
from ledgermq.audit.reading.walk import LogFile


@dataclass(frozen=True, slots=True)
class Scope:
    """One broker group, as plain values that cross process boundaries."""

    group: str
    log_ids: tuple[str, ...]
    """The log's id, and the ids it had before recoveries."""
    begin: int
    """The first kept entry, of the replicas or of the store."""
    last: int
    """The last entry that counts; −1: none."""
    last_store_ms: int
    whole: bool
    """Whether every voter's log was read to its end: an acknowledged message that is not in them is
    not stored anywhere."""
    unreadable: tuple[tuple[int, int], ...] = ()
    """Ranges of entries that are intact nowhere, first and last."""
    lows: dict[str, dict[str, int]] = field(default_factory=dict)
    """The first kept offset of each queue."""
    fifo: tuple[str, ...] = ()
    broadcast: tuple[str, ...] = ()
    """Consumer groups that deliver every message to every member."""
    resets: tuple[tuple[str, str], ...] = ()
    """(consumer group, topic) whose position an operator moved: redeliveries are then intended."""


def to_json(scopes: Sequence[Scope]) -> str:
    return json.dumps([asdict(scope) for scope in scopes])


def from_json(text: str) -> dict[str, Scope]:
    """Scopes by broker group."""
    scopes = {}
    for value in json.loads(text):
        for name in ("log_ids", "fifo", "broadcast"):
            value[name] = tuple(value[name])
        for name in ("resets", "unreadable"):
            value[name] = tuple((first, second) for first, second in value[name])
        scopes[value["group"]] = Scope(**value)
    return scopes


@dataclass(frozen=True, slots=True)
class _Place:
    """One log file where it is read. `owner`: None for the object store."""

    task: LogFile
    report: LogReport
    owner: Replica | None
    last: int
    """The last entry that counts in it."""

    @property
    def worth(self) -> tuple[int, int, bool]:
        return (
            min(self.report.last_index or -1, self.last),
            -len(self.report.damaged) - len(self.report.flaws),
            self.owner is not None,
        )


def scope_of(result: GroupResult) -> tuple[Scope, list[Slice], int]:
    """The scope of a compared broker group, the slices to read, and the number of entries in their
    files."""
    last = -1 if result.compared is None else result.compared
    chosen = _chosen(result, last)
    unreadable: set[tuple[int, int]] = set()
    slices = []
    for place in chosen:
        report = place.report
        hurt = set(report.damaged) | {
            f.index for f in report.flaws if f.rule == "entry.unreadable" and f.index is not None
        }
        unreadable |= {(index, index) for index in hurt if index <= last}
        slices.append(Slice(place.task, last, tuple(sorted(report.damaged))))
    begin, holes = _stored_part(result, chosen)
    # A running cluster is read up to a marker, and continues behind it.
    ended = all(one.point is None for one in result.replicas)
    groups: dict[str, object] = {}
    for one in result.replicas:
        known_groups = one.snapshot.get("groups") if one.snapshot is not None else None
        groups |= known_groups if isinstance(known_groups, dict) else {}
    scope = Scope(
        group=result.group,
        log_ids=tuple(_log_ids(result.replicas)),
        begin=begin,
        last=last,
        last_store_ms=next(
            (ms for place in reversed(chosen) if (ms := place.report.last_store_ms)), 0
        ),
        whole=ended
        and bool(result.voters)
        and not result.missing
        and not result.moved
        and result.compared is not None,
        unreadable=tuple(sorted({*unreadable, *holes})),
        lows=_lows(result, chosen),
        fifo=tuple(
            name for name, value in groups.items() if isinstance(value, dict) and value.get("fifo")
        ),
        broadcast=tuple(
            name
            for name, value in groups.items()
            if isinstance(value, dict) and value.get("broadcast")
        ),
        resets=tuple(sorted({pair for place in chosen for pair in _resets(place.report)})),
    )
    return scope, slices, sum(place.report.entries for place in chosen)


def _chosen(result: GroupResult, last: int) -> list[_Place]:
    """Where to read each log file, in order of position: on one of the replicas that agree with the
    majority, or in the store."""
    members = [
        one
        for one in result.replicas
        if one.name not in result.divergent and one.name in (*result.voters, *result.learners)
    ]
    ids = {one.log_id for one in members}
    places = [
        _Place(one.task(f"{report.base:020d}"), report, one, min(last, one.held))
        for one in members
        for report in one.filled
    ]
    places += [
        _Place(task, report, None, last)
        for stored in result.stored
        if stored.log_id in ids
        for task, report in stored.sound
    ]
    chosen: dict[int, _Place] = {}
    for place in places:
        other = chosen.get(place.task.base)
        if (place.report.first_index or 0) <= place.last and (
            other is None or place.worth > other.worth
        ):
            chosen[place.task.base] = place
    return [chosen[base] for base in sorted(chosen)]


def _stored_part(
    result: GroupResult, chosen: Sequence[_Place]
) -> tuple[int, list[tuple[int, int]]]:
    """The first kept entry, and the ranges of entries before the replicas' logs that should be in
    the store and are not read from there."""
    firsts = [place.report.first_index or 0 for place in chosen]
    local = min(
        (first for first, place in zip(firsts, chosen, strict=True) if place.owner is not None),
        default=0,
    )
    begin = (
        0
        if result.store_lost
        else min([local, *firsts, *(stored.begins_with for stored in result.stored)])
    )
    at, holes = begin, []
    for first, place in zip(firsts, chosen, strict=True):
        if at < first <= local:
            holes.append((at, first - 1))
        at = max(at, (place.report.last_index or 0) + 1)
    return begin, holes


def _lows(result: GroupResult, chosen: Sequence[_Place]) -> dict[str, dict[str, int]]:
    """The first kept offset of each queue: that of its first message in the chosen files, or, if
    none is left, the one in a snapshot."""
    owners = [place.owner for place in chosen if place.owner is not None] or result.replicas
    offsets = {key: low.offset for one in owners[:1] for key, low in one.lows.items()}
    for run in (run for place in chosen for run in place.report.queues):
        offsets[run.topic, run.queue] = min(
            run.first, offsets.get((run.topic, run.queue), run.first)
        )
    lows: dict[str, dict[str, int]] = {}
    for (topic, queue), low in offsets.items():
        lows.setdefault(topic, {})[str(queue)] = low
    return lows


def _log_ids(replicas: Sequence[Replica]) -> list[str]:
    log_ids: dict[str, None] = {}
    for one in replicas:
        if one.log_id:
            log_ids[one.log_id] = None
        log_ids |= dict.fromkeys(former_logs(one.root))
    return list(log_ids)


def _resets(report: LogReport) -> list[tuple[str, str]]:
    resets = []
    for _, body in report.resets:
        try:
            value = json.loads(body)
        except ValueError:
            continue
        if isinstance(value, dict):
            resets.append((str(value.get("g")), str(value.get("t"))))
    return resets
