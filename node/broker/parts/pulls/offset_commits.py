"""The leader's rules for offsets that consumer groups commit."""

from __future__ import annotations

from typing import ClassVar

from ledgermq.node.broker.calls.read_calls import CommitOffset, OffsetCommitted
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.plan import Plan
from ledgermq.node.broker.queues import Places
from ledgermq.node.broker.uncommitted import UncommittedState, group_name, reset_name, topic_name
from ledgermq.proto.records import control


class OffsetCommits(LeaderPart):
    """Committed offsets of one broker group. Stateless."""

    def __init__(self, places: Places, uncommitted: UncommittedState) -> None:
        self._places = places
        self._uncommitted = uncommitted

    def decide(self, plan: Plan, call: CommitOffset) -> None:
        """A consumer has pulled only applied messages, so the applied end bounds the offsets that
        it can commit. The offsets of a turn share one record; an offset that comes after a reset
        must wait for the next turn's record."""
        key = (call.group, call.topic, call.queue)
        if not 0 <= call.queue < self._places.queues_of(call.topic):
            plan.refuse(call.token, "unknown-topic", f"queue {call.queue} of topic {call.topic}")
        elif not 0 <= call.offset <= (end := self._places.end(call.topic, call.queue)):
            plan.refuse(
                call.token,
                "illegal-offset",
                f"queue {call.queue} of topic {call.topic} ends at offset {end}, not {call.offset}",
            )
        elif any(
            self._uncommitted.configuring(n) is not None
            for n in (topic_name(call.topic), group_name(call.group), reset_name(key))
        ):
            plan.deferred.append(call)
        else:
            plan.rows += 1
            # Of several commits in one turn the last one counts, in its place.
            plan.offsets.pop(key, None)
            plan.offsets[key] = call.offset
            plan.awaited.append((plan.shared_index(_offset_record), call.token, OffsetCommitted()))
            plan.count("offsets_committed")

    CALLS: ClassVar[Takers] = {CommitOffset: decide}


def _offset_record(plan: Plan) -> control.OffsetRecord:
    return control.OffsetRecord(tuple([(*key, offset) for key, offset in plan.offsets.items()]))
