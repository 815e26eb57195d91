"""Decisions about dead letters, against the state as of the log's end: which messages have used up
their attempts and are given up, and which dead letters are settled.

A dead letter is appended in the batch of the turn, before the leases of the messages behind it. If
the consumer group's dead-letter topic does not exist in the log yet, a topic record in the same
batch creates it.
"""

from __future__ import annotations

from typing import ClassVar

from ledgermq.node.broker.calls.consumer_calls import Forward, Forwarded
from ledgermq.node.broker.calls.operator_calls import LETTERS_MAX, LettersSettled, SettleLetters
from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.parts.dead_letters import dead_letters
from ledgermq.node.broker.parts.dead_letters.letters import RANGES_MAX
from ledgermq.node.broker.parts.delivery.tier_messages import TierMessages
from ledgermq.node.broker.plan import Leased, Plan
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.broker.uncommitted import (
    RETAINED,
    UncommittedState,
    group_name,
    letters_name,
    reset_name,
    topic_name,
)
from ledgermq.proto.names import base_group, is_dead_letter_topic
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft


class DeadLettering(LeaderPart):
    """The leader's rules about dead letters. Stateless."""

    def __init__(
        self,
        machine: Machine,
        messages: TierMessages,
        uncommitted: UncommittedState,
        entry_bytes_max: int,
        max_attempts: int,
    ) -> None:
        self._machine = machine
        self._messages = messages
        self._uncommitted = uncommitted
        self._entry_bytes_max = entry_bytes_max
        self._default_attempts = max_attempts

    def max_attempts(self, group: str) -> int:
        """How often a message is delivered to the group at most."""
        config = self._machine.groups.get(base_group(group))
        return self._default_attempts if config is None else config.max_attempts

    def forward(self, plan: Plan, call: Forward) -> None:
        """A consumer gives a message up. Its lease may have expired, because no other consumer has
        the message. A message that is not at hand is fetched first; if that fails, the call is
        refused. Of a message that no longer exists there can be no copy, and of a letter of this
        very group there is none."""
        handle = call.handle
        key = (handle.group, handle.topic, handle.queue)
        names = [topic_name(handle.topic), group_name(handle.group), reset_name(key)]
        pending = self._uncommitted.pending(key, handle.queue_offset) is not None
        if pending or any(self._uncommitted.configuring(name) is not None for name in names):
            plan.deferred.append(call)
            return
        lease = self._machine.delivery.lease(key, handle.queue_offset)
        if lease is None:
            plan.assured.append(Done(call.token, Forwarded(True)))
        elif lease != handle.lease_number:
            plan.count("handles_refused")
            plan.assured.append(Done(call.token, Forwarded(False)))
        elif dead_letters.is_own(handle.group, handle.topic):
            self._end(plan, key, handle.queue_offset)
            plan.awaited.append((plan.next_index - 1, call.token, Forwarded(True)))
        elif plan.full:
            plan.refuse(call.token, "disk-full")
        elif (
            self._messages.at_hand(handle.topic, handle.queue, handle.queue_offset)
            == handle.queue_offset
        ):
            if (
                self._messages.gone_to(handle.topic, handle.queue, handle.queue_offset)
                > handle.queue_offset
            ):
                plan.assured.append(Done(call.token, Forwarded(False)))
            elif why := self._messages.paused(key):
                # It must not wait for as long as the store is away: its caller asks again, and
                # every try would wait beside the others.
                plan.refuse(call.token, "store-away", why)
            else:
                self._messages.want(key, handle.queue_offset)
                plan.deferred.append(call)
        elif (letter := self.letter(key, handle.queue_offset, lease)) is not None:
            self.bury(plan, key, handle.queue_offset, letter)
            plan.awaited.append((plan.next_index - 1, call.token, Forwarded(True)))
        else:
            plan.refuse(call.token, "too-large", "the message with its origin properties")

    def is_own(self, group: str, topic: str) -> bool:
        """As `dead_letters.is_own`."""
        return dead_letters.is_own(group, topic)

    def letter(self, key: QueueKey, offset: int, lease: int) -> Draft | None:
        """The dead letter of a message in flight under this lease; None if it fits no log file."""
        return dead_letters.copy(self._messages, key, offset, lease, self._entry_bytes_max)

    def bury(self, plan: Plan, key: QueueKey, offset: int, letter: Draft) -> None:
        """Append the dead letter of a message in flight."""
        stored = letter.stored_topic
        if (
            stored not in self._machine.topics
            and self._uncommitted.configuring(topic_name(stored)) is None
        ):
            self._uncommitted.mark_name(plan.next_index, topic_name(stored))
            plan.drafts.append(
                control.draft(control.TopicRecord(dead_letters.topic_config(stored)), plan.now_ms)
            )
        self._uncommitted.mark_row(plan.next_index, key, offset)
        plan.drafts.append(letter)
        plan.size += len(letter.body)
        plan.count("dead_lettered")
        plan.traffic.append(Leased(key[0], key[1], dead=1))

    def _end(self, plan: Plan, key: QueueKey, offset: int) -> None:
        """A group gives up its own dead letter, which stays where it lies: it is passed over, as if
        it had used up its attempts."""
        self._uncommitted.mark_row(plan.next_index, key, offset)
        record = control.LeaseRecord(key[0], key[1], "", 0, passed_again=((key[2], (offset,)),))
        plan.drafts.append(control.draft(record, plan.now_ms))
        plan.rows += 1
        plan.count("letters_ended")

    def settle(self, plan: Plan, call: SettleLetters) -> None:
        """Settle dead letters by one record. What it rests on may not be pending: other settlements
        of the topic, and resets, configurations and trims that could take the place of an original
        away."""
        topic = call.topic
        if topic not in self._machine.topics or not is_dead_letter_topic(topic):
            plan.refuse(
                call.token,
                "unknown-topic",
                f"{topic} is not a dead-letter topic of this broker group",
            )
            return
        if len(call.offsets) > LETTERS_MAX:
            plan.refuse(
                call.token,
                "too-many-letters",
                f"{len(call.offsets)} dead letters in one call; the limit is {LETTERS_MAX}",
            )
            return
        if any(
            self._uncommitted.configuring(name) is not None
            for name in (RETAINED, topic_name(topic), letters_name(topic))
        ):
            plan.deferred.append(call)
            return
        states: dict[int, str] = {}
        chosen: dict[int, tuple[QueueKey, int] | None] = {}
        for offset in call.offsets:
            states[offset] = dead_letters.state_of(self._machine, topic, offset)
            if states[offset] == dead_letters.WAITING or (
                states[offset] == dead_letters.ORPHANED and call.how == control.PURGED
            ):
                chosen[offset] = (
                    dead_letters.origin_of(self._machine, topic, offset)
                    if call.how == control.RESENT
                    else None
                )
        places = [place for place in chosen.values() if place is not None]
        if any(self._is_pending(key, offset) for key, offset in places):
            plan.deferred.append(call)
            return
        if self._machine.letters.count + len(chosen) > RANGES_MAX:
            plan.refuse(
                call.token,
                "too-many-letters",
                f"this broker group has {RANGES_MAX} separate ranges of settled dead letters",
            )
            return
        result = LettersSettled(
            tuple([call.how if offset in chosen else states[offset] for offset in call.offsets])
        )
        if not chosen:
            plan.assured.append(Done(call.token, result))
            return
        index = plan.next_index
        record = control.LettersRecord(
            topic,
            call.how,
            tuple(chosen),
            tuple([(*key, original) for key, original in places]),
            call.user,
        )
        plan.drafts.append(control.draft(record, plan.now_ms))
        self._uncommitted.mark_name(index, letters_name(topic))
        # Two letters may be of one message, which a reset group gave up twice.
        for key, offset in dict.fromkeys(places):
            if self._machine.delivery.is_done(key, offset):
                self._uncommitted.mark_row(index, key, offset)
        plan.rows += len(chosen)
        plan.awaited.append((index, call.token, result))
        plan.count(f"letters_{call.how}", len(chosen))

    def _is_pending(self, key: QueueKey, offset: int) -> bool:
        """Whether an entry that is not applied yet may change the row of a message, or take its
        place away."""
        names = (
            topic_name(key[1]),
            group_name(base_group(key[0])),
            group_name(key[0]),
            reset_name(key),
        )
        return self._uncommitted.pending(key, offset) is not None or any(
            self._uncommitted.configuring(n) is not None for n in names
        )

    CALLS: ClassVar[Takers] = {Forward: forward, SettleLetters: settle}
