"""Deriving one replica's state from its log and comparing it with its snapshots: the order of the
parts, the start, and the results.

An untrimmed log is derived from its first entry, and every snapshot on the way is compared. For a
trimmed log, the earlier state is in snapshots only: the older one is taken as true, and the newer
one is derived from it. If neither is possible, the report says so; that is not a finding. Damage of
the log itself is found elsewhere: here it only ends the derivation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ledgermq.audit.reading.begin import WHOLE, Begin, read_begin
from ledgermq.audit.reading.decode import (
    OLDER_SNAPSHOT,
    SNAPSHOT,
    SNAPSHOTS_AS_READ,
    numbered_files,
    read_sealed_json,
)
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Flaw
from ledgermq.audit.state.delivery import Delivery
from ledgermq.audit.state.differences import NOTHING, Difference, differences, place
from ledgermq.audit.state.ids import Ids
from ledgermq.audit.state.letters import Letters
from ledgermq.audit.state.lite import Lite
from ledgermq.audit.state.part import Part
from ledgermq.audit.state.producers import Producers
from ledgermq.audit.state.queues import Queues
from ledgermq.audit.state.reader import (
    BadRecord,
    Entry,
    Stretch,
    Unknown,
    Unreadable,
    read_stretches,
)
from ledgermq.audit.state.records import Groups, Level, Members, Offsets, Retained
from ledgermq.audit.state.time_epochs import TimeEpochs
from ledgermq.audit.state.timers import Timers
from ledgermq.audit.state.topics import Topics
from ledgermq.audit.state.transactions import Transactions

NEWEST, OLDER = SNAPSHOT, OLDER_SNAPSHOT
VERSIONS = {1: 6, 2: 7, 3: 8}
"""Feature level → the version of its snapshots (docs/format.md §11). Only these can be derived."""
READ = (2, 3, 4, 5, *VERSIONS.values())
"""All versions of snapshots."""
_SINCE = {"lapsed": 5, "letters": 6}
"""Keys that younger versions added, and those versions."""
POINT = ("applied_index", "applied_term", "applied_end_pos", "chain_crc")
"""Keys of a snapshot that identify its entry."""
EMPTY = (-1, -1, 0, 0)
"""Their values if there is no entry."""
ENVELOPE = frozenset({"v", "log_id", *POINT})
"""Keys that are compared with the log together with the other small files."""
KEYS = frozenset(
    {
        "store_ms",
        "queues",
        "minimums",
        "members",
        "topics",
        "groups",
        "delivery",
        "ids",
        "transactions",
        "lite",
        "lite_floors",
    }
    | {"lapsed", "letters", "level", "offsets", "producers", "timers", "retained", "time_epochs"}
)
"""Keys whose values are derived."""
FLAWS_MAX = 50
"""Limit of flaws per value of a snapshot."""

KINDS = {
    "rmq_sys_ledgermq_raft": frozenset(
        {"membership", "term-start", "forced", "level", "time-epoch"}
    ),
    "rmq_sys_ledgermq_config": frozenset({"topic", "group", "producer"}),
    "rmq_sys_ledgermq_delivery": frozenset(
        {
            "lease",
            "ack",
            "change",
            "reset",
            "letters",
            "transaction",
            "lite",
            "offset",
            "recall",
            "timers",
        },
    ),
    "rmq_sys_ledgermq_storage": frozenset({"seal", "trim", "audit"}),
}
"""Kinds of control records by topic (docs/format.md §11)."""
RECORD_LEVELS: dict[tuple[str, int], int] = {
    ("seal", 2): 2,
    ("trim", 2): 2,
    ("membership", 4): 3,
    ("producer", 2): 3,
    ("time-epoch", 1): 3,
}
"""(kind, version) of a control record → its feature level, for those above level 1."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One intact snapshot file. `file`: its path under the group's folder."""

    file: str
    value: dict[str, Any]

    @property
    def index(self) -> int:
        return int(self.value["applied_index"])

    @property
    def point(self) -> tuple[int, int, int, int]:
        """Index, term, end position and chain CRC of its entry."""
        index, term, end_pos, chain = (int(self.value[key]) for key in POINT)
        return index, term, end_pos, chain


