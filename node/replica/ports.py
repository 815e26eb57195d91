"""What the replica package needs from the packages above it. The node's parts satisfy these
protocols; tests use small fakes."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Protocol

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.proto import peer_pb2


class PeerCaller(Protocol):
    """The forwarder: calls to other nodes, and to the leader of a broker group. Deadlines are in
    the loop's time."""

    def ask(
        self, node: str, method: str, request: bytes, deadline: float
    ) -> Awaitable[Sequence[bytes]]: ...
    def submit(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Awaitable[Sequence[bytes]]: ...


class NodeRoster(Protocol):
    """The nodes of the cluster (`node/controller/roster.py:Roster`)."""

    @property
    def nodes(self) -> Iterable[str]: ...
    def knows(self, node: str) -> bool: ...
    def removed(self, node: str) -> bool: ...


class PeerHandler(Protocol):
    """Handles what peers send to this node. Senders are authenticated node names."""

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None: ...
    async def execute(self, sender: str, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult: ...
    async def status(self, *, queues: bool) -> peer_pb2.NodeStatusReply: ...
    def signs(self, client_ids: Sequence[str]) -> None: ...
    def gone(self, client_id: str) -> None: ...
    def link_changed(self, peer: str, up: bool) -> None: ...
    def wall_ns(self) -> int: ...
    def heard_clock(self, peer: str, wall_ns: int | None, asked_ns: int) -> None: ...
