"""One connection to a cluster: several endpoints, any of which answers, and the retry rule of every call.

Here live addresses, channels and deadlines. What is asked, and what an answer means beyond its status, belongs to the callers.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc

from ledgermq.client.errors import BadArgument, Unreachable, refusal
from ledgermq.proto.signature import AUTHORIZATION, DATE_TIME, Credentials, sign

DEFAULT_ENDPOINTS = "127.0.0.1:8081"
OK = 20000
PAUSE_S = 0.1
_ENDPOINT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:;,/\[\]]+):(?P<port>[0-9]{1,5})")
OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A proxy of the environment is for the web: it would swallow even connections to loopback.
    ("grpc.enable_http_proxy", 0),
]
# Transport states after which another endpoint is worth a try; everything else is the caller's mistake or ours.
ELSEWHERE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of one endpoint."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoints(text: str) -> tuple[Address, ...]:
    """`h:p;h:p` as addresses; raises BadArgument with what is accepted."""
    found = []
    for part in (p.strip() for p in text.split(";")):
        match = _ENDPOINT.fullmatch(part)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise BadArgument(f"{part!r} is not an endpoint", "give them as 'host:port;host:port'")
        found.append(Address(match["host"].strip("[]"), int(match["port"])))
    return tuple(found)


class Connection:
    """Channels to the endpoints of one cluster, opened when first used. Thread-safe. A context manager."""

    def __init__(
        self,
        endpoints: str,
        *,
        timeout_s: float = 10.0,
        credentials: Credentials | None = None,
        tls: bool = False,
        ca: bytes | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`credentials` sign every call; `ca`: the PEM of the authority that servers must have a certificate of, else the system's;
        `certificate`: the PEMs of the client's own key and certificate, for servers that ask for one."""
        self.addresses = parse_endpoints(endpoints)
        self.timeout_s = timeout_s
        self.credentials = credentials
        self.tls = tls
        self._ca = ca
        self._own: tuple[bytes | None, bytes | None] = certificate or (None, None)
        self.client_id = f"{socket.gethostname()}@{os.getpid()}@{next(_serial)}"
        self._channels: dict[Address, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._turn = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-mq-client-id", self.client_id), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"), *self._signature())

    def _signature(self) -> tuple[tuple[str, str], ...]:
        if self.credentials is None:
            return ()
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return ((DATE_TIME, now), (AUTHORIZATION, sign(self.credentials, now)))

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    @property
    def address(self) -> Address:
        """The endpoint in use."""
        return self.addresses[self._turn % len(self.addresses)]

    def channel(self) -> grpc.Channel:
        """The channel of the endpoint in use."""
        with self._lock:
            address = self.address
            if address not in self._channels:
                self._channels[address] = self._opened(str(address))
            return self._channels[address]

    def _opened(self, address: str) -> grpc.Channel:
        if self.tls:
            return grpc.secure_channel(address, grpc.ssl_channel_credentials(self._ca, *self._own), OPTIONS)
        return grpc.insecure_channel(address, OPTIONS)

    def elsewhere(self, failed: Address) -> None:
        """Use the next endpoint from now on, unless another caller has left `failed` already: a window full of failed calls moves once."""
        with self._lock:
            if self.address == failed:
                self._turn += 1

    def ask(self, call: Callable[[grpc.Channel, float], A]) -> A:
        """Run `call(channel, seconds left)` until its answer's `status` is OK or not worth repeating.

        Transport failures move on to the next endpoint, retryable statuses wait a little; both only within the timeout. Only for calls
        that may be repeated. Raises Unreachable or Refused.
        """
        end = time.monotonic() + self.timeout_s
        last = "no endpoint was tried"
        while (left := end - time.monotonic()) > 0:
            address = self.address
            try:
                answer = call(self.channel(), min(left, max(1.0, self.timeout_s / 2)))
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
                if code not in ELSEWHERE:
                    raise refusal(50001, f"the call failed with {code.name}") from error
                last = f"{address} answers {code.name}"
                self.elsewhere(address)
            else:
                status: Any = cast(Any, answer).status
                if status.code == OK:
                    return answer
                problem = refusal(status.code, status.message)
                if not problem.retryable:
                    raise problem
                last = problem.what
            time.sleep(min(PAUSE_S, max(0.0, end - time.monotonic())))
        endpoints = ";".join(str(a) for a in self.addresses)
        what = f"no usable answer from {endpoints} within {self.timeout_s:g} s ({last})"
        raise Unreachable(what, "check the endpoints and that the nodes run")


_serial = itertools.count()
