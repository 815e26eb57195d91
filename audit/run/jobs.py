"""The audit as a whole: find the replicas, check every file with one of two engines, compare, and
reach one verdict.

Both engines run the same plain functions on the same tasks; they differ only in where these run.
`local` needs no Java.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledgermq.audit.checks.agreement import agree
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.group_comparison import compare
from ledgermq.audit.checks.opening import find_replicas, fingerprint
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.checks.seals import check_seals
from ledgermq.audit.checks.stored_objects import check_parts, check_store, notes_of
from ledgermq.audit.checks.verdicts import tell_difference
from ledgermq.audit.reading import bytewise, objects
from ledgermq.audit.reading.node_paths import NodeLost, node_path
from ledgermq.audit.reading.objects import StoreAccess, StoreLost
from ledgermq.audit.reading.stored_logs import StoredLog, find_logs, forget_removed
from ledgermq.audit.reading.stored_parts import Definitions, find_definitions
from ledgermq.audit.rules import RULES, UNDECIDABLE, Finding, Flaw
from ledgermq.audit.run.sources import (
    FORMAT_VERSION,
    other_version,
    refuse_mixed,
    refuse_unreadable,
)
from ledgermq.audit.run.works import LOG, LOOKS, OUTLINE, PARTS, STORED, Outcome, Work, run_work

if TYPE_CHECKING:
    # Needs pyarrow, which an audit of files alone does not.
    from ledgermq.audit.clients.outcome import ClientResult

    # Connects to nodes, which an audit of files does not.
    from ledgermq.audit.run.running import RunningCluster

OF_REPLICAS = LOOKS.keys() - {OUTLINE, STORED}
PASS, FAIL, INCOMPLETE = "PASS", "FAIL", "INCOMPLETE"
EXIT = {PASS: 0, FAIL: 1, INCOMPLETE: 2}

Progress = Callable[[int, int], None]
"""Called with (bytes done, total bytes)."""


Engine = Callable[[Sequence[Work], Progress], list[Outcome]]


def local_engine(works: Sequence[Work], progress: Progress) -> list[Outcome]:
    """Run all partitions in this process, one after the other."""
    total = sum(work.size for work in works)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return [run_work(work, advance) for work in works]


@dataclass(slots=True)
class Audit:
    """The result: one verdict, its reasons, and the data behind it."""

    verdict: str
    reasons: list[str]
    notes: list[str]
    groups: list[GroupResult]
    bytes_read: int = 0
    clients: ClientResult | None = None
    """The result for the clients' files, if any were given."""
    store: OpenStore | None = None
    """The object store that was compared, if one was given."""
    outlined: bool = False
    """Only agreement was checked: the log's bytes were not read."""
    replica_verdicts: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """(directory, group, replica) → verdict."""

    @property
    def findings(self) -> list[Finding]:
        own = [] if self.clients is None else self.clients.findings
        return [*(finding for group in self.groups for finding in group.findings), *own]

    @property
    def compared(self) -> int | None:
        """The compared index; of several broker groups the lowest."""
        compared = [group.compared for group in self.groups]
        return (
            None
            if not compared or None in compared
            else min(index for index in compared if index is not None)
        )


@dataclass(slots=True)
class OpenStore:
    """What was read of an object store. `lost`: why it could not be read; nothing is known of it
    then."""

    place: str
    notes: dict[str, dict[str, int]]
    """Broker group → replica → the position up to which it noted that it had found its log
    there."""
    logs: list[StoredLog] = field(default_factory=list)
    reports: dict[str, LogReport] = field(default_factory=dict)
    """The scan of every file of an audited log, by key."""
    parts: dict[str, list[Flaw]] = field(default_factory=dict)
    """Broker group → flaws of index parts."""
    definitions: list[Definitions] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    """Broker group → why some of its files could not be read."""
    lost: str = ""
    bytes_read: int = 0

    def check(self, group: GroupResult) -> None:
        """Compare with a judged broker group."""
        if self.lost:
            group.store_lost = True
            group.reasons.append(f"group {group.group}: {self.lost}")
            return
        if group.group in self.unread:
            group.reasons.append(f"group {group.group}: {self.unread[group.group]}")
        check_store(group, self.logs, self.reports, self.notes.get(group.group, {}), self.place)
        check_parts(group, self.parts.get(group.group, []), self.definitions)
        # A damaged object is of no broker group: it is told with the first one.
        self.definitions = [each for each in self.definitions if each.cluster_id is not None]


