"""The leader's rules for sends: which messages are stored, and how durable they are before they are
acknowledged."""

from __future__ import annotations

from typing import ClassVar

from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.flush import Durability, FlushPolicy, durability_of, strongest
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.parts.lite.lite_serving import LiteServer
from ledgermq.node.broker.parts.sends.deduplication import mark_ids, without_duplicates
from ledgermq.node.broker.parts.timers.timer_firing import STORED_BYTES, TimerFiring
from ledgermq.node.broker.plan import Plan
from ledgermq.node.broker.uncommitted import RETAINED, UncommittedState, topic_name
from ledgermq.proto.entries.entry_encoding import entry_bytes
from ledgermq.proto.entries.properties import PROPERTIES_MAX
from ledgermq.proto.names import LITE_SEPARATOR, parent_of
from ledgermq.proto.types import Draft, TopicConfig, TopicDurability

_BARE_ENTRY_BYTES = entry_bytes("", 0, 0) + 1
"""The length of an entry without topic, body and properties; a long topic takes one byte more."""


class SendAdmission(LeaderPart):
    """Sends of one broker group."""

    def __init__(
        self,
        machine: Machine,
        uncommitted: UncommittedState,
        timer_firing: TimerFiring,
        lite: LiteServer,
        entry_bytes_max: int,
        policy: FlushPolicy,
    ) -> None:
        self._machine = machine
        self._uncommitted = uncommitted
        self._timer_firing = timer_firing
        self._lite = lite
        self._entry_bytes_max = entry_bytes_max
        self._policy = policy
        self._classes: dict[tuple[TopicDurability, int, bool], Durability] = {}
        """Durability of the topic, priority, whether the master acknowledges alone → the class of
        such a message. Priorities are few."""

    def decide(self, plan: Plan, call: Produce) -> None:
        """The fast path for nearly every send: one message without special requirements, while no
        configuration is pending. The full path would accept the same calls, with the same
        effect."""
        if len(call.drafts) != 1 or plan.full or self._uncommitted.names:
            return self._produce(plan, call)
        draft = call.drafts[0]
        name = draft.stored_topic
        topic = self._machine.topics.get(name)
        if (
            topic is None
            or topic.dedup_ms
            or draft.deliver_ms
            or not 0 <= draft.queue < topic.queues
        ):
            return self._produce(plan, call)
        body, properties = len(draft.body), len(draft.properties)
        # A character has at most four bytes, so this is at least the size of the entry.
        large = _BARE_ENTRY_BYTES + 4 * len(name) + body + properties > self._entry_bytes_max
        if (
            large and entry_bytes(name, body, properties) > self._entry_bytes_max
        ) or properties > PROPERTIES_MAX:
            return self._produce(plan, call)
        kind = topic.durability, draft.priority, plan.alone
        durability = self._classes.get(kind)
        if durability is None:
            durability = self._classes[kind] = self._durability_of(topic, draft, plan)
        plan.memory_drafts += durability is Durability.MEMORY
        plan.produced.append((call, len(plan.drafts), durability))
        plan.drafts.append(draft)
        plan.size += body
        plan.counts["produced"] = plan.counts.get("produced", 0) + 1
        return None

    def _produce(self, plan: Plan, call: Produce) -> None:
        if plan.full:
            plan.refuse(call.token, "disk-full")
            return
        for draft in call.drafts:
            if not 0 <= draft.queue < self._machine.queues_of(draft.stored_topic):
                plan.refuse(
                    call.token,
                    "unknown-topic",
                    f"queue {draft.queue} of topic {draft.stored_topic}",
                )
                return
            size = entry_bytes(draft.stored_topic, len(draft.body), len(draft.properties))
            room = STORED_BYTES if draft.deliver_ms else 0
            if size + room > self._entry_bytes_max or len(draft.properties) + room > PROPERTIES_MAX:
                plan.refuse(call.token, "too-large", f"an entry of {size} bytes")
                return
        if any(
            self._uncommitted.configuring(topic_name(topic)) is not None
            for topic in {draft.stored_topic for draft in call.drafts}
        ):
            plan.deferred.append(call)
            return
        if not call.drafts:
            plan.refuse(call.token, "unknown-topic", "the call has no message")
            return
        if any(LITE_SEPARATOR in draft.stored_topic for draft in call.drafts):
            if self._uncommitted.configuring(RETAINED) is not None:
                # A trim removes lite topics without messages, which then begin at another offset.
                plan.deferred.append(call)
                return
            crowded = self._lite.crowded(plan, call)
            if crowded is not None:
                plan.refuse(call.token, "lite-topics", crowded)
                return
        topics = self._machine.topics
        names: tuple[str, ...] = ()
        if any(topics[parent_of(draft.stored_topic)].dedup_ms for draft in call.drafts):
            rest = without_duplicates(plan, call, self._machine, self._uncommitted)
            if rest is None:
                return
            call, names = rest  # type: ignore[assignment]  # of the kind it was
        durability = strongest(
            self._durability_of(topics[parent_of(d.stored_topic)], d, plan) for d in call.drafts
        )
        # The watermark may have to be raised first, by a record of its own.
        drafts = [
            self._timer_firing.stored(plan, draft) if draft.deliver_ms else draft
            for draft in call.drafts
        ]
        if names:
            # An id counts as stored only when it is durable, so the first send and its repetitions
            # are answered as durable.
            durability = Durability.DURABLE
            mark_ids(plan, self._uncommitted, names)
        plan.produced.append((call, len(plan.drafts), durability))
        if durability is Durability.MEMORY:
            plan.memory_drafts += len(call.drafts)
        plan.drafts.extend(drafts)
        plan.size += sum(len(draft.body) for draft in call.drafts)
        plan.count("produced", len(call.drafts))

    def _durability_of(self, topic: TopicConfig, draft: Draft, plan: Plan) -> Durability:
        return durability_of(self._policy, topic.durability, draft.priority, alone=plan.alone)

    CALLS: ClassVar[Takers] = {Produce: decide}
