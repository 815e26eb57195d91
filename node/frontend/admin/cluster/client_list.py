"""Lists the connected clients for an operator, gathered from all nodes.

A node reports every client that it heard recently, with the client's last Settings. The open
Telemetry stream is the most important fact: without it, neither settings nor transaction checks
reach the client. An open native stream is listed on a line of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.frontend.native.open_streams import OpenStream
from ledgermq.node.frontend.ports import AdminCalls
from ledgermq.node.frontend.rocketmq.messaging import MessagingService
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.leader_calls import answering
from ledgermq.proto import admin_pb2
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.names import stored_name

METHOD = "ledgermq.v1.Admin/ListClients"
PEER_WITHIN_S = 3.0
NAMELESS = "-"


class ClientList:
    """The clients of this node, and of the cluster."""

    def __init__(
        self,
        node: str,
        service: MessagingService,
        native: Iterable[OpenStream],
        forwarder: Forwarder,
        others: Iterable[str],
    ) -> None:
        """`native`: the open streams of the Log service; `others`: the names of the other nodes.
        Both are read again at every call."""
        self._node = node
        self._service = service
        self._native = native
        self._forwarder = forwarder
        self._others = others

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {"ListClients": lambda _: self.everywhere()},
            {METHOD: answering(admin_pb2.ListClientsRequest, self._answer)},
        )

    async def _answer(
        self, _: str, __: admin_pb2.ListClientsRequest
    ) -> admin_pb2.ListClientsResponse:
        return self.here()

    def here(self) -> admin_pb2.ListClientsResponse:
        """The clients that this node knows."""
        streams = self._service.streams
        found = admin_pb2.ListClientsResponse()
        for client_id, settings, silent_s, shared in self._service.clients.known():
            info = found.clients.add(
                client_id=client_id,
                node=self._node,
                silent_ms=round(silent_s * 1000),
                shared=shared,
            )
            info.connected = streams.get(client_id) is not None
            if settings is not None:
                _describe(info, settings)
        for stream in self._native:
            who = stream.client_id or NAMELESS
            found.clients.add(
                client_id=who,
                node=self._node,
                connected=True,
                type=stream.type,
                group=stream.group,
                topics=sorted(stream.topics),
            )
        return found

    async def everywhere(self) -> admin_pb2.ListClientsResponse:
        """The clients of all nodes; names the nodes that do not answer."""
        found = self.here()
        others = sorted(self._others)
        for node, answer in zip(
            others, await asyncio.gather(*(self._ask(node) for node in others)), strict=True
        ):
            if answer is None:
                found.unreachable.append(node)
            else:
                found.clients.extend(answer.clients)
        return found

    async def of_groups(self) -> Counter[str] | None:
        """The number of clients of each consumer group that has any, None while a node does not
        answer. A client that several nodes know counts once; one without an id is the stream that
        it has open."""
        found = await self.everywhere()
        if found.unreachable:
            return None
        named = {
            (client.group, client.client_id)
            for client in found.clients
            if client.client_id != NAMELESS
        }
        return Counter(
            [group for group, _ in named]
            + [client.group for client in found.clients if client.client_id == NAMELESS]
        )

    async def _ask(self, node: str) -> admin_pb2.ListClientsResponse | None:
        deadline = asyncio.get_running_loop().time() + PEER_WITHIN_S
        try:
            responses = await self._forwarder.ask(node, METHOD, b"", deadline)
            return admin_pb2.ListClientsResponse.FromString(responses[0])
        except (CallRefused, DecodeError, IndexError):
            # Not reachable, or an older version without this method.
            return None


def _describe(info: admin_pb2.ClientInfo, settings: pb.Settings) -> None:
    """Fill in what the client's Settings say."""
    info.type = (
        pb.ClientType.Name(settings.client_type).lower().replace("_", "-")
        if settings.client_type in _TYPES
        else ""
    )
    agent = settings.user_agent
    info.language = pb.Language.Name(agent.language).lower() if agent.language in _LANGUAGES else ""
    info.version, info.hostname = agent.version, agent.hostname
    if settings.WhichOneof("pub_sub") == "publishing":
        info.topics.extend(_named(topic) for topic in settings.publishing.topics)
    else:
        info.group = _named(settings.subscription.group)
        info.topics.extend(_named(entry.topic) for entry in settings.subscription.subscriptions)


def _named(resource: pb.Resource) -> str:
    return stored_name(resource.resource_namespace, resource.name)


_TYPES = frozenset(pb.ClientType.values())
_LANGUAGES = frozenset(pb.Language.values())
