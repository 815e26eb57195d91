"""The open Telemetry streams of this node, by client, and the producers of each topic among them.

Commands from the server reach a client through its stream, which writes them when it can. The
sender does not wait and repeats nothing: a command may be lost, as it may be on the network. The
registry is local to the node; `commanding.py` reaches the other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.frontend.ports import Stream
from ledgermq.node.frontend.rocketmq.wire.validation import Caller
from ledgermq.proto import messaging_pb2 as pb


@dataclass(frozen=True, slots=True)
class Open:
    """A client with an open stream, described by its last Settings."""

    stream: Stream
    settings: pb.Settings
    caller: Caller
    topics: Sequence[str]
    """Stored names of the topics it publishes to."""
    group: str
    """Stored consumer group; empty for a producer."""


class Streams:
    """All open streams whose client has sent Settings. If a client opens another stream, the newest
    counts."""

    def __init__(self) -> None:
        self._open: dict[str, Open] = {}
        self._producers: dict[str, dict[str, None]] = {}
        """Stored topic → client ids, the least recently asked first."""
        self._groups: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, stream: Open) -> None:
        """A client has sent Settings, for the first time or again."""
        client_id = stream.caller.client_id
        self._forget(client_id)
        self._open[client_id] = stream
        for topic in stream.topics:
            self._producers.setdefault(topic, {})[client_id] = None
        if stream.group:
            self._groups.setdefault(stream.group, {})[client_id] = None

    def closed(self, client_id: str, stream: Stream) -> None:
        """A stream ended; a newer one of the same client stays."""
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
        """Whether a producer of this topic has a stream here."""
        return topic in self._producers

    def to_client(self, client_id: str, command: bytes) -> bool:
        """Send a command to a client; False if it has no stream here, or the stream accepts no
        more."""
        known = self._open.get(client_id)
        return known is not None and known.stream.post(command)

    def to_producer(self, topic: str, command: bytes) -> bool:
        """Send a command to one producer of a topic, in turn; False if none here accepts it."""
        producers = self._producers.get(topic, {})
        for client_id in list(producers):
            del producers[client_id]
            producers[client_id] = None
            if self._open[client_id].stream.post(command):
                return True
        return False


def _drop(index: dict[str, dict[str, None]], key: str, client_id: str) -> None:
    members = index.get(key)
    if members is not None:
        members.pop(client_id, None)
        if not members:
            del index[key]
