"""Load on a cluster and its measurement, for `ledgermq bench`: sends at intended times, receives,
and round trips, on one event loop.

Law: the time of every send is fixed before the run, and its latency counts from there, whenever the
message really left. A sender that waits for an answer before it chooses the next time omits exactly
the sends that a stall would have delayed. Sends whose turn came too late to be made are counted,
never dropped in silence. Printing and exit statuses are not known here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from ledgermq.client.api import service
from ledgermq.client.api.connection import FAILOVER_CODES, OK, PAUSE_S, AsyncConnection
from ledgermq.client.api.transport import cause_of, failure_of, transport_code
from ledgermq.client.errors import ClusterError, Refused, refusal
from ledgermq.client.messages.receiving import MESSAGE_NOT_FOUND
from ledgermq.client.messages.sending import Outgoing, new_message_id
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code

RUN, INTENDED = "bench-run", "bench-intended-us"
"""Properties of a message: the run that sent it, and when it was to be sent, in microseconds since
1970."""
SUB_BITS = 7
"""A latency is known to within 1 %: each power of two has 2^7 buckets."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
POLL_S = 1.0
LEASE_S = 60
BATCH = 32
MARGIN_S = 5.0


class Latencies:
    """Counts of latencies in buckets of a fixed relative width, and the exact maximum."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int]] = Counter()
        self.most_s = 0.0

    def add(self, seconds: float) -> None:
        micros = max(0, round(seconds * 1e6))
        shift = max(0, micros.bit_length() - SUB_BITS - 1)
        self._counts[shift, micros >> shift] += 1
        self.most_s = max(self.most_s, seconds)

    def percentile_ms(self, share: float) -> float | None:
        """The upper end of the bucket below which this share lies; None without values."""
        left = share * sum(self._counts.values())
        for (shift, value), count in sorted(
            self._counts.items(), key=lambda item: item[0][1] << item[0][0]
        ):
            left -= count
            if left <= 0:
                return min((((value + 1) << shift) - 1) / 1000, max(self.most_s * 1000, 0.0))
        return None

    def as_json(self) -> dict[str, float | None]:
        percentiles = {name: self.percentile_ms(share) for name, share in PERCENTILES.items()}
        percentiles["max"] = self.most_s * 1000 if self._counts else None
        return {
            name: None if value is None else round(value, 3) for name, value in percentiles.items()
        }


@dataclass
class Tally:
    """What a run has done so far. `messages` were acknowledged by the cluster (send), or delivered
    and acknowledged (receive, request)."""

    messages: int = 0
    bytes: int = 0
    failed: int = 0
    unsent: int = 0
    """Sends whose turn came after the end of the run and of its timeout, because the cluster or
    this machine did not keep up."""
    latest_s: float = 0.0
    """How far a send left after its intended time, at most."""
    sent: int = 0
    acknowledged: int = 0
    """Sends that the cluster has acknowledged."""
    first_error: ClusterError | None = None
    interrupted: bool = False
    seconds: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)

    def wrong(self, error: ClusterError) -> None:
        self.failed += 1
        self.first_error = self.first_error or error


@dataclass(frozen=True, slots=True)
class Load:
    """What to do. `rate`: messages per second, None: as many as `window` calls in flight allow."""

    topic: str
    namespace: str
    duration_s: float
    rate: float | None
    window: int
    size: int
    group: str = ""
    run: str = ""

    @property
    def resource(self) -> pb.Resource:
        return pb.Resource(resource_namespace=self.namespace, name=self.topic)


async def queues_of(
    connection: AsyncConnection, load: Load, *, to_send: bool
) -> list[pb.MessageQueue]:
    """A queue of each broker group of the topic. Raises Unreachable, or Refused, also if the topic
    does not take normal messages."""
    asked = connection.asking(
        service.MESSAGING + "QueryRoute",
        pb.QueryRouteRequest(topic=load.resource),
        pb.QueryRouteResponse,
    )
    answer = await connection.carry_out(asked)
    taken = {kind for queue in answer.message_queues for kind in queue.accept_message_types}
    if to_send and taken and pb.MessageType.NORMAL not in taken:
        names = ", ".join(sorted(pb.MessageType.Name(kind) for kind in taken))
        problem = f"topic {load.topic} takes messages of type {names}, and bench sends normal ones"
        raise Refused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            problem,
            "give a topic of kind normal: ledgermq topic create NAME",
        )
    return list({queue.broker.name: queue for queue in answer.message_queues}.values())


async def send(
    connection: AsyncConnection, load: Load, tally: Tally, done: Callable[[float, float], None]
) -> None:
    """Send for the duration, and wait for all answers; `done` is called with the intended time and
    the time of each acknowledgement, on the clock of the loop. Raises the first error if the
    cluster refuses every message."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(load.window)
    open_sends: set[asyncio.Task[None]] = set()
    body = bytes(load.size)
    began = loop.time()
    end = began + load.duration_s
    to_wall = time.time() - began

    async def one(intended: float) -> None:
        properties = {RUN: load.run, INTENDED: str(round((intended + to_wall) * 1e6))}
        outgoing = Outgoing(load.topic, body, properties=properties, namespace=load.namespace)
        request = pb.SendMessageRequest(messages=[outgoing.to_proto(new_message_id())])
        try:
            await connection.carry_out(
                connection.asking(
                    service.MESSAGING + "SendMessage", request, pb.SendMessageResponse
                )
            )
        except ClusterError as error:
            tally.wrong(error)
        else:
            tally.acknowledged += 1
            done(intended, loop.time())
        finally:
            room.release()

    try:
        while True:
            intended = loop.time() if load.rate is None else began + tally.sent / load.rate
            if intended >= end or _hopeless(tally):
                break
            # At least one turn of the loop for each send, so that answers are read in time.
            await asyncio.sleep(max(0.0, intended - loop.time()))
            await room.acquire()
            now = loop.time()
            if now >= end + connection.timeout_s:
                room.release()
                assert load.rate is not None
                tally.unsent = round(load.rate * load.duration_s) - tally.sent
                break
            intended = now if load.rate is None else intended
            tally.latest_s = max(tally.latest_s, now - intended)
            tally.sent += 1
            task = loop.create_task(one(intended))
            open_sends.add(task)
            task.add_done_callback(open_sends.discard)
        await asyncio.gather(*open_sends)
    finally:
        for task in open_sends:
            task.cancel()
    if _hopeless(tally):
        assert tally.first_error is not None
        raise tally.first_error


