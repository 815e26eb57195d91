"""The part of each broker group's log that is compared with clients: its range, the replica to read it from, and what is unknown.

The entries are those up to the compared index, on which a majority agrees. Each log file is read from the replica with the least damage in
it. Entries that no replica holds intact are listed, so that their absence never counts as a loss. Only reports are read here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.clients.stored import Slice
from ledgermq.audit.reading.begin import former_logs


@dataclass(frozen=True, slots=True)
class Scope:
    """One broker group, as plain values that cross process boundaries."""

    group: str
    log_ids: tuple[str, ...]
    """The log's id, and the ids it had before recoveries."""
    begin: int
    """The first kept entry."""
    last: int
    """The last entry that counts; −1: none."""
    last_store_ms: int
    whole: bool
    """Whether every voter's log was read to its end: an acknowledged message that is not in them is not stored anywhere."""
    unreadable: tuple[int, ...] = ()
    """Entries that no replica holds intact."""
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
    found = {}
    for value in json.loads(text):
        for name in ("log_ids", "unreadable", "fifo", "broadcast"):
            value[name] = tuple(value[name])
        value["resets"] = tuple((group, topic) for group, topic in value["resets"])
        found[value["group"]] = Scope(**value)
    return found


def scope_of(result: GroupResult) -> tuple[Scope, list[Slice]]:
    """The scope of a compared broker group, and the slices to read."""
    last = -1 if result.compared is None else result.compared
    chosen = _chosen(result, last)
    replicas = [one for one, _ in chosen] or result.replicas
    unreadable: set[int] = set()
    slices = []
    for one, report in chosen:
        hurt = set(report.damaged) | {f.index for f in report.flaws if f.rule == "entry.unreadable" and f.index is not None}
        unreadable |= {index for index in hurt if index <= last}
        slices.append(Slice(one.task(f"{report.base:020d}"), last, tuple(sorted(report.damaged))))
    lows: dict[str, dict[str, int]] = {}
    for one in replicas[:1]:
        for (topic, queue), low in one.lows.items():
            lows.setdefault(topic, {})[str(queue)] = low.offset
    for _, report in reversed(chosen):
        for run in report.queues:
            lows.setdefault(run.topic, {})[str(run.queue)] = run.first
    # A running cluster is read up to a marker, and continues behind it.
    ended = all(one.point is None for one in result.replicas)
    groups: dict[str, object] = {}
    for one in result.replicas:
        told = one.snapshot.get("groups") if one.snapshot is not None else None
        groups |= told if isinstance(told, dict) else {}
    scope = Scope(
        group=result.group,
        log_ids=tuple(_log_ids(result.replicas)),
        begin=min((report.first_index or 0 for _, report in chosen), default=0),
        last=last,
        last_store_ms=max((report.last_store_ms for _, report in chosen), default=0),
        whole=ended and bool(result.voters) and not result.missing and not result.moved and result.compared is not None,
        unreadable=tuple(sorted(unreadable)),
        lows=lows,
        fifo=tuple(name for name, value in groups.items() if isinstance(value, dict) and value.get("fifo")),
        broadcast=tuple(name for name, value in groups.items() if isinstance(value, dict) and value.get("broadcast")),
        resets=tuple(sorted({pair for _, report in chosen for pair in _resets(report)})),
    )
    return scope, slices


def _chosen(result: GroupResult, last: int) -> list[tuple[Replica, LogReport]]:
    """The replica from which to read each log file: one that agrees with the majority and has the least damage in the file."""
    found: dict[int, tuple[Replica, LogReport]] = {}
    for one in result.replicas:
        if one.name in result.divergent or one.name not in (*result.voters, *result.learners):
            continue
        for report in one.filled:
            if (report.first_index or 0) > min(last, one.held):
                continue
            other = found.get(report.base)
            if other is None or _worth(one, report, last) > _worth(*other, last):
                found[report.base] = one, report
    return [found[base] for base in sorted(found)]


def _worth(one: Replica, report: LogReport, last: int) -> tuple[int, int]:
    return min(report.last_index or -1, one.held, last), -len(report.damaged) - len(report.flaws)


def _log_ids(replicas: Sequence[Replica]) -> list[str]:
    found: dict[str, None] = {}
    for one in replicas:
        if one.log_id:
            found[one.log_id] = None
        found |= dict.fromkeys(former_logs(one.root))
    return list(found)


def _resets(report: LogReport) -> list[tuple[str, str]]:
    found = []
    for _, body in report.resets:
        try:
            value = json.loads(body)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append((str(value.get("g")), str(value.get("t"))))
    return found
