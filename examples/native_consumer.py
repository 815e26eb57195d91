"""Reading a topic with the native consumer: alone, as a member of a consumer group, and as Arrow
batches.

    python examples/native_consumer.py 127.0.0.1:8081 orders

Needs the topic (`ledgermq topic create orders`) and some messages in it; the last part needs
pyarrow.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from ledgermq.client import AsyncConsumer, ClusterError, Consumer


def read_everything(endpoints: str, topic: str) -> None:
    """Read every message that exists now, once and in queue order."""
    with Consumer(endpoints, topic, until_end=True) as consumer:
        for batch in consumer.batches():
            print(
                f"queue {batch.queue}: {len(batch)} messages from offset {batch.offsets[0]} on,"
                f" {sum(map(len, batch.bodies()))} bytes"
            )
        print(
            f"lag {consumer.statistics().lag}, removed before they were read:"
            f" {consumer.statistics().skipped}"
        )


async def work_in_a_group(endpoints: str, topic: str) -> None:
    """At least once: a batch is committed when the next one is requested, and other members take
    over the queues when this one leaves."""

    def assigned(queues: tuple[int, ...]) -> None:
        print("queues of this member:", *queues)

    async with AsyncConsumer(
        endpoints, topic, group="example", auto_commit=True, on_assigned=assigned
    ) as consumer:
        while (batch := await consumer.next_batch(wait_s=5)) is not None:
            for message in batch:
                print(message.offset, message.tag, message.body[:40])


def last_hour_as_arrow(endpoints: str, topic: str) -> None:
    """Columns for data processing, without an object per message."""
    start = datetime.now(UTC) - timedelta(hours=1)
    with Consumer(endpoints, topic, start=start, until_end=True) as consumer:
        rows = sum(
            table.num_rows
            for table in consumer.arrow_batches(["queue", "offset", "store_ms", "body"])
        )
    print(f"{rows} messages of the last hour")


if __name__ == "__main__":
    try:
        read_everything(*sys.argv[1:3])
        asyncio.run(work_in_a_group(*sys.argv[1:3]))
        last_hour_as_arrow(*sys.argv[1:3])
    except ClusterError as error:
        # No node answers, or the cluster refuses: the error says what happened, and what to do.
        sys.exit(f"error: {error}")
