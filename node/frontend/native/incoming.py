"""The client's side of a stream: reads its requests one by one, and after the last answer waits
until the client closes its side.

If a node ends a stream while the client still writes, the client loses the answers it has not read:
its write fails, and in the gRPC libraries the whole call with it. After the last answer a stream
therefore keeps reading until the client closes its side, or LINGER_S has passed.
"""

from __future__ import annotations

import asyncio
import contextlib

from ledgermq.node.frontend.ports import ServerCall

LINGER_S = 1.0


class Incoming:
    """The requests of one stream. One caller at a time waits for the next; a cancelled wait loses
    no request."""

    def __init__(self, context: ServerCall) -> None:
        self._context = context
        self._reading: asyncio.Future[bytes | None] | None = None

    async def next(self) -> bytes | None:
        """The next request's bytes, or None once the client has closed its side."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._context.read())
        data = await asyncio.shield(self._reading)
        self._reading = None
        return data

    async def silence(self) -> None:
        """After the last answer: read and drop requests until the client closes its side or
        LINGER_S has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while await self.next() is not None:
                    pass

    def close(self) -> None:
        """Cancel the pending read; no caller waits any more."""
        if self._reading is not None:
            self._reading.cancel()
