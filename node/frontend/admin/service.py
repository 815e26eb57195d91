"""`ledgermq.v1.Admin`: the gRPC service behind the operator's commands, on any node.

It is composed of one class for each noun, such as topics or members; a noun names the methods that
it serves, and the calls of other nodes that it answers (`frontend/ports.py:AdminNoun`). What all
methods have in common is added here: a caller's deadline bounds the waits within its call, and one
error table turns every failure into a `Status`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.node.frontend.admin.answering import answered
from ledgermq.node.frontend.ports import AdminNoun, OperatorCall, PeerCall
from ledgermq.node.frontend.security.admin_guard import Serve
from ledgermq.node.runtime.deadlines import bounded
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import refused

ADMIN_PREFIX = "ledgermq.v1.Admin/"
"""Prefix of the name of every forwarded call that `AdminService.execute` answers."""


class AdminService:
    """The methods of the service by name, and the answers to other nodes."""

    def __init__(self, nouns: Iterable[AdminNoun]) -> None:
        operators: dict[str, OperatorCall] = {}
        peers: dict[str, PeerCall] = {}
        for noun in nouns:
            calls = noun.calls()
            twice = (calls.operators.keys() & operators.keys()) | (
                calls.peers.keys() & peers.keys()
            )
            assert not twice, f"two nouns serve {sorted(twice)}"
            operators |= calls.operators
            peers |= calls.peers
        methods = {one.name for one in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}
        assert operators.keys() == methods, f"not served once: {operators.keys() ^ methods}"
        self.methods: dict[str, Serve] = {
            name: bounded(answered(name, call)) for name, call in operators.items()
        }
        self._peers = peers

    async def execute(self, group: str, method: str, request: bytes) -> list[bytes]:
        """Answer a call of this service that was forwarded to this node. Raises CallRefused,
        LedgerError."""
        call = self._peers.get(method)
        if call is None:
            raise refused(
                "internal",
                f"this node does not know the question {method}: do all nodes run the same"
                " version?",
            )
        return [await call(group, request)]
