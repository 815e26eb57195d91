"""One connection to a cluster: its endpoints, any of which answers, and the retry rule of every
call, for threads and for event loops.

Addresses, channels and deadlines live here. The meaning of a request, and of an answer beyond its
status, belongs to the callers. `Connection` and `AsyncConnection` differ only in how they wait;
everything else is in their base class.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from ledgermq.client.api import arguments
from ledgermq.client.api.lifecycle import Life, LoopLife, ThreadLife, use_grpc
from ledgermq.client.api.service import Metadata
from ledgermq.client.api.talks import Call, Pause, Step, Talk, carry_out, carry_out_async
from ledgermq.client.api.transport import CHECK, cause_of, failure_of, transport_code
from ledgermq.client.errors import UNKNOWN_REMEDY, BadArgument, Refused, Unreachable, refusal
from ledgermq.proto import host_port
from ledgermq.proto.signature import AUTHORIZATION, DATE_TIME, Credentials, sign
from ledgermq.proto.workers import MEMBER_METADATA, MEMBER_NAME, is_first

DEFAULT_ENDPOINTS = "127.0.0.1:8081"
OK = 20000
PAUSE_S = 0.1
OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # When a node returns at another address, its old connections get no answer and are never
    # closed: keepalive finds them.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    # Any other ping under way replaces the keepalive ping, and has a timeout of its own.
    ("grpc.http2.ping_timeout_ms", 8_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A proxy set in the environment is meant for the web; it would even take over connections to
    # loopback.
    ("grpc.enable_http_proxy", 0),
]
# Transport states after which another endpoint is tried; every other state is a mistake of the
# caller or of this client.
FAILOVER_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}

A = TypeVar("A")
C = TypeVar("C")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of one endpoint, and the cluster member meant there if it matters: the workers
    of a node share an endpoint."""

    host: str
    port: int
    node: str = ""

    @property
    def place(self) -> str:
        """The target to connect to."""
        return host_port.joined(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.node}@{self.place}" if self.node else self.place


def parse_endpoints(text: str) -> tuple[Address, ...]:
    """Parse `h:p;h:p` into addresses; `NODE@h:p` names a certain member behind an endpoint. Raises
    BadArgument with the accepted form."""
    found = []
    for part in (p.strip() for p in arguments.text(text, "endpoints").split(";")):
        node, named, place = part.rpartition("@")
        try:
            host, port = host_port.split(place)
        except ValueError:
            host, port = "", 0
        if not port or (named and re.fullmatch(MEMBER_NAME, node) is None):
            raise BadArgument(
                f"{part!r} is not an endpoint",
                "give them as 'host:port;host:port', with IPv6 addresses in brackets",
            )
        found.append(Address(host, port, node))
    return tuple(found)