ClientCheck = Callable[[Sequence[GroupResult]], "ClientResult"]
"""Compares the clients' files with broker groups that were compared before."""
WitnessCheck = Callable[[GroupResult], None]
"""Compares what witnesses cosigned with a broker group, and adds the findings."""


def audit(
    directories: Sequence[str],
    engine: Engine = local_engine,
    progress: Progress | None = None,
    deep: bool = False,
    clients: ClientCheck | None = None,
    agreement: bool = False,
    witnesses: WitnessCheck | None = None,
    store: StoreAccess | None = None,
) -> Audit:
    """Audit node directories against each other and, if wanted, against the clients' files, what
    witnesses cosigned, and an object store. `agreement`: by outlines alone, without reading the
    bytes between the edges of log files. Raises PermissionError, MixedClusters."""
    report = progress or (lambda _done, _total: None)
    unique = list(
        {os.path.realpath(directory): directory for directory in reversed(directories)}.values()
    )[::-1]
    reasons: list[str] = []
    replicas: list[Replica] = []
    for directory in unique:
        version = other_version(directory)
        if version is not None:
            reasons.append(
                f"{directory} has format version {version}, not {FORMAT_VERSION}; audit it with the"
                " program that wrote it"
            )
            continue
        members = find_replicas(directory)
        replicas += members
        if not members:
            reasons.append(
                f"{directory} holds no broker group; give node directories, such as"
                " ledgermq-data/n1"
            )
    for one in replicas:
        refuse_unreadable(one)
    refuse_mixed(replicas)
    adopt(replicas)
    stored = None if store is None else list_store(store, replicas)
    bytes_read = run_engine(replicas, engine, report, deep, {OUTLINE} if agreement else OF_REPLICAS)
    if stored is not None:
        scan_store(stored, replicas, engine, report)
    hold = agree if agreement else compare
    groups = [
        hold(name, [r for r in replicas if r.group == name])
        for name in sorted({r.group for r in replicas})
    ]
    for group in groups:
        if not agreement:
            check_seals(group)
        if witnesses is not None:
            witnesses(group)
        if deep:
            compare_bytes(group)
        drop_what_moved(group)
        if stored is not None:
            stored.check(group)
    result = judge(
        groups, reasons, bytes_read, None if clients is None else clients(groups), stored
    )
    result.outlined = agreement
    return result


def audit_running(
    cluster: RunningCluster,
    engine: Engine = local_engine,
    progress: Progress | None = None,
    deep: bool = False,
    clients: ClientCheck | None = None,
    witnesses: WitnessCheck | None = None,
    store: StoreAccess | None = None,
) -> Audit:
    """Audit the replicas of a running cluster against each other, up to a marker in each log.
    Raises ClusterError if no node answers."""
    report = progress or (lambda _done, _total: None)

    def keep(done: int, total: int) -> None:
        cluster.keep()
        report(done, total)

    try:
        replicas = cluster.open()
        adopt(replicas)
        stored = None if store is None else list_store(store, replicas)
        replicas = cluster.mark(replicas)
        bytes_read = run_engine(replicas, engine, keep, deep, OF_REPLICAS)
        if stored is not None:
            scan_store(stored, replicas, engine, keep)
        names = sorted({*cluster.lost, *(one.group for one in replicas)})
        groups = [
            _compare_running(
                name, [one for one in replicas if one.group == name], cluster, deep, witnesses
            )
            for name in names
        ]
        if stored is not None:
            for group in groups:
                stored.check(group)
        return judge(groups, [], bytes_read, None if clients is None else clients(groups), stored)
    finally:
        cluster.close()


