"""The same client in an event loop: every method is awaited, and calls run concurrently."""

import asyncio
import os
import sys

from ledgermq.client import AsyncAdmin, AsyncConnection, ClusterError

ENDPOINTS = os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081")


async def main() -> None:
    async with AsyncConnection(ENDPOINTS, timeout_s=20) as connection:
        admin = AsyncAdmin(connection)
        names = [f"sensor-{number}" for number in range(3)]
        topics = await asyncio.gather(*(admin.create_topic(name, queues=2) for name in names))
        print("created", [topic.name for topic in topics])

        status, clients, groups = await asyncio.gather(
            admin.status(), admin.clients(), admin.groups()
        )
        print(
            f"{len(status.nodes)} nodes, {len(clients.clients)} clients, {len(groups)} consumer"
            " groups"
        )

        await asyncio.gather(*(admin.delete_topic(name) for name in names))


try:
    asyncio.run(main())
except ClusterError as error:
    # No node answers, or the cluster refuses: the error says what happened, and what to do.
    sys.exit(f"error: {error}")
