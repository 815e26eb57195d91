"""What a simulated process stands on: the event loop of its node, and what wakes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.hosting.ports import Driver


class ProcessLoop(Driver, Protocol):
    """The event loop of a process, and its other threads."""

    def later(self, wait_ns: tuple[int, int], action: Callable[[], None]) -> None:
        """Run an action as code of this process, after a time between these limits."""
        ...

    def send(self, packets: Sequence[tuple[str, PeerPacket]]) -> None: ...