def _compare_running(
    group: str,
    replicas: Sequence[Replica],
    cluster: RunningCluster,
    deep: bool,
    witnesses: WitnessCheck | None,
) -> GroupResult:
    """Compare what was read. If a node is lost during the audit, or its replica is not the one that
    was opened any more, the others are compared without it: what it said of them does not count
    either."""
    lost = dict(cluster.lost.get(group, {}))
    while True:
        for one in replicas:
            if one.lost:
                lost[one.name] = f"was lost while it was audited: {one.lost}; audit again"
        # Comparing adds flaws, so each attempt starts with copies of what was read.
        present = [copy.deepcopy(one) for one in replicas if one.name not in lost]
        try:
            result = compare(group, present, lost)
            check_seals(result)
            if witnesses is not None:
                witnesses(result)
            if deep:
                compare_bytes(result)
            # Last, because any file that was read before may have changed.
            moved = {one.name: why for one in present if (why := cluster.moved(one)) is not None}
        except NodeLost as error:
            away = {
                one.name for one in present if one.root.startswith(f"{node_path(error.authority)}/")
            }
            assert away, f"{error.authority} is not one of the audited nodes"
            lost |= {name: f"was lost while it was audited: {error}; audit again" for name in away}
        else:
            if not moved:
                return result
            lost |= moved


def adopt(replicas: Sequence[Replica]) -> None:
    """A replica that lost its identity is read with its peers' log id and file sizes: the flaw
    stays, and the audit continues."""
    for one in replicas:
        peers = [peer for peer in replicas if peer.group == one.group and peer.identity is not None]
        if one.identity is None and peers:
            one.log_id, one.sizes = peers[0].log_id, peers[0].sizes


def run_engine(
    replicas: Sequence[Replica],
    engine: Engine,
    progress: Progress,
    deep: bool,
    kinds: Collection[str],
) -> int:
    """Run these kinds of checks on every file, and give every replica its reports in order of
    position."""
    works: list[Work] = []
    owners: list[Replica] = []
    for one in replicas:
        try:
            own = _works_of(one, deep, kinds)
        except NodeLost as lost:
            one.lost, own = str(lost), []
        works += own
        owners += [one] * len(own)
    for one, outcome in zip(owners, engine(works, progress), strict=True):
        one.tails += outcome.tails
        one.flaws += outcome.flaws
        one.state = outcome.state or one.state
        one.reports += [outcome.log] if outcome.log is not None else outcome.outline
        one.lost = outcome.lost or one.lost
    for one in replicas:
        one.reports.sort(key=lambda report: report.base)
    return sum(work.size for work in works)


def _works_of(one: Replica, deep: bool, kinds: Collection[str]) -> list[Work]:
    """The works for one replica. Raises NodeLost."""
    works = []
    works += [
        Work(one.directory, task)
        for task in (one.tasks(deep) if one.sizes[0] and LOG in kinds else [])
    ]
    for kind in sorted({*kinds} - {LOG}) if one.sizes[0] or OUTLINE not in kinds else []:
        whole = one.task(f"{0:020d}")
        works += [
            Work(one.directory, one.task(name), kind)
            for name in (PARTS[kind](whole) if kind in PARTS else [whole.name])
        ]
    return works


