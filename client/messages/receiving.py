"""Receiving as a consumer group: long polls to the brokers of a topic, and acknowledgements by
receipt handle.

At least once: a message whose acknowledgement was lost is delivered again. A broker that has no
messages, or no leader, holds up no message of another one: each has a poll of its own, which stands
until it is answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import grpc

from ledgermq.client.api import service
from ledgermq.client.api.connection import FAILOVER_CODES, OK, PAUSE_S, Connection
from ledgermq.client.api.transport import cause_of, failure_of, transport_code
from ledgermq.client.errors import Unreachable, refusal
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code

MESSAGE_NOT_FOUND = Code.MESSAGE_NOT_FOUND
BATCH = 32
MARGIN_S = 5.0
ACK_TIMEOUT_S = 3.0
SQL_PREFIX = "sql:"
A = TypeVar("A")


def filter_expression(text: str) -> pb.FilterExpression:
    """`sql:` followed by a SQL92 expression, otherwise tags joined with `||`."""
    if text.startswith(SQL_PREFIX):
        return pb.FilterExpression(type=pb.FilterType.SQL, expression=text.removeprefix(SQL_PREFIX))
    return pb.FilterExpression(type=pb.FilterType.TAG, expression=text)


class Receiver:
    """Receives one topic as one consumer group. Not thread-safe. A context manager.

    Of a topic with several brokers it may lease up to a batch of each that `receive` has not
    returned yet; `close` gives those back.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        group: str,
        *,
        expression: str = "*",
        namespace: str = "",
        invisible_s: float = 60.0,
    ) -> None:
        self._connection = connection
        self._topic = pb.Resource(resource_namespace=namespace, name=topic)
        self._group = pb.Resource(resource_namespace=namespace, name=group)
        self._filter = filter_expression(expression)
        self._invisible_s = invisible_s
        self._brokers: dict[str, pb.MessageQueue] = {}
        self._numbers: dict[str, int] = {}
        """By name of the broker, the number of its first queue over all brokers of the topic."""
        self._polls: dict[str, Future[list[pb.Message]]] = {}
        """By name of the broker, its poll under way; none if the topic has one broker."""
        self._kept: list[pb.Message] = []
        """Messages that `receive` has not returned yet."""
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._closing = False

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the polls under way and give back the messages that `receive` did not return. What
        the cluster cannot be told comes again when its lease ends."""
        with self._lock:
            self._closing = True
            for stream in self._open:
                stream.cancel()
        if self._pool is not None:
            self._pool.shutdown()
        # A poll that failed has brought no message; its error concerns nobody any more.
        answered = [poll.result() for poll in self._polls.values() if poll.exception() is None]
        self._polls.clear()
        kept, self._kept = (
            [*self._kept, *(message for messages in answered for message in messages)],
            [],
        )
        for message in kept:
            request = pb.ChangeInvisibleDurationRequest(group=self._group, topic=message.topic)
            request.receipt_handle = message.system_properties.receipt_handle
            request.message_id = message.system_properties.message_id
            request.invisible_duration.FromMilliseconds(0)
            path, answer = (
                service.MESSAGING + "ChangeInvisibleDuration",
                pb.ChangeInvisibleDurationResponse,
            )
            try:
                service.unary(
                    channel=self._connection.channel(),
                    path=path,
                    request=request,
                    response=answer,
                    timeout=ACK_TIMEOUT_S,
                    metadata=self._connection.metadata,
                )
            except grpc.RpcError:
                return

    def route(self) -> None:
        """Query the brokers of the topic. Raises Refused if the topic does not exist."""
        request = pb.QueryRouteRequest(topic=self._topic)
        answer = self._connection.ask(
            service.MESSAGING + "QueryRoute", request, pb.QueryRouteResponse
        )
        by_broker = {queue.broker.name: queue for queue in answer.message_queues}
        self._brokers = dict(sorted(by_broker.items()))
        queues = [queue.broker.name for queue in answer.message_queues]
        self._numbers = {name: queues.index(name) for name in self._brokers}

    def receive(self, wait_s: float, batch: int = BATCH) -> list[pb.Message]:
        """Up to `batch` messages; waits up to `wait_s` at all brokers at once. An empty list if no
        broker has a message. Their queues are counted over all brokers of the topic, as everywhere
        else in the command line."""
        if not self._brokers:
            self.route()
        if len(self._brokers) == 1:
            return self._poll(next(iter(self._brokers.values())), wait_s, batch)
        if not self._kept:
            self._await_any(time.monotonic() + wait_s, batch)
        taken, self._kept = self._kept[:batch], self._kept[batch:]
        return taken

    def _await_any(self, end: float, batch: int) -> None:
        """Keep the messages of the first polls that have any. Returns without any when each broker
        had none in a poll until `end`."""
        self._pool = self._pool or ThreadPoolExecutor(
            len(self._brokers), thread_name_prefix="receive"
        )
        # A poll of an earlier call may end before this wait does: the broker is asked once more.
        earlier, empty = set(self._polls), set[str]()
        while not self._kept and len(empty) < len(self._brokers):
            for name in self._brokers.keys() - self._polls.keys() - empty:
                left_s = max(0.0, end - time.monotonic())
                self._polls[name] = self._pool.submit(
                    self._poll, self._brokers[name], left_s, batch
                )
            for poll in wait(self._polls.values(), return_when=FIRST_COMPLETED).done:
                name = next(known for known, other in self._polls.items() if other is poll)
                del self._polls[name]
                self._kept += poll.result()
                if name not in earlier:
                    empty.add(name)
                earlier.discard(name)

    def _poll(self, queue: pb.MessageQueue, wait_s: float, batch: int) -> list[pb.Message]:
        request = pb.ReceiveMessageRequest(
            group=self._group, message_queue=queue, filter_expression=self._filter, batch_size=batch
        )
        request.invisible_duration.FromMilliseconds(round(self._invisible_s * 1000))
        request.long_polling_timeout.FromMilliseconds(round(wait_s * 1000))

        def call(
            channel: grpc.Channel, metadata: service.Metadata
        ) -> tuple[pb.Status | None, list[pb.Message]]:
            stream = service.receive_message(channel, request, metadata, wait_s + MARGIN_S)
            with self._lock:
                if self._closing:
                    stream.cancel()
                self._open.add(stream)
            try:
                return collect(stream)
            except grpc.RpcError:
                if self._closing:
                    return None, []
                raise
            finally:
                with self._lock:
                    self._open.discard(stream)

        status, messages = self._repeat("receiving", wait_s, call)
        if messages or status is None or status.code in (OK, MESSAGE_NOT_FOUND):
            for message in messages:
                message.system_properties.queue_id += self._numbers[queue.broker.name]
            return messages
        raise refusal(status.code, status.message)

    def settle(self, messages: Sequence[pb.Message], handed: int) -> None:
        """Acknowledge the first `handed` messages; `close` gives the others back, in time for
        another consumer."""
        self._kept = [*messages[handed:], *self._kept]
        if handed:
            self.acknowledge(messages[:handed])

    def acknowledge(self, messages: Sequence[pb.Message]) -> int:
        """Acknowledge messages and return how many were accepted; the leases of the others had
        expired, and they are delivered again."""
        named = (m.system_properties for m in messages)
        entries = [
            pb.AckMessageEntry(message_id=s.message_id, receipt_handle=s.receipt_handle)
            for s in named
        ]
        request = pb.AckMessageRequest(group=self._group, topic=self._topic, entries=entries)

        def call(
            channel: grpc.Channel, metadata: service.Metadata
        ) -> tuple[pb.Status | None, pb.AckMessageResponse]:
            answer = service.ack_message(channel, request, metadata, ACK_TIMEOUT_S)
            return (None if answer.entries else answer.status), answer

        status, answer = self._repeat("acknowledging", 0.0, call)
        if status is not None and status.code != OK:
            raise refusal(status.code, status.message)
        return sum(1 for entry in answer.entries if entry.status.code == OK)

    def _repeat(
        self,
        attempt: str,
        wait_s: float,
        call: Callable[[grpc.Channel, service.Metadata], tuple[pb.Status | None, A]],
    ) -> tuple[pb.Status | None, A]:
        """The first conclusive answer of `call`: neither a transport failure nor a status that asks
        to retry.

        Both are retried until the connection's timeout after `wait_s`, so that an election never
        looks like an empty topic.
        """
        give_up_at = time.monotonic() + wait_s + self._connection.timeout_s
        while True:
            address = self._connection.address
            try:
                status, answer = call(self._connection.channel(), self._connection.metadata)
            except grpc.RpcError as error:
                if transport_code(error) not in FAILOVER_CODES:
                    raise failure_of(address, error) from error
                problem, remedy = cause_of(address, error)
                self._connection.fail_over(address)
            else:
                if (
                    status is None
                    or status.code in (OK, MESSAGE_NOT_FOUND)
                    or not refusal(status.code, status.message).retryable
                ):
                    return status, answer
                problem, remedy = status.message, "check the endpoints and ledgermq status"
            if time.monotonic() >= give_up_at:
                attempt += f" failed for {self._connection.timeout_s:g} s ({problem})"
                raise Unreachable(attempt, remedy)
            time.sleep(PAUSE_S)


def collect(
    stream: Iterator[pb.ReceiveMessageResponse],
) -> tuple[pb.Status | None, list[pb.Message]]:
    """Status and messages of one poll. If the stream breaks, messages received before are kept,
    because they are leased to this client."""
    status, messages = None, []
    try:
        for part in stream:
            if part.HasField("status"):
                status = part.status
            elif part.HasField("message"):
                messages.append(part.message)
    except grpc.RpcError:
        if not messages:
            raise
    return (None if messages else status), messages
