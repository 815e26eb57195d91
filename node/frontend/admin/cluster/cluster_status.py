"""The state of the whole cluster for an operator."""

from __future__ import annotations

from typing import Any

from ledgermq.node.frontend.admin.cluster.overview import Overview, topic_counts, topic_sums
from ledgermq.node.frontend.ports import AdminCalls
from ledgermq.proto import admin_pb2 as pb


class ClusterStatus:
    """Executes ClusterStatus. `controller` is `ledgermq.node.controller.controller.Controller`."""

    def __init__(self, controller: Any, overview: Overview) -> None:
        self._controller = controller
        self._overview = overview

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls({"ClusterStatus": lambda _: self.status()})

    async def status(self) -> pb.ClusterStatusResponse:
        """Nodes, broker groups and topics, from the answers of all nodes."""
        replies = await self._overview.gather()
        response, state = self._overview.merge(replies), self._controller.state
        response.level = state.level
        for group in response.groups:
            agreed = state.appointments.get(group.group)
            if group.HasField("ha") and not group.ha.in_sync and agreed is not None:
                group.ha.epoch, group.ha.in_sync[:] = agreed.epoch, sorted(agreed.in_sync)
        counts = topic_counts(replies)
        response.topics.extend(
            topic_sums(state.topics[key], counts) for key in sorted(state.topics)
        )
        return response
