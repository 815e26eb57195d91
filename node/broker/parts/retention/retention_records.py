"""The leader's rules for the records about the log itself: seals, trims, and markers of audits."""

from __future__ import annotations

from typing import ClassVar

from ledgermq.node.broker.calls.operator_calls import Kept, Mark, Marked, Seal, Trim
from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.plan import Plan
from ledgermq.node.broker.uncommitted import RETAINED, UncommittedState
from ledgermq.proto.records import control


class RetentionRecords(LeaderPart):
    """Seals and trims of one broker group, one at a time. Stateless."""

    def __init__(self, machine: Machine, uncommitted: UncommittedState) -> None:
        self._machine = machine
        self._uncommitted = uncommitted

    def retain(self, plan: Plan, call: Seal | Trim) -> None:
        """A seal or a trim that changes nothing is answered at once; one that follows an unapplied
        one waits for it."""
        retained = self._machine.retained
        if self._uncommitted.configuring(RETAINED) is not None:
            plan.deferred.append(call)
        elif (
            retained.sealing(call.record)
            if isinstance(call, Seal)
            else retained.trimming(call.record)
        ):
            index = plan.next_index
            plan.drafts.append(control.draft(call.record, plan.now_ms, self._machine.level))
            self._uncommitted.mark_name(index, RETAINED)
            plan.awaited.append((index, call.token, Kept()))
        else:
            plan.done.append(Done(call.token, Kept()))

    def mark(self, plan: Plan, call: Mark) -> None:
        plan.awaited.append((plan.next_index, call.token, Marked(plan.next_index)))
        plan.drafts.append(control.draft(call.record, plan.now_ms))

    CALLS: ClassVar[Takers] = {Seal: retain, Trim: retain, Mark: mark}
