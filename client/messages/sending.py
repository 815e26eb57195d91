"""Sending messages with a window of calls in flight; each call is retried with the same message id
until acknowledged or out of time.

A send whose answer was lost is repeated, so the message may be stored twice (at least once); order
is kept only with a window of one. In one-way mode each message is sent once and never repeated: it
is stored once or not at all (at most once).

All messages in the window are retried at the same time, each until the timeout of the connection.
If no message was acknowledged for that time, the sender stops: a cluster that is down costs one
timeout, not one per message. Time spent waiting for the source does not count, so a message that
failed in the meantime is still retried.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from ledgermq.client.api import service
from ledgermq.client.api.connection import FAILOVER_CODES, OK, Address, Connection
from ledgermq.client.api.transport import cause_of, failure_of, transport_code
from ledgermq.client.errors import ClusterError, Unreachable, refusal
from ledgermq.proto import messaging_pb2 as pb

WINDOW = 64
CALL_TIMEOUT_S = 3.0
PAUSE_S = 0.05
PAUSE_MAX_S = 0.4
"""Pause before the whole window is retried, to spare nodes that are electing a leader."""
DURABILITY_KEY = "x-ledgermq-durability"
QUEUE_KEY = "x-ledgermq-queue"
BY_STRENGTH = ("memory", "master", "durable")
"""The durability classes of acknowledgements, weakest first. A newer node may state a class that is
not listed here."""


def weaker_of(known: str | None, reported: str) -> str:
    """The durability class that every message acknowledged so far has at least."""
    return (
        reported
        if known is None
        else min(
            known, reported, key=lambda name: BY_STRENGTH.index(name) if name in BY_STRENGTH else -1
        )
    )


def new_message_id() -> str:
    """A message id in the form of version 1 (contract §4.1), 34 upper-case hexadecimal characters,
    with 128 random bits in place of MAC address, process id, second and counter: containers share
    the first two, and then collide."""
    return f"01{secrets.token_hex(16).upper()}"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to send."""

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None
    namespace: str = ""
    deliver_ms: int | None = None
    """The delivery time in milliseconds since 1970; None: deliver at once."""
    priority: int | None = None

    def to_proto(self, message_id: str) -> pb.Message:
        kind = pb.MessageType.FIFO if self.message_group else pb.MessageType.NORMAL
        if self.priority is not None:
            kind = pb.MessageType.PRIORITY
        if self.deliver_ms is not None:
            kind = pb.MessageType.DELAY
        topic = pb.Resource(resource_namespace=self.namespace, name=self.topic)
        message = pb.Message(topic=topic, user_properties=self.properties, body=self.body)
        system = message.system_properties
        system.message_id, system.message_type, system.body_encoding = (
            message_id,
            kind,
            pb.Encoding.IDENTITY,
        )
        system.keys.extend(self.keys)
        system.born_timestamp.GetCurrentTime()
        system.born_host = os.uname().nodename
        if self.tag is not None:
            system.tag = self.tag
        if self.message_group is not None:
            system.message_group = self.message_group
        if self.deliver_ms is not None:
            system.delivery_timestamp.FromMilliseconds(self.deliver_ms)
        if self.priority is not None:
            system.priority = self.priority
        return message


@dataclass
class SendSummary:
    """The outcome of a batch. `durability` is the weakest class that an acknowledgement stated.
    `given_up`: nothing was acknowledged for the whole timeout, so the remaining messages of the
    source were not sent; they are not counted anywhere."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    duration_ms: int = 0
    durability: str | None = None
    first_error: ClusterError | None = None
    given_up: bool = False
    message_id: str | None = None
    """The id of the last message: of the last one sent by a unary call, or of the last one
    acknowledged on a native stream."""
    offset: int | None = None
    """The offset in its queue of the last message that was acknowledged."""
    queue: int | None = None
    """The queue of that message; None if a node of an older release took it, or if the message has
    no place in its topic yet."""

    def add_failed(self, count: int, error: ClusterError) -> None:
        """Count messages that could not be sent at all."""
        self.sent += count
        self.failed += count
        self.first_error = self.first_error or error


@dataclass(slots=True)
class InFlight:
    """One message and its current call. `give_up_at`: on the sender's clock."""

    message: pb.Message
    give_up_at: float
    future: Any
    address: Address


