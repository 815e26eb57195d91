"""Receiving under a consumer group: long polls over the brokers of a topic, and acknowledgements by receipt handle.

At least once: a message whose acknowledgement did not arrive comes again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import grpc

from ledgermq.client import service
from ledgermq.client.connection import ELSEWHERE, OK, Connection
from ledgermq.client.errors import Unreachable, refusal
from ledgermq.proto import messaging_pb2 as pb

MESSAGE_NOT_FOUND = 40401
BATCH = 32
MARGIN_S = 5.0


class Receiver:
    """One topic under one consumer group. Not thread-safe."""

    def __init__(
        self, connection: Connection, topic: str, group: str, *, expression: str = "*", namespace: str = "", invisible_s: float = 60.0
    ) -> None:
        self._connection = connection
        self._topic = pb.Resource(resource_namespace=namespace, name=topic)
        self._group = pb.Resource(resource_namespace=namespace, name=group)
        self._filter = pb.FilterExpression(type=pb.FilterType.TAG, expression=expression)
        self._invisible_s = invisible_s
        self._brokers: list[pb.MessageQueue] = []

    def route(self) -> None:
        """Learn the brokers of the topic; raises Refused when there is no such topic."""
        request = pb.QueryRouteRequest(topic=self._topic)
        answer = self._connection.ask(lambda c, left: service.query_route(c, request, self._connection.metadata, left))
        by_broker = {queue.broker.name: queue for queue in answer.message_queues}
        self._brokers = [by_broker[name] for name in sorted(by_broker)]

    def receive(self, wait_s: float, batch: int = BATCH) -> list[pb.Message]:
        """Up to `batch` messages; waits up to `wait_s` in all, shared by the brokers. An empty list when nothing came."""
        if not self._brokers:
            self.route()
        for _ in range(len(self._brokers)):
            queue = self._brokers.pop(0)
            self._brokers.append(queue)
            messages = self._poll(queue, wait_s / len(self._brokers), batch)
            if messages:
                return messages
        return []

    def _poll(self, queue: pb.MessageQueue, wait_s: float, batch: int) -> list[pb.Message]:
        request = pb.ReceiveMessageRequest(group=self._group, message_queue=queue, filter_expression=self._filter, batch_size=batch)
        request.invisible_duration.FromMilliseconds(round(self._invisible_s * 1000))
        request.long_polling_timeout.FromMilliseconds(round(wait_s * 1000))
        give_up_at = time.monotonic() + wait_s + self._connection.timeout_s
        while True:
            try:
                stream = service.receive_message(self._connection.channel(), request, self._connection.metadata, wait_s + MARGIN_S)
                return self._collect(stream)
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
                if code not in ELSEWHERE or time.monotonic() >= give_up_at:
                    raise Unreachable(f"receiving failed with {code.name}", "check the endpoints and ledgermq status") from error
                self._connection.elsewhere()
                time.sleep(0.1)

    @staticmethod
    def _collect(stream: Iterator[pb.ReceiveMessageResponse]) -> list[pb.Message]:
        messages = []
        for part in stream:
            if part.HasField("status") and part.status.code not in (OK, MESSAGE_NOT_FOUND):
                problem = refusal(part.status.code, part.status.message)
                if not problem.retryable:
                    raise problem
            elif part.HasField("message"):
                messages.append(part.message)
        return messages

    def acknowledge(self, messages: Sequence[pb.Message]) -> int:
        """How many were acknowledged; the others' leases had run out and they come again."""
        named = (m.system_properties for m in messages)
        entries = [pb.AckMessageEntry(message_id=s.message_id, receipt_handle=s.receipt_handle) for s in named]
        request = pb.AckMessageRequest(group=self._group, topic=self._topic, entries=entries)
        give_up_at = time.monotonic() + self._connection.timeout_s
        while True:
            try:
                answer = service.ack_message(self._connection.channel(), request, self._connection.metadata, 3.0)
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
                if code not in ELSEWHERE or time.monotonic() >= give_up_at:
                    raise Unreachable(f"acknowledging failed with {code.name}", "check the endpoints and ledgermq status") from error
                self._connection.elsewhere()
                time.sleep(0.1)
                continue
            retry = not answer.entries and refusal(answer.status.code, answer.status.message).retryable
            if not retry or time.monotonic() >= give_up_at:
                return sum(1 for entry in answer.entries if entry.status.code == OK)
            time.sleep(0.1)
