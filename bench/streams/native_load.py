"""The load generator of native streams: a lean `grpc.aio` client in its own process that uses
`ledgermq.v1.Log` with our frames.

`python -m bench.streams.native_load produce|consume|deliver --target HOST:PORT --topic NAME …`
prints one JSON line. The target leads the broker group. Frames are encoded while the clock runs, so
every figure includes the client's share, as for any client. With `--rate`, the intended times of
frames are fixed before the run and latency counts from there (`bench.tools.histogram`); without, a
fixed number is in flight and the percentiles are those at saturation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import numpy as np
import uvloop

from bench.tools.histogram import Histogram, Schedule
from bench.tools.load import cpu_s
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import EncodedFrame, FrameBuilder, read_entries
from ledgermq.proto.workers import MEMBER_METADATA, PASSED_BY

SERVICE = "/ledgermq.v1.Log/"
CHANNEL = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
METADATA = (("x-mq-client-id", "bench"),)
GROUP = "g1"
CREDIT_BYTES = 16 << 20
BODIES = 4096
ANSWER_WITHIN_S = 60.0


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def produce_request(topic: str, frame: EncodedFrame) -> bytes:
    """A ProduceRequest with a frame, built with one copy of the entries."""
    name = topic.encode()
    head = b"\x12" + varint(len(name)) + name
    if frame.first_sequence:
        head += b"\x18" + varint(frame.first_sequence)
    head += b"\x22" + varint(len(frame.sizes))
    tail = b"\x2a" + varint(len(frame.entries))
    inner = len(head) + len(frame.sizes) + len(tail) + len(frame.entries)
    return b"".join((b"\x12", varint(inner), head, frame.sizes, tail, frame.entries))


class Meter:
    """Messages acknowledged between two moments, counted one by one."""

    def __init__(self, warm_up_s: float, seconds: float) -> None:
        self.begin_ns = time.monotonic_ns() + round(warm_up_s * 1e9)
        self.end_ns = self.begin_ns + round(seconds * 1e9)
        self.histogram = Histogram()
        self.messages = self.total = self.frames = self.entry_bytes = 0
        self._cpu_s = cpu_s()

    @property
    def over(self) -> bool:
        return time.monotonic_ns() >= self.end_ns

    def count(self, since_ns: int, messages: int) -> None:
        now = time.monotonic_ns()
        self.total += messages
        if self.begin_ns <= now < self.end_ns:
            self.histogram.add(np.array([now - since_ns]), np.array([messages]))
            self.messages += messages
            self.frames += 1

    @property
    def cpu_s(self) -> float:
        """Processor time of this process since the meter was created."""
        return cpu_s() - self._cpu_s

    def result(self, body_bytes: int, used_s: float | None = None) -> dict[str, Any]:
        seconds = (self.end_ns - self.begin_ns) / 1e9
        used = self.cpu_s if used_s is None else used_s
        return {
            "messages": self.messages,
            "total": self.total,
            "frames": self.frames,
            "messages_per_s": round(self.messages / seconds, 1),
            "payload_mib_per_s": round(self.messages * body_bytes / seconds / (1 << 20), 2),
            "entry_bytes_a_message": round(self.entry_bytes / max(self.total, 1), 1),
            "client_cpu_s": round(used, 2),
            "client_cpu_us_a_message": round(used / max(self.total, 1) * 1e6, 3),
            **(self.histogram.summary_ms() if self.histogram.total else {}),
            "histogram": self.histogram.document(),
        }


class Bodies:
    """Incompressible bytes, cut differently for every frame."""

    def __init__(self, body_bytes: int) -> None:
        self._size = body_bytes
        self._pool = random.Random(7).randbytes(body_bytes + BODIES)
        self._at = 0

    def frame(self, count: int, stamp_ns: int | None = None) -> list[bytes]:
        size, pool = self._size, self._pool
        stamp = b"" if stamp_ns is None else struct.pack("<Q", stamp_ns)
        begin = len(stamp)
        self._at = (self._at + 1) % (BODIES - 1)
        at = self._at
        return [stamp + pool[(at + k) % BODIES :][: size - begin] for k in range(count)]


class Producer:
    """One stream of frames into one broker group; frames are answered in order."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        options: argparse.Namespace,
        meter: Meter,
        *,
        stamped: bool = False,
    ) -> None:
        meant = ((MEMBER_METADATA, options.node),) if options.node else ()
        self._call: Any = channel.stream_stream(SERVICE + "Produce")(metadata=(*METADATA, *meant))
        self._options, self._meter, self._stamped = options, meter, stamped
        self._bodies = Bodies(options.body_bytes)
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._sequence = 0
        self._frame = 0
        self.acknowledged = 0
        self.passed_by: str | None = None
        """The worker that accepted the connection, if it passes the stream on to another one."""

    async def open(self) -> None:
        options = self._options
        wanted = pb.OpenProducer(
            broker_group=options.group, client_id="bench", memory=options.memory
        )
        await self._call.write(pb.ProduceRequest(open=wanted).SerializeToString())
        opened = _expect(pb.ProduceResponse.FromString(await self._call.read()), "opened")
        self.passed_by = dict(await self._call.initial_metadata()).get(PASSED_BY)
        self._builder = FrameBuilder(
            options.topic, opened.log_tag, opened.producer_id, opened.epoch
        )
        self._sequence = opened.next_sequence
        self._window = min(options.window, opened.window_frames or options.window)
        self._room = asyncio.Semaphore(self._window)

    def _queues(self, count: int) -> Any:
        options = self._options
        if options.spread == "frame":
            return self._frame % options.queues
        return (np.arange(count, dtype=np.int32) + self._sequence) % options.queues

    async def _send(self, count: int, intended_ns: int) -> None:
        frame = self._builder.encode(
            self._sequence,
            self._queues(count),
            self._bodies.frame(count, intended_ns if self._stamped else None),
            born_ms=time.time_ns() // 1_000_000,
        )
        self._waiting.append((self._sequence, count, intended_ns))
        self._meter.entry_bytes += len(frame.entries)
        self._sequence, self._frame = self._sequence + count, self._frame + 1
        await self._call.write(produce_request(self._options.topic, frame))

    async def run(self) -> None:
        """Send frames until the time is over or `limit` messages are sent; returns when all are
        answered."""
        reading = asyncio.create_task(self._read())
        rate, batch, limit = self._options.rate, self._options.batch, self._options.limit
        schedule = (
            Schedule(time.monotonic_ns(), rate / batch / self._options.producers) if rate else None
        )
        number = 0
        while not self._meter.over and (not limit or number * batch < limit):
            intended = time.monotonic_ns()
            if schedule is not None:
                intended = schedule.intended_ns(number)
                await asyncio.sleep(max(0.0, (intended - time.monotonic_ns()) / 1e9))
            await self._acquire(reading)
            await self._send(batch, time.monotonic_ns() if schedule is None else intended)
            number += 1
        for _ in range(self._window):
            await self._acquire(reading)
        await self._call.done_writing()
        reading.cancel()
        self._call.cancel()

    async def _acquire(self, reading: asyncio.Task[None]) -> None:
        if self._room.locked():
            waiting = asyncio.create_task(self._room.acquire())
            await asyncio.wait(
                (waiting, reading), timeout=ANSWER_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not waiting.done():
                waiting.cancel()
                raise (
                    reading.exception()
                    if reading.done() and reading.exception()
                    else RuntimeError("no answer came")
                )  # type: ignore[misc]
            return
        await self._room.acquire()

    async def _read(self) -> None:
        while (data := await self._call.read()) is not grpc.aio.EOF:
            ack = _expect(pb.ProduceResponse.FromString(data), "ack")
            first, count, since = self._waiting.popleft()
            if (ack.first_sequence, ack.count) != (first, count):
                raise RuntimeError(
                    f"frame {first} (+{count}) was acknowledged as {ack.first_sequence}"
                    f" (+{ack.count})"
                )
            self.acknowledged += count
            self._meter.count(since, count)
            self._room.release()
        raise RuntimeError("the stream ended")


def _expect(response: Any, what: str) -> Any:
    kind = response.WhichOneof("response")
    if kind != what:
        raise RuntimeError(
            f"{what} was expected, but the node answers: {kind}:"
            f" {getattr(response, kind or '', response)}"
        )
    return getattr(response, what)


async def _attend(meter: Meter) -> None:
    """Report the end of the warm-up, and end the measured time when standard input ends."""
    await asyncio.sleep(max(0.0, (meter.begin_ns - time.monotonic_ns()) / 1e9))
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    meter.end_ns = min(meter.end_ns, time.monotonic_ns())


async def produce(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, Any]:
    """`producers` streams, each with at most `window` frames of `batch` messages in flight."""
    meter = Meter(options.warm_up_s, options.seconds)
    attending = asyncio.create_task(_attend(meter)) if options.attended else None
    producers = [Producer(channel, options, meter) for _ in range(options.producers)]
    await asyncio.gather(*(producer.open() for producer in producers))
    began = time.monotonic()
    await asyncio.gather(*(producer.run() for producer in producers))
    if attending is not None:
        await attending
    took = time.monotonic() - began
    result = {**meter.result(options.body_bytes), "passed_by": producers[0].passed_by}
    if options.limit:
        payload = meter.total * options.body_bytes / took / (1 << 20)
        result |= {
            "seconds": round(took, 3),
            "messages_per_s": round(meter.total / took, 1),
            "payload_mib_per_s": round(payload, 2),
        }
    return {**result, "open_loop": bool(options.rate)}


class Consumer:
    """One stream of entries of all queues; credit is returned as they are read."""

    def __init__(self, channel: grpc.aio.Channel, options: argparse.Namespace) -> None:
        self._call: Any = channel.stream_stream(SERVICE + "Fetch")(metadata=METADATA)
        self._options = options
        self.messages = self.bytes = self.responses = self.skipped = 0

    async def open(self, *, earliest: bool, until_end: bool) -> None:
        places = [
            pb.FetchFrom(queue=queue, earliest=earliest) for queue in range(self._options.queues)
        ]
        words = {
            "broker_group": GROUP,
            "topic": self._options.topic,
            "from": places,
            "until_end": until_end,
            "credit_bytes": CREDIT_BYTES,
        }
        await self._call.write(pb.FetchRequest(open=pb.OpenFetch(**words)).SerializeToString())
        _expect(pb.FetchResponse.FromString(await self._call.read()), "opened")
        self._until_end = until_end

    async def run(self, seen: Callable[[Any], None] | None = None) -> None:
        """Run to the requested end, or forever; `seen` receives every Entries message."""
        used = 0
        while (data := await self._call.read()) is not grpc.aio.EOF:
            response = pb.FetchResponse.FromString(data)
            if response.WhichOneof("response") == "caught_up":
                if self._until_end:
                    await self._call.done_writing()
                    return
                continue
            entries = _expect(response, "entries")
            self.messages += len(entries.sizes) // 4
            self.bytes += len(entries.entries)
            self.responses += 1
            self.skipped += entries.skipped
            if seen is not None:
                seen(entries)
            used += len(entries.entries)
            if used * 4 > CREDIT_BYTES:
                await self._call.write(pb.FetchRequest(credit_bytes=used).SerializeToString())
                used = 0
        raise RuntimeError("the stream ended")

    def cancel(self) -> None:
        self._call.cancel()


async def consume(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, Any]:
    """Read everything from the first message to the end; with `--decode` every body is converted to
    Python bytes."""
    consumer, used = Consumer(channel, options), cpu_s()
    began = time.monotonic()
    await consumer.open(earliest=True, until_end=True)
    await consumer.run(_decode if options.decode else None)
    seconds = time.monotonic() - began
    if options.limit and consumer.messages < options.limit:
        raise RuntimeError(f"{consumer.messages} of {options.limit} messages came")
    return {
        "messages": consumer.messages,
        "seconds": round(seconds, 3),
        "messages_per_s": round(consumer.messages / seconds, 1),
        "entries_mb_per_s": round(consumer.bytes / seconds / 1e6, 1),
        "payload_mb_per_s": round(consumer.messages * options.body_bytes / seconds / 1e6, 1),
        "entry_bytes_a_message": round(consumer.bytes / max(consumer.messages, 1), 1),
        "responses": consumer.responses,
        "skipped": consumer.skipped,
        "client_cpu_us_a_message": round((cpu_s() - used) / max(consumer.messages, 1) * 1e6, 3),
    }


def _decode(entries: Any) -> None:
    read_entries(entries.sizes, entries.entries, verify=True).bodies()


async def deliver(channel: grpc.aio.Channel, options: argparse.Namespace) -> dict[str, Any]:
    """A consumer at the end of the log while frames are produced: from the intended time of a send
    to its arrival."""
    meter, arrivals = (
        Meter(options.warm_up_s, options.seconds),
        Meter(options.warm_up_s, options.seconds),
    )
    consumer, producer = Consumer(channel, options), Producer(channel, options, meter, stamped=True)
    await consumer.open(earliest=False, until_end=False)
    await producer.open()

    def arrived(entries: Any) -> None:
        columns = read_entries(entries.sizes, entries.entries, verify=False)
        stamps = np.array(
            [struct.unpack_from("<Q", body)[0] for body in columns.bodies()], np.int64
        )
        for stamp, count in zip(*np.unique(stamps, return_counts=True), strict=True):
            arrivals.count(int(stamp), int(count))

    tailing = asyncio.create_task(consumer.run(arrived))
    await producer.run()
    give_up_at = time.monotonic() + ANSWER_WITHIN_S
    while arrivals.total < meter.total and time.monotonic() < give_up_at and not tailing.done():
        await asyncio.sleep(0.01)
    if tailing.done():
        await tailing
    tailing.cancel()
    consumer.cancel()
    if arrivals.total != meter.total:
        raise RuntimeError(f"{arrivals.total} of {meter.total} messages arrived")
    return {
        "produced": meter.result(options.body_bytes),
        "arrived": arrivals.result(options.body_bytes),
        "open_loop": bool(options.rate),
    }


WORK: dict[str, Callable[[grpc.aio.Channel, argparse.Namespace], Awaitable[dict[str, Any]]]] = {
    "produce": produce,
    "consume": consume,
    "deliver": deliver,
}


async def work(options: argparse.Namespace) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(options.target, options=CHANNEL) as channel:
        await channel.channel_ready()
        return await WORK[options.what](channel, options)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m bench.streams.native_load", description=__doc__)
    found.add_argument("what", choices=WORK)
    found.add_argument("--target", required=True)
    found.add_argument("--topic", required=True)
    found.add_argument("--queues", type=int, default=8)
    found.add_argument(
        "--spread",
        choices=("frame", "message"),
        default="frame",
        help="unit that is distributed over the queues in turn",
    )
    found.add_argument("--producers", type=int, default=1)
    found.add_argument(
        "--window",
        type=int,
        default=5,
        help="frames of a producer in flight; the node may allow fewer",
    )
    found.add_argument("--batch", type=int, default=1000)
    found.add_argument("--rate", type=float, help="messages per second of all producers together")
    found.add_argument(
        "--limit",
        type=int,
        default=0,
        help="produce: messages of each producer; consume: minimum number that must arrive",
    )
    found.add_argument("--body-bytes", type=int, default=100)
    found.add_argument("--group", default=GROUP, help="produce: the broker group")
    found.add_argument(
        "--node", default="", help="produce: the worker that leads it, where several share a port"
    )
    found.add_argument("--memory", action="store_true")
    found.add_argument("--decode", action="store_true")
    found.add_argument(
        "--attended",
        action="store_true",
        help="produce: report the start of measured time; it ends with standard input",
    )
    found.add_argument("--warm-up-s", type=float, default=2)
    found.add_argument("--seconds", type=float, default=10)
    return found


def main() -> None:
    uvloop.install()
    print(json.dumps(asyncio.run(work(parser().parse_args()))))


if __name__ == "__main__":
    main()