def _hopeless(tally: Tally) -> bool:
    """Whether the cluster has refused messages and taken none."""
    return (
        isinstance(tally.first_error, Refused)
        and not tally.first_error.retryable
        and not tally.acknowledged
    )


async def receive(
    connection: AsyncConnection,
    load: Load,
    queue: pb.MessageQueue,
    taken: Callable[[pb.Message, float], None],
) -> None:
    """Receive from one broker group and acknowledge, until cancelled. `taken` is called with each
    message and the time of its arrival. Raises Refused, or Unreachable if an acknowledgement has no
    answer within the timeout."""
    group = pb.Resource(resource_namespace=load.namespace, name=load.group)
    request = pb.ReceiveMessageRequest(group=group, message_queue=queue, batch_size=BATCH)
    request.filter_expression.type, request.filter_expression.expression = pb.FilterType.TAG, "*"
    request.invisible_duration.FromSeconds(LEASE_S)
    request.long_polling_timeout.FromMilliseconds(round(POLL_S * 1000))
    failing_since: float | None = None
    while True:
        problem, messages = await _poll(connection, request)
        if messages:
            arrived = time.time()
            entries = [
                pb.AckMessageEntry(
                    message_id=one.system_properties.message_id,
                    receipt_handle=one.system_properties.receipt_handle,
                )
                for one in messages
            ]
            ack = pb.AckMessageRequest(group=group, topic=load.resource, entries=entries)
            await connection.carry_out(
                connection.asking(service.MESSAGING + "AckMessage", ack, pb.AckMessageResponse)
            )
            # Counted when acknowledged, so that a run that has counted everything leaves no lease.
            for message in messages:
                taken(message, arrived)
        if problem is None:
            failing_since = None
            continue
        now = time.monotonic()
        failing_since = failing_since or now
        if not problem.retryable or now - failing_since >= connection.timeout_s:
            raise problem
        await asyncio.sleep(PAUSE_S)


