"""Membership: the configurations of a log, and the result of one change (Raft dissertation ch. 4,
one server at a time).

A configuration takes effect when its entry is appended, and is undone when that entry is cut off.
Successive configurations differ in at most one voter, so any two of their majorities share a voter;
therefore a change begins only when the previous one is committed. This module has these values and
their arithmetic, and `Membership`: what the members make of this replica. `member_changes.py`
decides whether a leader may change anything now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from ledgermq.proto.types import Role
from ledgermq.raft.config import Members, RaftConfig, Rule
from ledgermq.raft.log_state import LogState
from ledgermq.raft.messages import NO_INDEX, VoteRequest
from ledgermq.raft.policy import Policy


class Change(Enum):
    """What happens to one node.

    ADD      a node that is not a member becomes a learner
    PROMOTE  a learner becomes a voter
    DEMOTE   a voter becomes a learner
    REMOVE   a member is removed
    MINIMUM  an HA group needs another number of copies of an entry
    RULE     the group gets another rule, through the rule ALL
    RETURN   a member lost its directory: it continues as a learner with a new one; if it was a voter, it becomes one again once caught up
    """

    ADD = "add"
    PROMOTE = "promote"
    DEMOTE = "demote"
    REMOVE = "remove"
    RETURN = "return"
    MINIMUM = "minimum"
    RULE = "rule"


class NotYet(str):
    """Why a change cannot be made now; the same request may be granted a moment later."""


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A requested change. `incarnation`: that of the node's directory, which the members name from
    then on; if they name one already, only ADD and RETURN may name another. `reason`: a text for
    the operator, stored in the log. `rule`: only for RULE, and `minimum`: only for MINIMUM, which
    name no node. `observer`: ADD a permanent learner, or PROMOTE one of those on purpose."""

    kind: Change
    node: str
    incarnation: str = ""
    reason: str = ""
    rule: Rule = Rule.MAJORITY
    observer: bool = False
    minimum: int = 0


def changed(members: Members, change: MemberChange, index: int) -> Members | str:
    """The members after `change`, which the entry `index` makes; or why these members cannot change
    so, as a text for the operator."""
    if change.kind is Change.RULE:
        return _with_rule(members, change.rule, index)
    if members.rule is Rule.ALL:
        return NotYet(
            f"the group is changing over to the rule {members.towards}; ask again when that is done"
        )
    if change.kind is Change.MINIMUM:
        return _with_minimum(members, change.minimum)
    node, kind = change.node, change.kind
    voters, learners, returning = set(members.voters), set(members.learners), set(members.returning)
    incarnations, observers = dict(members.incarnations), set(members.observers)
    known = node in voters or node in learners
    if kind is Change.ADD and known:
        return f"{node} is a {'voter' if node in voters else 'learner'} of this group already"
    if kind is not Change.ADD and not known:
        return f"{node} is no member of this group; its members are {', '.join(members.nodes)}"
    if kind is Change.PROMOTE and node in voters:
        return f"{node} is a voter already"
    if kind is Change.DEMOTE and node in learners:
        return f"{node} is a learner already"
    if kind is Change.RETURN and (
        not change.incarnation or incarnations.get(node) == change.incarnation
    ):
        return f"{node} is known by this very directory; only a node with a new one can return"
    if kind is Change.PROMOTE and node in observers and not change.observer:
        return f"{node} is an observer, which is not to vote; say so if it is to from now on"
    if (
        kind in (Change.PROMOTE, Change.DEMOTE)
        and incarnations.get(node, change.incarnation) != change.incarnation != ""
    ):
        return f"{node} is known by another directory than the one it has now; it must return first"
    if kind in (Change.DEMOTE, Change.REMOVE, Change.RETURN) and voters == {node}:
        return (
            f"{node} is the last voter of this group: without it nothing could ever be committed"
            " again"
        )
    if kind is Change.RETURN and node in voters:
        returning.add(node)
    if kind in (Change.ADD, Change.DEMOTE, Change.RETURN):
        learners.add(node)
        voters.discard(node)
        if kind is Change.ADD and change.observer:
            observers.add(node)
    elif kind is Change.PROMOTE:
        voters.add(node)
        for part in (learners, returning, observers):
            part.discard(node)
    else:
        for part in (voters, learners, returning, observers):
            part.discard(node)
        incarnations.pop(node, None)
    if change.incarnation and kind is not Change.REMOVE:
        incarnations[node] = change.incarnation
    return Members(
        voters=tuple(sorted(voters)),
        learners=frozenset(learners),
        incarnations=incarnations,
        returning=frozenset(returning),
        rule=members.rule,
        towards=members.towards,
        observers=frozenset(observers),
        since=members.since,
        minimum=members.minimum,
    )


