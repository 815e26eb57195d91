"""What of each broker group's log counts when clients are held against it: from where to where, read from which replica, what is unknown.

The entries are those up to the compared index, which a majority holds alike. Of each log file the replica is read that has the least damage
in it; what nobody holds intact is named, so that its absence is never taken for a loss. Nothing is read here but reports.
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
    """One broker group, as plain values that cross process borders."""

    group: str
    log_ids: tuple[str, ...]
    """The log's id, and former ones that a recovery left behind."""
    begin: int
    """The first entry that is kept."""
    last: int
    """The last entry that counts; −1: none."""
    last_store_ms: int
    whole: bool
    """Every voter's log was read to its end: what was acknowledged and is not in it is stored nowhere."""
    unreadable: tuple[int, ...] = ()
    """Entries that no replica holds intact."""
    lows: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each queue the first offset that is kept."""
    fifo: tuple[str, ...] = ()
    broadcast: tuple[str, ...] = ()
    """Consumer groups whose members all get every message."""
    resets: tuple[tuple[str, str], ...] = ()
    """(consumer group, topic) whose place was moved by an operator: what they are given again is wanted."""


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
    """The scope of a broker group that was compared, and what of it is to be read."""
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
    # A running cluster is looked at up to a marker, and goes on behind it.
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
    """Of each log file the replica to read it from: one that agrees with the majority and has the least damage in it."""
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