def drop_what_moved(group: GroupResult) -> None:
    """A node wrote to its directory during the audit: content above its mark, and derived files,
    may have been read half-written."""
    for one in group.replicas:
        if fingerprint(one) == one.fingerprint:
            continue
        group.moved.add(one.name)
        marked = -1 if one.mark is None else one.mark.index
        gone = [f for f in group.findings if f.replica == one.name and not _outlasts(f, marked)]
        group.findings[:] = [f for f in group.findings if not any(f is each for each in gone)]
        # A flaw that was omitted in favour of a finding that is dropped now becomes a finding
        # again.
        freed = [left for left, kept in group.folds if any(kept is each for each in gone)]
        group.findings += [left for left in freed if _outlasts(left, marked)]
        group.reasons.append(
            f"group {group.group}: {one.name} wrote while it was audited; stop the node and audit"
            " again"
        )


def _outlasts(finding: Finding, marked: int) -> bool:
    """Whether a finding counts although its node wrote during the audit: it concerns the log, up to
    the mark."""
    derived = ("index.", "queue.", "keyindex.", "snapshot.", "state.")
    return (
        finding.flaw.index is not None
        and finding.flaw.index <= marked
        and not finding.flaw.rule.startswith(derived)
    )


def compare_bytes(group: GroupResult) -> None:
    """`--deep`: compare every log file up to the compared index by SHA-256, independently of the
    stored CRCs."""
    apart = group.divergent.keys() | {
        finding.replica for finding in group.findings if finding.flaw.rule == "commit.lost"
    }
    whole = [
        one
        for one in group.replicas
        if group.compared is not None and one.held >= group.compared and one.name not in apart
    ]
    if len(whole) < 2 or group.compared is None:
        return
    for base in sorted({report.base for one in whole for report in one.filled}):
        reports = [(one, report) for one in whole for report in one.filled if report.base == base]
        inner = [
            (one, report)
            for one, report in reports
            if report.last_index is not None and report.last_index <= group.compared
        ]
        limits = {report.end for _, report in inner}
        if len(inner) < 2 or not limits:
            continue
        if all(report.sha256 for _, report in inner):
            digests = [(one, report, report.sha256) for one, report in inner]
        else:
            digests = [
                (one, report, bytewise.digest(one.task(f"{base:020d}").path, min(limits)))
                for one, report in inner
            ]
        # A file with a finding is known to differ, so it is not compared with the others.
        sound = [
            row
            for row in digests
            if not any(
                f.replica == row[0].name and f.flaw.file == row[1].file for f in group.findings
            )
        ]
        values = [value for _, _, value in sound]
        usual = max(values, key=values.count, default="")
        if len({*values}) > 1 and 2 * values.count(usual) <= len(values):
            # Two versions are equally frequent, so no replica is blamed.
            for one, report, value in sound:
                others = ", ".join(
                    f"{other.name} {theirs[:16]}…" for other, _, theirs in sound if other is not one
                )
                proof = f"SHA-256 {value[:16]}…, that of others is {others}: no majority says which"
                flaw = Flaw(
                    "replica.bytes",
                    report.file,
                    index=report.first_index,
                    byte_from=0,
                    byte_to=min(limits),
                    proof=proof,
                )
                group.findings.append(Finding(UNDECIDABLE, one.name, group.group, flaw))
            continue
        measure = next((one for one, _, value in sound if value == usual), None)
        for one, report, value in digests:
            if value != usual and measure is not None:
                proof = f"SHA-256 {value[:16]}…, that of the other replicas is {usual[:16]}…"
                flaw = Flaw(
                    "replica.bytes",
                    report.file,
                    index=report.first_index,
                    byte_from=0,
                    byte_to=min(limits),
                    proof=proof,
                )
                tell_difference(
                    group,
                    Finding(RULES[flaw.rule].klass, one.name, group.group, flaw),
                    one,
                    measure,
                    min(limits),
                )


