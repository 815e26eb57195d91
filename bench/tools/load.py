"""The load generator: a lean `grpc.aio` client in its own process that uses the official protocol
with our stubs.

`python -m bench.tools.load send|fill|receive|lease|deliver|poll|read --target HOST:PORT --topic
NAME …` prints one JSON line. Requests are built before the clock starts; answers are parsed and
checked, so only acknowledged messages count.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import uvloop

from bench.tools.report import percentile
from ledgermq.proto import admin_pb2
from ledgermq.proto import messaging_pb2 as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "bench"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))
TIMEOUT_S = 10.0
LEASE_S = 11 * 3600
ADMIN_OK = 20000
POLLING_GROUPS = 1000
REPEATABLE = frozenset({pb.TOO_MANY_REQUESTS, pb.HA_NOT_AVAILABLE, pb.PROXY_TIMEOUT})
"""A fill repeats sends without an answer after a leader change: it needs messages, not each of them
exactly once."""


def message(topic: str, number: int, body: bytes) -> pb.Message:
    system = pb.SystemProperties(
        message_id=f"01{number:032X}",
        message_type=pb.NORMAL,
        body_encoding=pb.IDENTITY,
        born_host="bench",
    )
    system.born_timestamp.FromNanoseconds(time.time_ns())
    return pb.Message(topic=pb.Resource(name=topic), body=body, system_properties=system)


def requests(topic: str, count: int, body_bytes: int, batch: int) -> list[bytes]:
    """Serialised SendMessage requests of `batch` messages each."""
    body, out = b"x" * body_bytes, []
    for first in range(0, count, batch):
        messages = [
            message(topic, number, body) for number in range(first, min(first + batch, count))
        ]
        out.append(pb.SendMessageRequest(messages=messages).SerializeToString())
    return out


def cpu_s() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Latencies of calls acknowledged between two moments; created with the requests, so that
    processor time is that of the calls."""

    def __init__(self, warm_up_s: float, seconds: float, *, steered: bool = False) -> None:
        self.begin = float("inf") if steered else time.monotonic() + warm_up_s
        self.end = self.begin + seconds
        self.latencies: list[float] = []
        self.messages = 0
        self.total = 0
        self._last = self.begin
        self._cpu_s = cpu_s()

    def steer(self) -> None:
        """Take the two moments from lines on stdin; returns after the second."""
        sys.stdin.readline()
        self.begin = time.monotonic()
        sys.stdin.readline()
        self.end = time.monotonic()

    def count(self, started: float, messages: int = 1) -> None:
        now = time.monotonic()
        self.total += messages
        if self.begin <= now < self.end:
            self.latencies.append(now - started)
            self.messages += messages
            self._last = now

    def used_up(self) -> None:
        """No message is left: the measured time ends with the last call that was counted."""
        self.end = min(self.end, self._last)

    def result(self) -> dict[str, float]:
        if not self.latencies:
            raise RuntimeError(
                f"no call ended in the measured time, and {self.total} messages before or after it"
            )
        ordered = sorted(self.latencies)
        return {
            "seconds": round(self.end - self.begin, 2),
            "messages": self.messages,
            "total": self.total,
            "client_cpu_s": round(cpu_s() - self._cpu_s, 2),
            "messages_per_s": round(self.messages / (self.end - self.begin), 1),
            "p50_ms": round(percentile(ordered, 0.5) * 1000, 3),
            "p99_ms": round(percentile(ordered, 0.99) * 1000, 3),
            "max_ms": round(ordered[-1] * 1000, 3),
        }


async def send(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, float]:
    """`window` sends in flight for a fixed time; with a rate, at most `window`, started at fixed
    intervals."""
    call: Any = channel.unary_unary(SERVICE + "SendMessage")
    waiting = iter(requests(options.topic, options.limit, options.body_bytes, 1))
    meter = Meter(options.warm_up_s, options.seconds, steered=options.steered)
    if options.steered:
        threading.Thread(target=meter.steer, daemon=True).start()
    began, turns = time.monotonic(), itertools.count()

    async def worker() -> None:
        while time.monotonic() < meter.end:
            if options.rate:
                await asyncio.sleep(began + next(turns) / options.rate - time.monotonic())
            if (data := next(waiting, None)) is None:
                return meter.used_up()
            started = time.monotonic()
            check(
                pb.SendMessageResponse.FromString(
                    await call(data, metadata=METADATA, timeout=TIMEOUT_S)
                ).status
            )
            meter.count(started)

    await asyncio.gather(*(worker() for _ in range(options.window)))
    return meter.result()


