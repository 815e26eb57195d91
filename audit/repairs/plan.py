"""The plan of a repair: for every finding the action on it, or the sentence that says why none is
possible.

Findings say where to look and which replicas not to trust; which bytes are right is determined
again, from the files as they are now. `splice.py` restores log files entry by entry. Derived files
are not repaired but dropped, because they are rebuilt from the log. What only one replica knows
(its vote, its identity) cannot be restored from others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import (
    ENTRY_MAGIC,
    HARD_STATE,
    HEADER,
    HEADER_BYTES,
    I64,
    PAGE,
    numbered_files,
    sealed_json,
    slot_bytes,
)
from ledgermq.audit.reading.files import exists, open_file, read_if_there, stat_of
from ledgermq.audit.reading.lookup import stored_chain
from ledgermq.audit.reading.node_paths import is_remote, split
from ledgermq.audit.repairs.held_entries import NONE, Entries, read_entries
from ledgermq.audit.repairs.splice import End, Undecided, Wanted, emptied, is_there, splice
from ledgermq.audit.repairs.told import Audited, Report, Told
from ledgermq.audit.run.jobs import adopt
from ledgermq.proto.records.repair_plan import (
    BeginRepair,
    DirectoryRepair,
    FileRepair,
    Left,
    MarkRepair,
    Plan,
    RangeRepair,
)

FENCE_FILE = "repair"
BACKUP_FILE = "backup.json"
BACKUP = "a backup is evidence and is never changed: make a new backup"
NEAR_ENTRIES = 64
"""Damaged entries of a running node that are at most this far apart form one range."""
STUCK = "after the rest of this replica is repaired: then audit and repair again"
STOP_IT = "a running node repairs only its log; for this finding stop the node, audit the directories, and repair again"
HISTORIES = frozenset(
    {"replica.divergence", "replica.missing", "replica.extra", "replica.reordered"}
)
"""Rules that mean other entries from the named one on."""
SLOT_RULES = frozenset({"mark.slot", "mark.fill"})
UNIT_BYTES = {
    "index.unit": 32,
    "index.missing": 32,
    "queue.unit": 20,
    "queue.missing": 20,
    "queue.hole": 20,
}
"""Rules about data that a running node repairs together with the entries."""
LOG_RULES = frozenset({"mark.end", "mark.log", "commit.lost"})
"""Rules reported for small files or for the log as a whole, and repaired, if at all, in the log."""
DERIVED = ("consumequeue/", "index/", "state/bloom/", "state/keyindex", "state/snapshot")
"""Files of a broker group's directory that can be rebuilt from its log, by the start of their
paths."""
DIGESTS = "state/digests"
BEGIN_RULES = frozenset({"begin.json", "begin.missing"})
COPY = "restore the file from a copy of this directory, or replace the replica (docs/recovery.md)"
OWN_WORD = {
    "hardstate": "only this replica knows its term and vote: replace the replica (docs/recovery.md)",
    "syncedmark": "only this replica knows what it synced: replace the replica (docs/recovery.md)",
    "identity.json": f"no other directory has a copy of its identity: {COPY}",
    "node.json": "no other directory has a copy of the node's identity: restore the file from a copy of this directory",
    "begin": "no intact file here tells where its log begins: replace the replica (docs/recovery.md)",
    "peers.json": f"no other directory has a copy of its list of met peers: {COPY}",
    "boots.json": f"no other directory has a copy of the list of its starts: {COPY}",
    "recovery.json": "no other directory has a copy of what the recovery gave up: restore the file from a copy of this directory",
}


class Moved(Exception):
    """The directories are not those that were audited."""


def make_plan(report: Report) -> Plan:
    """Make the plan for a report. Raises Moved, OSError."""
    replicas = [one for directory in report.directories for one in find_replicas(directory)]
    adopt(replicas)
    groups = sorted({one.group for one in report.replicas})
    outcomes = [
        _Group(name, report, [one for one in replicas if one.group == name]) for name in groups
    ]
    for outcome in outcomes:
        outcome.run()
    return Plan(
        tuple(one for outcome in outcomes for one in outcome.directories),
        tuple(one for outcome in outcomes for one in outcome.ranges),
        tuple(left for outcome in outcomes for left in outcome.undecided),
        tuple(left for outcome in outcomes for left in outcome.remaining),
    )


@dataclass(slots=True)
class _Case:
    """One replica with findings."""

    replica: Replica
    audited: Audited
    findings: list[Told]
    bases: set[int] = field(default_factory=set)
    """Log files to examine entry by entry."""
    others_from: int | None = None
    """The log file where another history begins."""
    derived: dict[str, None] = field(default_factory=dict)
    slots: bool = False
    hard_state_fill: bool = False
    begin: BeginRepair | None = None
    stuck: bool = False
    """Whether damage of the log remains, so that the log is not opened and no file is rebuilt from
    it."""
    running: list[Told] = field(default_factory=list)
    """Findings about units that a running node repairs with their entries."""

    @property
    def remote(self) -> bool:
        return is_remote(self.replica.directory)

    def why(self, base: int) -> str:
        about = [
            finding for finding in self.findings if finding.file.endswith(f"/data/{base:020d}")
        ] or self.findings
        texts = [
            f"{finding.rule} at bytes {finding.byte_from}-{finding.byte_to}"
            for finding in about[:3]
        ]
        return "; ".join([*texts, f"and {len(about) - 3} more"] if len(about) > 3 else texts)


class _Group:
    """The plan of one broker group."""

    def __init__(self, name: str, report: Report, replicas: Sequence[Replica]) -> None:
        self.directories: list[DirectoryRepair] = []
        self.ranges: list[RangeRepair] = []
        self.undecided: list[Left] = []
        self.remaining: list[Left] = []
        self._name = name
        self._report = report
        self._replicas = list(replicas)
        self._voters = report.voters.get(name, ())
        self._compared = report.compared.get(name, -1)
        self._seals = _seals(replicas, self._voters)

    def run(self) -> None:
        for case in self._cases():
            if exists(f"{case.replica.directory}/{BACKUP_FILE}"):
                self.remaining += [
                    Left(finding.replica, finding.group, finding.file, f"{finding.rule}: {BACKUP}")
                    for finding in case.findings
                ]
                continue
            for finding in case.findings:
                self._sort(case, finding)
            case.bases.update(_broken_bases(case.replica))
            log_id, incarnation = case.audited.log_id, case.audited.incarnation
            if log_id is None or incarnation is None:
                # The owner of the directory is unknown, so nothing is written to it.
                continue
            if case.remote:
                self._plan_running(case, log_id, incarnation)
            else:
                self._plan_stopped(case, log_id, incarnation)

    def _cases(self) -> Iterator[_Case]:
        for audited in (one for one in self._report.replicas if one.group == self._name):
            replica = next(
                (
                    one
                    for one in self._replicas
                    if (one.name, one.directory) == (audited.replica, audited.directory)
                ),
                None,
            )
            identity = None if replica is None else replica.identity
            known = None if identity is None else (identity["log_id"], identity["incarnation"])
            if replica is None or known not in (None, (audited.log_id, audited.incarnation)):
                raise Moved(
                    f"{audited.directory} is not the replica {audited.replica} of broker group {self._name} that was audited"
                )
            findings = [
                finding
                for finding in self._report.findings
                if (finding.group, finding.replica) == (self._name, audited.replica)
            ]
            if findings:
                yield _Case(replica, audited, findings)

    # What a finding asks for

    def _sort(self, case: _Case, finding: Told) -> None:
        one, path = case.replica, finding.file.removeprefix(f"{self._name}/")
        data = f"{one.log_folder}/data/"
        if finding.rule in LOG_RULES:
            case.bases.update(self._bases_of_end(one))
        elif path.startswith(data) and finding.rule != "file.name":
            base = int(path.removeprefix(data))
            case.bases.add(base)
            if finding.rule == "seal.noted":
                # Either the note or the file may be wrong.
                case.derived[DIGESTS] = None
            if finding.rule in HISTORIES:
                case.others_from = base if case.others_from is None else min(base, case.others_from)
        elif case.remote and finding.rule in UNIT_BYTES and finding.index is not None:
            case.running.append(finding)
        elif path.startswith((*DERIVED, f"{one.log_folder}/index/")) or path in (
            "checkpoint",
            f"{one.log_folder}/checkpoint",
        ):
            case.derived[path] = None
        elif one.mark is not None and (
            finding.rule in SLOT_RULES
            or (path == f"{one.log_folder}/syncedmark" and finding.rule == "file.length")
        ):
            case.slots = True
        elif finding.rule == "hardstate.fill" or (
            path == f"{one.log_folder}/hardstate" and _is_behind_slots(finding)
        ):
            case.hard_state_fill = True
        elif finding.rule in BEGIN_RULES and (begin := self._begin_of(one)) is not None:
            case.begin = begin
        else:
            name = path.rpartition("/")[2]
            why = OWN_WORD.get(
                name,
                "the log has no file of this name: look at it, and move it away if it does not belong there",
            )
            self.remaining.append(
                Left(one.name, self._name, finding.file, f"{finding.rule}: {why}")
            )
            case.stuck = True

    def _begin_of(self, one: Replica) -> BeginRepair | None:
        """The begin of the log, if the replica's snapshot gives it and the first entry there
        continues the chain CRC in the snapshot."""
        begin = one.begin
        if begin.chain is None or not begin.index:
            return None
        entries = read_entries(self._members(one), self._voters, begin.pos)
        chains = entries.before[:, :1][entries.chain[:, :1] == entries.proven[:1]]
        if entries.low != begin.index or begin.chain not in chains:
            return None
        return BeginRepair(begin.index, begin.pos, begin.term, begin.chain)

    def _bases_of_end(self, one: Replica) -> set[int]:
        """The log files that lack bytes before the synced mark: missing files, and the last
        existing one."""
        if one.mark is None or not one.sizes[0]:
            return set()
        size = one.sizes[0]
        needed = range(one.begin.pos, one.mark.end_pos, size)
        present = [base for base in needed if exists(one.task(f"{base:020d}").path)]
        return {base for base in needed if base not in present} | set(present[-1:])

    # Stopped nodes

    def _plan_stopped(self, case: _Case, log_id: str, incarnation: str) -> None:
        files, end, drops = self._files(case)
        if case.others_from is not None and end is not None:
            case.derived.update(dict.fromkeys(_all_derived(case.replica)))
        if case.stuck:
            self.remaining += [
                Left(
                    case.replica.name,
                    self._name,
                    f"{self._name}/{path}",
                    f"it can be made again from the log {STUCK}",
                )
                for path in case.derived
            ]
            case.derived.clear()
        snapshot = self._snapshot_for(case)
        mark = None if end is None else MarkRepair(end.term, end.index, end.end_pos, end.chain)
        one = case.replica
        # The fence of an interrupted attempt must be removed in any case.
        small = case.slots or case.hard_state_fill or case.begin is not None
        if files or case.derived or small or drops or exists(f"{one.log}/{FENCE_FILE}"):
            self.directories.append(
                DirectoryRepair(
                    directory=one.directory,
                    group=self._name,
                    replica=one.name,
                    log_id=log_id,
                    incarnation=incarnation,
                    files=tuple(files),
                    end=mark,
                    derived=tuple(case.derived),
                    mark_slots=case.slots,
                    hard_state_fill=case.hard_state_fill,
                    begin=case.begin,
                    snapshot=snapshot,
                    opens=not case.stuck,
                )
            )

    def _files(self, case: _Case) -> tuple[list[FileRepair], End | None, bool]:
        """The log files to recreate, and if another history is replaced, the log's end."""
        files: list[FileRepair] = []
        bases, end, replaced, failed = set(case.bases), None, case.others_from is not None, False
        if case.others_from is not None and case.stuck:
            self.remaining.append(
                self._left(
                    case,
                    case.others_from,
                    f"another history can only be replaced as a whole, {STUCK}",
                )
            )
            return [], None, False
        if case.others_from is not None:
            bases |= {
                base for one in self._replicas for base in _bases(one) if base >= case.others_from
            }
        for base in sorted(bases):
            try:
                entries = read_entries(self._members(case.replica), self._voters, base)
            except OSError as error:
                case.stuck = failed = True
                self.remaining.append(self._left(case, base, str(error)))
                continue
            if replaced and self._outgrown(case.replica, entries):
                why = f"a majority holds entries behind {self._compared}, where the findings end, and this replica synced some: audit again"
                self.undecided.append(self._left(case, base, why))
                case.stuck = True
                return [], None, False
            if replaced and (not entries.width or entries.low > self._compared):
                # The file is removed with everything behind the end.
                continue
            try:
                wanted = self._wanted(case, entries, replaced)
                if not entries.width or wanted.last_index < entries.low:
                    files.append(emptied(entries, wanted))
                    continue
                repair, last = splice(entries, wanted)
                in_place = is_there(repair, wanted)
            except Undecided as reason:
                case.stuck = failed = True
                self.undecided.append(self._left(case, base, str(reason)))
                continue
            except OSError as error:
                case.stuck = failed = True
                self.remaining.append(self._left(case, base, str(error)))
                continue
            end = last
            if not in_place:
                files.append(repair)
            elif not replaced and entries.sides[entries.row_of(case.replica)].miswritten:
                self.remaining.append(
                    self._left(
                        case,
                        base,
                        f"{case.why(base)}: the file is as it was written, by {repair.proof}",
                    )
                )
        if replaced and (failed or end is None or end.index != self._compared):
            # A history is replaced completely or not at all.
            assert case.others_from is not None, "it begins somewhere"
            why = f"another history can only be replaced up to entry {self._compared}, and that cannot be proven"
            self.undecided.append(self._left(case, case.others_from, why))
            case.stuck = True
            return [], None, False
        return files, end if replaced else None, replaced

    def _outgrown(self, one: Replica, entries: Entries) -> bool:
        """Whether the nodes continued after the audit: ending this log where the audited one ended
        would then revoke promises of the replica."""
        places = np.flatnonzero(entries.agreed != NONE)
        promised = one.mark is None or one.mark.index > self._compared
        return promised and bool(len(places)) and entries.low + int(places[-1]) > self._compared

    def _wanted(self, case: _Case, entries: Entries, replaced: bool) -> Wanted:
        one = case.replica
        size, marked = (
            one.sizes[0],
            -1 if one.mark is None or one.mark.end_pos <= entries.base else one.mark.index,
        )
        if replaced:
            followed = entries.last is not None and entries.last < self._compared
            last = entries.last if followed and entries.last is not None else self._compared
        else:
            index = entries.sides[entries.row_of(one)].index
            # A damaged index may have any value.
            present = int(index[index <= entries.high].max(initial=-1))
            later = any(base > entries.base and _begins(one, base) for base in _bases(one))
            followed = later or (one.mark is not None and one.mark.end_pos > entries.base + size)
            last = max(marked, present, entries.low if followed else -1)
        return Wanted(
            owner=one,
            last_index=last,
            compared=self._compared,
            followed=followed,
            replaced=replaced,
            seal=self._seals.get(entries.base),
            why=case.why(entries.base),
            marked=marked,
        )

    def _members(self, owner: Replica) -> list[Replica]:
        """The replicas that may supply entries. A directory that was given twice, or is not a
        member, is not used."""
        named = Counter(one.name for one in self._replicas)
        return [
            one
            for one in self._replicas
            if one is owner or (named[one.name] == 1 and one.sizes[0] == owner.sizes[0])
        ]

    def _snapshot_for(self, case: _Case) -> str | None:
        """If all snapshots of a trimmed log are dropped: where an equal one is."""
        one = case.replica
        if not one.begin.index or not any(
            path.startswith("state/snapshot") for path in case.derived
        ):
            return None
        left = [
            name
            for name in ("state/snapshot", "state/snapshot.previous")
            if name not in case.derived
        ]
        if any(_whole_json(f"{one.root}/{name}") for name in left):
            return None
        marked = -1 if one.mark is None else one.mark.index
        others = HISTORIES | {"commit.lost"}
        about = [finding for finding in self._report.findings if finding.group == self._name]
        # The state of another history is not valid for any other replica.
        hurt = {
            finding.replica
            for finding in about
            if "/state/snapshot" in finding.file or finding.rule in others
        }
        for other in self._replicas:
            applied = other.snapshot.get("applied_index") if other.snapshot is not None else None
            usable = other is not one and other.name not in hurt and not is_remote(other.directory)
            path = f"{other.root}/state/snapshot"
            fits = usable and isinstance(applied, int) and one.begin.index - 1 <= applied <= marked
            if fits and _whole_json(path):
                return path
        for path in [path for path in case.derived if path.startswith("state/snapshot")]:
            del case.derived[path]
        reason = (
            f"its log begins with entry {one.begin.index}, and no replica has a snapshot that fits"
            " it"
        )
        self.undecided.append(Left(one.name, self._name, f"{self._name}/state/snapshot", reason))
        return None

    def _left(self, case: _Case, base: int, reason: str) -> Left:
        return Left(
            case.replica.name,
            self._name,
            f"{self._name}/{case.replica.log_folder}/data/{base:020d}",
            reason,
        )

    # Running nodes

    def _plan_running(self, case: _Case, log_id: str, incarnation: str) -> None:
        ranges: list[tuple[int, int, str]] = []
        for base in sorted(case.bases):
            entries = read_entries(self._members(case.replica), self._voters, base)
            asked, lost = self._differences(case, entries)
            ranges += [(low, high, case.why(base)) for low, high in asked]
            none = "no other replica that was audited holds entries"
            self.undecided += [
                self._left(case, base, f"{none} {low} to {high}") for low, high in lost
            ]
        for finding in case.running:
            assert finding.index is not None, "only findings with an entry are put right with it"
            count = max(1, (finding.byte_to - finding.byte_from) // UNIT_BYTES[finding.rule])
            ranges.append(
                (
                    finding.index,
                    finding.index + count - 1,
                    f"{finding.rule} at bytes {finding.byte_from}-{finding.byte_to} of"
                    f" {finding.file}",
                )
            )
        address = split(case.replica.directory)[0]
        for low, high, why in ranges:
            self.ranges.append(
                RangeRepair(
                    address=address,
                    group=self._name,
                    replica=case.replica.name,
                    log_id=log_id,
                    incarnation=incarnation,
                    first_index=low,
                    last_index=high,
                    why=why,
                )
            )
        small = (
            ("syncedmark", case.slots),
            ("hardstate", case.hard_state_fill),
            ("begin", case.begin is not None),
        )
        for path in [
            *case.derived,
            *(f"{case.replica.log_folder}/{name}" for name, wrong in small if wrong),
        ]:
            self.remaining.append(
                Left(case.replica.name, self._name, f"{self._name}/{path}", STOP_IT)
            )

    def _differences(
        self, case: _Case, entries: Entries
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Runs of entries that this replica does not hold as the majority does, up to the compared
        index; and the runs that no other replica can supply, because requesting those would only
        end the repair of the group."""
        width = min(entries.width, self._compared - entries.low + 1)
        if width <= 0:
            return [], []
        row = entries.row_of(case.replica)
        own = entries.chain[row, :width]
        damaged = own == NONE
        lost = damaged & ~_held_elsewhere(entries, row, width, self._compared)
        # An entry before a lost one cannot be restored alone, either.
        for at in np.flatnonzero(lost)[::-1].tolist():
            while at and damaged[at - 1]:
                at -= 1
                lost[at] = True
        wrong = damaged | ((entries.agreed[:width] != NONE) & (own != entries.agreed[:width]))
        run_lists = (
            _runs(np.flatnonzero(wrong & ~lost), np.flatnonzero(lost)),
            _runs(np.flatnonzero(lost), np.flatnonzero(~lost)),
        )
        asked, gone = (
            [(entries.low + low, entries.low + high) for low, high in runs] for runs in run_lists
        )
        return asked, gone


def _held_elsewhere(entries: Entries, row: int, width: int, compared: int) -> NDArray[np.bool_]:
    """Which entries another replica holds intact, as far as its history is known to be the same.
    Equal chain CRCs mean equal histories up to there: after a difference, only entries before the
    last equal ones count."""
    own, held = entries.chain[row, :width], np.zeros(width, np.bool_)
    for other, side in enumerate(entries.sides):
        if other == row:
            continue
        theirs = entries.chain[other, :width]
        same = np.flatnonzero((theirs == own) & (own != NONE))
        parts = bool(((theirs != own) & (theirs != NONE) & (own != NONE)).any())
        if not parts and entries.high < compared:
            words = [
                stored_chain(one.replica.task(f"{entries.base:020d}"), entries.high + 1)
                for one in (entries.sides[row], side)
            ]
            parts = None not in words and words[0] != words[1]
        ends = width if not parts else int(same[-1]) + 1 if len(same) else 0
        held[:ends] |= theirs[:ends] != NONE
    return held


def _runs(places: I64, between: I64) -> list[tuple[int, int]]:
    """Join places that are near each other into runs, unless one of `between` is in the gap."""
    if not len(places):
        return []
    apart = (np.diff(places) > NEAR_ENTRIES) | (np.diff(np.searchsorted(between, places)) > 0)
    bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(places)]
    return [(int(places[low]), int(places[high - 1])) for low, high in pairwise(bounds)]


def _bases(one: Replica) -> list[int]:
    size = one.sizes[0]
    return [
        base
        for base, _ in numbered_files(f"{one.log}/data")
        if size and base % size == 0 and base >= one.begin.pos
    ]


def _broken_bases(one: Replica) -> Iterator[int]:
    """Log files before the synced mark that are missing, have a wrong length, or do not begin with
    an entry: further damage there may show only in the files behind them."""
    if one.mark is None or not one.sizes[0]:
        return
    for base in range(one.begin.pos, one.mark.end_pos, one.sizes[0]):
        status = stat_of(one.task(f"{base:020d}").path)
        if status is None or status.size != one.sizes[0] or not _begins(one, base):
            yield base


def _whole_json(path: str) -> bool:
    raw = read_if_there(path)
    return raw is not None and sealed_json(raw) is not None


def _begins(one: Replica, base: int) -> bool:
    """Whether a log file begins with an entry; the file ahead of the log is empty."""
    with open_file(one.task(f"{base:020d}").path) as file:
        head = file.pread(HEADER_BYTES, 0)
    if len(head) < HEADER_BYTES:
        return False
    magic, _, _, _, pos, *_ = HEADER.unpack(head)
    return bool(magic == ENTRY_MAGIC and pos == base)


def _is_behind_slots(finding: Told) -> bool:
    """The hard state was truncated or has grown, but both slots exist."""
    return finding.rule == "file.length" and finding.byte_from >= PAGE + slot_bytes(HARD_STATE)


def _all_derived(one: Replica) -> Iterable[str]:
    """All files derived from a history that is replaced."""
    return (
        "state/snapshot",
        "state/snapshot.previous",
        "state/keyindex",
        "consumequeue/",
        f"{one.log_folder}/index/",
        "checkpoint",
        f"{one.log_folder}/checkpoint",
    )


def _seals(replicas: Sequence[Replica], voters: Sequence[str]) -> dict[int, str]:
    """Digests of sealed files according to the snapshots of a majority, which took them from seal
    records in the log."""
    seal_counts: Counter[tuple[int, str]] = Counter()
    for one in replicas:
        for seal in _retained(one) if one.name in voters else ():
            seal_counts[seal] += 1
    return {
        base: digest for (base, digest), votes in seal_counts.items() if votes > len(voters) // 2
    }


def _retained(one: Replica) -> Iterator[tuple[int, str]]:
    retained: Any = one.snapshot.get("retained") if one.snapshot is not None else None
    for seal in retained.get("seals", []) if isinstance(retained, dict) else []:
        if (
            isinstance(seal, dict)
            and isinstance(seal.get("base"), int)
            and isinstance(seal.get("sha256"), str)
        ):
            yield seal["base"], seal["sha256"]