class Endpoints(Generic[C]):
    """What both kinds of connection share: everything except waiting."""

    _made_life: Callable[[str], Life]
    """The kind of life, by how the kind of connection waits."""

    def __init__(
        self,
        endpoints: str = DEFAULT_ENDPOINTS,
        *,
        timeout_s: float = 10.0,
        credentials: Credentials | None = None,
        tls: bool = False,
        ca: bytes | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`endpoints`: host:port;host:port. `timeout_s`: time limit of a call, retries included.
        `credentials` sign every call. `ca`: PEM of the CA that signed the servers' certificates, by
        default the system's CAs. `certificate`: PEMs of the client's own key and certificate, for
        servers that require them. Raises BadArgument."""
        self.addresses = parse_endpoints(endpoints)
        self.timeout_s = arguments.seconds(timeout_s, "timeout_s")
        self.credentials = arguments.credentials(credentials)
        self.tls = tls
        self._ca = arguments.pem(ca, "ca")
        self._own: tuple[bytes | None, bytes | None] = arguments.pems(
            certificate, "certificate"
        ) or (None, None)
        self._channels: dict[Address, C] = {}
        self._life = type(self)._made_life("connection")
        # Reentrant: a signal handler may close the connection while its thread is in here.
        self._lock = threading.RLock()
        self._turn = 0
        self._reopened = 0

    @cached_property
    def client_id(self) -> str:
        """The name of this client in the cluster; of the process that uses it first, if a fork
        copied it before."""
        # Host name and process id are for the reader. In containers both can be the same, and
        # clients with one id would share leases and the stream of a broadcasting group.
        return f"{socket.gethostname()}@{os.getpid()}@{secrets.token_hex(8)}"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments with which further connections to the same cluster are made."""
        certificate = None if self._own == (None, None) else self._own
        wire = {
            "credentials": self.credentials,
            "tls": self.tls,
            "ca": self._ca,
            "certificate": certificate,
        }
        return {"endpoints": ";".join(map(str, self.addresses)), **wire}

    @property
    def metadata(self) -> Metadata:
        """The metadata of a call to the endpoint in use."""
        return self.metadata_to(self.address)

    def metadata_to(self, address: Address) -> Metadata:
        """The metadata of a call to one address."""
        meant = ((MEMBER_METADATA, address.node),) if address.node else ()
        return (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "v2"),
            *meant,
            *self._signature(),
        )

    def _signature(self) -> Metadata:
        if self.credentials is None:
            return ()
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return ((DATE_TIME, now), (AUTHORIZATION, sign(self.credentials, now)))

    @property
    def address(self) -> Address:
        """The endpoint in use."""
        return self.addresses[self._turn % len(self.addresses)]

    def channel(self) -> C:
        """The channel of the endpoint in use."""
        return self.channel_to(self.address)

    def channel_to(self, address: Address) -> C:
        """The channel to any node, for example one that another node named. Raises BadArgument."""
        use_grpc()
        with self._lock:
            self._life.check()
            if address not in self._channels:
                # Each further worker gets a connection of its own: the kernel may hand a new
                # connection to that worker.
                own = () if is_first(address.node) else (("ledgermq.node", address.node),)
                # Channels with equal options share one connection.
                self._channels[address] = self._opened(
                    address.place, [*OPTIONS, *own, ("ledgermq.reopened", self._reopened)]
                )
            return self._channels[address]

    def _taken_channels(self) -> list[C]:
        """All channels, for the caller to close. None is opened afterwards."""
        with self._lock:
            channels = list(self._channels.values())
            self._channels.clear()
            return channels

    def _opened(self, place: str, options: Sequence[tuple[str, Any]]) -> C:
        raise AssertionError("each kind of connection opens its own kind of channel")

    def _tls(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self._ca, *self._own)

    def fail_over(self, failed: Address, *, connected: bool = False) -> None:
        """Switch to the next endpoint, unless another caller has already left `failed`: many calls
        that fail together switch only once. `connected`: the node that failed keeps its connection.
        If there is no other endpoint, further calls then get a new connection, because the name of
        a Service, or a load balancer, may lead to another node. Calls that wait on the former one
        go on."""
        with self._lock:
            if self.address.place == failed.place:
                self._turn += 1
                if (
                    connected
                    and self.address.place == failed.place
                    and self._channels.pop(failed, None) is not None
                ):
                    self._reopened += 1

    def guard_secret(self) -> None:
        """Refuse to send a secret unencrypted over a network. Raises BadArgument."""
        open_to = [at.host for at in self.addresses if not host_port.is_loopback(at.host)]
        if open_to and not self.tls:
            what = f"the secret would travel to {open_to[0]} unencrypted"
            raise BadArgument(
                what, "use --tls --ca FILE (in Python: tls, ca), or run the command on that machine"
            )

    def asking(self, path: str, request: Message, response: type[M]) -> Talk[M]:
        """Repeat a call until its answer has status OK (or no `problem`), or a status that no retry
        can change.

        After a transport failure or a retryable status, the next endpoint is tried after a pause,
        within the timeout: a node that is partitioned, or was removed from the cluster, would
        answer "no quorum" forever. Only for calls that are safe to repeat. Raises Unreachable or
        Refused.
        """
        end = time.monotonic() + self.timeout_s
        last, hint, said, remedy = "", CHECK, "", CHECK
        share_s = max(1.0, self.timeout_s / 2)
        while (left := end - time.monotonic()) > 0:
            address, connected = self.address, True
            try:
                answer = yield Call(path, request, response, min(left, share_s))
            except grpc.RpcError as error:
                connected = transport_code(error) != grpc.StatusCode.UNAVAILABLE
                if transport_code(error) not in FAILOVER_CODES:
                    raise failure_of(address, error) from error
                cut_short = (
                    left < share_s and transport_code(error) == grpc.StatusCode.DEADLINE_EXCEEDED
                )
                if not (cut_short and last):
                    # A try that only the end of the caller's time cut short explains less than the
                    # one before it.
                    last, hint = cause_of(address, error)
            else:
                problem = _trouble(answer)
                if problem is None:
                    return cast(M, answer)
                if not problem.retryable:
                    raise problem
                said = problem.what
                if problem.remedy != UNKNOWN_REMEDY:
                    remedy = problem.remedy
            self.fail_over(address, connected=connected)
            yield Pause(min(PAUSE_S, max(0.0, end - time.monotonic())))
        endpoints = ";".join(str(a) for a in self.addresses)
        # An answer from a node explains more than the transport error of the last try.
        what = (
            f"no usable answer from {endpoints} within {self.timeout_s:g} s"
            f" ({said or last or 'no endpoint was tried'})"
        )
        raise Unreachable(what, remedy if said else hint)


