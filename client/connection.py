"""One connection to a cluster: several endpoints, any of which answers, and the retry rule of every call, for threads and for event loops.

Here live addresses, channels and deadlines. What is asked, and what an answer means beyond its status, belongs to the callers. Waiting
differs between `Connection` and `AsyncConnection`; everything else is their base's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from ledgermq.client.errors import UNKNOWN_REMEDY, BadArgument, Refused, Unreachable, refusal
from ledgermq.client.service import Metadata
from ledgermq.client.talks import Call, Pause, Step, Talk, carry_out, carry_out_async
from ledgermq.proto.signature import AUTHORIZATION, DATE_TIME, Credentials, sign
from ledgermq.proto.workers import MEMBER_METADATA, MEMBER_NAME, is_first

DEFAULT_ENDPOINTS = "127.0.0.1:8081"
OK = 20000
PAUSE_S = 0.1
_ENDPOINT = re.compile(rf"(?:(?P<node>{MEMBER_NAME})@)?" r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:;,/\[\]]+):(?P<port>[0-9]{1,5})")
OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A node that came back at another address leaves connections behind that nobody answers and nobody ends.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    # A ping of another kind that is under way takes the place of this one, and has a time-out of its own.
    ("grpc.http2.ping_timeout_ms", 8_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A proxy of the environment is for the web: it would swallow even connections to loopback.
    ("grpc.enable_http_proxy", 0),
]
# Transport states after which another endpoint is worth a try; everything else is the caller's mistake or ours.
ELSEWHERE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}

A = TypeVar("A")
C = TypeVar("C")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of one endpoint, and the member of the cluster that is meant there, where it matters: workers of a node share one."""

    host: str
    port: int
    node: str = ""

    @property
    def place(self) -> str:
        """Where to connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.node}@{self.place}" if self.node else self.place


def parse_endpoints(text: str) -> tuple[Address, ...]:
    """`h:p;h:p` as addresses, `NODE@h:p` being a certain member behind one; raises BadArgument with what is accepted."""
    found = []
    for part in (p.strip() for p in text.split(";")):
        match = _ENDPOINT.fullmatch(part)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise BadArgument(f"{part!r} is not an endpoint", "give them as 'host:port;host:port'")
        found.append(Address(match["host"].strip("[]"), int(match["port"]), match["node"] or ""))
    return tuple(found)


class Endpoints(Generic[C]):
    """What both kinds of connection share: all but the waiting."""

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
        """`endpoints`: host:port;host:port. `timeout_s`: how long to try, retries included. `credentials` sign every call; `ca`: the PEM of
        the authority that servers must have a certificate of, else the system's; `certificate`: the PEMs of the client's own key and
        certificate, for servers that ask for one."""
        self.addresses = parse_endpoints(endpoints)
        self.timeout_s = timeout_s
        self.credentials = credentials
        self.tls = tls
        self._ca = ca
        self._own: tuple[bytes | None, bytes | None] = certificate or (None, None)
        self.client_id = f"{socket.gethostname()}@{os.getpid()}@{next(_serial)}"
        self._channels: dict[Address, C] = {}
        self._lock = threading.Lock()
        self._turn = 0

    @property
    def options(self) -> dict[str, Any]:
        """What other connections to the same cluster are made with."""
        certificate = None if self._own == (None, None) else self._own
        wire = {"credentials": self.credentials, "tls": self.tls, "ca": self._ca, "certificate": certificate}
        return {"endpoints": ";".join(map(str, self.addresses)), **wire}

    @property
    def metadata(self) -> Metadata:
        """Of a call to the endpoint in use."""
        return self.metadata_to(self.address)

    def metadata_to(self, address: Address) -> Metadata:
        """Of a call to one address."""
        meant = ((MEMBER_METADATA, address.node),) if address.node else ()
        return (("x-mq-client-id", self.client_id), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"), *meant, *self._signature())

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
        """The channel of any node, such as one that another node named."""
        with self._lock:
            if address not in self._channels:
                # A further worker gets a connection of its own: the system may lead it to that very worker.
                own = () if is_first(address.node) else (("ledgermq.node", address.node),)
                self._channels[address] = self._opened(address.place, [*OPTIONS, *own])
            return self._channels[address]

    def _opened(self, place: str, options: Sequence[tuple[str, Any]]) -> C:
        raise AssertionError("each kind of connection opens its own kind of channel")

    def _tls(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self._ca, *self._own)

    def elsewhere(self, failed: Address) -> None:
        """Use the next endpoint from now on, unless another caller has left `failed` already: a window full of failed calls moves once."""
        with self._lock:
            if self.address.place == failed.place:
                self._turn += 1

    def guard_secret(self) -> None:
        """A secret leaves this machine encrypted or not at all. Raises BadArgument."""
        open_to = [at.host for at in self.addresses if not (at.host == "localhost" or _is_loopback(at.host))]
        if open_to and not self.tls:
            what = f"the secret would travel to {open_to[0]} unencrypted"
            raise BadArgument(what, "use --tls --ca FILE (in Python: tls, ca), or work on that machine")

    def asking(self, path: str, request: Message, response: type[M]) -> Talk[M]:
        """Call until the answer's `status` is OK, or it has no `problem`, or one that is not worth repeating.

        A transport failure and a retryable status both lead to the next endpoint after a pause, within the timeout: a node that is cut
        off, or that was removed from the cluster, answers "no quorum" for as long as it is asked. Only for calls that may be repeated.
        Raises Unreachable or Refused.
        """
        end = time.monotonic() + self.timeout_s
        last, remedy, said = "no endpoint was tried", "check the endpoints and that the nodes run", ""
        while (left := end - time.monotonic()) > 0:
            address = self.address
            try:
                answer = yield Call(path, request, response, min(left, max(1.0, self.timeout_s / 2)))
            except grpc.RpcError as error:
                code = transport_code(error)
                if code not in ELSEWHERE:
                    raise refusal(50001, f"the call failed with {code.name}") from error
                last = f"{address} answers {code.name}"
            else:
                problem = _trouble(answer)
                if problem is None:
                    return cast(M, answer)
                if not problem.retryable:
                    raise problem
                said = problem.what
                if problem.remedy != UNKNOWN_REMEDY:
                    remedy = problem.remedy
            self.elsewhere(address)
            yield Pause(min(PAUSE_S, max(0.0, end - time.monotonic())))
        endpoints = ";".join(str(a) for a in self.addresses)
        # What a node said is worth more than that the last one did not answer any more.
        what = f"no usable answer from {endpoints} within {self.timeout_s:g} s ({said or last})"
        raise Unreachable(what, remedy)


def _trouble(answer: Any) -> Refused | None:
    """Why an answer is none. Answers of the Log service have a problem where those of others have a status."""
    if "status" in answer.DESCRIPTOR.fields_by_name:
        return None if answer.status.code == OK else refusal(answer.status.code, answer.status.message)
    if not answer.HasField("problem"):
        return None
    trouble = refusal(answer.problem.code, answer.problem.message)
    trouble.retryable = answer.problem.retryable
    return trouble


class Connection(Endpoints[grpc.Channel]):
    """Channels to the endpoints of one cluster, opened when first used. Thread-safe. A context manager."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def ask(self, path: str, request: Message, response: type[M]) -> M:
        """One answer, by the rule of `asking`."""
        return self.carry_out(self.asking(path, request, response))

    def carry_out(self, talk: Talk[A]) -> A:
        return carry_out(talk, self._do)

    def _do(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        call: Any = self.channel().unary_unary(step.path, type(step.request).SerializeToString, step.response.FromString)
        return call(step.request, metadata=self.metadata, timeout=step.timeout_s)

    def _opened(self, place: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        return grpc.secure_channel(place, self._tls(), options) if self.tls else grpc.insecure_channel(place, options)


class AsyncConnection(Endpoints[grpc.aio.Channel]):
    """The same for one event loop, which it never blocks. An asynchronous context manager."""

    async def __aenter__(self) -> AsyncConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def carry_out(self, talk: Talk[A]) -> A:
        return await carry_out_async(talk, self._do)

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        call: Any = self.channel().unary_unary(step.path, type(step.request).SerializeToString, step.response.FromString)
        return await call(step.request, metadata=self.metadata, timeout=step.timeout_s)

    def _opened(self, place: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(place, self._tls(), options) if self.tls else grpc.aio.insecure_channel(place, options)


def transport_code(error: grpc.RpcError) -> grpc.StatusCode:
    """Why a call failed before it was answered."""
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_serial = itertools.count()
