"""Decisions about dead letters, against the state as of the log's end: who has used up its attempts, and which message is given up.

A dead letter goes into the batch of the turn together with everything else that is decided, before the leases of those behind it. The
dead-letter topic of a consumer group comes into force by a topic record in the same batch when the log does not have it yet.
"""

from __future__ import annotations

from ledgermq.node.broker.calls.consumer_calls import Forward, Forwarded
from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.decisions.picker import Pick, Picked
from ledgermq.node.broker.decisions.plan import Plan
from ledgermq.node.broker.decisions.polls import Pair
from ledgermq.node.broker.decisions.uncommitted import UncommittedState, group_name, reset_name, topic_name
from ledgermq.node.broker.state import dead_letters
from ledgermq.node.broker.state.delivery import QueueKey
from ledgermq.node.broker.state.machine import Machine
from ledgermq.proto import control
from ledgermq.proto.names import base_group


class DeadLettering:
    """The one writer's rules about dead letters. Keeps nothing."""

    def __init__(self, machine: Machine, uncommitted: UncommittedState, entry_bytes_max: int, max_attempts: int) -> None:
        self._machine = machine
        self._uncommitted = uncommitted
        self._entry_bytes_max = entry_bytes_max
        self._default_attempts = max_attempts

    def max_attempts(self, group: str) -> int:
        """How often the group wants a message delivered at most."""
        config = self._machine.groups.get(base_group(group))
        return self._default_attempts if config is None else config.max_attempts

    def forward(self, plan: Plan, call: Forward) -> None:
        """A consumer gives a message up. An expired lease is good enough: nobody else has the message."""
        handle = call.handle
        key = (handle.group, handle.topic, handle.queue)
        names = [topic_name(handle.topic), group_name(handle.group), reset_name(key)]
        pending = self._uncommitted.pending(key, handle.queue_offset) is not None
        if pending or any(self._uncommitted.configuring(name) is not None for name in names):
            plan.deferred.append(call)
            return
        lease = self._machine.delivery.lease(key, handle.queue_offset)
        if lease is None:
            plan.done.append(Done(call.token, Forwarded(True)))
        elif lease != handle.lease_number:
            plan.count("handles_refused")
            plan.done.append(Done(call.token, Forwarded(False)))
        elif plan.full:
            plan.refuse(call.token, "disk-full")
        elif self.bury(plan, key, handle.queue_offset, lease):
            plan.awaited.append((plan.next_index - 1, call.token, Forwarded(True)))
        else:
            plan.refuse(call.token, "too-large", "the message and where it came from")

    def give_up(self, plan: Plan, pair: Pair, pick: Pick) -> None:
        """Make dead letters of the messages that used up their attempts. One whose copy fits no log file is delivered once more instead:
        it must not be lost, and those behind it must not come first."""
        kept: list[Picked] = []
        for queue, offset in pick.dead:
            row = self._machine.delivery.row((*pair, queue), offset)
            assert row is not None, "only a message in flight was delivered before"
            if not self.bury(plan, (*pair, queue), offset, row.lease):
                positions, sizes, _ = self._machine.units(pair[1], queue, offset, 1)
                kept.append(Picked(queue, offset, row.attempt + 1, self._machine.record(int(positions[0]), int(sizes[0]))))
        pick.messages[:0] = kept

    def bury(self, plan: Plan, key: QueueKey, offset: int, lease: int) -> bool:
        """Append the dead letter of a message in flight; False if it fits no log file."""
        letter = dead_letters.copy(self._machine, key, offset, lease, self._entry_bytes_max)
        if letter is None:
            return False
        stored = letter.stored_topic
        if stored not in self._machine.topics and self._uncommitted.configuring(topic_name(stored)) is None:
            self._uncommitted.mark_name(plan.next_index, topic_name(stored))
            plan.drafts.append(control.draft(control.TopicRecord(dead_letters.topic_config(stored)), plan.now_ms))
        self._uncommitted.mark_row(plan.next_index, key, offset)
        plan.drafts.append(letter)
        plan.size += len(letter.body)
        plan.count("dead_lettered")
        return True
