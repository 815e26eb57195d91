"""Consumer groups for an operator. Intent goes to the controller quorum; progress comes from the
broker groups."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.node.frontend.admin.cluster.client_list import ClientList
from ledgermq.node.frontend.admin.cluster.overview import number_in
from ledgermq.node.frontend.admin.in_force import in_force
from ledgermq.node.frontend.admin.messages.group_reads import name_of
from ledgermq.node.frontend.admin.messages.queries import Queries
from ledgermq.node.frontend.admin.topics.group_settings import given_of, group_info, settings_of
from ledgermq.node.frontend.ports import AdminCalls, Engine
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import base_group, stored_name
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import GroupConfig, TopicKind


class ConsumerGroups:
    """Executes the commands on consumer groups, but for their progress (`queries.py`).
    `controller` is `ledgermq.node.controller.controller.Controller`."""

    def __init__(
        self, engine: Engine, controller: Any, queries: Queries, clients: ClientList
    ) -> None:
        self._engine = engine
        self._controller = controller
        self._queries = queries
        self._clients = clients

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {
                "CreateGroup": self.create,
                "UpdateGroup": self.update,
                "ListGroups": self.listed,
                "DescribeGroup": self.describe,
                "DeleteGroup": self.delete,
            }
        )

    async def create(self, request: pb.CreateGroupRequest) -> pb.CreateGroupResponse:
        """Create a consumer group, unless there is one with the same settings. Raises
        LedgerError."""
        name = request.group
        attempts = request.max_attempts or GroupConfig("", "").max_attempts
        self._check_lite_topic(name.namespace, request.lite_topic)
        group, created = await self._controller.create_group(
            name.namespace, name.name, attempts, **settings_of(request)
        )
        await self._in_force(group)
        return pb.CreateGroupResponse(group=group_info(group, True), created=created)

    async def update(self, request: pb.UpdateGroupRequest) -> pb.UpdateGroupResponse:
        """Change the settings that are given. Raises LedgerError."""
        name = request.group
        attempts = request.max_attempts if request.HasField("max_attempts") else None
        settings = given_of(request)
        self._check_lite_topic(name.namespace, request.lite_topic)
        group = await self._controller.update_group(
            name.namespace, name.name, max_attempts=attempts, **settings
        )
        await self._in_force(group)
        return pb.UpdateGroupResponse(group=group_info(group, True))

    async def listed(self, _: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        """All consumer groups that are configured or were used here. Raises LedgerError."""
        await self._controller.barrier()
        configured = {
            stored_name(*key): group for key, group in self._controller.state.groups.items()
        }
        used, clients = await asyncio.gather(self._used(), self._clients.of_groups())
        infos = [group_info(configured[name], True) for name in sorted(configured)]
        infos += [
            group_info(GroupConfig(*_split(name)), False)
            for name in sorted(used - configured.keys())
        ]
        if clients is not None:
            for info in infos:
                info.clients = clients[stored_name(info.group.namespace, info.group.name)]
        return pb.ListGroupsResponse(groups=infos)

    async def describe(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        """A consumer group with its position in every queue. Raises LedgerError."""
        await self._controller.barrier()
        key = (request.group.namespace, request.group.name)
        stored = stored_name(*key)
        configured = self._controller.state.groups.get(key)
        rows, clients = await asyncio.gather(
            self._queries.cursors(request.group), self._clients.of_groups()
        )
        if configured is None and not rows:
            raise fail(
                Code.CONSUMER_GROUP_NOT_FOUND,
                f"consumer group {stored} does not exist and was never used",
            )
        info = group_info(configured or GroupConfig(*key), configured is not None)
        if clients is not None:
            info.clients = clients[stored]
        for topic, queue in rows:
            one = info.queues.add(
                topic=name_of(topic),
                broker_group=queue.broker_group,
                group_queue=queue.group_queue,
                leased=queue.leased,
                lag=queue.lag,
                queue=number_in(
                    self._controller.state.topics.get(_split(topic)),
                    queue.broker_group,
                    queue.group_queue,
                ),
            )
            if queue.HasField("cursor"):
                one.cursor, one.max_offset = queue.cursor, queue.end
        return pb.DescribeGroupResponse(group=info)

    async def delete(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        """Delete a consumer group. Raises LedgerError."""
        deleted = await self._controller.delete_group(request.group.namespace, request.group.name)
        stored = stored_name(deleted.namespace, deleted.name)
        views = self._engine.views
        await in_force(lambda: all(stored not in view.groups for view in views.values()))
        return pb.DeleteGroupResponse()

    def _check_lite_topic(self, namespace: str, name: str) -> None:
        """Refuse to bind a consumer group to a topic of another kind, from which it could never
        read. A topic that does not exist yet may become one. Not a rule of the metadata, which
        every release must apply alike. Raises LedgerError."""
        topic = self._controller.state.topics.get((namespace, name))
        if topic is not None and topic.kind is not TopicKind.LITE:
            what = (
                f"topic {stored_name(namespace, name)} is of kind {topic.kind.value}, and"
                " --lite-topic takes one of kind lite"
            )
            raise fail(Code.BAD_REQUEST, f"{what}; give another topic, or omit it")

    async def _in_force(self, group: GroupConfig) -> None:
        stored, views = stored_name(group.namespace, group.name), self._engine.views
        await in_force(lambda: all(view.groups.get(stored) == group for view in views.values()))

    async def _used(self) -> set[str]:
        """Stored names of the consumer groups that have used a queue of a broker group here."""
        found = await asyncio.gather(
            *(self._engine.run(group, _consumers_of) for group in self._engine.groups)
        )
        return {name for names in found for name in names}


def _consumers_of(hosted: RunningReplica) -> set[str]:
    return {base_group(name) for name, _, _ in hosted.machine.delivery.queues} | {
        name for name, _ in hosted.machine.offsets.pairs()
    }


def _split(stored: str) -> tuple[str, str]:
    namespace, _, name = stored.rpartition("@")
    return namespace, name
