"""What the frontend's services need of the other rooms, and of each other across packages. Protocols only.

The engine (`node/replica/hosting/engine.py`), the controller (`node/controller/controller.py`), the streams of both client services and the
spans of `node/process/tracing.py` implement these protocols structurally. Tests use small fakes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.controller.state import Outcome, State
from ledgermq.proto.types import ReplicaStatus

T = TypeVar("T")


class Engine(Protocol):
    """The broker groups of this node."""

    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def views(self) -> Mapping[str, GroupView]: ...
    def new_token(self) -> Token: ...
    def call(self, group: str, call: Call) -> asyncio.Future[Result | Refused]: ...
    def notify(self, group: str, call: Call) -> None: ...
    def run(self, group: str, work: Callable[[Any], T]) -> Awaitable[T]:
        """Pass the open group (`node/replica/hosting/running.py:OpenReplica`) to `work` between two turns."""
        ...

    def status(self, group: str) -> asyncio.Future[ReplicaStatus]: ...
    def on_view(self, listener: Callable[[str, GroupView], None]) -> None: ...
    def on_hidden(self, listener: Callable[[str], None]) -> None: ...


class Metadata(Protocol):
    """The controller quorum for readers of its state, and for the commands on users and keys."""

    @property
    def state(self) -> State: ...
    async def barrier(self) -> Any:
        """Returns once `state` holds everything agreed before the call. Raises LedgerError if the quorum does not answer."""
        ...

    async def submit(self, operation: str, arguments: dict[str, Any], timeout: float) -> Outcome: ...


class Executor(Protocol):
    """Executes one call against a broker group that this node leads. Raises CallRefused."""

    def __call__(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Awaitable[Sequence[bytes]]: ...


class Stream(Protocol):
    """The writing side of a Telemetry stream."""

    def post(self, command: bytes) -> bool:
        """Queue a command for writing; False if the stream accepts no more."""
        ...

    def renew(self, settings: bytes) -> None:
        """Replace the client's settings."""
        ...


class FrameSpan(Protocol):
    """The tracing span of one frame."""

    def end(self, code: int, message: str) -> None: ...


Trace = Callable[[str, int, int], FrameSpan]
"""Begins the span of a frame; arguments: topic, queue, number of messages."""


class Spans(Protocol):
    """Creates the spans of the frames of one stream."""

    def frames_of(self, context: Any) -> Trace: ...
