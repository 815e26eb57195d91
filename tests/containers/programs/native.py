"""Native clients of one topic in a container of the nodes' network: `python native.py ENDPOINTS
TOPIC QUEUES`.

One sender per queue sends one message at a time; one reader without a group reads all queues. The
program prints facts as JSON lines on stdout, with times of CLOCK_MONOTONIC, which all containers of
a host share, and judges nothing. A line on stdin ends the senders; the end of stdin ends the
reader.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time

from ledgermq.client.errors import ClusterError
from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.client.native.producers.producer import AsyncProducer

PACE_S = 0.05
TIMEOUT_S = 8.0


def emit(**fact: object) -> None:
    print(json.dumps(fact), flush=True)


async def send(producer: AsyncProducer, queue: int, ended: asyncio.Event) -> None:
    for number in itertools.count():
        if ended.is_set():
            return
        value, invoked = f"native{queue}-{number}", time.monotonic()
        try:
            done = await (await producer.send(value.encode(), queue=queue))
        except ClusterError as error:
            emit(
                fact="send",
                value=value,
                queue=queue,
                invoked=invoked,
                unknown=error.unknown,
                error=str(error),
            )
        else:
            emit(
                fact="send",
                value=value,
                queue=done.queue,
                invoked=invoked,
                returned=time.monotonic(),
                offset=done.offset,
            )
        await asyncio.sleep(PACE_S)


async def read(endpoints: str, topic: str) -> None:
    """Read forever; after a failure, start again with the first message."""
    while True:
        try:
            async with AsyncConsumer(endpoints, topic) as consumer:
                async for batch in consumer.batches():
                    values = [bytes(body).decode() for body in batch.bodies()]
                    emit(
                        fact="read",
                        queue=batch.queue,
                        offset=batch.next_offset - len(values),
                        values=values,
                    )
        except ClusterError as error:
            emit(fact="reader failed", error=str(error))
            await asyncio.sleep(0.2)


async def main(endpoints: str, topic: str, queues: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    reading = loop.create_task(read(endpoints, topic))
    async with AsyncProducer(endpoints, topic, timeout_s=TIMEOUT_S) as producer:
        sending = [loop.create_task(send(producer, queue, ended)) for queue in range(queues)]
        await loop.run_in_executor(None, sys.stdin.readline)
        ended.set()
        await asyncio.gather(*sending)
    emit(fact="senders ended")
    await loop.run_in_executor(None, sys.stdin.read)
    reading.cancel()


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
