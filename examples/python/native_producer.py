"""Producing with LedgerMQ's own client, over native batch streams: one by one, in columns, and the
outcome of each message."""

import asyncio
import os
import sys

from ledgermq.client import Admin, AsyncProducer, BatchFailed, ClusterError, Connection, Producer

ENDPOINTS = os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081")


async def main() -> None:
    async with AsyncProducer(ENDPOINTS, "readings", compression="zstd") as producer:
        # `send` waits only while the buffer is full; the future is the acknowledgement.
        futures = [
            await producer.send(f"{n} degrees".encode(), tag="indoor", order_key=f"sensor-{n % 3}")
            for n in range(100)
        ]
        first, *_ = await asyncio.gather(*futures)
        print("first in queue", first.queue, "at offset", first.offset, "with id", first.message_id)
        assert first.receipt is not None
        print("durable on", [replica.node for replica in first.receipt.replicas])

        # A batch needs no object per message. A message that cannot be sent fails alone, and is
        # reported by its row.
        batch = await producer.send_batch([b"%d" % n for n in range(10_000)] + [b""])
        try:
            await batch
        except BatchFailed as failed:
            print(
                "acknowledged",
                sum(frame.count for frame in failed.acknowledged.frames),
                "but not row",
                *failed.failures[0].rows,
            )


def import_readings() -> None:
    """The same for threads. A name outlives the process: only its newest producer can send, and it
    knows how many messages are stored."""
    with Producer(ENDPOINTS, "readings", name="importer") as producer:
        print("stored under this name:", sum(producer.next_sequences().values()))
        producer.send(b"the last one").result(timeout=30)
        print("statistics:", producer.statistics.acknowledged, "acknowledged")


try:
    with Connection(ENDPOINTS) as connection:
        Admin(connection).create_topic("readings")
    asyncio.run(main())
    import_readings()
except ClusterError as error:
    # No node answers, or the cluster refuses: the error says what happened, and what to do.
    sys.exit(f"error: {error}")