@dataclass(slots=True)
class StateReport:
    """The result of the derivation; plain values, so that it can cross process boundaries as JSON.

    `reason`: why a snapshot was not compared; "" if all possible ones were."""

    reason: str = ""
    unknown: bool = False
    """Whether the reason is that this program is too old for the data."""
    first_index: int | None = None
    """The first entry from which state was derived."""
    last_index: int | None = None
    compared: list[str] = field(default_factory=list)
    """Snapshot files that were compared with the derived state."""
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def derived(self) -> bool:
        """Whether the newest snapshot was compared with the log."""
        return NEWEST in self.compared


class State:
    """All parts, driven in the order that the format requires."""

    def __init__(self) -> None:
        self.queues = Queues()
        self.topics = Topics(self.queues)
        self.level = Level()
        delivery = Delivery(self.topics)
        self.parts: tuple[Part, ...] = (
            self.queues,
            self.topics,
            Groups(),
            Members(),
            self.level,
            Offsets(self.topics),
            Ids(self.topics, self.level),
            Producers(),
            Retained(),
            Transactions(self.topics),
            TimeEpochs(),
            Timers(self.queues),
            Lite(self.topics, delivery),
            Letters(self.topics, delivery),
            delivery,
        )
        self.store_ms = 0
        """Store time of the last entry."""

    def load(self, snapshot: Mapping[str, Any]) -> None:
        """Start from an older snapshot. Raises KeyError, TypeError or ValueError for an invalid
        one."""
        for part in self.parts:
            part.load(snapshot)
        self.store_ms = snapshot["store_ms"]

    def advance(self, stretch: Stretch) -> None:
        """Process the next entries of the log. Raises BadRecord."""
        if stretch.turning:
            self._apply(stretch.entries[0])
        for part in self.parts:
            part.messages(stretch.messages)
        for entry in () if stretch.turning else stretch.entries:
            self._apply(entry)
        self.store_ms = stretch.last[4]

    def _apply(self, entry: Entry) -> None:
        if entry.kind and entry.kind not in KINDS[entry.topic]:
            problem = (
                f"entry {entry.index} is a control record of kind {entry.kind!r}, which this"
                " program does not know"
            )
            raise Unknown(f"{problem}; audit with the version that wrote it")
        needed = RECORD_LEVELS.get((entry.kind, entry.fields.get("v", 1)), 1)
        if needed > self.level.now:
            why = (
                f"is a {entry.kind} record of level {needed}, and the broker group has level"
                f" {self.level.now} there"
            )
            raise BadRecord(entry.index, entry.pos, entry.size, why)
        try:
            ended = self.topics.ends(entry) if entry.kind == "topic" else None
            if ended is not None:
                for part in self.parts:
                    part.topic_ended(ended, entry)
            for part in self.parts:
                part.apply(entry)
            for part in self.parts if entry.kind == "trim" else ():
                part.vanished(self.queues.gone, entry)
            for part in self.parts if entry.kind == "trim" else ():
                part.trimmed(entry)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            why = f"says {entry.kind or entry.topic} but lacks the required fields: {error!r}"
            raise BadRecord(entry.index, entry.pos, entry.size, why) from error

    def compare(self, snapshot: Mapping[str, Any]) -> list[tuple[Difference, int | None]]:
        """The differences of a snapshot of this very entry, each with the index of the last entry
        that touched the place, if known."""
        different: list[tuple[Difference, int | None]] = []
        for part in self.parts:
            for key, derived in part.values().items():
                try:
                    stored = part.canonical(key, snapshot.get(key))
                except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                    different.append((Difference((key,), derived, f"unreadable: {error!r}"), None))
                    continue
                places = list(islice(differences(derived, stored, (key,)), FLAWS_MAX + 1))
                # A value that differs in more places is reported as a whole.
                places[FLAWS_MAX:] = (
                    [Difference((key,), derived, stored)] if len(places) > FLAWS_MAX else []
                )
                different += [(each, part.touched(each.path)) for each in places]
        different += [
            (each, None)
            for each in differences(self.store_ms, snapshot.get("store_ms"), ("store_ms",))
        ]
        version = VERSIONS.get(self.level.now, snapshot.get("v"))
        different += [(each, None) for each in differences(version, snapshot.get("v"), ("v",))]
        strange = sorted(snapshot.keys() - ENVELOPE - KEYS)
        different += [(Difference((key,), NOTHING, snapshot[key]), None) for key in strange]
        return different


