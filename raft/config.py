"""What a core is told once: who it is, who votes, and its periods. Values only; nothing here decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MS = 1_000_000
MIB = 1 << 20


class Chance(Protocol):
    """The one source of chance of a core; `random.Random` fits. A seeded one makes every run repeatable."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Periods in monotonic nanoseconds, windows in bytes. A heartbeat period must fit several times into the shortest election timeout."""

    heartbeat_ns: int = 100 * MS
    election_min_ns: int = 400 * MS
    election_max_ns: int = 800 * MS
    window_bytes: int = 4 * MIB
    window_ranges: int = 256
    range_bytes_max: int = MIB

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_ns <= self.election_min_ns <= self.election_max_ns:
            raise ValueError("raft timing: need 0 < 2 x heartbeat <= election minimum <= election maximum")
        if not 0 < self.range_bytes_max <= self.window_bytes or self.window_ranges < 1:
            raise ValueError("raft timing: need 0 < range bytes <= window bytes and a window of at least one range")


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """One member's view of its group.

    `voters` and `learners` repeat the group's first entry (docs/format.md §11), which never changes in this version. `boot_id` is unique to
    this start of the replica: to a leader a new one is the news that what it knows of this peer may have become too high.
    """

    node: str
    voters: tuple[str, ...]
    boot_id: int
    learners: frozenset[str] = frozenset()
    timing: Timing = Timing()

    def __post_init__(self) -> None:
        if not self.voters or len(set(self.voters)) != len(self.voters) or self.learners & set(self.voters):
            raise ValueError("raft members: voters must be present, distinct, and not learners")
        if self.node not in self.voters and self.node not in self.learners:
            raise ValueError(f"raft members: {self.node} is not a member of {', '.join(self.voters)}")

    @property
    def peers(self) -> tuple[str, ...]:
        """Everyone else, voters first."""
        return tuple(n for n in (*self.voters, *sorted(self.learners)) if n != self.node)
