"""What the frontend's services need of the other rooms, of the gRPC server, and of each other
across packages.

The engine (`node/replica/hosting/engine.py`), the controller (`node/controller/controller.py`), the
streams of both client services and the spans of `node/process/telemetry/tracing.py` implement these protocols
structurally. Tests use small fakes.

`ServerCall` is a call as the services see it. Only a `CallServer` knows which gRPC library is
behind it, and a service imports none. There are two servers: `node/process/grpc_server.py` on
grpc.aio, and one on the optional package ledgermq-native. Beside the protocols, this module has the
values that services and servers exchange: the kinds of methods, the status codes, where to listen,
and the two exceptions with which a call ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol, TypeVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.controller.state import Outcome, State
from ledgermq.node.replica.ports import RangePut, RunningReplica
from ledgermq.node.runtime.certificates import CertificateFiles
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.node.runtime.security_sections import Quotas
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.layout import Buffer
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
    def run(self, group: str, work: Callable[[RunningReplica], T]) -> Awaitable[T]:
        """Pass the open group to `work` between two turns. `work` must be quick, and change
        nothing. Raises LedgerError while the group does not run here."""
        ...

    def wake(self, group: str) -> None:
        """Give the group a turn soon."""
        ...

    def status(self, group: str) -> asyncio.Future[ReplicaStatus]: ...
    async def put_back(self, group: str, first_index: int, last_index: int) -> RangePut:
        """Restore a range of this replica's entries from its peers while the group runs. Raises
        LedgerError."""
        ...

    async def mend_all(self, group: str, reason: str) -> None:
        """Stop the group, and verify and repair its whole log from peers. Raises LedgerError."""
        ...

    def on_view(self, listener: Callable[[str, GroupView], None]) -> None: ...
    def on_hidden(self, listener: Callable[[str], None]) -> None: ...


class Metadata(Protocol):
    """The controller quorum for readers of its state, and for the commands on users and keys."""

    @property
    def state(self) -> State: ...
    async def barrier(self) -> Any:
        """Returns once `state` holds everything agreed before the call. Raises LedgerError if the
        quorum does not answer."""
        ...

    async def submit(
        self, operation: str, arguments: dict[str, Any], timeout: float
    ) -> Outcome: ...


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
    """The tracing span of one frame. `current`: log lines that are written meanwhile name it."""

    def current(self) -> AbstractContextManager[None]: ...

    def end(self, code: int, message: str) -> None: ...


Trace = Callable[[pb.Resource, int, int, Buffer], FrameSpan]
"""Begins the span of a frame; arguments: topic, number of messages, first sequence number,
entries."""
BatchTrace = Callable[[int, bytes], AbstractContextManager[None]]
"""The span of writing a batch to a reader; arguments: number of messages, bytes that hold their
entries."""


class Spans(Protocol):
    """Creates the spans of the frames and the batches of one stream."""

    def frames_of(self, context: ServerCall, client_id: str) -> Trace: ...

    def batches_of(
        self, context: ServerCall, client_id: str, topic: pb.Resource, consumer_group: str
    ) -> BatchTrace: ...


# -- calls

CallMetadata = Sequence[tuple[str, Any]]
"""Names in lower case with their values in order: str, or bytes for names that end in "-bin"."""


class StatusCode(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallAborted(Exception):
    """Raised by a handler: the call ends with this gRPC status. Without `trailing_metadata`, that
    of the call stays."""

    def __init__(
        self, code: StatusCode, details: str, trailing_metadata: CallMetadata = ()
    ) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details
        self.trailing_metadata = trailing_metadata


class CallGone(Exception):
    """Raised by `ServerCall.read` and `ServerCall.write`: the call has ended, usually because its
    client has gone. No error of the node."""


class ServerCall(Protocol):
    """One call at the server. Its handler is cancelled when the client cancels it, its deadline
    passes or its connection ends."""

    def invocation_metadata(self) -> CallMetadata: ...

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        ...

    def peer(self) -> str:
        """The client as gRPC names it: `ipv4:192.0.2.1:50000`, or `unix:` for a Unix socket without
        a name."""
        ...

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """What TLS has verified of the client, by gRPC's names, as `x509_common_name`; empty over
        plaintext."""
        ...

    def set_trailing_metadata(self, metadata: CallMetadata) -> None: ...
    async def send_initial_metadata(self, metadata: CallMetadata) -> None:
        """Send it at once; otherwise it goes with the first answer. At most once."""
        ...

    async def read(self) -> bytes | None:
        """The next request of a stream; None once the client has closed its side. One caller at a
        time. Raises CallGone."""
        ...

    async def write(self, message: bytes) -> None:
        """Send one answer of a stream; waits while the client does not read. One caller at a time.
        Raises CallGone."""
        ...

    async def finish(self, *, taken: bool = False) -> None:
        """End a stream of answers with OK: the last thing that its handler does with the call.
        Returns once the socket has taken all answers. If the client leaves before, this raises
        CallGone, or the handler is cancelled.

        `taken`: return only once the client has provably taken all answers before its deadline, as
        far as the server can know that. The server of ledgermq-native does: it waits for the
        acknowledgement of an HTTP/2 PING behind them. grpc.aio has no such means."""
        ...


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """One request, one answer."""

    serve: Callable[[bytes, ServerCall], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class ServerStreamMethod:
    """One request; the handler writes the answers."""

    serve: Callable[[bytes, ServerCall], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """Streams in both directions; the handler reads and writes."""

    serve: Callable[[ServerCall], Awaitable[None]]


Method = UnaryMethod | ServerStreamMethod | StreamMethod
"""One method of a service. What a handler returns early ends the call with OK; an exception other
than CallAborted with UNKNOWN."""
Diversion = Callable[[str, CallMetadata], StreamMethod | None]
"""Decides by path and metadata whether something else than the registered method serves a call, as
bytes in both directions."""


# -- the administration

OperatorCall = Callable[[Any], Awaitable[Any]]
"""Serves a method of `ledgermq.v1.Admin`: takes the request and returns the response, whose status
the service sets. Raises LedgerError."""
PeerCall = Callable[[str, bytes], Awaitable[bytes]]
"""Answers what another node asks: takes the broker group ("" if the question is not about one) and
the request. Raises CallRefused."""


@dataclass(frozen=True, slots=True)
class AdminCalls:
    """What one noun of the administration serves, by the names of the methods: `operators` may call
    the first ones, and other nodes the second ones."""

    operators: Mapping[str, OperatorCall]
    peers: Mapping[str, PeerCall] = field(default_factory=dict)


class AdminNoun(Protocol):
    """What the administration says and does about one thing, such as topics, on one node."""

    def calls(self) -> AdminCalls: ...


# -- servers


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and how a server listens."""

    host: str
    port: int
    """0: any free port."""
    plain: bool = True
    """Plaintext is accepted; beside TLS on the same port if `tls` is set too."""
    tls: CertificateFiles | None = None
    limits: Quotas = field(default_factory=Quotas)
    """The limits of connections apply; the others concern calls."""
    memory: Limits = field(default_factory=Limits)
    """The bounds of what requests and answers hold apply; the others concern calls."""
    shared: bool = False
    """Other processes listen on the same port."""
    unix: str | None = None
    """The path of a Unix socket on which it listens too, in plaintext and without limits: for the
    other workers of this node."""


class CallServer(Protocol):
    """A gRPC server. Order of calls: `add_service` for each service, `listen`, `stop`. Belongs to
    the loop's thread."""

    def add_service(self, name: str, methods: Mapping[str, Method]) -> None: ...

    async def listen(self, where: Listening) -> int:
        """Open the port, and return it. Raises RuntimeError or OSError if it is taken."""
        ...

    def address_of(self, peer: str) -> str:
        """The client's address, from `ServerCall.peer`."""
        ...

    def connections(self) -> int | None:
        """The number of open connections of clients; None if the server does not count them."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections and no more calls; cancel what has not ended within the grace
        time."""
        ...
