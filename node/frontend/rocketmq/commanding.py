"""Sends commands of the server to clients, wherever their Telemetry stream is: this node first,
then the other nodes in turn.

Best effort: a node that does not answer, or is too old to know the method, counts as a node without
the client. A command is sent to one node at a time, so that no client gets it twice. The answer
says that a stream accepted the command, not that the client received it.
"""

from __future__ import annotations

import asyncio

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.frontend.rocketmq.streams import Streams
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto import peer_pb2

METHOD = "ClientCommand"
PEER_WITHIN_S = 2.0


class Commander:
    """Sends commands from one node to the clients of the whole cluster."""

    def __init__(self, node: str, streams: Streams, forwarder: Forwarder) -> None:
        self._node = node
        self._streams = streams
        self._forwarder = forwarder

    async def to_client(self, client_id: str, command: pb.TelemetryCommand) -> bool:
        """Send a command to a client. False if no node that answered has its stream."""
        data = command.SerializeToString()
        if self._streams.to_client(client_id, data):
            return True
        question = peer_pb2.ClientCommand(client_id=client_id, command=data)
        for node in self._forwarder.peers():
            if await self._ask(node, question):
                return True
        return False

    async def find_producer(self, topic: str, *, here_last: bool = False) -> str | None:
        """A node with the stream of a producer of this stored topic, or None: preferably this one,
        or with `here_last` another one."""
        publishes_here = self._streams.publishes(topic)
        if publishes_here and not here_last:
            return self._node
        question = peer_pb2.ClientCommand(topic=topic)
        for node in self._forwarder.peers():
            if await self._ask(node, question):
                return node
        return self._node if publishes_here else None

    async def to_producer(self, node: str, topic: str, command: pb.TelemetryCommand) -> bool:
        """Send a command to one producer of this stored topic at a node."""
        data = command.SerializeToString()
        if node == self._node:
            return self._streams.to_producer(topic, data)
        return await self._ask(node, peer_pb2.ClientCommand(topic=topic, command=data))

    async def _ask(self, node: str, question: peer_pb2.ClientCommand) -> bool:
        deadline = asyncio.get_running_loop().time() + PEER_WITHIN_S
        try:
            responses = await self._forwarder.ask(
                node, METHOD, question.SerializeToString(), deadline
            )
            return bool(responses) and peer_pb2.ClientCommandReply.FromString(responses[0]).taken
        except (CallRefused, DecodeError):
            return False

    def answer(self, request: bytes) -> list[bytes]:
        """Answer a peer's command, or its question for a client."""
        question = peer_pb2.ClientCommand.FromString(request)
        if question.client_id:
            taken = self._streams.to_client(question.client_id, question.command)
        elif question.command:
            taken = self._streams.to_producer(question.topic, question.command)
        else:
            taken = self._streams.publishes(question.topic)
        return [peer_pb2.ClientCommandReply(taken=taken).SerializeToString()]
