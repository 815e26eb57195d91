"""Passes messages of peers to the parts of this node. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.frontend.admin.cluster.overview import Overview
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.process.node_clock import NodeClock
from ledgermq.node.replica.hosting.assignment_watcher import GREET_METHOD, AssignmentWatcher
from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.proto import peer_pb2


class PeerSide:
    """The receivers of peers' messages; they are set before the first message can come."""

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self.engine: Engine
        self.forwarder: Forwarder
        self.overview: Overview
        self.link_up: Callable[[], None]
        self.assignment_watcher: AssignmentWatcher

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None:
        self.engine.packets(items)

    async def execute(self, sender: str, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        if call.method == GREET_METHOD:
            try:
                return peer_pb2.ForwardResult(
                    responses=[await self.assignment_watcher.answer(sender, call.request)]
                )
            except CallRefused as refusal:
                return peer_pb2.ForwardResult(
                    refusal=refusal.refused.reason, grpc_message=refusal.refused.detail
                )
        return await self.forwarder.execute_for_peer(sender, call)

    async def status(self, *, queues: bool) -> peer_pb2.NodeStatusReply:
        return await self.overview.own(queues=queues)

    def signs(self, client_ids: Sequence[str]) -> None:
        self.forwarder.signs_from_peer(client_ids)

    def gone(self, client_id: str) -> None:
        self.forwarder.gone_from_peer(client_id)

    def link_changed(self, peer: str, up: bool) -> None:
        if up:
            self.link_up()
            self.assignment_watcher.link_up(peer)
        self.forwarder.changed()

    def wall_ns(self) -> int:
        return self._clock.wall_ns()

    def heard_clock(self, peer: str, wall_ns: int | None, asked_ns: int) -> None:
        self._clock.heard(peer, wall_ns, asked_ns)
