"""What a core is told once: who it is, its periods, and what a set of members is. Values only; nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ledgermq.proto.token_bucket import TokenBucket

MS = 1_000_000
SECOND_NS = 1000 * MS
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
    """What may be under way over a link of unknown speed."""
    window_ranges: int = 256
    range_bytes_max: int = MIB
    news_ns: int = 5 * MS
    """So long commit news waits for the next range, which carries it for nothing, before a message of its own brings it."""
    observer_bytes_per_s: int = 0
    """At most so much is pushed to an observer; 0: as much as its window lets through."""
    stall_ns: int = 10_000 * MS
    """A peer that answers for so long without receiving what it lacks is compared with from the beginning."""

    def observer_pace(self) -> TokenBucket | None:
        """A bucket of bytes per nanosecond for one observer, which saves up a quarter of a second; None: no limit."""
        rate = self.observer_bytes_per_s
        return TokenBucket(rate / SECOND_NS, max(1, rate // 4)) if rate else None

    @property
    def alone_ns(self) -> int:
        """After so long without a word of its slaves and of the controller a master steps down: as long as the controller quorum may take
        to have another leader."""
        return 4 * self.election_max_ns

    @property
    def slack_max_ns(self) -> int:
        """The most by which late signs of life lengthen a timeout: the death of a leader is noticed within five times the longest election
        timeout, however starved the nodes are."""
        return 4 * self.election_max_ns

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_ns <= self.election_min_ns <= self.election_max_ns:
            raise ValueError("raft timing: need 0 < 2 x heartbeat <= election minimum <= election maximum")
        if not 0 < self.range_bytes_max <= self.window_bytes or self.window_ranges < 1:
            raise ValueError("raft timing: need 0 < range bytes <= window bytes and a window of at least one range")
        if not 0 <= self.news_ns <= self.heartbeat_ns:
            raise ValueError("raft timing: commit news waits for a heartbeat at the longest")
        if self.observer_bytes_per_s < 0:
            raise ValueError("raft timing: less than nothing cannot be pushed to an observer")
        if self.window_first_bytes < 1:
            raise ValueError("raft timing: a window of nothing lets nothing through")
        if self.stall_ns < self.election_max_ns:
            raise ValueError("raft timing: a peer cannot be called stalled before the longest election timeout")


class Rule(StrEnum):
    """Who may lead a group, and what is committed in it (docs/decisions/2026-11-22-one-core-two-rules.md).

    MAJORITY  votes of a majority; a majority has it on stable storage (Raft)
    ALL       votes of all voters; all of them have it: for the moment between the two others, with either of which it shares a voter
    IN_SYNC   whom the controller appointed; everybody in the in-sync set has it (docs/architecture.md, HA groups)
    """

    MAJORITY = "majority"
    ALL = "all"
    IN_SYNC = "in-sync"


@dataclass(frozen=True, slots=True)
class Members:
    """Who replicates a group, as one membership record says (docs/format.md §11).

    `voters` make the quorums, `learners` only receive. `incarnations` names the directory a member is known by; a member without one is
    known by the directory it had when the group was made. `returning`: learners that voted until their directory was lost; the leader
    makes them voters again as soon as they have caught up. `observers`: learners that become voters only if an operator says so. `towards`:
    the rule that follows ALL. `since`: the entry that made the rule; 0 for one the group was made with, and for
    MAJORITY. No voters at all: the members are not known yet (`NOBODY`).
    """

    voters: tuple[str, ...]
    learners: frozenset[str] = frozenset()
    incarnations: Mapping[str, str] = field(default_factory=dict)
    returning: frozenset[str] = frozenset()
    rule: Rule = Rule.MAJORITY
    towards: Rule | None = None
    observers: frozenset[str] = frozenset()
    since: int = 0

    def __post_init__(self) -> None:
        if len(set(self.voters)) != len(self.voters) or self.learners & set(self.voters) or (self.learners and not self.voters):
            raise ValueError("raft members: voters must be present, distinct, and not learners")
        if not self.returning <= self.learners or not set(self.incarnations) <= {*self.voters, *self.learners}:
            raise ValueError("raft members: only learners return, and only members have an incarnation")
        if not self.observers <= self.learners - self.returning:
            raise ValueError("raft members: only learners observe, and who observes does not return to voting")
        if (self.rule is Rule.ALL) != (self.towards is not None) or self.towards is Rule.ALL:
            raise ValueError("raft members: the rule all, and no other, stands before another rule")

    @property
    def nodes(self) -> tuple[str, ...]:
        """Everyone, voters first."""
        return (*self.voters, *sorted(self.learners))


NOBODY = Members(())


@dataclass(frozen=True, slots=True)
class HaRules:
    """What a master of the rule IN_SYNC holds itself to, and its slaves. Not part of the log: it may change at a restart.

    `ack_async`: an acknowledgement may rest on the master's stable storage alone. `minimum`: with fewer members of the in-sync set at hand
    nothing is committed. `lag_ns`, `lag_bytes`: how far a member may lie behind before it is out of the set. `pull`: a slave is sent the
    next range when it asks for it, instead of as soon as the window allows.
    """

    ack_async: bool = False
    minimum: int = 1
    lag_ns: int = 10_000 * MS
    lag_bytes: int = 64 * MIB
    pull: bool = False

    def __post_init__(self) -> None:
        if self.minimum < 1 or self.lag_ns <= 0 or self.lag_bytes <= 0:
            raise ValueError("ha rules: a minimum of at least the master, and bounds of lag above 0")
        if self.ack_async and self.minimum != 1:
            raise ValueError("ha rules: who acknowledges alone waits for no minimum")


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """One replica's view of itself.

    `voters`, `learners` and `rule` are the members as long as the log names none (docs/format.md §11): those the group was made with, or
    none, for a replica that joins with an empty log. `boot_id` is unique to this start of the replica: a new one tells the leader that this
    peer may hold less than the leader believes. `incarnation` is that of the replica's directory, empty where it is not compared.
    `ha`: what holds while the rule is IN_SYNC.
    """

    node: str
    voters: tuple[str, ...]
    boot_id: int
    learners: frozenset[str] = frozenset()
    timing: Timing = Timing()
    incarnation: str = ""
    rule: Rule = Rule.MAJORITY
    ha: HaRules = HaRules()

    def __post_init__(self) -> None:
        assert self.members.rule is self.rule

    @property
    def members(self) -> Members:
        return Members(self.voters, self.learners, rule=self.rule)
