"""A native producer that outlives leaders, and prints one JSON line.

    python -m bench.streams.native_survivor --endpoints HOST:PORT,… --topic NAME …

Frames have intended times. Whatever happens to a stream, the producer resumes at some node with the
same id and epoch, and repeats unanswered frames in order. The line contains the times of
acknowledgements (CLOCK_MONOTONIC, which all processes share), so the process that killed a leader
sees how long none arrived.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import grpc.aio
import uvloop

from bench.streams.native_load import CHANNEL, GROUP, METADATA, SERVICE, Bodies, produce_request
from bench.tools.histogram import Histogram, Schedule
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import FrameBuilder

AGAIN_S = 0.02
OPEN_S, ANSWER_S = 0.5, 3.0
"""A node that does not open a stream, or answers no frame, for this long is left."""
QUEUES = 8


@dataclass
class Unanswered:
    """Messages that were sent but not acknowledged yet."""

    first: int
    bodies: list[bytes]
    intended_ns: int


class Gone(Exception):
    """This stream has ended; `endpoint`: where to continue, if a node named it."""

    def __init__(self, reason: str, endpoint: str = "") -> None:
        super().__init__(reason)
        self.endpoint = endpoint


class Survivor:
    """One producer. Frames are rebuilt for every attempt, because their ids contain values assigned
    by the node."""

    def __init__(self, endpoints: list[str], topic: str) -> None:
        self._endpoints, self._topic = endpoints, topic
        self._at = 0
        self._identity: tuple[int, int, int] | None = None
        self.waiting: deque[Unanswered] = deque()
        self.sequence = 0
        self.acknowledged: list[tuple[int, int]] = []
        self.histogram = Histogram()
        self.streams, self.changed = 0, asyncio.Event()
        self._sent = 0

    def hand_over(self, bodies: list[bytes], intended_ns: int) -> None:
        self.waiting.append(Unanswered(self.sequence, bodies, intended_ns))
        self.sequence += len(bodies)
        self.changed.set()

    async def run(self) -> None:
        """Run forever, from node to node."""
        while True:
            target = self._endpoints[self._at % len(self._endpoints)]
            try:
                async with grpc.aio.insecure_channel(target, options=CHANNEL) as channel:
                    await self._stream(channel)
            except (Gone, grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
                told = getattr(error, "endpoint", "")
                self._at = self._endpoints.index(told) if told in self._endpoints else self._at + 1
            await asyncio.sleep(AGAIN_S)

    async def _stream(self, channel: grpc.aio.Channel) -> None:
        call: Any = channel.stream_stream(SERVICE + "Produce")(metadata=METADATA)
        wanted = pb.OpenProducer(broker_group=GROUP, client_id="bench-survivor")
        if self._identity is not None:
            wanted.producer_id, wanted.epoch = self._identity[1:]
        await asyncio.wait_for(
            call.write(pb.ProduceRequest(open=wanted).SerializeToString()), OPEN_S
        )
        opened = self._expect(await asyncio.wait_for(call.read(), OPEN_S), "opened")
        self._identity = opened.log_tag, opened.producer_id, opened.epoch
        self.streams += 1
        self._stored_until(opened.next_sequence)
        self._sent = 0
        writing = asyncio.create_task(self._write(call, opened.window_frames or 5))
        try:
            while True:
                self._answer(
                    await asyncio.wait_for(call.read(), ANSWER_S if self.waiting else None)
                )
        finally:
            writing.cancel()
            call.cancel()

    async def _write(self, call: Any, window: int) -> None:
        assert self._identity is not None
        builder = FrameBuilder(self._topic, *self._identity)
        while True:
            while self._sent < min(window, len(self.waiting)):
                one = self.waiting[self._sent]
                queue = (one.first // max(len(one.bodies), 1)) % QUEUES
                frame = builder.encode(
                    one.first, queue, one.bodies, born_ms=time.time_ns() // 1_000_000
                )
                self._sent += 1
                await call.write(produce_request(self._topic, frame))
            self.changed.clear()
            await self.changed.wait()

    def _expect(self, data: Any, what: str) -> Any:
        if data is grpc.aio.EOF:
            raise Gone("the stream ended")
        response = pb.ProduceResponse.FromString(data)
        kind = response.WhichOneof("response")
        if kind == "redirect":
            raise Gone("redirect", response.redirect.endpoint)
        if kind == "problem":
            if not response.problem.retryable:
                raise RuntimeError(
                    f"the node answers {response.problem.code}: {response.problem.message}"
                )
            raise Gone(response.problem.message)
        if kind == "rejected":
            self._rejected(response.rejected)
        if kind != what:
            raise RuntimeError(f"{what} was expected: {response}")
        return getattr(response, what)

    def _rejected(self, rejected: Any) -> None:
        """A former leader stored a part: the answer acknowledges that part, and the rest is sent
        again on the next stream."""
        if rejected.next_sequence > rejected.first_sequence:
            self._stored_until(rejected.next_sequence)
            raise Gone("a frame was cut")
        if rejected.problem.retryable:
            raise Gone(rejected.problem.message)
        raise RuntimeError(
            f"frame {rejected.first_sequence} was rejected: {rejected.problem.code}"
            f" {rejected.problem.message}"
        )

    def _answer(self, data: Any) -> None:
        ack = self._expect(data, "ack")
        one = self.waiting[0]
        if (ack.first_sequence, ack.count) != (one.first, len(one.bodies)):
            raise RuntimeError(
                f"frame {one.first} (+{len(one.bodies)}) was acknowledged as {ack.first_sequence}"
                f" (+{ack.count})"
            )
        self._sent -= 1
        self._done(self.waiting.popleft(), len(one.bodies))

    def _stored_until(self, next_sequence: int) -> None:
        """Everything before is stored, whichever node acknowledged it."""
        if next_sequence > self.sequence:
            raise RuntimeError(
                f"sequence {next_sequence} is next, but only {self.sequence} messages were sent"
            )
        while self.waiting and self.waiting[0].first < next_sequence:
            one = self.waiting[0]
            stored = next_sequence - one.first
            if stored >= len(one.bodies):
                self.waiting.popleft()
                self._done(one, len(one.bodies))
                continue
            self._done(one, stored)
            one.first, one.bodies = next_sequence, one.bodies[stored:]

    def _done(self, one: Unanswered, count: int) -> None:
        now = time.monotonic_ns()
        self.acknowledged.append((now, count))
        self.histogram.add([now - one.intended_ns])
        self.changed.set()


async def produce(options: argparse.Namespace) -> dict[str, Any]:
    survivor, bodies = (
        Survivor(options.endpoints.split(","), options.topic),
        Bodies(options.body_bytes),
    )
    running = asyncio.create_task(survivor.run())
    schedule = Schedule(time.monotonic_ns(), options.rate / options.batch)
    print("begun", flush=True)
    for number in range(int(options.rate * options.seconds / options.batch)):
        intended = schedule.intended_ns(number)
        await asyncio.sleep(max(0.0, (intended - time.monotonic_ns()) / 1e9))
        survivor.hand_over(bodies.frame(options.batch), intended)
        if running.done():
            break
    give_up_at = time.monotonic() + 60
    while survivor.waiting and time.monotonic() < give_up_at and not running.done():
        await asyncio.sleep(0.01)
    if running.done():
        running.result()
    running.cancel()
    total = sum(count for _, count in survivor.acknowledged)
    if survivor.waiting or total != survivor.sequence:
        raise RuntimeError(f"{total} of {survivor.sequence} messages were acknowledged")
    times = [at for at, _ in survivor.acknowledged]
    return {
        "messages": total,
        "streams": survivor.streams,
        "acknowledged_ns": times,
        **survivor.histogram.summary_ms(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.streams.native_survivor", description=__doc__
    )
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, default=10_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10)
    uvloop.install()
    print(json.dumps(asyncio.run(produce(parser.parse_args()))))


if __name__ == "__main__":
    main()