def _with_minimum(members: Members, wanted: int) -> Members | str:
    if members.rule is not Rule.IN_SYNC:
        return (
            f"a group of the rule {members.rule} has no minimum of replicas in sync: a majority of"
            " its voters commits"
        )
    if not 1 <= wanted <= len(members.voters):
        return (
            f"the minimum of replicas in sync is 1 to {len(members.voters)}, the number of voters,"
            f" not {wanted}"
        )
    return replace(members, minimum=wanted)


def _with_rule(members: Members, wanted: Rule, index: int) -> Members | str:
    """Apply a change of rules. Quorums of successive configurations must share a voter: a majority
    and an in-sync set each meet the set of all voters, but need not meet each other, so a change
    goes through the rule ALL."""
    if wanted is members.rule:
        return f"the group has the rule {wanted} already"
    if wanted is Rule.ALL:
        return "the rule all only stands between two others; ask for one of those"
    if members.rule is not Rule.ALL:
        return replace(members, rule=Rule.ALL, towards=wanted, since=index, minimum=0)
    if wanted is not members.towards:
        return NotYet(
            f"the group is changing over to the rule {members.towards}; ask again when that is done"
        )
    return replace(members, rule=wanted, towards=None, since=index if wanted is Rule.IN_SYNC else 0)


class Configurations:
    """The configurations of a log as runs (index, members): the members from that entry on, up to
    the next run. Never empty.

    The first run is certainly committed, or was true before the log; it is never cut off. Its index
    may be that of any entry that knew these members: it is only compared with the commit index.
    Memory is O(configurations of the retained log).
    """

    def __init__(self, runs: Iterable[tuple[int, Members]]) -> None:
        self._runs = list(runs)
        self.check()

    @property
    def latest(self) -> Members:
        return self._runs[-1][1]

    @property
    def latest_index(self) -> int:
        """The entry that made the latest configuration; −1 for one that was true before the log."""
        return self._runs[-1][0]

    @property
    def before(self) -> Members:
        """The configuration before the latest one; it is in force again if the latest is cut
        off."""
        return self._runs[max(len(self._runs) - 2, 0)][1]

    @property
    def runs(self) -> tuple[tuple[int, Members], ...]:
        return tuple(self._runs)

    def at(self, index: int) -> Members:
        """The members in force at an entry of the log; for earlier entries, those known at the
        log's begin."""
        for first, members in reversed(self._runs):
            if first <= index:
                return members
        return self._runs[0][1]

    def append(self, index: int, members: Members) -> None:
        assert index > self.latest_index, (index, self)
        self._runs.append((index, members))

    def truncate_from(self, index: int) -> bool:
        """The entries from `index` on were cut off. Returns whether that changed the members."""
        length = len(self._runs)
        while len(self._runs) > 1 and self._runs[-1][0] >= index:
            del self._runs[-1]
        return len(self._runs) < length

    def trim(self, begin_index: int) -> None:
        """Of the entries before `begin_index`, keep only the last configuration."""
        gone = sum(1 for index, _ in self._runs[1:] if index < begin_index)
        del self._runs[:gone]

    def check(self) -> None:
        indexes = [index for index, _ in self._runs]
        assert indexes and indexes[0] >= NO_INDEX and indexes == sorted(set(indexes)), self

    def __repr__(self) -> str:
        return f"Configurations({' '.join(f'{index}:{members.nodes}' for index, members in self._runs)})"


