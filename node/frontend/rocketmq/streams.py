"""The open Telemetry streams of this node, by client, and who publishes to which topic on one of them.

The way from the server to a client: a command is handed to its stream, which writes it when it can. Nobody waits for that and nothing is
repeated: whoever sends a command knows that it may be lost, as it may be on the wire. Local to the node; `commands.py` reaches the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from ledgermq.node.frontend.ports import Stream
from ledgermq.node.frontend.rocketmq.wire.validation import Caller
from ledgermq.proto import messaging_pb2 as pb

GONE = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""What the library raises from a stream whose client is gone: nobody's failure."""


@dataclass(frozen=True, slots=True)
class Open:
    """A client with an open stream, as its last Settings describe it."""

    stream: Stream
    settings: pb.Settings
    caller: Caller
    topics: Sequence[str]
    """Stored topics it publishes to."""
    group: str
    """Stored consumer group, empty for a producer."""


class Streams:
    """All open streams whose client has said what it is. Of a client that opens another one the last counts."""

    def __init__(self) -> None:
        self._open: dict[str, Open] = {}
        self._producers: dict[str, dict[str, None]] = {}
        """Stored topic → clients, the one asked longest ago first."""
        self._groups: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, found: Open) -> None:
        """A client said what it is, for the first time or anew."""
        client_id = found.caller.client_id
        self._forget(client_id)
        self._open[client_id] = found
        for topic in found.topics:
            self._producers.setdefault(topic, {})[client_id] = None
        if found.group:
            self._groups.setdefault(found.group, {})[client_id] = None

    def closed(self, client_id: str, stream: Stream) -> None:
        """A stream ended; a newer one of the same client goes on."""
        known = self._open.get(client_id)
        if known is not None and known.stream is stream:
            self._forget(client_id)

    def _forget(self, client_id: str) -> None:
        known = self._open.pop(client_id, None)
        if known is None:
            return
        for topic in known.topics:
            _drop(self._producers, topic, client_id)
        _drop(self._groups, known.group, client_id)

    def get(self, client_id: str) -> Open | None:
        return self._open.get(client_id)

    def of_group(self, stored: str) -> list[Open]:
        """The consumers of a group."""
        return [self._open[client_id] for client_id in self._groups.get(stored, ())]

    def publishes(self, topic: str) -> bool:
        """Is there a producer of this topic?"""
        return topic in self._producers

    def to_client(self, client_id: str, command: bytes) -> bool:
        """Hand a command to a client; False: it has no stream here."""
        known = self._open.get(client_id)
        return known is not None and known.stream.post(command)

    def to_producer(self, topic: str, command: bytes) -> bool:
        """Hand a command to one producer of a topic, in turn; False: none is here that takes it."""
        producers = self._producers.get(topic, {})
        for client_id in list(producers):
            del producers[client_id]
            producers[client_id] = None
            if self._open[client_id].stream.post(command):
                return True
        return False


def _drop(index: dict[str, dict[str, None]], key: str, client_id: str) -> None:
    found = index.get(key)
    if found is not None:
        found.pop(client_id, None)
        if not found:
            del index[key]