def _trouble(answer: Any) -> Refused | None:
    """The error in an answer, or None. Answers of the Log service have a `problem`, all others a
    `status`."""
    if "status" in answer.DESCRIPTOR.fields_by_name:
        return (
            None if answer.status.code == OK else refusal(answer.status.code, answer.status.message)
        )
    if not answer.HasField("problem"):
        return None
    trouble = refusal(answer.problem.code, answer.problem.message)
    trouble.retryable = answer.problem.retryable
    return trouble


class Connection(Endpoints[grpc.Channel]):
    """Channels to the endpoints of one cluster, opened when first used. Thread-safe. A context
    manager."""

    _made_life = ThreadLife
    _life: ThreadLife

    def __enter__(self) -> Connection:
        self._life.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. Calls under way end with Unreachable, later ones with BadArgument."""
        self._life.end(self._close)

    def _close(self) -> None:
        for channel in self._taken_channels():
            channel.close()

    def ask(self, path: str, request: Message, response: type[M]) -> M:
        """One answer, with the retry rule of `asking`."""
        return self.carry_out(self.asking(path, request, response))

    def carry_out(self, talk: Talk[A]) -> A:
        self._life.check()
        return carry_out(talk, self._do)

    def _do(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        try:
            call: Any = self.channel().unary_unary(
                step.path, type(step.request).SerializeToString, step.response.FromString
            )
            return call(step.request, metadata=self.metadata, timeout=step.timeout_s)
        except (grpc.RpcError, ValueError, BadArgument) as error:
            # When a channel is closed under a call, the library says that the call was cancelled,
            # or raises ValueError. What was asked for before a pause may have been done.
            if self._life.ended:
                raise self._life.lost() from error
            raise

    def _opened(self, place: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        return (
            grpc.secure_channel(place, self._tls(), options)
            if self.tls
            else grpc.insecure_channel(place, options)
        )


class AsyncConnection(Endpoints[grpc.aio.Channel]):
    """The same for one event loop, which it never blocks. An asynchronous context manager."""

    _made_life = LoopLife
    _life: LoopLife

    async def __aenter__(self) -> AsyncConnection:
        self._life.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it. Calls under way end with Unreachable, later ones with BadArgument."""
        await self._life.end(self._close)

    async def _close(self) -> None:
        for channel in self._taken_channels():
            await channel.close()

    async def carry_out(self, talk: Talk[A]) -> A:
        self._life.check()
        return await carry_out_async(talk, self._do)

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await self.answer_of(
            self.address, step.path, step.request, step.response, step.timeout_s
        )

    async def answer_of(
        self, address: Address, path: str, request: Message, response: type[M], timeout_s: float
    ) -> M:
        """One unary call to a node. Raises grpc.RpcError; Unreachable if the connection is closed
        meanwhile."""
        try:
            call: Any = self.channel_to(address).unary_unary(
                path, type(request).SerializeToString, response.FromString
            )
            return cast(
                M, await call(request, metadata=self.metadata_to(address), timeout=timeout_s)
            )
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.CancelledError, BadArgument) as error:
            # When a channel is closed under a call, the library cancels the call, and with it the
            # task that waits for it. What was asked for before a pause may have been done.
            if self._life.ended and not (
                isinstance(error, asyncio.CancelledError) and _is_cancelled()
            ):
                raise self._life.lost() from error
            raise

    def _opened(self, place: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        return (
            grpc.aio.secure_channel(place, self._tls(), options)
            if self.tls
            else grpc.aio.insecure_channel(place, options)
        )


def _is_cancelled() -> bool:
    """Whether somebody has asked to cancel the task that runs."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
