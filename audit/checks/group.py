"""The results about one broker group while its replicas are compared. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Finding

MAJORITY = "majority"
"""The rule of a group whose records name none."""

Spans = list[tuple[int, int]]
"""Ranges of positions in the log, in order, the ends exclusive."""


@dataclass(slots=True)
class StoredResult:
    """What was compared of the log of one broker group in the store, and what was not, in positions
    of the log."""

    place: str
    log_id: str
    files: int = 0
    entries: int = 0
    begin_index: int | None = None
    last_index: int | None = None
    read: Spans = field(default_factory=list)
    """Compared with the manifests, and every entry verified."""
    sealed: Spans = field(default_factory=list)
    """Compared with what the replicas recorded of the files."""
    sealed_there: Spans = field(default_factory=list)
    """Compared only with seals in the stored log itself."""
    replicas: dict[str, Spans] = field(default_factory=dict)
    """Replica → compared with its own files."""
    unread: Spans = field(default_factory=list)
    """Named by manifests, and missing or not read to the end."""
    unsealed: Spans = field(default_factory=list)
    """Read, and no seal is known."""
    alone: Spans = field(default_factory=list)
    """On no audited replica: compared with digests only."""
    not_stored: Spans = field(default_factory=list)
    """Parts of the replicas' logs that the store does not have."""
    begins_with: int = 0
    """The entry with which the stored log begins, whether its file is there or not."""
    sound: list[tuple[LogFile, LogReport]] = field(default_factory=list)
    """The files that are what their manifests, the replicas' records and their neighbours say, in
    order of position, with their scans."""


@dataclass(slots=True)
class GroupResult:
    """The result for one broker group. `compared` is None if nothing could be compared."""

    group: str
    replicas: list[Replica]
    rule: str = MAJORITY
    """What makes an entry committed (docs/format.md §11): a majority, or the members of an in-sync
    set."""
    proven_by: str | None = None
    """With appointed masters: the replica whose history is the confirmed one up to the compared
    index."""
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    compared: int | None = None
    recorded: int | None = None
    """The highest index that any replica recorded as committed."""
    missing: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    folds: list[tuple[Finding, Finding]] = field(default_factory=list)
    """Findings that are not reported, each with the reported failing finding that covers its
    bytes."""
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    divergent: dict[str, int] = field(default_factory=dict)
    """Replica → first index at which its entry differs from the majority's."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Replicas with entries that an operator gave up by forcing another master → the record of
    it."""
    moved: set[str] = field(default_factory=set)
    """Replicas that were written to during the audit."""
    excused: set[str] = field(default_factory=set)
    """Replicas that need not reach the compared index: backups, learners, former members, and those
    that lack only election records."""
    former: set[str] = field(default_factory=set)
    """Former members: the files of such a replica end where it was removed."""
    returned: set[str] = field(default_factory=set)
    """Replicas in a new directory that no membership record names yet: they lost their data, and
    have made no promises since."""
    lost: dict[str, str] = field(default_factory=dict)
    """Replicas of a running cluster that could not be read → why."""
    stored: list[StoredResult] = field(default_factory=list)
    """What was compared of its log in an object store, if one was given."""
    store_lost: bool = False
    """An object store was given, and could not be listed: nobody knows what it holds."""

    @property
    def proving(self) -> tuple[str, ...]:
        """The replicas of which a majority proves what is right: the voters, or the one that holds
        the confirmed history."""
        return self.voters if self.proven_by is None else (self.proven_by,)

    @property
    def majority(self) -> int:
        return max(len(self.voters), 1) // 2 + 1