async def fill(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, float]:
    """`limit` messages, `batch` per call, `window` calls in flight."""
    call: Any = channel.unary_unary(SERVICE + "SendMessage")
    waiting = iter(requests(options.topic, options.limit, options.body_bytes, options.batch))
    began = time.monotonic()

    sent_again = 0

    async def worker() -> None:
        nonlocal sent_again
        for data in waiting:
            while (
                status := pb.SendMessageResponse.FromString(
                    await call(data, metadata=METADATA, timeout=60)
                ).status
            ).code != pb.OK:
                if status.code not in REPEATABLE:
                    check(status)
                sent_again += 1
                await asyncio.sleep(0.1)

    await asyncio.gather(*(worker() for _ in range(options.window)))
    seconds = time.monotonic() - began
    rate = round(options.limit / seconds, 1)
    return {
        "messages": options.limit,
        "seconds": round(seconds, 3),
        "messages_per_s": rate,
        "calls_sent_again": sent_again,
    }


async def receive(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, float]:
    """`window` receivers that take 32 messages at a time and acknowledge them, `batch` handles per
    call. If the messages are used up before the time is over, the measured time ends with the last
    acknowledgement."""
    receiving: Any = channel.unary_stream(SERVICE + "ReceiveMessage")
    acking: Any = channel.unary_unary(SERVICE + "AckMessage")
    request = receive_request(options)
    meter, polls = (
        Meter(options.warm_up_s, options.seconds),
        Meter(options.warm_up_s, options.seconds),
    )

    async def acknowledge(handles: list[tuple[str, str]]) -> None:
        entries = [
            pb.AckMessageEntry(message_id=name, receipt_handle=handle) for name, handle in handles
        ]
        data = pb.AckMessageRequest(
            group=request.group, topic=request.message_queue.topic, entries=entries
        ).SerializeToString()
        started = time.monotonic()
        check(
            pb.AckMessageResponse.FromString(
                await acking(data, metadata=METADATA, timeout=TIMEOUT_S)
            ).status
        )
        meter.count(started, len(handles))

    async def worker() -> None:
        data = request.SerializeToString()
        while time.monotonic() < meter.end:
            started, handles = time.monotonic(), []
            async for part in receiving(data, metadata=METADATA, timeout=30):
                response = pb.ReceiveMessageResponse.FromString(part)
                if response.status.code == pb.MESSAGE_NOT_FOUND:
                    polls.used_up()
                    return meter.used_up()
                if response.HasField("status"):
                    check(response.status)
                elif response.HasField("message"):
                    system = response.message.system_properties
                    handles.append((system.message_id, system.receipt_handle))
            polls.count(started, len(handles))
            await asyncio.gather(
                *(
                    acknowledge(handles[i : i + options.batch])
                    for i in range(0, len(handles), options.batch)
                )
            )

    await asyncio.gather(*(worker() for _ in range(options.window)))
    return {
        **meter.result(),
        **{f"receive_{key}": value for key, value in polls.result().items() if key.endswith("_ms")},
    }


