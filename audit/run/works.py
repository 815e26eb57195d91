"""Partitions of the audit's work, and their outcomes, as plain values that cross process
boundaries.

A kind of work is a name and a function from a task to an `Outcome`; both engines know only these.
Nothing is judged here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ledgermq.audit.checks.backups import backup_looks, check_backup
from ledgermq.audit.checks.derived import QueueRun, TailReport, tails
from ledgermq.audit.checks.key_index import check_keys, key_looks
from ledgermq.audit.checks.order import ProducerRun
from ledgermq.audit.checks.outline import outline
from ledgermq.audit.checks.scan import LogReport, scan
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.files import stat_of
from ledgermq.audit.reading.node_paths import NodeLost
from ledgermq.audit.reading.objects import StoreLost
from ledgermq.audit.reading.stored_parts import wrong_index
from ledgermq.audit.reading.walk import LogFile, Progress
from ledgermq.audit.rules import Flaw
from ledgermq.audit.state.derive import StateReport, check_state

LOG, TAILS, STATE, KEYS, OUTLINE, BACKUP, STORED = (
    "log",
    "tails",
    "state",
    "keyindex",
    "outline",
    "backup",
    "stored",
)


@dataclass(frozen=True, slots=True)
class Work:
    """One partition. `kind` is one of `LOOKS`: `log` and `stored` are about the task's log file,
    the others about its replica."""

    directory: str
    task: LogFile
    kind: str = LOG

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Work:
        value = json.loads(text)
        return cls(value["directory"], LogFile(**value["task"]), value["kind"])

    @property
    def size(self) -> int:
        """Bytes that count for progress."""
        if self.kind == STORED:
            return self.task.data_file_bytes
        try:
            status = stat_of(self.task.path) if self.kind == LOG else None
        except NodeLost:
            # The look itself reports the error.
            return 0
        return 0 if status is None else self.task.limit(status.size)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one partition; fields that its kind does not give are empty."""

    log: LogReport | None = None
    tails: tuple[TailReport, ...] = ()
    flaws: tuple[Flaw, ...] = ()
    """Flaws of the replica as a whole, or of a stored file's index part."""
    state: StateReport | None = None
    outline: tuple[LogReport, ...] = ()
    lost: str = ""
    """Why the node or the store with the files could not be asked; nothing was checked then."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        value = json.loads(text)
        log = None if value["log"] is None else _log_report(value["log"])
        reports = [_tail_report(tail) for tail in value["tails"]]
        state = value["state"]
        if state is not None:
            state = StateReport(**{**state, "flaws": _flaws(state["flaws"])})
        outlined = tuple(_log_report(report) for report in value["outline"])
        return cls(
            log=log,
            tails=tuple(reports),
            flaws=tuple(_flaws(value["flaws"])),
            state=state,
            outline=outlined,
            lost=value["lost"],
        )


def _flaws(values: list[dict[str, Any]]) -> list[Flaw]:
    return [
        Flaw(
            **{
                **value,
                "measures": tuple((file, start, end) for file, start, end in value["measures"]),
            }
        )
        for value in values
    ]


def _tail_report(tail: dict[str, Any]) -> TailReport:
    return TailReport(
        **{
            **tail,
            "flaws": _flaws(tail["flaws"]),
            "gaps": [(start, end) for start, end in tail["gaps"]],
        }
    )


def _log_report(log: dict[str, Any]) -> LogReport:
    log["queues"] = [QueueRun(**run) for run in log["queues"]]
    log["producers"] = [ProducerRun(**run) for run in log["producers"]]
    log["flaws"] = _flaws(log["flaws"])
    for records in ("memberships", "elections", "trims", "seals", "resets"):
        log[records] = [(index, body) for index, body in log[records]]
    return LogReport(**log)


def _look_at_log(task: LogFile, progress: Progress | None) -> Outcome:
    report = scan(task, progress)
    if task.deep and report.ending == "blank":
        report.sha256, report.root = (
            bytewise.digest(task.path, report.length),
            bytewise.entries_root(task.path, report.end),
        )
    return Outcome(report)


def _look_at_stored(task: LogFile, progress: Progress | None) -> Outcome:
    report, wrong = scan(task, progress), wrong_index(task.key)
    flaw = (
        None
        if wrong is None
        else Flaw(
            "stored.index",
            wrong.key,
            index=None,
            byte_from=wrong.start,
            byte_to=wrong.end,
            proof=wrong.proof,
        )
    )
    return Outcome(report, flaws=() if flaw is None else (flaw,))


def _look_at_tails(task: LogFile, progress: Progress | None) -> Outcome:
    return Outcome(tails=tuple(tails(task)))


def _look_at_state(task: LogFile, progress: Progress | None) -> Outcome:
    return Outcome(state=check_state(task))


def _look_at_keys(task: LogFile, progress: Progress | None) -> Outcome:
    return Outcome(flaws=tuple(check_keys(task)))


def _look_at_outline(task: LogFile, progress: Progress | None) -> Outcome:
    return Outcome(outline=tuple(outline(task)))


def _look_at_backup(task: LogFile, progress: Progress | None) -> Outcome:
    return Outcome(flaws=tuple(check_backup(task)))


LOOKS: dict[str, Callable[[LogFile, Progress | None], Outcome]] = {
    LOG: _look_at_log,
    TAILS: _look_at_tails,
    STATE: _look_at_state,
    KEYS: _look_at_keys,
    OUTLINE: _look_at_outline,
    BACKUP: _look_at_backup,
    STORED: _look_at_stored,
}


PARTS: dict[str, Callable[[LogFile], list[str]]] = {KEYS: key_looks, BACKUP: backup_looks}
"""Kinds of which a replica has several partitions: functions for their names, which replace a log
file's name in the tasks."""


def run_work(work: Work, progress: Progress | None = None) -> Outcome:
    """Run one partition: the one function that both engines call."""
    try:
        return LOOKS[work.kind](work.task, progress)
    except (NodeLost, StoreLost) as lost:
        return Outcome(lost=str(lost))
