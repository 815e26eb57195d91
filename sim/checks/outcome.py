"""The result of one run, and its events for people: values only. The world (`world.py`) fills them,
the command prints them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.sim.checks.checkers import Violation


@dataclass
class Outcome:
    """The result of one seed."""

    seed: int
    steps: int
    digest: str
    violation: Violation | None = None
    commits: int = 0
    terms: int = 0
    acknowledged_durable: int = 0
    """In batches, not entries; the same for the counts below."""
    acknowledged_memory: int = 0
    lost_memory: int = 0
    virtual_ns: int = 0
    coverage: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.violation is None

    @property
    def counts(self) -> bool:
        """Whether the run covered what it is for: an election after the first, a crash with
        unsynced pages, and enough entries."""
        of = self.coverage.get
        return (
            of("elections", 0) > 1
            and of("crashes-with-unsynced-pages", 0) > 0
            and self.commits >= 200
        )


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event, for people."""

    at_ns: int
    node: str
    text: str
