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
    """The receivers of peers' messages."""

    def __init__(
        self,
        clock: NodeClock,
        engine: Engine,
        forwarder: Forwarder,
        overview: Overview,
        assignment_watcher: AssignmentWatcher,
        link_up: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._engine = engine
        self._forwarder = forwarder
        self._overview = overview
        self._assignment_watcher = assignment_watcher
        self._link_up = link_up

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None:
        self._engine.packets(items)

    async def execute(self, sender: str, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        if call.method == GREET_METHOD:
            try:
                return peer_pb2.ForwardResult(
                    responses=[await self._assignment_watcher.answer(sender, call.request)]
                )
            except CallRefused as refusal:
                return peer_pb2.ForwardResult(
                    refusal=refusal.refused.reason, grpc_message=refusal.refused.detail
                )
        return await self._forwarder.execute_for_peer(sender, call)

    async def status(self, *, queues: bool) -> peer_pb2.NodeStatusReply:
        return await self._overview.own(queues=queues)

    def signs(self, client_ids: Sequence[str]) -> None:
        self._forwarder.signs_from_peer(client_ids)

    def gone(self, client_id: str) -> None:
        self._forwarder.gone_from_peer(client_id)

    def link_changed(self, peer: str, up: bool) -> None:
        if up:
            self._link_up()
            self._assignment_watcher.link_up(peer)
        self._forwarder.changed()

    def wall_ns(self) -> int:
        return self._clock.wall_ns()

    def heard_clock(self, peer: str, wall_ns: int | None, asked_ns: int) -> None:
        self._clock.heard(peer, wall_ns, asked_ns)