async def _poll(
    connection: AsyncConnection, request: pb.ReceiveMessageRequest
) -> tuple[ClusterError | None, list[pb.Message]]:
    """One long poll: the messages that arrived, and what was wrong with it. Messages of a poll that
    broke are leased too."""
    address = connection.address
    path, read = service.MESSAGING + "ReceiveMessage", pb.ReceiveMessageResponse.FromString
    call: Any = connection.channel().unary_stream(
        path, pb.ReceiveMessageRequest.SerializeToString, read
    )
    messages: list[pb.Message] = []
    problem: ClusterError | None = None
    try:
        async for part in call(request, metadata=connection.metadata, timeout=POLL_S + MARGIN_S):
            if part.HasField("message"):
                messages.append(part.message)
            elif part.HasField("status") and part.status.code not in (OK, MESSAGE_NOT_FOUND):
                problem = refusal(part.status.code, part.status.message)
    except grpc.RpcError as error:
        problem = failure_of(address, error)
        if transport_code(error) in FAILOVER_CODES:
            connection.fail_over(address)
            problem = Refused(Code.INTERNAL_SERVER_ERROR, *cause_of(address, error))
            problem.retryable = True
    return problem, messages


async def run_send(connection: AsyncConnection, load: Load, tally: Tally) -> None:
    """Measure from the intended time of a send to its acknowledgement."""
    await queues_of(connection, load, to_send=True)

    def done(intended: float, now: float) -> None:
        tally.messages += 1
        tally.bytes += load.size
        tally.latencies.add(now - intended)

    await send(connection, load, tally, done)


async def run_receive(connection: AsyncConnection, load: Load, tally: Tally) -> None:
    """Receive for the duration. Latencies are those of messages that `bench send` sent, from their
    intended time to their delivery, by the clocks of the two machines."""
    queues = await queues_of(connection, load, to_send=False)

    def taken(message: pb.Message, now: float) -> None:
        tally.messages += 1
        tally.bytes += len(message.body)
        if (intended := message.user_properties.get(INTENDED, "")).isdigit():
            tally.latencies.add(now - int(intended) / 1e6)

    await _receiving(connection, load, queues, taken, asyncio.sleep(load.duration_s))


async def run_request(connection: AsyncConnection, load: Load, tally: Tally) -> None:
    """Send, and receive what was sent: measure from the intended time to the delivery. Ends when
    everything sent was delivered, or nothing more within the timeout."""
    queues = await queues_of(connection, load, to_send=True)
    seen: set[str] = set()
    arrived = asyncio.Event()

    def taken(message: pb.Message, now: float) -> None:
        properties = message.user_properties
        message_id = message.system_properties.message_id
        # A message may be delivered twice, and the topic may hold those of earlier runs.
        if properties.get(RUN) == load.run and message_id not in seen:
            seen.add(message_id)
            tally.messages += 1
            tally.bytes += len(message.body)
            tally.latencies.add(now - int(properties[INTENDED]) / 1e6)
            arrived.set()

    async def sending() -> None:
        await send(connection, load, tally, lambda intended, now: None)
        while tally.messages < tally.acknowledged:
            arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(arrived.wait(), connection.timeout_s)
                continue
            for _ in range(tally.acknowledged - tally.messages):
                tally.wrong(
                    Refused(
                        Code.MESSAGE_NOT_FOUND,
                        "a message was acknowledged, but not delivered within the timeout",
                    )
                )
            return

    await _receiving(connection, load, queues, taken, sending())


async def _receiving(
    connection: AsyncConnection,
    load: Load,
    queues: list[pb.MessageQueue],
    taken: Callable[[pb.Message, float], None],
    until: Any,
) -> None:
    """Receive by `window` calls in all until `until` has ended. Raises the first error of
    either."""
    calls = max(1, load.window // max(1, len(queues)))
    workers = [
        asyncio.ensure_future(receive(connection, load, queue, taken))
        for queue in queues
        for _ in range(calls)
    ]
    main = asyncio.ensure_future(until)
    try:
        finished, _ = await asyncio.wait([main, *workers], return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
    finally:
        for task in (main, *workers):
            task.cancel()
        await asyncio.gather(main, *workers, return_exceptions=True)
