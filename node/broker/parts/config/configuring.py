"""The leader's rules for configuration: topics and consumer groups take effect by control records,
and what is in force is not repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.plan import Plan
from ledgermq.node.broker.queues import Places
from ledgermq.node.broker.uncommitted import UncommittedState, group_name, topic_name
from ledgermq.proto.names import stored_name
from ledgermq.proto.records import control


class Configuring(LeaderPart):
    """Configuration of one broker group. Stateless."""

    def __init__(
        self, places: Places, uncommitted: UncommittedState, wake_group: Callable[[str], None]
    ) -> None:
        """`wake_group(group)`: the Receives of this consumer group are to be examined again."""
        self._places = places
        self._uncommitted = uncommitted
        self._wake_group = wake_group

    def decide(self, plan: Plan, call: Configure) -> None:
        names = [topic_name(stored_name(t.namespace, t.name)) for t in call.topics]
        names += [group_name(stored_name(g.namespace, g.name)) for g in call.groups]
        names += [topic_name(stored) for stored in call.deleted_topics] + [
            group_name(stored) for stored in call.deleted_groups
        ]
        judged = {topic_name(frame.topic) for frame in plan.frames}
        if any(self._uncommitted.configuring(name) is not None or name in judged for name in names):
            # Frames of this plan come after its drafts, but were checked against the topic as it
            # was before them.
            plan.deferred.append(call)
            return
        index = -1
        for record in _differences(self._places, call):
            index = plan.next_index
            plan.drafts.append(control.draft(record, plan.now_ms))
            name = topic_name if isinstance(record, control.TopicRecord) else group_name
            self._uncommitted.mark_name(index, name(record.stored))
            if isinstance(record, control.GroupRecord):
                # Deleted, it has every message before it again; with another configuration it may
                # have others. Served once it is applied.
                self._wake_group(record.stored)
        if index < 0:
            plan.assured.append(Done(call.token, Configured()))
        else:
            plan.awaited.append((index, call.token, Configured()))

    CALLS: ClassVar[Takers] = {Configure: decide}


def _differences(
    places: Places, call: Configure
) -> Iterator[control.TopicRecord | control.GroupRecord]:
    """The records that put `call` into force; none for what is already in force. An older
    incarnation never replaces a newer one."""
    for stored in call.deleted_topics:
        if stored in places.topics:
            yield control.TopicRecord(places.topics[stored], deleted=True)
    for stored in call.deleted_groups:
        if stored in places.groups:
            yield control.GroupRecord(places.groups[stored], deleted=True)
    for topic in call.topics:
        now = places.topics.get(stored_name(topic.namespace, topic.name))
        if now != topic and (now is None or topic.incarnation >= now.incarnation):
            yield control.TopicRecord(topic)
    for group in call.groups:
        if places.groups.get(stored_name(group.namespace, group.name)) != group:
            yield control.GroupRecord(group)
