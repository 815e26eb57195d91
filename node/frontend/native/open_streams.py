"""The open native streams of this node, for lists of clients, and to end them when the node stops
or loses leadership."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class OpenStream:
    """One stream. `type`: the client type in lists of clients. `end`: read no more, answer what is
    under way, redirect the client; may be called again."""

    client_id: str
    type: str
    broker_group: str
    end: Callable[[], None]
    topics: set[str] = field(default_factory=set)
    """Stored names of the topics it has used so far."""
    group: str = ""
    """Stored name of the consumer group."""
    anywhere: bool = False
    """The stream continues under any leader, and decides for itself when it must end."""


class OpenStreams:
    """All open native streams. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._open: dict[OpenStream, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenStream]:
        return iter(list(self._open))

    @contextmanager
    def held(self, stream: OpenStream) -> Iterator[OpenStream]:
        """List the stream while the context is open."""
        self._open[stream] = None
        try:
            yield stream
        finally:
            del self._open[stream]

    def end_all(self) -> None:
        """End all streams, because the node stops."""
        for stream in self:
            stream.end()

    def end_of(self, broker_group: str) -> None:
        """End the streams of a broker group that this node no longer serves."""
        for stream in self:
            if stream.broker_group == broker_group and not stream.anywhere:
                stream.end()
