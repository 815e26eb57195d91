"""Sending messages with a window of calls in flight, each repeated under its own message id until it is acknowledged or out of time.

A send whose answer was lost is sent again and may be stored twice (at least once); order is kept only with a window of one. One way, each
message is sent once and never repeated, whatever becomes of it: it is stored once or not at all (at most once).

Everything in the window is tried at the same time, each message for the time-out of the connection. Where nothing at all was acknowledged
for so long, nothing more is sent: a cluster that is down costs one time-out, not one for each message. Time in which the source has no
message is nobody's: a failure that lies here meanwhile gets its repetitions all the same.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from ledgermq.client import service
from ledgermq.client.connection import ELSEWHERE, OK, Address, Connection, transport_code
from ledgermq.client.errors import ClusterError, Unreachable, refusal
from ledgermq.proto import messaging_pb2 as pb

WINDOW = 64
CALL_TIMEOUT_S = 3.0
PAUSE_S = 0.05
PAUSE_MAX_S = 0.4
"""The window comes back as a whole: not too often to nodes that elect a leader."""
EPOCH_2021 = 1609459200
DURABILITY_KEY = "x-ledgermq-durability"
BY_STRENGTH = ("memory", "master", "durable")
"""The classes of acknowledgements, the weakest first; of what a newer node may say nothing is known."""
_serial = itertools.count()
_node = uuid.getnode()


def weaker_of(known: str | None, told: str) -> str:
    """The class that everything acknowledged so far has at least."""
    return told if known is None else min(known, told, key=lambda name: BY_STRENGTH.index(name) if name in BY_STRENGTH else -1)


def new_message_id() -> str:
    """A message id of version 1 (contract §4.1): 34 upper-case hexadecimal characters."""
    seconds = int(time.time()) - EPOCH_2021
    return f"01{_node:012X}{os.getpid() & 0xFFFF:04X}{seconds & 0xFFFFFFFF:08X}{next(_serial) & 0xFFFFFFFF:08X}"


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
    """When it is to become visible, in milliseconds since 1970; None: at once."""
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
        system.message_id, system.message_type, system.body_encoding = message_id, kind, pb.Encoding.IDENTITY
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
    """What became of a batch. `durability` is the class the acknowledgements stated; the weaker one if they differ. `given_up`: nothing was
    acknowledged for the whole time-out, so what the source still had was not sent; it is counted nowhere."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    duration_ms: int = 0
    durability: str | None = None
    first_error: ClusterError | None = None
    given_up: bool = False

    def add_failed(self, count: int, error: ClusterError) -> None:
        """Messages that could not even be sent."""
        self.sent += count
        self.failed += count
        self.first_error = self.first_error or error


@dataclass(slots=True)
class InFlight:
    """One message and the call that carries it now. `give_up_at`: on the sender's clock."""

    message: pb.Message
    give_up_at: float
    future: Any
    address: Address


class Sender:
    """Sends through one connection. Not thread-safe."""

    def __init__(self, connection: Connection, *, window: int = WINDOW, one_way: bool = False) -> None:
        self._connection = connection
        self._one_way = one_way
        self._window = window
        self._open: deque[InFlight] = deque()
        self._summary = SendSummary()
        self._source_s = 0.0
        """Spent in waiting for messages to send."""
        self._heard_at = 0.0
        """When something was last acknowledged, or the first message sent."""

    def send_all(self, messages: Iterable[Outgoing], progress: Callable[[int], None] = lambda acknowledged: None) -> SendSummary:
        """Send everything, unless nothing is acknowledged for too long; never raises for a single message, the summary tells."""
        started = time.monotonic()
        source = iter(messages)
        self._heard_at = self._now()
        while not self._summary.given_up and (outgoing := self._next(source)) is not None:
            while len(self._open) >= self._window:
                self._finish_oldest(progress)
            if not self._summary.given_up:
                self._summary.sent += 1
                message = outgoing.to_proto(new_message_id())
                self._open.append(InFlight(message, self._now() + self._connection.timeout_s, *self._start(message)))
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
        return service.send_message(self._connection.channel(), request, self._connection.metadata, timeout), address

    def _finish_oldest(self, progress: Callable[[int], None]) -> None:
        """Wait for the oldest call; repeat it, and what else has failed by then, while that can help."""
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
        elif late and not self._one_way and self._now() - self._heard_at >= self._connection.timeout_s:
            summary.given_up |= all(not flight.future.done() or self._outcome(flight) is not None for flight in self._open)

    def _may_pass(self, flight: InFlight) -> bool:
        """Whether it has failed, and may not the next time."""
        return flight.future.done() and (problem := self._outcome(flight)) is not None and problem.retryable

    def _outcome(self, flight: InFlight) -> ClusterError | None:
        """None when acknowledged, else what went wrong."""
        try:
            answer = flight.future.result()
        except grpc.RpcError as error:
            code = transport_code(error)
            if code not in ELSEWHERE:
                return refusal(50001, f"the call failed with {code.name}")
            self._connection.elsewhere(flight.address)
            return Unreachable(f"{flight.address} answers {code.name}", "check the endpoints and ledgermq status")
        if answer.status.code != OK:
            return refusal(answer.status.code, answer.status.message)
        for key, value in flight.future.trailing_metadata() or ():
            if key == DURABILITY_KEY:
                self._summary.durability = weaker_of(self._summary.durability, str(value))
        return None