class Sender:
    """Sends through one connection. Not thread-safe."""

    def __init__(
        self, connection: Connection, *, window: int = WINDOW, one_way: bool = False
    ) -> None:
        self._connection = connection
        self._one_way = one_way
        self._window = window
        self._open: deque[InFlight] = deque()
        self._summary = SendSummary()
        self._source_s = 0.0
        """Time spent waiting for the source."""
        self._heard_at = 0.0
        """When a message was last acknowledged, or the first one sent."""

    def send_all(
        self,
        messages: Iterable[Outgoing],
        progress: Callable[[int], None] = lambda acknowledged: None,
    ) -> SendSummary:
        """Send everything, unless no message is acknowledged for the timeout. Never raises for a
        single message; see the summary."""
        started = time.monotonic()
        source = iter(messages)
        self._heard_at = self._now()
        while not self._summary.given_up and (outgoing := self._next(source)) is not None:
            while len(self._open) >= self._window:
                self._finish_oldest(progress)
            if not self._summary.given_up:
                self._summary.sent += 1
                self._summary.message_id = new_message_id()
                message = outgoing.to_proto(self._summary.message_id)
                self._open.append(
                    InFlight(
                        message, self._now() + self._connection.timeout_s, *self._start(message)
                    )
                )
        while self._open:
            self._finish_oldest(progress)
        self._summary.duration_ms = round((time.monotonic() - started) * 1000)
        return self._summary

    def _next(self, source: Iterator[Outgoing]) -> Outgoing | None:
        began = time.monotonic()
        try:
            return next(source, None)
        finally:
            self._source_s += time.monotonic() - began

    def _now(self) -> float:
        return time.monotonic() - self._source_s

    def _start(self, message: pb.Message) -> tuple[Any, Address]:
        timeout = min(CALL_TIMEOUT_S, self._connection.timeout_s)
        request = pb.SendMessageRequest(messages=[message])
        address = self._connection.address
        return service.send_message(
            self._connection.channel(), request, self._connection.metadata, timeout
        ), address

    def _finish_oldest(self, progress: Callable[[int], None]) -> None:
        """Wait for the oldest call. If it failed, retry it and the other calls that have failed by
        then, if a retry can help."""
        flight = self._open[0]
        pause_s = PAUSE_S
        while (problem := self._outcome(flight)) is not None:
            late = self._now() >= flight.give_up_at
            if self._one_way or not problem.retryable or late:
                self._failed(problem, late)
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            for failed in [flight, *filter(self._may_pass, itertools.islice(self._open, 1, None))]:
                failed.future, failed.address = self._start(failed.message)
        else:
            self._summary.acknowledged += 1
            self._heard_at = self._now()
            progress(self._summary.acknowledged)
        self._open.popleft()

    def _failed(self, problem: ClusterError, late: bool) -> None:
        summary = self._summary
        summary.failed += 1
        summary.first_error = summary.first_error or problem
        if not problem.retryable:
            self._heard_at = self._now()
        elif (
            late
            and not self._one_way
            and self._now() - self._heard_at >= self._connection.timeout_s
        ):
            summary.given_up |= all(
                not flight.future.done() or self._outcome(flight) is not None
                for flight in self._open
            )

    def _may_pass(self, flight: InFlight) -> bool:
        """Whether the call has failed with an error that a retry may fix."""
        return (
            flight.future.done()
            and (problem := self._outcome(flight)) is not None
            and problem.retryable
        )

    def _outcome(self, flight: InFlight) -> ClusterError | None:
        """None if acknowledged, otherwise the error."""
        try:
            answer = flight.future.result()
        except grpc.RpcError as error:
            if transport_code(error) not in FAILOVER_CODES:
                return failure_of(flight.address, error)
            self._connection.fail_over(flight.address)
            return Unreachable(*cause_of(flight.address, error))
        if answer.status.code != OK:
            return refusal(answer.status.code, answer.status.message)
        # A delayed message, which can be recalled, has no place in its topic yet.
        placed = [entry.offset for entry in answer.entries if not entry.recall_handle]
        self._summary.offset = placed[0] if placed else None
        self._summary.queue = None
        for key, value in flight.future.trailing_metadata() or ():
            if key == DURABILITY_KEY:
                self._summary.durability = weaker_of(self._summary.durability, str(value))
            elif key == QUEUE_KEY:
                self._summary.queue = int(value)
        return None