async def deliver(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, float]:
    """`rate` sends per second, and `window` waiting receivers, one message per lease; the time from
    each send to its arrival."""
    sending: Any = channel.unary_unary(SERVICE + "SendMessage")
    receiving: Any = channel.unary_stream(SERVICE + "ReceiveMessage")
    acking: Any = channel.unary_unary(SERVICE + "AckMessage")
    meter = Meter(options.warm_up_s, options.seconds)
    request, sent, tasks = receive_request(options), dict[str, float](), set[asyncio.Task[None]]()
    data = request.SerializeToString()

    async def acknowledge(message_id: str, handle: str) -> None:
        entry = pb.AckMessageEntry(message_id=message_id, receipt_handle=handle)
        call = pb.AckMessageRequest(
            group=request.group, topic=request.message_queue.topic, entries=[entry]
        )
        check(
            pb.AckMessageResponse.FromString(
                await acking(call.SerializeToString(), metadata=METADATA, timeout=TIMEOUT_S)
            ).status
        )

    async def receiver() -> None:
        while time.monotonic() < meter.end:
            async for part in receiving(data, metadata=METADATA, timeout=30):
                response = pb.ReceiveMessageResponse.FromString(part)
                if response.HasField("message"):
                    system = response.message.system_properties
                    if system.message_id in sent:
                        # A redelivered message is acknowledged again, and not counted.
                        meter.count(sent.pop(system.message_id))
                    task = asyncio.create_task(
                        acknowledge(system.message_id, system.receipt_handle)
                    )
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

    async def send_one(message_id: str, data: bytes) -> None:
        sent[message_id] = time.monotonic()
        check(
            pb.SendMessageResponse.FromString(
                await sending(data, metadata=METADATA, timeout=TIMEOUT_S)
            ).status
        )

    async def producer() -> None:
        began = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(began + number / options.rate - time.monotonic())
            if time.monotonic() >= meter.end:
                return
            one = message(options.topic, number, b"x" * options.body_bytes)
            call = pb.SendMessageRequest(messages=[one]).SerializeToString()
            task = asyncio.create_task(send_one(one.system_properties.message_id, call))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    receivers = [asyncio.create_task(receiver()) for _ in range(options.window)]
    await producer()
    await asyncio.sleep(1)
    for task in receivers:
        task.cancel()
    await asyncio.gather(*receivers, *tasks, return_exceptions=True)
    return meter.result()


async def poll(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, float]:
    """`window` long polls of separate consumer groups on a topic without messages, until told on
    stdin: the cost of idle consumers."""
    receiving: Any = channel.unary_stream(SERVICE + "ReceiveMessage")
    opened = answered = 0

    async def poller(number: int) -> None:
        nonlocal opened, answered
        request = receive_request(options)
        request.group.name = f"{options.group}-{number % POLLING_GROUPS}"
        request.long_polling_timeout.FromSeconds(20)
        data = request.SerializeToString()
        await asyncio.sleep(number / options.rate)
        while True:
            opened += 1
            async for _ in receiving(
                data, metadata=(("x-mq-client-id", f"c{number}"), *METADATA[1:]), timeout=40
            ):
                answered += 1

    tasks = [asyncio.create_task(poller(number)) for number in range(options.window)]
    while opened < options.window:
        await asyncio.sleep(0.1)
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"opened": opened, "answered": answered, "client_cpu_s": round(cpu_s(), 2)}


async def lease(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, float]:
    """`limit` messages leased for hours by `window` receivers, 32 at a time, never acknowledged."""
    receiving: Any = channel.unary_stream(SERVICE + "ReceiveMessage")
    request = receive_request(options)
    request.invisible_duration.FromSeconds(LEASE_S)
    data, leased, began = request.SerializeToString(), 0, time.monotonic()

    async def worker() -> None:
        nonlocal leased
        while leased < options.limit:
            async for part in receiving(data, metadata=METADATA, timeout=30):
                response = pb.ReceiveMessageResponse.FromString(part)
                if response.HasField("status"):
                    check(response.status)
                leased += response.HasField("message")

    await asyncio.gather(*(worker() for _ in range(options.window)))
    seconds = time.monotonic() - began
    return {
        "messages": leased,
        "seconds": round(seconds, 3),
        "messages_per_s": round(leased / seconds, 1),
    }


async def read(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, float]:
    """`window` reads in flight that must miss nothing acknowledged before them: `call` names their
    method."""
    meter, once = (
        Meter(options.warm_up_s, options.seconds),
        READS[options.call](channel, options.topic),
    )

    async def worker() -> None:
        while time.monotonic() < meter.end:
            started = time.monotonic()
            await once()
            meter.count(started)

    await asyncio.gather(*(worker() for _ in range(options.window)))
    return meter.result()


def query_offset(channel: grpc.aio.Channel, topic: str) -> Callable[[], Awaitable[None]]:
    """The end of a queue."""
    call: Any = channel.unary_unary(SERVICE + "QueryOffset")
    request = pb.QueryOffsetRequest(query_offset_policy=pb.END)
    request.message_queue.topic.name = topic
    data = request.SerializeToString()

    async def once() -> None:
        check(
            pb.QueryOffsetResponse.FromString(
                await call(data, metadata=METADATA, timeout=TIMEOUT_S)
            ).status
        )

    return once