def check_state(task: LogFile) -> StateReport:
    """Derive the state of the replica to which a log file belongs, and compare it with the
    replica's snapshots."""
    report = StateReport()
    try:
        _check(task, report)
    except BadRecord as bad:
        # By name, because a replica that lost its identity does not tell the length of its files.
        base, name = max(
            file
            for file in numbered_files(f"{task.root}/{task.log_folder}/data")
            if file[0] <= bad.pos
        )
        file = f"{os.path.basename(task.root)}/{task.log_folder}/data/{name}"
        report.flaws.append(
            Flaw(
                "record.control",
                file,
                index=bad.index,
                byte_from=bad.pos - base,
                byte_to=bad.pos - base + bad.size,
                proof=str(bad),
            )
        )
        report.reason = str(bad)
    except Unreadable as error:
        report.reason, report.unknown = str(error), isinstance(error, Unknown)
    except OSError as error:
        # The check of that file reports the finding.
        report.reason = f"{error.filename or task.root}: {error.strerror}"
    return report


def _check(task: LogFile, report: StateReport) -> None:
    """Raises Unreadable, BadRecord, OSError."""
    snapshots = _snapshots(task, report)
    begin = _begin(task)
    start = None if begin.index == 0 else snapshots[-1]
    targets = [each for each in snapshots if start is None or each.index > start.index]
    if not targets:
        raise Unreadable("the log was trimmed, and no snapshot is older than the newest")
    for target in [each for each in targets if each.index < 0]:
        _compare_empty(task, target, report)
        targets.remove(target)
    if targets:
        _follow(task, begin, start, targets, report)


def _compare_empty(task: LogFile, snapshot: Snapshot, report: StateReport) -> None:
    """A snapshot of a log without entries: that of a node that has not been admitted yet."""
    wrong = next(
        (key for key, own, empty in zip(POINT, snapshot.point, EMPTY, strict=True) if own != empty),
        None,
    )
    if wrong is None:
        report.flaws += _flaws(task, snapshot, State())
        report.compared.append(snapshot.file)
    else:
        report.reason = f"{snapshot.file} has no entry, but its {wrong} is that of one"
        report.flaws.append(_of_log(task, snapshot.file, snapshot.value, wrong, report.reason))


def _snapshots(task: LogFile, report: StateReport) -> list[Snapshot]:
    """The intact snapshots of a replica, at least one, the newest first. Raises Unreadable."""
    snapshots = []
    newer = None
    why = "there is no snapshot to compare with"
    read = {file: read_sealed_json(f"{task.root}/{file}") for file in SNAPSHOTS_AS_READ}
    for file, value in reversed(read.items()):
        if value is None:
            continue
        if value.get("v") not in READ:
            raise Unknown(
                f"{file} has version {value.get('v')!r}, which docs/format.md does not know"
            )
        if newer is not None and newer < value["v"]:
            # Versions increase: the newest snapshot may really be of this version, and would not be
            # derived.
            raise Unknown(
                f"{NEWEST} has version {newer}, and {file} before it has version {value['v']}"
            )
        newer = value["v"]
        if file == OLDER and value.get("log_id") != task.log_id and task.log_id:
            proof = (
                f"the snapshot belongs to log {value.get('log_id')}, the replica to {task.log_id}"
            )
            report.flaws.append(_of_log(task, file, value, "log_id", proof))
        if value["v"] not in VERSIONS.values():
            younger = [key for key, since in _SINCE.items() if value["v"] < since and key in value]
            if younger:
                proof = (
                    f"it says version {value['v']} and has {younger[0]}, as from version"
                    f" {_SINCE[younger[0]]} on"
                )
                report.flaws.append(
                    Flaw(
                        "state.keys",
                        f"{os.path.basename(task.root)}/{file}",
                        None,
                        *place(value, ("v",)),
                        proof,
                    )
                )
            why = (
                f"{file} has version {value.get('v')!r}, and only versions"
                f" {', '.join(map(str, VERSIONS.values()))} are derived"
            )
        elif all(isinstance(value.get(key), int) for key in POINT) and value["applied_index"] >= -1:
            snapshots.append(Snapshot(file, value))
        else:
            why = f"{file} does not say which entry it is of"
            report.flaws.append(
                Flaw(
                    "state.keys",
                    f"{os.path.basename(task.root)}/{file}",
                    None,
                    *place(value, ()),
                    why,
                )
            )
    if not snapshots:
        raise Unreadable(why)
    if snapshots[-1].file == OLDER and snapshots[-1].index > snapshots[0].index:
        proof = f"its entry {snapshots[-1].index} is behind entry {snapshots[0].index} of {NEWEST}"
        report.flaws.append(_of_log(task, OLDER, snapshots[-1].value, "applied_index", proof))
    return sorted(snapshots, key=lambda each: each.index, reverse=True)


