"""What a simulated process stands on: the event loop of its node, its threads, and the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.replica.hosting.ports import Driver


class ProcessLoop(Driver, Protocol):
    """The event loop of a process, and its other threads."""

    def later(self, wait_ns: tuple[int, int], action: Callable[[], None]) -> None:
        """Run an action as code of this process, after a time between these limits."""
        ...

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        """Run an action as code of this process, at a time of its monotonic clock."""
        ...

    def soon(self, action: Callable[[], None]) -> None:
        """The same between two turns."""
        ...

    def turn_soon(self) -> None:
        """The group gets a turn without an input."""
        ...

    def new_token(self) -> Token: ...

    def call(self, call: Call, answered: Callable[[Result | Refused], None]) -> None:
        """Put a call of this process to its group."""
        ...

    def ask(self, node: str, request: bytes, answered: Callable[[bytes | None], None]) -> None:
        """Send a query about storage to another node. `answered` is called once, with None if the
        query was refused, or never if it or the answer is lost."""
        ...

    def trims(self, consumed: Iterable[QueueKey]) -> None:
        """A trim that leaves nothing in the object store waited for what consumer groups had not
        read of these queues, and of no others."""
        ...

    def send(self, packets: Sequence[tuple[str, PeerPacket]]) -> None: ...
