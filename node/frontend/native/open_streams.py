"""The native streams that are open on this node: who holds them, for lists, and how to end them when the node stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class OpenStream:
    """One stream. `type`: what a list of clients calls its holder. `end`: read no more, answer what is under way, send the client
    elsewhere; may be called again."""

    client_id: str
    type: str
    broker_group: str
    end: Callable[[], None]
    topics: set[str] = field(default_factory=set)
    """Stored names of what it used so far."""
    group: str = ""
    """Stored consumer group."""
    anywhere: bool = False
    """It goes on whoever leads, and finds out by itself when it may not."""


class OpenStreams:
    """All of them. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._open: dict[OpenStream, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenStream]:
        return iter(list(self._open))

    @contextmanager
    def held(self, stream: OpenStream) -> Iterator[OpenStream]:
        """Listed for as long as the context is."""
        self._open[stream] = None
        try:
            yield stream
        finally:
            del self._open[stream]

    def end_all(self) -> None:
        """The node stops."""
        for stream in self:
            stream.end()

    def end_of(self, broker_group: str) -> None:
        """The node does not serve this broker group any more."""
        for stream in self:
            if stream.broker_group == broker_group and not stream.anywhere:
                stream.end()
