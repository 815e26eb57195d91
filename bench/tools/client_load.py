"""The load of an application: `AsyncProducer.send`, one message after the other, `python -m
bench.tools.client_load --target … --topic …`.

The client itself batches messages that are sent while other frames are in flight. Prints one JSON
line; latency runs from the call of `send`, with its wait for room, to the acknowledgement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import uvloop

from bench.streams.native_load import Bodies, Meter
from ledgermq.client import AsyncProducer

BUFFER_BYTES = 2 << 20
"""Limit on unanswered messages: a higher one only makes the queue longer."""
DISTINCT = 1000


async def work(options: argparse.Namespace) -> dict[str, Any]:
    bodies = Bodies(options.body_bytes).frame(DISTINCT)
    async with AsyncProducer(
        options.target, options.topic, buffer_bytes=BUFFER_BYTES, memory=options.memory
    ) as producer:
        meter = Meter(options.warm_up_s, options.seconds)
        failed: list[BaseException] = []
        took_ns: list[int] = []
        number = 0

        def answered(future: asyncio.Future[Any], since_ns: int) -> None:
            if future.exception() is None:
                now = time.monotonic_ns()
                meter.total += 1
                if meter.begin_ns <= now < meter.end_ns:
                    took_ns.append(now - since_ns)
            else:
                failed.append(future.exception())  # type: ignore[arg-type]

        while not meter.over and not failed:
            since = time.monotonic_ns()
            future = await producer.send(bodies[number % DISTINCT])
            future.add_done_callback(lambda done, since=since: answered(done, since))  # type: ignore[misc]
            number += 1
        await producer.flush()
        await asyncio.sleep(0)
    if failed:
        raise failed[0]
    if meter.total != number:
        raise RuntimeError(f"{meter.total} of {number} messages were acknowledged")
    used = meter.cpu_s
    meter.messages = len(took_ns)
    meter.histogram.add(took_ns)
    return meter.result(options.body_bytes, used)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tools.client_load", description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--warm-up-s", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    uvloop.install()
    print(json.dumps(asyncio.run(work(parser.parse_args()))))


if __name__ == "__main__":
    main()
