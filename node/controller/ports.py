"""What the controller package needs from the rest of the node. The engine satisfies these
protocols; tests use small fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.outcome import Call


class GroupCaller(Protocol):
    """The engine: the published views of the broker groups of this node, and calls to them."""

    @property
    def views(self) -> Mapping[str, GroupView]: ...
    def new_token(self) -> Token: ...
    def call(self, group: str, call: Call) -> asyncio.Future[Any]: ...
    def notify_at_once(self, group: str, call: Call) -> None:
        """Put a call that has no answer into the queue, past the gate that holds calls back."""
        ...