class Membership:
    """The configuration in force, and what it makes of this replica.

    configurations  those of the log; only this class changes them
    members         the latest one; in effect as soon as its entry is appended (dissertation §4.1)
    policy          the policy for these members' rule
    met_by_all      every other voter knows this very directory, so that an empty one in its place would be noticed
    steady          this replica is a voter whose vote and copy count, whatever is committed; derived from the others, because every
                    message asks for it
    """

    def __init__(
        self,
        config: RaftConfig,
        log: LogState,
        configurations: Configurations,
        policy_of: Callable[[Members], Policy],
        *,
        met_by_all: bool,
    ) -> None:
        self._config = config
        self._log = log
        self._policy_of = policy_of
        self.configurations = configurations
        self.met_by_all = met_by_all
        self._follow_log()

    # The configuration in force

    def _follow_log(self) -> None:
        self.members = self.configurations.latest
        self.policy = self._policy_of(self.members)
        self._derive()

    def _derive(self) -> None:
        self.steady = self._config.node in self.members.voters and self.admitted

    def append(self, index: int, members: Members) -> None:
        """The entry `index` was appended, which makes these members."""
        self.configurations.append(index, members)
        self._follow_log()

    def truncate_from(self, index: int) -> None:
        """An entry that is cut off takes its members with it (dissertation §4.1)."""
        if self.configurations.truncate_from(index):
            self._follow_log()

    def trim(self, begin_index: int) -> None:
        self.configurations.trim(begin_index)

    @property
    def pending(self) -> bool:
        """Whether the latest change is not committed yet."""
        return self.configurations.latest_index > self._log.commit_index

    # Standing: what the members make of this replica

    def admit(self) -> None:
        """Every other voter now knows this directory."""
        self.met_by_all = True
        self._derive()

    @property
    def admitted(self) -> bool:
        """Whether this replica's vote and copy count. They count only if their loss would be
        noticed: the members name this very directory, or they name none and all other voters know
        it."""
        return self.admitted_by(self.members)

    def admitted_by(self, members: Members) -> bool:
        named = members.incarnations.get(self._config.node)
        return (
            self.met_by_all
            if named is None or not self._config.incarnation
            else named == self._config.incarnation
        )

    def leaves(self) -> bool:
        """Whether this voter's removal is not committed yet. The voter must have been this very
        directory: a new one in its place never inherits the promises of the lost one, which may
        have elected a candidate without that entry."""
        node, members = self._config.node, self.members
        if node in members.voters or not self.pending:
            return False
        before = self.configurations.before
        if node not in before.voters:
            return False
        return self.admitted_by(before) and (node not in members.incarnations or self.admitted)

    def resting_role(self) -> Role:
        """The role of this replica while it neither leads nor campaigns."""
        return (
            Role.FOLLOWER
            if self.steady or self._config.node in self.members.voters or self.leaves()
            else Role.LEARNER
        )

    def counts(self) -> bool:
        """Whether this copy may count: that of a voter; of a voter whose removal is not committed;
        or of a learner whose change is committed, which may have been made a voter since. A learner
        by an uncommitted change may be a voter whose old promises are forgotten."""
        if self.steady:
            return True
        node, members = self._config.node, self.members
        if node in members.voters or (node in members.learners and not self.pending):
            return self.admitted
        return self.leaves()

    def may_vote(self, request: VoteRequest) -> bool:
        """Whether this replica may vote: if its copy counts; or if the candidate's members name
        this very directory: an entry that is not here yet made it a voter, and the entry that made
        it a learner, which ended its old promises, was committed before (dissertation §4.1). Never
        if they name another directory: to that candidate it is another server, which may vote in
        this term itself."""
        mine = self._config.incarnation
        if mine and request.incarnation not in ("", mine):
            return False
        named = self.members.incarnations.get(self._config.node, mine)
        return self.counts() or (named == mine == request.incarnation != "")

    def may_campaign(self) -> bool:
        """Whether this replica may campaign: as a voter, or as one whose removal is not committed,
        because that entry may need this candidate (dissertation §4.2.2)."""
        if self.policy.controller_elects and not self.policy.may_campaign():
            return False
        return self.steady or (self.resting_role() is Role.FOLLOWER and self.counts())
