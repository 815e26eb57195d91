"""Calls about who replicates a broker group and who leads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ledgermq.node.broker.calls import Token
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.transfer import Cause


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let another replica lead: `to`, or the most advanced voter. Answer: `HandedOver` once a replica other than this one leads,
    `HandingOver` when that has not happened by `until_ns`; it goes on for `patience_ns`, and asking again prolongs it. For a
    `PLANNED_STOP` this replica takes no leadership over any more, whoever leads now."""

    token: Token
    to: str | None
    cause: Cause
    patience_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """`leader` leads; it may have done so all the time."""

    leader: str


@dataclass(frozen=True, slots=True)
class HandingOver:
    """Still this replica: the target has not stored the last `lag_entries` entries, as far as is known."""

    to: str
    lag_entries: int

MembersKind = Literal["add", "remove", "promote", "demote", "rule"]


@dataclass(frozen=True, slots=True)
class Prefer:
    """Who is meant to lead from now on, as a node's `preferred_leader`; None: nobody in particular. No answer."""

    node: str | None


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """Change who replicates this broker group, by one node. `add`: a learner whose directory is `incarnation`; `promote`: a learner that
    is caught up becomes a voter; `demote`: a voter becomes a learner; `remove`; `rule`: of no node, the group is to have `rule`, and goes
    on by itself once the answer to the first of two records is there. Answer: `MembersChanged` once the record is committed;
    asking for what is so already is answered at once. Refused in words with `members-refused` when it would cost the quorum or
    the learner is not caught up, with `members-not-yet` when another change is under way or the node is still in the in-sync set."""

    token: Token
    kind: MembersKind
    node: str
    incarnation: str | None = None
    """Of the node's directory; needed to add a node, and otherwise checked against what the group knows when given."""
    reason: str = ""
    """For the record: why, in the operator's words."""
    rule: str = ""
    observer: bool = False
    """Of `add`: a learner for good. Of `promote`: one of those, on purpose."""


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """Who replicates a group, as of the record at `index`. `incarnations`: node → the directory that counts; a node that is absent goes on
    with the directory it had when the group was bootstrapped. `returning`: learners that lost their directory and become voters again by
    themselves. `rule`, `towards`, `observers`, `since`: as in `ledgermq.raft.config.Members`."""

    index: int
    voters: tuple[str, ...]
    learners: frozenset[str] = frozenset()
    incarnations: Mapping[str, str] = field(default_factory=dict)
    returning: frozenset[str] = frozenset()
    rule: str = "majority"
    towards: str | None = None
    observers: frozenset[str] = frozenset()
    since: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Voters first."""
        return (*self.voters, *sorted(self.learners))


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members in effect."""

    members: GroupMembers


@dataclass(frozen=True, slots=True)
class Appointed:
    """What the controller agreed on for this HA group, told on every replica when it is news there, and now and then again. No answer."""

    appointment: Appointment


@dataclass(frozen=True, slots=True)
class Returned:
    """A node of this group greeted with a directory that the group does not know: the old one is gone. May be repeated, and told on any
    replica: whoever leads turns the voter into a learner of this incarnation that becomes a voter again once it is caught up. No answer."""

    node: str
    incarnation: str
