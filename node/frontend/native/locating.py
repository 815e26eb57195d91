"""Locate: the broker groups that hold a topic's queues, and their leaders."""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.node.frontend.native.callers import Caller, Callers, publish, read
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.proto import log_pb2


class Locator:
    """Answers from this node's state; for an unknown topic it first catches up with the controller
    quorum."""

    def __init__(
        self,
        cluster_id: str,
        log_ids: Mapping[str, str],
        topics: Topics,
        leaders: Leaders,
        callers: Callers,
    ) -> None:
        self._cluster_id = cluster_id
        self._log_ids = log_ids
        self._topics = topics
        self._leaders = leaders
        self._callers = callers

    async def locate(
        self, request: log_pb2.LocateRequest, caller: Caller
    ) -> log_pb2.LocateResponse:
        """Locate a topic. Raises TOPIC_NOT_FOUND, ILLEGAL_TOPIC, FORBIDDEN."""
        stored = caller.topic(request.namespace, request.topic)
        self._callers.allow(caller, publish(stored), read(stored))
        topic = await self._topics.find(stored)
        response = log_pb2.LocateResponse(cluster_id=self._cluster_id, kind=topic.kind.value)
        for name, queues in sorted(topic.placement.items()):
            group = response.broker_groups.add(
                name=name, queues=range(queues), log_id=self._log_ids.get(name, "")
            )
            group.leader.CopyFrom(self._leaders.redirect(name))
        return response
