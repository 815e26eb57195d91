"""What maintenance needs from the parts that run groups, and of the configuration. The engine and
the whole configuration satisfy these protocols; the simulator has its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.runtime.config_sections import Agreement, Retention, Tiered

T = TypeVar("T")


class GroupTurns(Protocol):
    """The groups of a node, from beside their turns (`hosting/engine.py:Engine`)."""

    def run(self, group: str, work: Callable[[Any], T]) -> Awaitable[T]:
        """Run `work(open group)` between two turns. It must be quick and must not change the group.
        Raises what it raises, and LedgerError while the group does not run."""
        ...

    def call(self, group: str, call: Call) -> Awaitable[Result | Refused]: ...

    def new_token(self) -> Token:
        """A token for the next call."""
        ...

    def now_ns(self) -> int:
        """The monotonic clock of the turns."""
        ...

    def wake(self, group: str) -> None:
        """Give the group a turn."""
        ...


class MaintenanceConfig(Protocol):
    """The sections of a node's configuration that maintenance goes by."""

    @property
    def node(self) -> str: ...

    @property
    def data(self) -> Path: ...

    @property
    def retention(self) -> Retention: ...

    @property
    def tiered(self) -> Tiered: ...

    @property
    def agreement(self) -> Agreement: ...