def list_store(access: StoreAccess, replicas: Sequence[Replica]) -> OpenStore:
    """List a store, after reading what the replicas noted of it, and before the marker of a running
    cluster: so the seal of every listed file is before the marker."""
    store = OpenStore(access.place, {})
    for one in replicas:
        try:
            store.notes.setdefault(one.group, {}).update(notes_of([one], access))
        except NodeLost as lost:
            one.lost = str(lost)
    objects.use(access)
    try:
        store.logs, store.definitions = find_logs(), find_definitions()
    except StoreLost as lost:
        store.lost = str(lost)
    return store


def scan_store(
    store: OpenStore, replicas: Sequence[Replica], engine: Engine, progress: Progress
) -> None:
    """Scan every listed file of the replicas' logs."""
    ids = {(one.group, one.log_id) for one in replicas}
    audited = [log for log in store.logs if (log.group, log.log_id) in ids]
    works = [
        Work(store.place, log.task(file), STORED)
        for log in audited
        for file in log.files
        if file.object in log.objects
    ]
    for work, outcome in zip(works, engine(works, progress), strict=True):
        if outcome.log is not None:
            store.reports[work.task.key] = outcome.log
            store.parts.setdefault(work.task.group, []).extend(outcome.flaws)
        if outcome.lost:
            store.unread[work.task.group] = outcome.lost
    if any(flaw.rule == "file.read" for report in store.reports.values() for flaw in report.flaws):
        try:
            forget_removed(audited)
        except StoreLost as lost:
            store.unread |= {log.group: str(lost) for log in audited}
    store.bytes_read = sum(work.size for work in works)


def judge(
    groups: list[GroupResult],
    reasons: list[str],
    bytes_read: int,
    clients: ClientResult | None = None,
    stored: OpenStore | None = None,
) -> Audit:
    """PASS requires that every replica was fully verified and compared. Damage is FAIL, whatever
    else could not be done."""
    notes = [note for group in groups for note in group.notes]
    if stored is not None:
        bytes_read += stored.bytes_read
        others = sorted({log.group for log in stored.logs} - {group.group for group in groups})
        if others:
            notes.append(
                f"the store also holds logs of {', '.join(others)}: no replica of them was given,"
                " so they were not read"
            )
    for group in groups:
        reasons += group.reasons
        given = [one.name for one in group.replicas]
        if (
            len(given) == 1
            and given == [*group.voters, *group.learners]
            and group.compared is not None
        ):
            notes.append(
                f"group {group.group}: its only replica was checked by itself, because there is no"
                " other to compare it with"
            )
        elif not given:
            reasons.append(f"group {group.group}: no replica could be read; nothing was compared")
        elif len(given) < 2:
            reasons.append(
                f"group {group.group}: only one replica was given, so there was nothing to compare"
                " it with"
            )
        elif group.compared is None:
            reasons.append(
                f"group {group.group}: no index is held alike by a majority of its"
                f" {len(group.voters)} voters; nothing was compared"
            )
    if not groups:
        reasons.append("no replica was found; nothing was compared")
    reasons += [] if clients is None else clients.reasons
    result = Audit(
        verdict=INCOMPLETE if reasons else PASS,
        reasons=reasons,
        notes=notes,
        groups=groups,
        bytes_read=bytes_read,
        clients=clients,
        store=stored,
    )
    failed = {(finding.group, finding.replica) for finding in result.findings if finding.fails}
    if failed:
        result.verdict = FAIL
        places = sum(finding.fails for finding in result.findings)
        names = ", ".join(sorted({f"{name} ({group})" for group, name in failed}))
        result.reasons.insert(0, f"{places} finding{'s' if places > 1 else ''} on {names}")
    for group in groups:
        for one in group.replicas:
            behind = group.compared is None or one.name in group.moved or one.awaited is not None
            if not behind and group.compared is not None and one.name not in group.excused:
                behind = one.held < group.compared or one.name not in group.voters
            verdict = INCOMPLETE if behind else PASS
            verdict = FAIL if (group.group, one.name) in failed else verdict
            result.replica_verdicts[one.directory, group.group, one.name] = verdict
    return result
