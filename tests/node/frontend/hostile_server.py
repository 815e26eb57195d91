"""The service of `test_node_call_servers.py` in a process of its own, so that a test can see what a
client makes it need: `python -m tests.node.frontend.hostile_server grpc.aio|native` prints the
port."""

from __future__ import annotations

import asyncio
import sys

from tests.node.test_node_call_servers import LOCAL, SERVERS, Served


async def serve(server: str) -> None:
    served = Served(SERVERS[server])
    print(await served.server.listen(LOCAL), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await served.server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
