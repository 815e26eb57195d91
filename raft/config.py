"""The configuration of a core: the replica's identity, its periods, and the sets of members. Values
only; nothing here decides."""

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
    """The only source of randomness of a core; `random.Random` implements it. A seeded one makes
    every run repeatable."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Periods in monotonic nanoseconds, windows in bytes. A heartbeat period must fit several times
    into the shortest election timeout."""

    heartbeat_ns: int = 100 * MS
    election_min_ns: int = 400 * MS
    election_max_ns: int = 800 * MS
    window_bytes: int = 4 * MIB
    """The most that may be under way to a peer (raft/window.py)."""
    window_first_bytes: int = 256 << 10
    """The most that may be under way over a link of unknown speed."""
    window_ranges: int = 256
    range_bytes_max: int = MIB
    news_ns: int = 5 * MS
    """How long commit news for a peer with waiting readers waits for the next range, which carries
    it at no cost, before it is sent in a message of its own. News for other peers waits for the
    next range or heartbeat."""
    observer_bytes_per_s: int = 0
    """The most bytes per second pushed to an observer; 0: as much as its window allows."""
    stall_ns: int = 10_000 * MS
    """If a peer answers for this long without receiving what it lacks, the leader compares logs
    with it from the beginning."""

    def observer_pace(self) -> TokenBucket | None:
        """A bucket of bytes per nanosecond for one observer, with a burst of a quarter of a second;
        None: no limit."""
        rate = self.observer_bytes_per_s
        return TokenBucket(rate / SECOND_NS, max(1, rate // 4)) if rate else None

    @property
    def alone_ns(self) -> int:
        """A master that has heard neither a slave nor the controller for this long steps down; the
        controller quorum may take this long to elect a leader of its own."""
        return 4 * self.election_max_ns

    @property
    def slack_max_ns(self) -> int:
        """The limit for lengthening a timeout because of late signs of life: the death of a leader
        is noticed within five times the longest election timeout, however little processor time the
        nodes get."""
        return 4 * self.election_max_ns

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_ns <= self.election_min_ns <= self.election_max_ns:
            raise ValueError(
                "raft timing: need 0 < 2 x heartbeat <= election minimum <= election maximum"
            )
        if not 0 < self.range_bytes_max <= self.window_bytes or self.window_ranges < 1:
            raise ValueError(
                "raft timing: need 0 < range bytes <= window bytes and a window of at least one"
                " range"
            )
        if not 0 <= self.news_ns <= self.heartbeat_ns:
            raise ValueError(
                "raft timing: commit news must not wait longer than a heartbeat period"
            )
        if self.observer_bytes_per_s < 0:
            raise ValueError("raft timing: observer_bytes_per_s must not be negative")
        if self.window_first_bytes < 1:
            raise ValueError("raft timing: the first window must have at least one byte")
        if self.stall_ns < self.election_max_ns:
            raise ValueError(
                "raft timing: a peer cannot be called stalled before the longest election timeout"
            )


class Rule(StrEnum):
    """Who may lead a group, and when an entry is committed
    (docs/decisions/2026-11-22-one-core-two-rules.md).

    MAJORITY  a majority elects; an entry is committed once a majority has it on stable storage (Raft)
    ALL       all voters elect, and an entry is committed once all have it; only for a change between the two others, with each of which it
              shares a voter in any two quorums
    IN_SYNC   the controller appoints the leader; an entry is committed once the in-sync set has it (docs/architecture.md, HA groups)
    """

    MAJORITY = "majority"
    ALL = "all"
    IN_SYNC = "in-sync"


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group, as one membership record names them (docs/format.md §11).

    `voters` make the quorums; `learners` only receive. `incarnations` names the directory by which
    a member is known; a member without one is known by the directory it had when the group was
    created. `returning`: learners that voted until their directory was lost; the leader makes them
    voters again as soon as they have caught up. `observers`: learners that become voters only if an
    operator says so. `towards`: the rule that follows ALL. `since`: the entry that made the rule; 0
    for the rule the group was created with, and for MAJORITY. `minimum`: how many copies of an
    entry an HA group needs by an operator's command; 0: as configured. Without any voter the
    members are not known yet (`NOBODY`).
    """

    voters: tuple[str, ...]
    learners: frozenset[str] = frozenset()
    incarnations: Mapping[str, str] = field(default_factory=dict)
    returning: frozenset[str] = frozenset()
    rule: Rule = Rule.MAJORITY
    towards: Rule | None = None
    observers: frozenset[str] = frozenset()
    since: int = 0
    minimum: int = 0
    nodes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """All members, voters first; derived."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", (*self.voters, *sorted(self.learners)))
        if (
            len(set(self.voters)) != len(self.voters)
            or self.learners & set(self.voters)
            or (self.learners and not self.voters)
        ):
            raise ValueError("raft members: voters must be present, distinct, and not learners")
        if not self.returning <= self.learners or not set(self.incarnations) <= {
            *self.voters,
            *self.learners,
        }:
            raise ValueError(
                "raft members: only learners return, and only members have an incarnation"
            )
        if not self.observers <= self.learners - self.returning:
            raise ValueError(
                "raft members: only learners observe, and an observer does not return to voting"
            )
        if (self.rule is Rule.ALL) != (self.towards is not None) or self.towards is Rule.ALL:
            raise ValueError("raft members: the rule all, and no other, stands before another rule")
        if self.minimum < 0 or (self.minimum and self.rule is not Rule.IN_SYNC):
            raise ValueError("raft members: only a group of the rule in-sync has a minimum")


NOBODY = Members(())


@dataclass(frozen=True, slots=True)
class HaRules:
    """The limits that a master of the rule IN_SYNC and its slaves apply. Not part of the log: they
    may change at a restart.

    `ack_async`: an acknowledgement may rest on the master's stable storage alone. `minimum`: if
    fewer members of the in-sync set are reachable, nothing is committed; the log may name another
    one (`minimum_of`). `lag_ns`, `lag_bytes`: a member that lags further behind is removed from the
    set. `pull`: a slave gets the next range when it asks for it, not as soon as the window allows.
    """

    ack_async: bool = False
    minimum: int = 1
    lag_ns: int = 10_000 * MS
    lag_bytes: int = 64 * MIB
    pull: bool = False

    def __post_init__(self) -> None:
        if self.minimum < 1 or self.lag_ns <= 0 or self.lag_bytes <= 0:
            raise ValueError(
                "ha rules: the minimum must be at least 1 (the master), and the bounds of lag"
                " above 0"
            )
        if self.ack_async and self.minimum != 1:
            raise ValueError(
                "ha rules: with ack_async the master acknowledges alone, so the minimum must be 1"
            )

    def minimum_of(self, members: Members) -> int:
        """How many copies an entry needs under these members: as many as the log says, else as many
        as are configured. A master that acknowledges alone needs its own."""
        return self.minimum if self.ack_async else members.minimum or self.minimum


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """One replica's configuration of itself.

    `voters`, `learners` and `rule` are the members while the log names none (docs/format.md §11):
    those with which the group was created, or none for a replica that joins with an empty log.
    `boot_id` is unique to this start of the replica: a new one tells the leader that this peer may
    hold less than the leader believes. `incarnation` identifies the replica's directory; it is
    empty if directories are not compared. `ha` applies while the rule is IN_SYNC.
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
