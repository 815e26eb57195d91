"""What the client service needs of its node: the agreed metadata, the engine, the way to a leader. Protocols and values only.

The node's own parts fit these by shape (`controller.Controller`, `engine.Engine`, `forward.Forwarder`); tests put small ones in their
place.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.controller.state import State
from ledgermq.node.runtime.config_sections import Delivery, Limits

NO_DEADLINE_S = 30.0
"""How long a call without a deadline may take: it must not wait for ever for a leader."""
DEADLINE_MARGIN_S = 0.1
"""An answer must reach the caller before its deadline: waiting ends this much earlier."""


class Metadata(Protocol):
    """The controller quorum as its readers see it."""

    @property
    def state(self) -> State: ...
    async def barrier(self) -> Any:
        """Returns once `state` holds everything agreed before the call. Raises LedgerError when the quorum does not answer."""
        ...


class Engine(Protocol):
    """The broker groups of this node."""

    @property
    def views(self) -> Mapping[str, GroupView]: ...
    def new_token(self) -> Token: ...
    def call(self, group: str, call: Call) -> asyncio.Future[Result | Refused]: ...
    def notify(self, group: str, call: Call) -> None: ...


class Forwarder(Protocol):
    """The way to the leader of a broker group. Deadlines are in the loop's time."""

    def led(self, group: str) -> bool: ...
    def submit(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float, *, repeatable: bool = False
    ) -> Awaitable[Sequence[bytes]]: ...
    def peers(self) -> Sequence[str]: ...
    def ask(self, node: str, method: str, request: bytes, deadline: float) -> Awaitable[Sequence[bytes]]: ...
    def on_contact(self, client_id: str) -> None: ...
    def client_gone(self, client_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """What the service must know of the node's configuration. `host` and `port`: where clients reach this node if they do not say."""

    node: str
    host: str
    port: int
    secret: bytes
    delivery: Delivery = field(default_factory=Delivery)
    limits: Limits = field(default_factory=Limits)
    namespaces: bool = True
    """Whether namespaces tell topics and groups apart."""
    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    """Another one in every process."""

    @property
    def node_boot(self) -> str:
        return f"{self.node}/{self.boot}"