def _begin(task: LogFile) -> Begin:
    path = f"{task.root}/{task.log_folder}/begin"
    value = read_sealed_json(path)
    return (None if value is None else read_begin(value)) or WHOLE


def _follow(
    task: LogFile,
    begin: Begin,
    start: Snapshot | None,
    targets: Sequence[Snapshot],
    report: StateReport,
) -> None:
    """Derive up to the last target. Raises Unreadable, BadRecord, OSError."""
    state = State()
    last = begin.index - 1 if start is None else start.index
    if start is not None:
        try:
            state.load(start.value)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            why = f"{start.file} cannot be read: {error!r}"
            report.flaws.append(
                Flaw(
                    "state.keys",
                    f"{os.path.basename(task.root)}/{start.file}",
                    None,
                    *place(start.value, ()),
                    why,
                )
            )
            raise Unreadable(why) from error
        if last < begin.index - 1:
            if start.point[2] > begin.pos:
                report.flaws.append(
                    _of_log(task, start.file, start.value, "applied_end_pos", _foreign(start))
                )
            raise Unreadable(f"the log begins with entry {begin.index}, behind {start.file}")
        if last == begin.index - 1 and (start.point[1], start.point[3]) != (
            begin.term,
            begin.chain,
        ):
            raise _contradicted(task, start, (last, begin.term, begin.pos, begin.chain), report)
    report.first_index = last + 1
    stops = sorted({each.index for each in targets} | ({last} if last >= begin.index else set()))
    for stretch in read_stretches(task, begin, stops):
        index = stretch.last[0]
        if index <= last:
            assert start is not None
            state.queues.warm(stretch.messages, start.value["topics"])
            if index == last and start.point != stretch.last[:4]:
                raise _contradicted(task, start, stretch.last[:4], report)
            continue
        state.advance(stretch)
        for target in targets:
            if target.index == index and target.point != stretch.last[:4]:
                report.reason = str(_contradicted(task, target, stretch.last[:4], report))
                if target.file == OLDER:
                    report.last_index = index
            elif target.index == index:
                report.flaws += _flaws(task, target, state)
                report.compared.append(target.file)
                report.last_index = index


def _contradicted(
    task: LogFile, snapshot: Snapshot, point: tuple[int | None, ...], report: StateReport
) -> Unreadable:
    """The log has another entry at the index of a snapshot. `point`: the values of `POINT` in the
    log."""
    if snapshot.file == OLDER:
        # The newest one is compared with its entry together with the other small files.
        wrong = next(
            key for key, own, has in zip(POINT, snapshot.point, point, strict=True) if own != has
        )
        report.flaws.append(_of_log(task, OLDER, snapshot.value, wrong, _foreign(snapshot)))
    return Unreadable(_foreign(snapshot))


def _of_log(task: LogFile, file: str, value: dict[str, Any], key: str, proof: str) -> Flaw:
    return Flaw(
        "snapshot.log", f"{os.path.basename(task.root)}/{file}", None, *place(value, (key,)), proof
    )


def _foreign(snapshot: Snapshot) -> str:
    """A snapshot counts if its entry is the one in the log."""
    return (
        f"{snapshot.file} is of another log: its entry {snapshot.index} is not the one that the"
        " log has"
    )


def _flaws(task: LogFile, snapshot: Snapshot, state: State) -> list[Flaw]:
    different = state.compare(snapshot.value)
    file = f"{os.path.basename(task.root)}/{snapshot.file}"
    flaws = []
    for difference, touched in different:
        bounds = place(snapshot.value, difference.path)
        if difference.moved:
            bounds = bounds[0], max(bounds[1], place(snapshot.value, difference.path[:-1])[1])
        proof = (
            difference.text
            if touched is None
            else f"{difference.text}; entry {touched} was the last to touch it"
        )
        rule = f"state.{difference.path[0]}" if difference.path[0] in KEYS else "state.keys"
        flaws.append(Flaw(rule, file, touched, *bounds, proof))
    return flaws
