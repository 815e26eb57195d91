"""Calls that change which nodes replicate a broker group, and which of them leads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Result, Sign
from ledgermq.proto.records.control import LevelRecord
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.transfer import Cause


@dataclass(frozen=True, slots=True)
class HandOver(Call):
    """Let another replica lead: `to`, or the most advanced voter for None. Answer: `HandedOver`
    once another replica leads, or `HandingOver` if none does by `until_ns`. The attempt continues
    for `patience_ns`, and another call prolongs it. With the cause `PLANNED_STOP` this replica
    takes no leadership from now on, whichever replica leads now."""

    token: Token
    to: str | None
    cause: Cause
    patience_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class HandedOver(Result):
    """`leader` leads now; it may have led before the call."""

    leader: str


@dataclass(frozen=True, slots=True)
class HandingOver(Result):
    """This replica still leads. As far as it knows, the target lacks the last `lag_entries` entries
    on stable storage."""

    to: str
    lag_entries: int


MembersKind = Literal["add", "remove", "promote", "demote", "rule", "minimum"]


@dataclass(frozen=True, slots=True)
class Prefer(Sign):
    """Set the replica that should lead, like a node's `preferred_leader`; None: no preference. No
    answer."""

    node: str | None


@dataclass(frozen=True, slots=True)
class ChangeMembers(Call):
    """Change the members of this broker group by one node. `add`: as a learner with the directory
    `incarnation`. `promote`: a learner that is caught up becomes a voter. `demote`: a voter becomes
    a learner. `remove`: the node leaves. `rule`: concerns no node, the group changes to the
    replication rule `rule`; this takes two records, and the group appends the second one by itself.
    `minimum`: concerns no node either, an HA group demands `minimum` replicas in sync from now on;
    its master takes this before it serves. Answer: `MembersChanged` once the record is committed,
    or at once if the requested state is already in force. Refused with `members-refused` and an
    explanation if the change would cost the quorum or the learner is not caught up, with
    `members-not-yet` if another change is under way or the node is still in the in-sync set."""

    token: Token
    kind: MembersKind
    node: str
    incarnation: str | None = None
    """Identifies the node's directory. Required for `add`; for other kinds it is checked, if given,
    against the one the group knows."""
    reason: str = ""
    """The operator's reason, stored in the record."""
    rule: str = ""
    minimum: int = 0
    observer: bool = False
    """With `add`: the node becomes an observer, a permanent learner. With `promote`: confirms that
    an observer is to be promoted."""
    level_max: int | None = None
    """With `add`: the highest feature level that the node reads. Refused if the group's level is
    above it at the end of the log."""


@dataclass(frozen=True, slots=True)
class RaiseLevel(Call):
    """Raise the group's feature level by one, to `record.level`. `asked`: the nodes that have told,
    in their present processes, that they read it. Answer: `Kept` once the record is applied, or at
    once if the level is in force. Refused with `members-not-yet` if a member, committed or not, is
    not among `asked`."""

    token: Token
    record: LevelRecord
    asked: frozenset[str]


@dataclass(frozen=True, slots=True)
class BeginTimeEpoch(Call):
    """Begin a time epoch, because the newest store time is ahead of the leader's clock by more than
    `AHEAD_MS`. Answer: `TimeEpochBegun` once the record is applied. Refused with
    `time-epoch-refused` if store times are not that far ahead, or another epoch began and what
    waited before it is not moved yet."""

    token: Token
    user: str = ""
    """Who asked for it; empty if calls are not signed."""


@dataclass(frozen=True, slots=True)
class TimeEpochBegun(Result):
    """The store time of the entry before the epoch, and that with which the epoch began."""

    before_ms: int
    ms: int


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a group as of the record at `index`. `incarnations`: node → its valid
    directory; an absent node keeps the directory that it had when the group was bootstrapped.
    `returning`: learners that lost their directory and become voters again without an operator.
    `rule`, `towards`, `observers`, `since`, `minimum`: as in `ledgermq.raft.config.Members`."""

    index: int
    voters: tuple[str, ...]
    learners: frozenset[str] = frozenset()
    incarnations: Mapping[str, str] = field(default_factory=dict)
    returning: frozenset[str] = frozenset()
    rule: str = "majority"
    towards: str | None = None
    observers: frozenset[str] = frozenset()
    since: int = 0
    minimum: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """All members, voters first."""
        return (*self.voters, *sorted(self.learners))


@dataclass(frozen=True, slots=True)
class MembersChanged(Result):
    """The members now in effect."""

    members: GroupMembers


@dataclass(frozen=True, slots=True)
class Appointed(Sign):
    """The controller's appointment for this HA group. Every replica gets it when it changes, and
    repeatedly afterwards. No answer."""

    appointment: Appointment


@dataclass(frozen=True, slots=True)
class Returned(Sign):
    """A node of this group connected with a directory that the group does not know, because the old
    one is lost. Any replica may get this, repeatedly: the leader turns the voter into a learner
    with this incarnation, which becomes a voter again once it is caught up. No answer."""

    node: str
    incarnation: str
