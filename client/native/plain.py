"""The native streams for programs that do one thing after the other: connections, and the way to the leader of a broker group.

No event loop and no thread of its own: what a task of a data engine needs, whose process belongs to the engine. `plain_reading.py` reads a
range of one queue, `plain_writing.py` stores a numbered row of messages once; both survive a change of leaders.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from ledgermq.client.connection import Address, Connection, parse_endpoints
from ledgermq.client.errors import BadArgument, Unreachable
from ledgermq.client.native.connection import BrokerGroupQueues, Located, Pauses, broken, problem_of
from ledgermq.client.service import LOG
from ledgermq.proto import log_pb2 as pb

PATIENCE_S = 60.0
"""How long to try without any progress."""
STREAM_S = 120.0
"""A stream is opened again after so long: one that hangs is noticed."""

M = TypeVar("M", bound=Message)


class PlainConnection(Connection):
    """Channels to the nodes of one cluster, and who leads which broker group, as far as it is known."""

    def __init__(self, endpoints: str, **options: Any) -> None:
        """As `Connection`."""
        super().__init__(endpoints, **options)
        self._leaders: dict[str, Address] = {}
        self._chance = random.Random()

    def __enter__(self) -> PlainConnection:
        return self

    def locate(self, topic: str, namespace: str = "") -> Located:
        """Where a topic is. Raises Unreachable or Refused."""
        way = Way(self, "", self.timeout_s)
        while True:
            address = way.next_address()
            call: Any = self.channel_to(address).unary_unary(f"{LOG}Locate", _bytes_of, pb.LocateResponse.FromString)
            try:
                answer = call(pb.LocateRequest(namespace=namespace, topic=topic), metadata=self.metadata, timeout=self.timeout_s)
            except grpc.RpcError as error:
                way.failed(broken(address, error))
                continue
            if answer.HasField("problem"):
                way.problem(answer.problem)
                continue
            groups = [BrokerGroupQueues(group.name, tuple(group.queues), group.log_id) for group in answer.broker_groups]
            return Located(answer.cluster_id, answer.kind, tuple(sorted(groups, key=lambda group: group.name)))

    def stream(self, method: str, address: Address, requests: Iterator[Message], response: type[M]) -> Any:
        """A bidirectional call to one node."""
        call: Any = self.channel_to(address).stream_stream(f"{LOG}{method}", _bytes_of, response.FromString)
        return call(requests, metadata=self.metadata, timeout=STREAM_S)


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()


class Way:
    """To the leader of one broker group, with pauses, until nothing has worked for too long."""

    def __init__(self, connection: PlainConnection, broker_group: str, patience_s: float) -> None:
        self._connection = connection
        self._group = broker_group
        self._patience_s = patience_s
        self._end_s = time.monotonic() + patience_s
        self._pauses = Pauses(connection._chance)
        self._due_s = 0.0
        self._address: Address | None = None
        self._last = "no endpoint was tried"

    def next_address(self) -> Address:
        """Where to try now. Raises Unreachable."""
        left = self._end_s - time.monotonic()
        if left <= 0:
            what = f"no progress with broker group {self._group or 'any'} for {self._patience_s:g} s ({self._last})"
            raise Unreachable(what, "check the endpoints and that the nodes run")
        time.sleep(min(self._due_s, left))
        self._due_s = 0.0
        self._address = self._connection._leaders.get(self._group) or self._connection.address
        return self._address

    def worked(self) -> None:
        """There was progress."""
        self._end_s = time.monotonic() + self._patience_s
        self._pauses.reset()
        self.reached()

    def reached(self) -> None:
        """The node leads."""
        if self._address is not None:
            self._connection._leaders[self._group] = self._address

    @property
    def address(self) -> Address | None:
        """Where it was tried last."""
        return self._address

    def redirected(self, redirect: pb.Redirect) -> None:
        self._last = f"broker group {self._group} is led by {redirect.leader or 'nobody'}"
        try:
            (self._connection._leaders[self._group],) = parse_endpoints(redirect.endpoint)
            self._due_s = self._pauses.next_s()
        except (BadArgument, ValueError):
            self.failed(self._last)

    def failed(self, why: str, retry_after_ms: int = 0) -> None:
        self._last = why
        self._due_s = max(self._pauses.next_s(), retry_after_ms / 1000)
        self._connection._leaders.pop(self._group, None)
        if self._address is not None:
            self._connection.elsewhere(self._address)

    def problem(self, problem: pb.Problem) -> None:
        """Raises Refused if it will not pass."""
        error = problem_of(problem)
        if not error.retryable:
            raise error
        self.failed(error.what, problem.retry_after_ms)


def aside(way: Way, response: Any) -> None:
    """A redirect or a problem in place of an answer."""
    if response.HasField("redirect"):
        way.redirected(response.redirect)
    else:
        way.problem(response.problem)


class Outgoing(Iterator[Message]):
    """The requests of one stream, as the transport takes them."""

    def __init__(self, first: Message) -> None:
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._queue.put(first)

    def put(self, message: Message) -> None:
        self._queue.put(message)

    def close(self) -> None:
        self._queue.put(None)

    def __next__(self) -> Message:
        message = self._queue.get()
        if message is None:
            raise StopIteration
        return message
