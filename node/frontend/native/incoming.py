"""The client's side of a stream: its requests one by one, and the wait for it to fall silent once it has been told the last thing.

A node that ends a stream while its client still writes takes the answers from it that it has not read: the write fails, and with it, in the
libraries, the whole call. So after the last answer a stream goes on hearing, and ends when the client closes its side, or after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio

LINGER_S = 1.0


class Incoming:
    """Requests of one stream. One caller at a time waits for the next; whoever is cancelled while he waits loses none."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._reading: asyncio.Future[Any] | None = None

    async def next(self) -> Any:
        """The next request's bytes, or `grpc.aio.EOF` once the client has closed its side."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._context.read())
        data = await asyncio.shield(self._reading)
        self._reading = None
        return data

    async def silence(self) -> None:
        """The last answer is given: hear the client out, and take nothing in."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while await self.next() is not grpc.aio.EOF:
                    pass

    def close(self) -> None:
        """Nobody waits any more."""
        if self._reading is not None:
            self._reading.cancel()