def pull(channel: grpc.aio.Channel, topic: str) -> Callable[[], Awaitable[None]]:
    """The first message of a queue."""
    call: Any = channel.unary_stream(SERVICE + "PullMessage")
    request = pb.PullMessageRequest(group=pb.Resource(name="bench"), offset=0, batch_size=1)
    request.message_queue.topic.name = topic
    request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
    data = request.SerializeToString()

    async def once() -> None:
        async for part in call(data, metadata=METADATA, timeout=TIMEOUT_S):
            response = pb.PullMessageResponse.FromString(part)
            if response.HasField("status"):
                check(response.status)

    return once


def peek_request(topic: str) -> admin_pb2.PeekRequest:
    return admin_pb2.PeekRequest(topic=admin_pb2.Name(name=topic), queue=0, max=1)


def lag_request(topic: str) -> admin_pb2.GroupLagRequest:
    """It concerns every topic of the consumer group."""
    return admin_pb2.GroupLagRequest(group=admin_pb2.Name(name="bench"))


def admin_read(
    method: str, request: Any, answer: Any
) -> Callable[[grpc.aio.Channel, str], Callable[[], Awaitable[None]]]:
    """A question to the admin service."""

    def of(channel: grpc.aio.Channel, topic: str) -> Callable[[], Awaitable[None]]:
        call: Any = channel.unary_unary("/ledgermq.v1.Admin/" + method)
        data = request(topic).SerializeToString()

        async def once() -> None:
            response = answer.FromString(await call(data, timeout=TIMEOUT_S))
            if response.status.code != ADMIN_OK:
                raise RuntimeError(
                    f"the server answers {response.status.code}: {response.status.message}"
                )

        return once

    return of


def receive_request(options: argparse.Namespace) -> pb.ReceiveMessageRequest:
    request = pb.ReceiveMessageRequest(group=pb.Resource(name=options.group), batch_size=32)
    request.message_queue.topic.name = options.topic
    request.message_queue.id = -1
    request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
    request.invisible_duration.FromSeconds(60)
    request.long_polling_timeout.FromSeconds(5)
    return request


def check(status: pb.Status) -> None:
    if status.code != pb.OK:
        raise RuntimeError(f"the server answers {status.code}: {status.message}")


READS: dict[str, Callable[[grpc.aio.Channel, str], Callable[[], Awaitable[None]]]] = {
    "QueryOffset": query_offset,
    "PullMessage": pull,
    "Peek": admin_read("Peek", peek_request, admin_pb2.PeekResponse),
    "GroupLag": admin_read("GroupLag", lag_request, admin_pb2.GroupLagResponse),
}
WORK: dict[str, Callable[[grpc.aio.Channel, argparse.Namespace], Awaitable[dict[str, float]]]] = {
    "send": send,
    "fill": fill,
    "receive": receive,
    "lease": lease,
    "deliver": deliver,
    "poll": poll,
    "read": read,
}


async def work(options: argparse.Namespace) -> dict[str, float]:
    async with grpc.aio.insecure_channel(
        options.target, options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        await channel.channel_ready()
        return await WORK[options.what](channel, options)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m bench.tools.load", description=__doc__)
    out.add_argument("what", choices=WORK)
    out.add_argument("--target", required=True)
    out.add_argument("--topic", required=True)
    out.add_argument("--group", default="bench")
    out.add_argument("--call", choices=READS, default="QueryOffset", help="read: the method")
    out.add_argument("--window", type=int, default=64)
    out.add_argument("--batch", type=int, default=1)
    out.add_argument("--rate", type=float, help="sends per second")
    out.add_argument(
        "--steered", action="store_true", help="send: measure from one line on stdin to the next"
    )
    out.add_argument("--limit", type=int, default=300_000)
    out.add_argument("--body-bytes", type=int, default=100)
    out.add_argument("--warm-up-s", type=float, default=2)
    out.add_argument("--seconds", type=float, default=10)
    return out


def main() -> None:
    uvloop.install()
    print(json.dumps(asyncio.run(work(parser().parse_args()))))


if __name__ == "__main__":
    main()
