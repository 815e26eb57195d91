"""The records that a leader appends for its members: changes of them, raises of the feature level,
time epochs, and early ends of log files, one entry each."""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.member_calls import (
    BeginTimeEpoch,
    MembersChanged,
    RaiseLevel,
    TimeEpochBegun,
)
from ledgermq.node.broker.calls.operator_calls import EndFile, Kept
from ledgermq.node.broker.calls.outcome import Done, Refused, Result
from ledgermq.node.broker.leader_log import LeaderLog
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.members.memberships import MemberRequest, Memberships
from ledgermq.node.broker.ports import Replicator
from ledgermq.node.broker.turn import Turn
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.levels import EARLY_END_LEVEL, MINIMUM_LEVEL, TIME_EPOCH_LEVEL
from ledgermq.proto.records import control
from ledgermq.proto.records.time_epochs import AHEAD_MS
from ledgermq.raft.membership import Change


class MemberRecords:
    """The due records of one replica while it leads. Used only by the group's turns."""

    def __init__(
        self,
        group: str,
        node: str,
        replicator: Replicator,
        machine: Machine,
        memberships: Memberships,
        log: LeaderLog,
        await_entry: Callable[[int, Token, Result | Refused], None],
    ) -> None:
        """`await_entry`: as `Leader.await_entry`."""
        self._group = group
        self._node = node
        self._replicator = replicator
        self._machine = machine
        self._memberships = memberships
        self._log = log
        self._await_entry = await_entry
        self._level_index = -1
        """The last level record that this replica appended since it leads."""
        self.time_epoch_index = -1
        """The last time-epoch record that it appended since then; and what the record says."""
        self._time_epoch = TimeEpochBegun(0, 0)

    def resign(self) -> None:
        self._level_index = self.time_epoch_index = -1

    def append(self, turn: Turn, *, serving: bool, full: bool) -> bool:
        """Append the due records, one entry each; True if one was appended. `full`: clients'
        messages are refused for want of room."""
        appended = False
        while (serving or self._memberships.master_begins) and not (turn.full or turn.stalled):
            request = self._memberships.due(turn.now_ns)
            if request is None:
                break
            if isinstance(request, RaiseLevel):
                appended |= self._raise_level(turn, request)
                continue
            if isinstance(request, BeginTimeEpoch):
                appended |= self._begin_time_epoch(turn, request)
                continue
            if isinstance(request, EndFile):
                appended |= self._end_file(turn, request, full=full)
                continue
            outcome = self._objection_to(request) or self._log.append_members(turn, request.change)
            if outcome is not None:
                turn.done += self._memberships.refused(request, outcome)
                continue
            appended = True
            if request.token is not None:
                members = self._memberships.in_force()
                self._await_entry(members.index, request.token, MembersChanged(members))
        return appended

    def _objection_to(self, request: MemberRequest) -> str | None:
        """Why the group's feature level forbids a change."""
        change, level = request.change, self._level_at_end
        if request.level_max is not None and request.level_max < level:
            why = (
                f"the group has feature level {level}, and {change.node} reads up to"
                f" {request.level_max}"
            )
            return f"{why}: upgrade {change.node} first"
        if change.kind is Change.MINIMUM and level < MINIMUM_LEVEL:
            why = (
                f"a log records min_in_sync from feature level {MINIMUM_LEVEL} on, and the group"
                f" has level {level}"
            )
            return (
                f"{why} (ledgermq upgrade finish); until then set min_in_sync in the files of the"
                " nodes, and restart the master"
            )
        return None

    @property
    def _level_at_end(self) -> int:
        """The feature level behind the last entry of a serving leader's log: it has applied all
        entries of earlier terms, so only its own record can be pending. Of one that does not serve
        yet, a level that is certainly in force."""
        return self._machine.level + (self._level_index > self._machine.applied_index)

    def _raise_level(self, turn: Turn, call: RaiseLevel) -> bool:
        """Append a level record, unless it is appended already; True if this call appended it."""
        level, wanted = self._level_at_end, call.record.level
        if wanted <= self._machine.level:
            turn.done.append(Done(call.token, Kept()))
            return False
        if wanted <= level:
            self._await_entry(self._level_index, call.token, Kept())
            return False
        objection = self._memberships.objection_to(call, level)
        if objection:
            turn.done.append(Done(call.token, Refused("members-not-yet", detail=objection)))
            return False
        index = self._replicator.end_index + 1
        if not self._log.append(turn, [call.record]):
            reason = "disk-full" if self._replicator.accepting else "not-leader"
            turn.done.append(Done(call.token, Refused(reason, self._replicator.leader)))
            return False
        self._level_index = index
        self._await_entry(index, call.token, Kept())
        return True

    def _begin_time_epoch(self, turn: Turn, call: BeginTimeEpoch) -> bool:
        """Append a time-epoch record, unless one is appended already; True if this call appended
        it."""
        if self.time_epoch_index > self._machine.applied_index:
            self._await_entry(self.time_epoch_index, call.token, self._time_epoch)
            return False
        before_ms = self._log.sequencer.store_ms
        why = self._why_no_time_epoch(before_ms, turn.now_ms)
        if why:
            turn.done.append(Done(call.token, Refused("time-epoch-refused", detail=why)))
            return False
        index, level = self._replicator.end_index + 1, self._level_at_end
        batch = encode_entries(
            [control.draft(control.TimeEpochRecord(before_ms, call.user), turn.now_ms, level)]
        )
        if self._log.append_batch(turn, batch, control_only=True, time_epoch=True) is None:
            reason = "disk-full" if self._replicator.accepting else "not-leader"
            turn.done.append(Done(call.token, Refused(reason, self._replicator.leader)))
            return False
        self.time_epoch_index, self._time_epoch = index, TimeEpochBegun(before_ms, turn.now_ms)
        self._await_entry(index, call.token, self._time_epoch)
        return True

    def _why_no_time_epoch(self, before_ms: int, now_ms: int) -> str:
        """Why no time epoch may begin now; "" if one may."""
        if self._level_at_end < TIME_EPOCH_LEVEL:
            what = (
                f"broker group {self._group} has feature level {self._level_at_end}, and time"
                f" epochs need level {TIME_EPOCH_LEVEL}"
            )
            return f"{what}: run `ledgermq upgrade finish` when all nodes run this version"
        if before_ms - now_ms <= AHEAD_MS:
            ahead = (
                f"{(before_ms - now_ms) / 1000:.0f} s ahead of"
                if before_ms > now_ms
                else "not ahead of"
            )
            what = (
                f"the newest store time of broker group {self._group} is {ahead} the clock of its"
                f" leader {self._node}"
            )
            return f"{what}; an epoch is for more than {AHEAD_MS // 1000} s"
        if self._machine.timers.former is not None:
            return (
                f"broker group {self._group} still moves delayed messages of before its last time"
                " epoch; try again later"
            )
        return ""

    def _end_file(self, turn: Turn, call: EndFile, *, full: bool) -> bool:
        """Begin a new log file behind an entry, unless one has begun; True if this call appended
        the marker with which it begins."""
        refused = self._why_no_end(call, full=full)
        if refused is None and not self._replicator.is_in_last_file(call.index):
            turn.done.append(Done(call.token, Kept()))
            return False
        if refused is None and not self._replicator.prepare_file():
            refused = Refused("seal-not-yet", detail="the next log file is being made; ask again")
        index = self._replicator.end_index + 1
        if refused is None:
            batch = encode_entries(
                [control.draft(control.AuditRecord(call.user or "seal"), turn.now_ms)]
            )
            if self._log.append_batch(turn, batch, control_only=True, new_file=True) is None:
                refused = Refused(
                    "disk-full" if self._replicator.accepting else "not-leader",
                    self._replicator.leader,
                )
        if refused is not None:
            turn.done.append(Done(call.token, refused))
            return False
        self._await_entry(index, call.token, Kept())
        return True

    def _why_no_end(self, call: EndFile, *, full: bool) -> Refused | None:
        """Why the file with an entry cannot end now, whatever file is being written; None if it
        can."""
        if self._level_at_end < EARLY_END_LEVEL:
            what = (
                f"broker group {self._group} has feature level {self._level_at_end}, and a file"
                " that is not full is sealed from level"
            )
            why = (
                f"{what} {EARLY_END_LEVEL} on: run `ledgermq upgrade finish` when all nodes run"
                " this version"
            )
            return Refused("seal-refused", detail=why)
        if not 0 <= call.index <= self._machine.applied_index:
            return Refused(
                "seal-refused", detail=f"broker group {self._group} has no entry {call.index}"
            )
        # It costs the rest of a file.
        return Refused("disk-full") if full else None
