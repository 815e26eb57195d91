"""Producers that send one message after the other while pods come and go, and know what was
acknowledged."""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import grpc

from ledgermq.client import Producer
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.signature import Credentials
from tests.cluster import wait_for
from tests.contract import official
from tests.contract.backend import message, signed

SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
OK = 20000
TOPIC = "t"
Keys = tuple[str, str]
Send = Callable[[str], bool]


class Load(ABC):
    """Sends numbered messages to the topic `t` from a thread of its own, each one until it is
    acknowledged."""

    name: str
    """Also the beginning of each body."""

    def __init__(self, endpoints: str, keys: Keys) -> None:
        self.endpoints, self.keys = endpoints, keys
        self.acknowledged: list[str] = []
        self._last_s = self._longest_s = 0.0
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def connected(self) -> AbstractContextManager[Send]:
        """A function that sends one body, and returns whether it was acknowledged."""

    def __enter__(self) -> Load:
        self._last_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def longest_since(self) -> float:
        """The longest time in seconds without an acknowledgement since the last question."""
        found, self._longest_s = max(self._longest_s, time.monotonic() - self._last_s), 0.0
        return found

    def more(self, count: int = 50) -> None:
        """Wait for further acknowledgements."""
        least = len(self.acknowledged) + count
        wait_for(
            lambda: self._failure or len(self.acknowledged) >= least,
            60,
            f"acknowledgements for {self.name}",
        )

    def _run(self) -> None:
        try:
            with self.connected() as send:
                for number in itertools.count():
                    body = f"{self.name}{number:06}"
                    while not self._stop.is_set() and not send(body):
                        pass
                    if self._stop.is_set():
                        return
                    self.acknowledged.append(body)
                    now_s = time.monotonic()
                    self._longest_s, self._last_s = (
                        max(self._longest_s, now_s - self._last_s),
                        now_s,
                    )
        except BaseException as failure:  # raised where the load ends
            self._failure = failure


class UnaryLoad(Load):
    """Single calls of the RocketMQ contract over one channel."""

    name = "unary"

    @contextmanager
    def connected(self) -> Iterator[Send]:
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500)]
        with grpc.insecure_channel(self.endpoints, options=options) as channel:
            call = channel.unary_unary(
                SEND, pb.SendMessageRequest.SerializeToString, pb.SendMessageResponse.FromString
            )
            metadata = signed(*self.keys)

            def send(body: str) -> bool:
                try:
                    request = pb.SendMessageRequest(messages=[message(body.encode(), TOPIC)])
                    return bool(call(request, metadata=metadata, timeout=5).status.code == OK)
                except grpc.RpcError:
                    return False

            yield send


class NativeLoad(Load):
    """The native producer, whose messages are stored once each. A failed send ends the load."""

    name = "native"

    @contextmanager
    def connected(self) -> Iterator[Send]:
        with Producer(self.endpoints, TOPIC, credentials=Credentials(*self.keys)) as producer:
            yield lambda body: bool(producer.send(body.encode()).result())


class OfficialLoad(Load):
    """The official Python client in a process of its own."""

    name = "official"

    def __init__(self, endpoints: str, keys: Keys, home: Path) -> None:
        super().__init__(endpoints, keys)
        self._home = home

    @contextmanager
    def connected(self) -> Iterator[Send]:
        access, secret = self.keys
        variables = {"CLIENT_ACCESS_KEY": access, "CLIENT_SECRET_KEY": secret}
        with closing(official.Official(self.endpoints, self._home, variables)) as client:
            client.do("producer", name="p", topics=[TOPIC])

            def send(body: str) -> bool:
                try:
                    client.do("send", name="p", message=official.message(TOPIC, body))
                except official.ClientError:
                    return False
                return True

            yield send
