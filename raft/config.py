"""What a core is told once: who it is, its periods, and what a set of members is. Values only; nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """The most that may be under way to a peer (raft/window.py)."""
    window_first_bytes: int = 256 << 10
    """What may be, over a link that nobody knows yet."""
    window_ranges: int = 256
    range_bytes_max: int = MIB
    news_ns: int = 5 * MS
    """So long commit news waits for the next range, which carries it for nothing, before a message of its own brings it."""
    stall_ns: int = 10_000 * MS
    """A peer that answers for so long without receiving what it lacks is compared with from the beginning."""

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_ns <= self.election_min_ns <= self.election_max_ns:
            raise ValueError("raft timing: need 0 < 2 x heartbeat <= election minimum <= election maximum")
        if not 0 < self.range_bytes_max <= self.window_bytes or self.window_ranges < 1:
            raise ValueError("raft timing: need 0 < range bytes <= window bytes and a window of at least one range")
        if not 0 <= self.news_ns <= self.heartbeat_ns:
            raise ValueError("raft timing: commit news waits for a heartbeat at the longest")
        if self.window_first_bytes < 1:
            raise ValueError("raft timing: a window of nothing lets nothing through")
        if self.stall_ns < self.election_max_ns:
            raise ValueError("raft timing: a peer cannot be called stalled before the longest election timeout")


@dataclass(frozen=True, slots=True)
class Members:
    """Who replicates a group, as one membership record says (docs/format.md §11).

    `voters` make the quorums, `learners` only receive. `incarnations` names the directory a member is known by; a member without one is
    known by the directory it had when the group was made. `returning`: learners that voted until their directory was lost; the leader
    makes them voters again as soon as they have caught up. No voters at all: nobody knows yet (`NOBODY`).
    """

    voters: tuple[str, ...]
    learners: frozenset[str] = frozenset()
    incarnations: Mapping[str, str] = field(default_factory=dict)
    returning: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if len(set(self.voters)) != len(self.voters) or self.learners & set(self.voters) or (self.learners and not self.voters):
            raise ValueError("raft members: voters must be present, distinct, and not learners")
        if not self.returning <= self.learners or not set(self.incarnations) <= {*self.voters, *self.learners}:
            raise ValueError("raft members: only learners return, and only members have an incarnation")

    @property
    def nodes(self) -> tuple[str, ...]:
        """Everyone, voters first."""
        return (*self.voters, *sorted(self.learners))


NOBODY = Members(())


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """One replica's view of itself.

    `voters` and `learners` are the members as long as the log names none (docs/format.md §11): those the group was made with, or nobody,
    for a replica that joins with an empty log. `boot_id` is unique to this start of the replica: to a leader a new one is the news that
    what it knows of this peer may have become too high. `incarnation` is that of the replica's directory, empty where nobody compares it.
    """

    node: str
    voters: tuple[str, ...]
    boot_id: int
    learners: frozenset[str] = frozenset()
    timing: Timing = Timing()
    incarnation: str = ""

    def __post_init__(self) -> None:
        Members(self.voters, self.learners)

    @property
    def members(self) -> Members:
        return Members(self.voters, self.learners)
