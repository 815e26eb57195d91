"""Changes of the members of a broker group: those that operators request, and those that a leader
makes for a node that lost its directory; raises of its feature level, which depend on the members;
and requests for a time epoch or the early end of a log file, which also become one record each.

The Raft core decides what is allowed and appends it (`raft/membership.py`); this module keeps the
requests and answers the callers. A node that comes back with another, empty directory becomes a
learner with that directory, and a voter again once it has caught up. The leader retries this until
it succeeds, and keeps the core's objections for operators to read. Changes are made one record at a
time, and answered when the record is committed. The master of an HA group takes back a node, and
takes another minimum of replicas in sync, before it serves: it may be unable to commit anything
without them.

A level record and the membership records before it agree: every member, as of the end of the log,
has told that it reads the level, and a node that joins behind the record reads it (invariants 3 and
4 of docs/decisions/2026-11-23-negotiated-versions.md). Both kinds of requests therefore take one
queue, and both checks look at the end of the log: uncommitted records count, because whatever is
appended behind them takes effect only if they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.member_calls import (
    Appointed,
    BeginTimeEpoch,
    ChangeMembers,
    GroupMembers,
    MembersChanged,
    RaiseLevel,
    Returned,
)
from ledgermq.node.broker.calls.operator_calls import EndFile, Kept
from ledgermq.node.broker.calls.outcome import Done, Refused
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import Takers
from ledgermq.node.broker.parts.members.member_forms import from_raft
from ledgermq.node.broker.ports import Replicator
from ledgermq.raft.config import Rule
from ledgermq.raft.membership import Change, MemberChange, NotYet

AGAIN_NS = 100_000_000
"""Interval between attempts of a change that the leader has to make by itself."""
_LOST = "came back with another, empty directory"


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """A change that is due. With a token, a caller waits for its outcome."""

    change: MemberChange
    token: Token | None = None
    level_max: int | None = None
    """Of a node that is to be added."""


Request = MemberRequest | RaiseLevel | BeginTimeEpoch | EndFile


class Memberships:
    """Pending member changes of one replica. Used only by the group's turns."""

    def __init__(self, replicator: Replicator, machine: Machine) -> None:
        self._replicator = replicator
        self._machine = machine
        self.term_begun = False
        """Whether this replica leads and its term-start record is in its log."""
        self.asked: list[Request] = []
        self.owed: list[MemberRequest] = []
        self.returned: dict[str, str] = {}
        """Node → the directory with which it came back; bounded by the number of nodes."""
        self.due_ns = 0
        """When `due` has something to do next."""
        self.objections: dict[str, str] = {}
        """Node that came back → why it has not regained its former place, for people."""

    @property
    def master_begins(self) -> bool:
        """Whether this is a master that need not serve yet to change members; the core says which
        changes."""
        return self.term_begun and self._replicator.members.rule is Rule.IN_SYNC

    def take(self, call: ChangeMembers, now_ns: int, *, serving: bool) -> list[Done]:
        """Accept a change. Returns the answers that need no record. A master takes another minimum
        before it serves."""
        members = self._machine.members
        serving = serving or (call.kind == "minimum" and self.master_begins)
        if not serving or members is None:
            return [Done(call.token, Refused("not-leader", self._replicator.leader))]
        if self._is_so(call, members):
            return [Done(call.token, MembersChanged(members))]
        if call.kind == "add" and not call.incarnation:
            why = (
                f"the directory of {call.node} is not known yet; start the node first, then try"
                " again"
            )
            return [Done(call.token, Refused("members-refused", detail=why))]
        change = MemberChange(
            kind=Change(call.kind),
            node=call.node,
            incarnation=call.incarnation or "",
            reason=call.reason,
            rule=Rule(call.rule) if call.kind == "rule" else Rule.MAJORITY,
            observer=call.observer,
            minimum=call.minimum,
        )
        self.asked.append(MemberRequest(change, call.token, call.level_max))
        return []

    def take_level(self, call: RaiseLevel, now_ns: int, *, serving: bool) -> list[Done]:
        """Accept a raise. Returns the answers that need no record."""
        if not serving:
            return [Done(call.token, Refused("not-leader", self._replicator.leader))]
        if call.record.level <= self._machine.level:
            return [Done(call.token, Kept())]
        self.asked.append(call)
        return []

    def take_record(
        self, call: BeginTimeEpoch | EndFile, now_ns: int, *, serving: bool
    ) -> list[Done]:
        """Accept a request for a time epoch or the end of a file. Returns the answer that needs no
        record."""
        if not serving:
            return [Done(call.token, Refused("not-leader", self._replicator.leader))]
        self.asked.append(call)
        return []

    def objection_to(self, call: RaiseLevel, level: int) -> str:
        """Why the record cannot be appended now, with `level` at the end of the log; "" if it
        can."""
        unasked = sorted(set(self._replicator.members.nodes) - call.asked)
        if unasked:
            return (
                f"{', '.join(unasked)} became a member meanwhile and was not asked for the level"
                " that it reads"
            )
        if call.record.level != level + 1:
            return f"the level is {level}, and levels are raised one by one"
        return ""

    def _is_so(self, call: ChangeMembers, members: GroupMembers) -> bool:
        """Whether the requested state is already in force and committed, so that a caller who
        repeats a request after a lost answer gets OK."""
        if self._replicator.members_index > members.index:
            return False
        if call.kind == "rule":
            return call.rule in (members.rule, members.towards)
        if call.kind == "minimum":
            return call.minimum == members.minimum
        same = call.incarnation in (None, members.incarnations.get(call.node))
        if call.kind == "add":
            same = call.incarnation == members.incarnations.get(call.node)
            return (
                call.node in members.learners
                and same
                and call.observer == (call.node in members.observers)
            )
        if call.kind == "promote":
            return call.node in members.voters and same
        return call.kind == "demote" and call.node in members.learners - members.returning and same

    def take_returned(self, call: Returned, now_ns: int, *, serving: bool) -> list[Done]:
        """Remember a node that came back, on every replica: the next leader needs it too."""
        self.returned[call.node] = call.incarnation
        return []

    def take_appointment(self, call: Appointed, now_ns: int, *, serving: bool) -> list[Done]:
        self._replicator.appointed(now_ns, call.appointment)
        return []

    ARRIVALS: ClassVar[Takers] = {
        ChangeMembers: take,
        RaiseLevel: take_level,
        BeginTimeEpoch: take_record,
        EndFile: take_record,
        Returned: take_returned,
        Appointed: take_appointment,
    }

    def due(self, now_ns: int) -> Request | None:
        """The next change to try, on a leader that serves or that is a master; None if there is
        none now. Requested changes are tried once, the leader's own ones repeatedly."""
        if self.asked:
            return self.asked.pop(0)
        if not self.owed and now_ns >= self.due_ns:
            self.due_ns = now_ns + AGAIN_NS
            self._look(now_ns)
        return self.owed.pop(0) if self.owed else None

    def _look(self, now_ns: int) -> None:
        """Collects the changes that the leader has to make. A node is forgotten once the group has
        committed its new directory, because an uncommitted record may still be lost."""
        members, replicator = self._replicator.members, self._replicator
        pending = replicator.members_index > replicator.commit_index
        if pending and members.rule is not Rule.IN_SYNC:
            return
        named = {
            node
            for node, new in self.returned.items()
            if node not in members.nodes or members.incarnations.get(node) == new
        }
        if not pending:
            self.returned = {node: new for node, new in self.returned.items() if node not in named}
        owed = {node: new for node, new in self.returned.items() if node not in named}
        self.objections = {node: why for node, why in self.objections.items() if node in owed}
        self.owed = [
            MemberRequest(MemberChange(Change.RETURN, node, incarnation, _LOST))
            for node, incarnation in owed.items()
        ]
        promotion = self._replicator.due_change(now_ns)
        if promotion is not None:
            self.owed.append(MemberRequest(promotion))

    def refused(self, request: MemberRequest, why: str) -> list[Done]:
        """The core refused to append the change."""
        if request.token is not None:
            reason = "members-not-yet" if isinstance(why, NotYet) else "members-refused"
            return [Done(request.token, Refused(reason, self._replicator.leader, why))]
        self.objections[request.change.node] = why
        return []

    def in_force(self) -> GroupMembers:
        """The members as of the log's end."""
        return from_raft(self._replicator.members_index, self._replicator.members)

    def resign(self) -> list[Done]:
        """Leadership is lost. None of the pending changes was appended."""
        self.term_begun = False
        asked, self.asked = self.asked, []
        self.owed.clear()
        self.objections = {}
        return [
            Done(request.token, Refused("not-leader", self._replicator.leader))
            for request in asked
            if request.token is not None
        ]
