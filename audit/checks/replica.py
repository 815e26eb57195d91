"""What is known about one replica of a broker group: its small files, the reports of its log files,
and the flaws found so far.

Values and their direct consequences; no file is opened here. `opening` fills it from the directory,
`after_scan` and `evidence` check it, `group_comparison` judges it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from ledgermq.audit.checks.backups import SUFFIX
from ledgermq.audit.checks.derived import TailReport
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.begin import WHOLE, Begin, Low, lows
from ledgermq.audit.reading.decode import (
    crc,
    numbered_files,
)
from ledgermq.audit.reading.walk import POSITIONS, LogFile
from ledgermq.audit.rules import Flaw, Place
from ledgermq.audit.state.derive import StateReport

SIZE_KEYS = ("data_file_bytes", "index_file_bytes", "consume_queue_file_bytes")
INDEX_FILE_BYTES = 167_772_160
QUEUE_FILE_BYTES = 6_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """The current synced mark."""

    term: int
    index: int
    end_pos: int
    chain: int
    log_id: str


@dataclass(frozen=True, slots=True)
class Point:
    """The entry up to which a running replica is checked: its node has applied it, and all derived
    files cover it."""

    index: int
    end_pos: int
    term: int
    chain: int


@dataclass(slots=True)
class Replica:
    """One broker group in one node directory."""

    directory: str
    """The node directory as the caller named it."""
    root: str
    group: str
    name: str
    log_folder: str
    node: dict[str, Any] | None = None
    identity: dict[str, Any] | None = None
    mark: Mark | None = None
    older_mark: Mark | None = None
    """The content of the other slot: it counts if the newer one is torn."""
    hard_term: int | None = None
    end_hint: int | None = None
    commit: int | None = None
    """The commit index in its checkpoint."""
    snapshot: dict[str, Any] | None = None
    """The newest intact snapshot."""
    upgraded: bool = False
    """Its two snapshots have different versions: state that only the newer version has starts at
    the upgrade of this replica."""
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The intact snapshots, by file."""
    begin: Begin = WHOLE
    peers: dict[str, str] = field(default_factory=dict)
    vouched: bool | None = None
    """Whether its directory is one of those that formed the group; None: not recorded."""
    store_stamps: tuple[int, ...] = ()
    clean: bool = True
    flaws: list[Flaw] = field(default_factory=list)
    reports: list[LogReport] = field(default_factory=list)
    tails: list[TailReport] = field(default_factory=list)
    state: StateReport | None = None
    """Its state as derived from its log, after that was tried."""
    log_id: str | None = None
    sizes: tuple[int, int, int] = (0, INDEX_FILE_BYTES, QUEUE_FILE_BYTES)
    fingerprint: tuple[object, ...] = ()
    stale_from: int | None = None
    """From this index on it holds entries that the majority replaced before they were committed."""
    point: Point | None = None
    """For a running replica: the limit of the check."""
    awaited: int | None = None
    """The marker entry that its running node had not reached when it was described."""
    lost: str = ""
    """Why its node could not be asked any more."""

    @property
    def ordered_to(self) -> int:
        """Up to this position store times are known never to fall: no time epoch begins before
        it."""
        snapshot = self.snapshot or {}
        return 0 if "time_epochs" in snapshot else int(snapshot.get("applied_end_pos", 0))

    @property
    def is_backup(self) -> bool:
        return self.name.endswith(SUFFIX)

    def shown(self, path: str) -> str:
        return f"{os.path.basename(self.root)}/{path}"

    def flaw(
        self,
        rule: str,
        path: str,
        proof: str,
        start: int = 0,
        end: int = 0,
        index: int | None = None,
        torn: bool = False,
    ) -> None:
        self.flaws.append(
            Flaw(
                rule,
                self.shown(path),
                index=index,
                byte_from=start,
                byte_to=end,
                proof=proof,
                torn=torn,
            )
        )

    @property
    def log(self) -> str:
        return f"{self.root}/{self.log_folder}"

    def task(self, name: str, deep: bool = False) -> LogFile:
        seed = None if self.log_id is None else crc(self.log_id.encode("ascii", "replace"))
        seed, begin = (seed if self.begin.chain is None else self.begin.chain), self.begin.pos
        end = None if self.point is None else self.point.end_pos
        return LogFile(
            self.root,
            self.group,
            self.name,
            self.log_id or "",
            self.log_folder,
            name,
            *self.sizes,
            deep,
            seed,
            begin,
            end,
        )

    def tasks(self, deep: bool = False) -> list[LogFile]:
        """Its log files, without those that an interrupted trim has yet to remove, and without
        names that are no position."""
        names = [
            name
            for base, name in self.log_files
            if base % self.sizes[0] == 0 and self.begin.pos <= base < POSITIONS
        ]
        return [self.task(name, deep) for name in names]

    @property
    def log_files(self) -> list[tuple[int, str]]:
        """Base and name of the files of its log; for a running replica, only files with checked
        entries."""
        end = None if self.point is None else self.point.end_pos
        return [
            (base, name)
            for base, name in numbered_files(f"{self.log}/data")
            if end is None or base < end
        ]

    @property
    def lows(self) -> dict[tuple[str, int], Low]:
        """The snapshot's data about trimmed queues."""
        return lows(self.snapshot)

    @property
    def lows_are_exact(self) -> bool:
        """Whether the snapshot has the same begin as the files; otherwise a trim was decided that
        is not carried out yet."""
        retained = self.snapshot.get("retained") if self.snapshot is not None else None
        return isinstance(retained, dict) and retained.get("begin_index") == self.begin.index

    # What the log says, after the scan; reports are in order of position.

    @property
    def filled(self) -> list[LogReport]:
        return [report for report in self.reports if report.entries]

    @property
    def entries(self) -> int:
        return sum(report.entries for report in self.reports)

    @property
    def last_index(self) -> int:
        return max(
            (report.last_index for report in self.filled if report.last_index is not None),
            default=-1,
        )

    @property
    def end_pos(self) -> int:
        filled = self.filled
        return filled[-1].base + filled[-1].end if filled else 0

    @property
    def broken(self) -> list[int]:
        """Known indexes at which the log is damaged."""
        lost = [
            flaw.index
            for report in self.reports
            for flaw in report.flaws
            if flaw.rule == "entry.unreadable" and flaw.index is not None
        ]
        lost += [
            flaw.index for flaw in self.flaws if flaw.rule == "entry.gap" and flaw.index is not None
        ]
        return sorted({*(index for report in self.reports for index in report.damaged), *lost})

    @property
    def known_ends(self) -> list[tuple[int, int]]:
        """Index and end position of the last entry that was on stable storage, and of the last one
        known to its running node."""
        return [
            (known.index, known.end_pos) for known in (self.mark, self.point) if known is not None
        ]

    @property
    def cut_short(self) -> bool:
        """The log ends before an entry that was on stable storage, or is known to its running
        node."""
        return self.lost_end is not None

    @property
    def lost_end(self) -> Place | None:
        """For such a log, where the lost entries should be, as far as they were in one file."""
        ahead = [end_pos for index, end_pos in self.known_ends if index > self.last_index]
        if not ahead:
            return None
        known, size, filled = max(ahead), self.sizes[0], self.filled
        base, start = (filled[-1].base, filled[-1].end) if filled else (self.begin.pos, 0)
        if filled and filled[-1].ending == "blank" and known > base + size:
            base, start = base + size, 0
        return (
            self.shown(f"{self.log_folder}/data/{base:020d}"),
            start,
            min(max(known - base, start), size or start),
        )

    @property
    def ends_whole(self) -> bool:
        """Stopped cleanly, and the log reaches its own mark: what its directory says of later
        entries cannot be true."""
        stopped = self.clean and self.point is None
        return (
            stopped
            and self.mark is not None
            and self.mark.index == self.last_index
            and self.last_index not in self.broken
        )

    @property
    def lost_entries(self) -> int:
        """The known number of entries before the last one that are unreadable or damaged."""
        intact = self.entries - sum(len(report.damaged) for report in self.reports)
        return max(len(self.broken), self.last_index + 1 - self.begin.index - intact)

    @property
    def held(self) -> int:
        """The last index that this replica holds: after an unclean stop, entries from the first
        damage above its mark on do not count."""
        intact = max((report.last_intact_index for report in self.reports), default=-1)
        if self.stale_from is not None:
            intact = min(intact, self.stale_from - 1)
        if self.clean:
            return intact
        return min(
            [
                intact,
                *(
                    index - 1
                    for index in self.broken
                    if self.mark is None or index > self.mark.index
                ),
            ]
        )

    @property
    def known_commit(self) -> int:
        """The highest index that its directory, or its running node, records as committed."""
        filed = [
            run.filed_index
            for report in self.reports
            for run in report.queues
            if run.filed_index is not None
        ]
        claimed = [self.commit, self.applied, None if self.point is None else self.point.index]
        return max([-1, *(index for index in claimed if index is not None), *filed])

    @property
    def applied(self) -> int | None:
        """The applied index of its snapshot."""
        applied = self.snapshot.get("applied_index") if self.snapshot is not None else None
        return applied if isinstance(applied, int) else None
