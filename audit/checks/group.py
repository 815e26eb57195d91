"""The results about one broker group while its replicas are compared. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.rules import Finding

MAJORITY = "majority"
"""The rule of a group whose records name none."""


@dataclass(slots=True)
class GroupResult:
    """The result for one broker group. `compared` is None if nothing could be compared."""

    group: str
    replicas: list[Replica]
    rule: str = MAJORITY
    """What makes an entry committed (docs/format.md §11): a majority, or the members of an in-sync set."""
    proven_by: str | None = None
    """With appointed masters: the replica whose history is the confirmed one up to the compared index."""
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    compared: int | None = None
    recorded: int | None = None
    """The highest index that any replica recorded as committed."""
    missing: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    folds: list[tuple[Finding, Finding]] = field(default_factory=list)
    """Findings that are not reported, each with the reported failing finding that covers its bytes."""
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    divergent: dict[str, int] = field(default_factory=dict)
    """Replica → first index at which its entry differs from the majority's."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Replicas with entries that an operator gave up by forcing another master → the record of it."""
    moved: set[str] = field(default_factory=set)
    """Replicas that were written to during the audit."""
    excused: set[str] = field(default_factory=set)
    """Replicas that need not reach the compared index: backups, learners, former members, and those that lack only election records."""
    former: set[str] = field(default_factory=set)
    """Former members: the files of such a replica end where it was removed."""
    returned: set[str] = field(default_factory=set)
    """Replicas in a new directory that no membership record names yet: they lost their data, and have made no promises since."""
    lost: dict[str, str] = field(default_factory=dict)
    """Replicas of a running cluster that could not be read → why."""

    @property
    def proving(self) -> tuple[str, ...]:
        """The replicas of which a majority proves what is right: the voters, or the one that holds the confirmed history."""
        return self.voters if self.proven_by is None else (self.proven_by,)

    @property
    def majority(self) -> int:
        return max(len(self.voters), 1) // 2 + 1
