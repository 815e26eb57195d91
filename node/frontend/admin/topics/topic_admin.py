"""Topics for an operator. Intent goes to the controller quorum; ends and counts come from the broker
groups."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.admin.cluster.overview import (
    Counts,
    Overview,
    queue_ends,
    topic_counts,
    topic_info,
    topic_sums,
)
from ledgermq.node.frontend.admin.in_force import in_force
from ledgermq.node.frontend.ports import AdminCalls, Engine
from ledgermq.node.frontend.routing.known_topics import of_topic
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code, LedgerError, fail
from ledgermq.proto.types import Permission, TopicDurability, TopicKind

STORED_WITHIN_S = 2.0


class Topics:
    """Executes the commands on topics. `controller` is
    `ledgermq.node.controller.controller.Controller`."""

    def __init__(
        self, engine: Engine, controller: Any, overview: Overview, tier: TierReads | None = None
    ) -> None:
        self._engine = engine
        self._controller = controller
        self._overview = overview
        self._tier = tier

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {
                "CreateTopic": self.create,
                "UpdateTopic": self.update,
                "ListTopics": self.listed,
                "DescribeTopic": of_topic(self._controller, self.describe),
                "DeleteTopic": self.delete,
            }
        )

    async def create(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        """Create a topic, unless there is one with the same settings. Raises LedgerError."""
        name = request.topic
        kind = _choice(TopicKind, request.kind or "normal", "kind")
        permission = _choice(Permission, request.permission or "rw", "permission")
        durability = _choice(TopicDurability, request.durability, "durability")
        topic, created = await self._controller.create_topic(
            *(name.namespace, name.name, kind, request.queues or 8, permission),
            durability=durability,
            dedup_ms=request.dedup_ms,
        )
        await self._in_force(topic)
        return pb.CreateTopicResponse(topic=topic_info(topic, self._local_ends()), created=created)

    async def update(self, request: pb.UpdateTopicRequest) -> pb.UpdateTopicResponse:
        """Change the settings that are given. Raises LedgerError."""
        name = request.topic
        queues = request.queues if request.HasField("queues") else None
        permission = (
            _choice(Permission, request.permission, "permission")
            if request.HasField("permission")
            else None
        )
        durability = (
            _choice(TopicDurability, request.durability, "durability")
            if request.HasField("durability")
            else None
        )
        dedup_ms = request.dedup_ms if request.HasField("dedup_ms") else None
        topic = await self._controller.update_topic(
            *(name.namespace, name.name),
            queues=queues,
            permission=permission,
            durability=durability,
            dedup_ms=dedup_ms,
            add_group=request.add_group or None,
            grow=request.grow,
        )
        await self._in_force(topic)
        return pb.UpdateTopicResponse(topic=topic_info(topic, self._local_ends()))

    async def listed(self, _: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        """All topics. Raises LedgerError."""
        await self._controller.barrier()
        return pb.ListTopicsResponse(topics=self._sums(await self._counts()))

    async def describe(self, topic: Topic, _: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        """A topic with its queues. Raises LedgerError."""
        info = topic_info(topic, await self._ends())
        stored = stored_name(topic.namespace, topic.name)
        for queue in info.queue_list:
            if queue.broker_group in self._engine.groups:
                queue.min_offset = await self._begin(stored, queue)
        await asyncio.gather(
            *(
                self._fill_stored(stored, queue)
                for queue in info.queue_list
                if queue.HasField("min_offset")
            )
        )
        return pb.DescribeTopicResponse(topic=info)

    async def _begin(self, stored: str, queue: pb.QueueInfo) -> int:
        number = queue.group_queue
        return await self._engine.run(
            queue.broker_group, lambda hosted: hosted.machine.begin(stored, number)
        )

    async def _fill_stored(self, stored: str, queue: pb.QueueInfo) -> None:
        """Add the first offset in the object store, if it can be told in time; a description needs
        no store."""
        if self._tier is None:
            return
        with contextlib.suppress(LedgerError, TimeoutError):
            async with asyncio.timeout(STORED_WITHIN_S):
                queue.stored_offset = await self._tier.first_offset(
                    queue.broker_group, stored, queue.group_queue
                )

    async def delete(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        """Delete a topic. Raises LedgerError."""
        deleted = await self._controller.delete_topic(request.topic.namespace, request.topic.name)
        stored = stored_name(deleted.namespace, deleted.name)
        views = self._engine.views
        await in_force(lambda: all(stored not in view.topics for view in views.values()))
        return pb.DeleteTopicResponse()

    async def _in_force(self, topic: Topic) -> None:
        stored, views = stored_name(topic.namespace, topic.name), self._engine.views
        await in_force(
            lambda: all(
                view.topics.get(stored) == topic.in_group(group) for group, view in views.items()
            )
        )

    # -- counts and ends

    def _sums(self, counts: Counts) -> Iterator[pb.TopicInfo]:
        """All topics in the order of their names."""
        topics = self._controller.state.topics
        return (topic_sums(topics[key], counts) for key in sorted(topics))

    def _local_ends(self) -> dict[tuple[str, str, int], int]:
        return {
            (stored, group, queue): end
            for group, view in self._engine.views.items()
            for stored, ends in view.queue_ends.items()
            for queue, end in enumerate(ends)
        }

    async def _counts(self) -> Counts:
        """The counts of all topics. Peers are asked only if some broker group has no replica
        here."""
        if self._has_all_groups():
            views = self._engine.views.items()
            return {
                (stored, group): (len(ends), sum(ends))
                for group, view in views
                for stored, ends in view.queue_ends.items()
            }
        return topic_counts(await self._overview.gather())

    async def _ends(self) -> Mapping[tuple[str, str, int], int]:
        """The next offsets of all queues. Peers are asked only if some broker group has no replica
        here."""
        if self._has_all_groups():
            return self._local_ends()
        return queue_ends(await self._overview.gather(queues=True))

    def _has_all_groups(self) -> bool:
        return set(self._controller.state.broker_groups) <= set(self._engine.groups)


def _choice(kind: Any, value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(item.value for item in kind if item.value)
        raise fail(
            Code.BAD_REQUEST, f"{what} {value!r} is not supported; use one of {known}"
        ) from None
