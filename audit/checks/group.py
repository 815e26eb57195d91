"""What is known of one broker group while its replicas are held against each other. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.rules import Finding

MAJORITY = "majority"
"""The rule of a group whose records name none."""


@dataclass(slots=True)
class GroupResult:
    """The outcome for one broker group. `compared` is None when nothing could be compared."""

    group: str
    replicas: list[Replica]
    rule: str = MAJORITY
    """What makes an entry committed (docs/format.md §11): a majority, or the members of an in-sync set."""
    proven_by: str | None = None
    """Of a group whose masters are appointed: the replica whose history is the confirmed one up to the compared index."""
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    compared: int | None = None
    recorded: int | None = None
    """The highest index that any replica recorded as committed."""
    missing: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    folds: list[tuple[Finding, Finding]] = field(default_factory=list)
    """Findings that were not told, each with the failing one that is told in its place and covers its bytes."""
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    divergent: dict[str, int] = field(default_factory=dict)
    """Replica → first index at which it holds another entry than the majority."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Replicas that hold entries which an operator gave up when he forced another master → by which record."""
    moved: set[str] = field(default_factory=set)
    """Replicas that were written to while they were looked at."""
    excused: set[str] = field(default_factory=set)
    """Replicas that need not reach the compared index: backups, learners, former members, and those that only lack election records."""
    former: set[str] = field(default_factory=set)
    """Who was a member and is none any more: what it left behind ends where it was removed."""
    returned: set[str] = field(default_factory=set)
    """Replicas in a new directory that no membership record names yet: they lost what they had, and have promised nothing since."""
    lost: dict[str, str] = field(default_factory=dict)
    """Replicas of a running cluster that could not be looked at → why."""

    @property
    def proving(self) -> tuple[str, ...]:
        """The replicas of which a majority proves what is right: the voters, or the one that holds the confirmed history."""
        return self.voters if self.proven_by is None else (self.proven_by,)

    @property
    def majority(self) -> int:
        return max(len(self.voters), 1) // 2 + 1
